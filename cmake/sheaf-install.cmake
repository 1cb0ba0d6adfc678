# What `cmake --install` puts where: headers, both libraries, the command, the CMake package and sheaf.pc.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sheaf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS sheaf_headers sheaf EXPORT sheaf-targets)
install(TARGETS sheaf_static EXPORT sheaf-static-targets)
if(TARGET sheaf_cuda)
  install(TARGETS sheaf_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET sheaf_cli)
  install(TARGETS sheaf_cli)
endif()
if(TARGET sheaf_pages) # the manual page and completions
  install(DIRECTORY ${sheaf_share}/ DESTINATION ${CMAKE_INSTALL_DATADIR})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sheaf)
install(EXPORT sheaf-targets NAMESPACE sheaf:: DESTINATION ${package_dir})
install(EXPORT sheaf-static-targets NAMESPACE sheaf:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sheaf-config.cmake.in ${PROJECT_BINARY_DIR}/sheaf-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sheaf-config-version.cmake COMPATIBILITY ${package_compatibility})
install(FILES ${PROJECT_BINARY_DIR}/sheaf-config.cmake ${PROJECT_BINARY_DIR}/sheaf-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/sheaf-dependencies.cmake DESTINATION ${package_dir})

# Relative to the file's own folder, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/sheaf.pc.in ${PROJECT_BINARY_DIR}/sheaf.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sheaf.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
