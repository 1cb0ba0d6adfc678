# The tests of ops on a device, where there need not be one, with a plug-in of paper in place of CUDA's:
# tests/gpu/gpu_ops*.c, and what only paper can be asked to do. They lie in a folder of their own, since a plug-in is
# looked for beside the program first.
set(fake_folder ${CMAKE_CURRENT_BINARY_DIR}/fake)
set(paper ${CMAKE_CURRENT_LIST_DIR})
add_library(fake_cuda MODULE ${paper}/fake_cuda.c ${paper}/paper_run.c ${paper}/paper_map.c)
target_link_libraries(fake_cuda PRIVATE sheaf_static sheaf_internal sheaf_link OpenMP::OpenMP_C m)
target_link_options(fake_cuda PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/sheaf-plugin.map)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME sheaf_cuda LIBRARY_OUTPUT_DIRECTORY ${fake_folder})

function(add_paper_test name)
  add_executable(${name} ${ARGN})
  target_include_directories(${name} SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
  target_link_libraries(${name} PRIVATE sheaf_oracles ${CMOCKA_LIBRARY})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${fake_folder})
  add_dependencies(${name} fake_cuda)
  add_sheaf_test(${name} ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit)
endfunction()
set(gpu ${paper}/../gpu)
add_paper_test(test_ops_on_device ${gpu}/gpu_ops.c ${gpu}/scene.c ${gpu}/gpu_support.c)
add_paper_test(test_layers_on_device ${gpu}/gpu_ops_layers.c ${gpu}/scene.c ${gpu}/gpu_support.c)
add_paper_test(test_device_alone ${gpu}/gpu_ops_device.c ${gpu}/scene.c ${gpu}/gpu_support.c)
add_paper_test(test_device_faults ${paper}/test_device_faults.c)

# The commands on files, with --device.
if(TARGET sheaf_cli)
  add_sheaf_test(test_files_on_device bash ${CMAKE_CURRENT_LIST_DIR}/../scripts/check_device.sh $<TARGET_FILE:sheaf_cli>
                 $<TARGET_FILE:fake_cuda> $<TARGET_FILE:sheaf> $<TARGET_SONAME_FILE_NAME:sheaf>)
  set_tests_properties(test_files_on_device PROPERTIES LABELS "command;script")
endif()
