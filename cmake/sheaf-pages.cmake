# Pages of the command: the template of its HTML reports as a C file, and, printed by the command itself once it is built,
# its manual page and completions (share/ in the build folder, laid out as they are installed).
set(report_page_source ${PROJECT_BINARY_DIR}/report_page.c)
set(report_page ${PROJECT_SOURCE_DIR}/cli/report/page.html)
add_custom_command(
  OUTPUT ${report_page_source}
  COMMAND ${CMAKE_COMMAND} -D IN=${report_page} -D OUT=${report_page_source} -D NAME=report_page
          -P ${PROJECT_SOURCE_DIR}/cmake/sheaf-embed.cmake
  DEPENDS ${report_page} ${PROJECT_SOURCE_DIR}/cmake/sheaf-embed.cmake
  VERBATIM)

set(sheaf_share ${PROJECT_BINARY_DIR}/share)
function(sheaf_print_pages)
  if(CMAKE_CROSSCOMPILING OR SHEAF_SANITIZE OR SHEAF_FUZZ)
    return() # what is built may not run here
  endif()
  set(man ${sheaf_share}/man/man1/sheaf.1)
  set(bash ${sheaf_share}/bash-completion/completions/sheaf)
  set(zsh ${sheaf_share}/zsh/site-functions/_sheaf)
  set(fish ${sheaf_share}/fish/vendor_completions.d/sheaf.fish)
  foreach(page man bash zsh fish)
    get_filename_component(folder ${${page}} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
  endforeach()
  add_custom_command(
    OUTPUT ${man} ${bash} ${zsh} ${fish}
    COMMAND sheaf_cli --man > ${man}
    COMMAND sheaf_cli completion bash > ${bash}
    COMMAND sheaf_cli completion zsh > ${zsh}
    COMMAND sheaf_cli completion fish > ${fish}
    DEPENDS sheaf_cli ${cli_sources}
    VERBATIM)
  add_custom_target(sheaf_pages ALL DEPENDS ${man} ${bash} ${zsh} ${fish})
endfunction()
