# Tests that run as several ranks: ranks/ranks_<name>.c, each under mpirun with 1, 2, 3, 4 and 7 ranks. They are built
# against the shared library, beside which the plug-in lies. Without MPI there are none.
if(TARGET sheaf_mpi AND MPIEXEC_EXECUTABLE)
  file(GLOB ranks_sources CONFIGURE_DEPENDS ranks/ranks_*.c)
  list(FILTER ranks_sources EXCLUDE REGEX "/ranks_data\\.c$")
  foreach(source IN LISTS ranks_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source} ranks/ranks.c ranks/ranks_data.c)
    target_link_libraries(${name} PRIVATE sheaf sheaf_flags sheaf_link m)
    add_dependencies(${name} sheaf_mpi)
    foreach(ranks 1 2 3 4 7)
      add_sheaf_test(${name}_${ranks} bash ${scripts}/run_ranks.sh ${MPIEXEC_EXECUTABLE} ${ranks} $<TARGET_FILE:${name}>)
      set(labels ranks)
      if(NOT ranks MATCHES "[34]") # shares that differ, and meshes of two dimensions
        list(APPEND labels once)
      endif()
      set_tests_properties(${name}_${ranks} PROPERTIES LABELS "${labels}" PROCESSORS 2)
    endforeach()
  endforeach()
  foreach(ranks 2 4)
    add_sheaf_test(killed_rank_${ranks} bash ${scripts}/check_killed_rank.sh ${MPIEXEC_EXECUTABLE} ${ranks}
                   $<TARGET_FILE:ranks_faults>)
    set_tests_properties(killed_rank_${ranks} PROPERTIES LABELS ranks PROCESSORS 2)
  endforeach()
  # Over TCP between network namespaces, where the machine has them.
  set(netns_names ranks_embedding ranks_traffic)
  if(SHEAF_SANITIZE)
    set(netns_names)
  endif()
  foreach(name IN LISTS netns_names)
    foreach(ranks 2 4)
      add_sheaf_test(${name}_netns_${ranks} bash ${scripts}/check_netns.sh ${MPIEXEC_EXECUTABLE} ${ranks}
                     $<TARGET_FILE:${name}>)
      set_tests_properties(${name}_netns_${ranks} PROPERTIES LABELS "ranks;once" PROCESSORS 2 SKIP_RETURN_CODE 77
                           ENVIRONMENT "${test_environment};SHEAF_TEST_QUICK=1")
    endforeach()
  endforeach()
  if(TARGET sheaf_cli) # one object, of rank 0
    add_sheaf_test(shard_profile_json_2 bash ${scripts}/run_ranks.sh ${MPIEXEC_EXECUTABLE} 2 $<TARGET_FILE:sheaf_cli>
                   shard profile --megabytes 1 --json)
    add_sheaf_test(bench_shard_json_2 bash ${scripts}/run_ranks.sh ${MPIEXEC_EXECUTABLE} 2 $<TARGET_FILE:sheaf_cli>
                   bench shard --rows 64 --dim 8 --indices 64 --runs 1 --json)
    set_tests_properties(shard_profile_json_2 PROPERTIES LABELS ranks PROCESSORS 2
                         PASS_REGULAR_EXPRESSION "^{\n  \"ranks\": 2,[^{]*(\n    {[^{}]*},?)*[^{}]*}\n$")
    set_tests_properties(bench_shard_json_2 PROPERTIES LABELS ranks PROCESSORS 2
                         PASS_REGULAR_EXPRESSION "^{\n  \"machine\": {[^{}]*},[^{}]*\"results\": [^{}]*(\n    {[^{}]*\"ranks\": 2,[^{}]*},?)+[^{}]*}\n$")
  endif()
  if(TARGET example_07_row_wise_mpi)
    add_dependencies(example_07_row_wise_mpi sheaf_mpi)
    add_sheaf_test(example_07_row_wise_mpi_4 bash ${scripts}/run_ranks.sh ${MPIEXEC_EXECUTABLE} 4
                   $<TARGET_FILE:example_07_row_wise_mpi> mpi)
    set_tests_properties(example_07_row_wise_mpi_4 PROPERTIES LABELS "example;ranks" PROCESSORS 2)
  endif()
endif()
