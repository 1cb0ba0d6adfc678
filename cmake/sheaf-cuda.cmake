# The plug-in libsheaf_cuda.so, built where a CUDA compiler is found; nothing else here needs one.
#   SHEAF_CUDA                 AUTO, ON (a missing compiler is an error) or OFF
#   SHEAF_CUDA_ARCHITECTURES   what to compile for, in CMake's words; a plain number adds its PTX for later devices
set(SHEAF_CUDA AUTO CACHE STRING "Build the CUDA plug-in: AUTO, ON or OFF")
set(SHEAF_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "Architectures of the CUDA plug-in")

set(with_cuda ${SHEAF_CUDA})
if(SHEAF_CUDA STREQUAL AUTO AND (SHEAF_SANITIZE OR SHEAF_FUZZ))
  set(with_cuda OFF) # device code has sanitizers of its own (tests/gpu/run.sh)
endif()
if(with_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT SHEAF_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "SHEAF_CUDA is ON, but there is no CUDA compiler (nvcc)")
  endif()
endif()

if(with_cuda AND CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_ARCHITECTURES ${SHEAF_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  file(GLOB cuda_sources CONFIGURE_DEPENDS src/kernels/cuda/*.cu)
  add_library(sheaf_cuda MODULE ${cuda_sources})
  # Results are defined to the last bit: fused multiply-add only where the source writes it, denormals kept, division
  # and square root correctly rounded.
  target_compile_options(sheaf_cuda PRIVATE --fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler=-Wall
                                            $<$<BOOL:${SHEAF_WERROR}>:-Werror=all-warnings>)
  target_include_directories(sheaf_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(sheaf_cuda PRIVATE sheaf_headers)
  set(cuda_exports ${PROJECT_SOURCE_DIR}/cmake/sheaf-plugin.map)
  target_link_options(sheaf_cuda PRIVATE -Wl,--version-script=${cuda_exports})
  set_target_properties(sheaf_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Static
                        CUDA_VISIBILITY_PRESET hidden LINK_DEPENDS ${cuda_exports}
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  message(STATUS "CUDA plug-in: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, for ${SHEAF_CUDA_ARCHITECTURES}")
endif()
