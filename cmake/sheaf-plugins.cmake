# Plug-ins: shared libraries that libsheaf opens at run time (src/core/plugin.h). Each is built when what it needs is
# found; one that is not built is reported by whoever asks for it. A plug-in exports the one symbol `sheaf_plugin`.

function(add_sheaf_plugin name)
  add_library(sheaf_${name} MODULE ${ARGN})
  target_link_libraries(sheaf_${name} PRIVATE sheaf_headers sheaf_internal sheaf_link)
  set_target_properties(sheaf_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  if(SHEAF_INSTALL)
    install(TARGETS sheaf_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

set(SHEAF_MPI AUTO CACHE STRING "Build the MPI plug-in: AUTO (when MPI is found), ON or OFF")
if(SHEAF_MPI)
  find_package(MPI COMPONENTS C)
  if(MPI_C_FOUND)
    add_sheaf_plugin(mpi ${PROJECT_SOURCE_DIR}/src/comm/mpi.c)
    target_link_libraries(sheaf_mpi PRIVATE MPI::MPI_C)
  elseif(NOT SHEAF_MPI STREQUAL AUTO)
    message(FATAL_ERROR "MPI not found. Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()
