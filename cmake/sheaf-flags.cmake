# Compiler flags, as targets to link:
#   sheaf_flags     language, warnings, floating-point rules, sanitizers: for everything that is compiled here
#   sheaf_internal  sheaf_flags, plus src/ on the include path and SHF_ definitions: for the library and its tests
#   sheaf_link      what sanitizers need at link time
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(SHEAF_X86 ON)
else()
  set(SHEAF_X86 OFF)
endif()

add_library(sheaf_flags INTERFACE)
target_compile_options(sheaf_flags INTERFACE -Wall -Wextra -Wpedantic -Wconversion $<$<BOOL:${SHEAF_WERROR}>:-Werror>
                                             $<$<COMPILE_LANGUAGE:C>:-ffp-contract=off>)
add_library(sheaf_link INTERFACE)

if(SHEAF_SANITIZE)
  # Frame pointers for readable reports; a finding ends the program, so that no test can overlook it.
  target_compile_options(sheaf_flags INTERFACE -fsanitize=${SHEAF_SANITIZE} -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer)
  target_link_options(sheaf_link INTERFACE -fsanitize=${SHEAF_SANITIZE})
endif()
if(SHEAF_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SHEAF_FUZZ needs clang: cmake -DCMAKE_C_COMPILER=clang")
  endif()
  set(flags_fuzz -fsanitize=fuzzer-no-link) # for what fuzzers follow: the library, and themselves
  target_link_options(sheaf_link INTERFACE -fsanitize=fuzzer-no-link)
endif()

# gcc clears and copies small structs with string instructions, or 8 bytes at a time; either costs a small call about 10 of 75 ns.
include(CheckCCompilerFlag)
set(copy_by_moves -mmemset-strategy=vector_loop:1024:noalign,libcall:-1:noalign
                  -mmemcpy-strategy=vector_loop:1024:noalign,libcall:-1:noalign)
check_c_compiler_flag("${copy_by_moves}" SHEAF_HAS_COPY_BY_MOVES)

add_library(sheaf_internal INTERFACE)
target_compile_options(sheaf_internal INTERFACE $<$<BOOL:${SHEAF_HAS_COPY_BY_MOVES}>:${copy_by_moves}>)
target_link_libraries(sheaf_internal INTERFACE sheaf_flags)
target_include_directories(sheaf_internal INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(SHEAF_SANITIZE)
  set(few_tiles 1)
else()
  set(few_tiles 0)
endif()
target_compile_definitions(sheaf_internal INTERFACE SHF_FEW_TILES=${few_tiles})

# Which instruction sets there are kernels for, beside plain C.
set(SHEAF_KERNELS all CACHE STRING "CPU kernels for all instruction sets, or native: for this machine's only")
set(isas scalar)
if(SHEAF_X86)
  list(APPEND isas avx2 avx512)
endif()
if(SHEAF_KERNELS STREQUAL native AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu REGEX "^flags" LIMIT_COUNT 1)
  if(cpu MATCHES " avx512f " AND cpu MATCHES " avx512bw " AND cpu MATCHES " avx512dq " AND cpu MATCHES " avx512vl")
    list(REMOVE_ITEM isas avx2)
  else()
    list(REMOVE_ITEM isas avx512)
  endif()
  if(cpu MATCHES " avx2 ")
    set(has_native_kernels ON) # plain C will not run unless it is asked for
  endif()
elseif(NOT SHEAF_KERNELS MATCHES "^(all|native)$")
  message(FATAL_ERROR "SHEAF_KERNELS is \"${SHEAF_KERNELS}\": all, or native (this machine's only, in half the time)")
endif()
foreach(isa avx2 avx512)
  string(TOUPPER SHF_HAVE_${isa} have)
  if(isa IN_LIST isas)
    target_compile_definitions(sheaf_internal INTERFACE ${have}=1)
  else()
    target_compile_definitions(sheaf_internal INTERFACE ${have}=0)
  endif()
endforeach()
