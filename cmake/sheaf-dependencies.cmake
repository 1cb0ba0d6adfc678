# What Sheaf's headers need, found the same way when Sheaf is built and when its installed package is used:
#   sheaf::dlpack   headers only, named by Sheaf's public headers
find_path(SHEAF_DLPACK_INCLUDE_DIR dlpack/dlpack.h DOC "Folder that holds dlpack/dlpack.h")
mark_as_advanced(SHEAF_DLPACK_INCLUDE_DIR)

if(SHEAF_DLPACK_INCLUDE_DIR AND NOT TARGET sheaf::dlpack)
  add_library(sheaf::dlpack INTERFACE IMPORTED)
  set_target_properties(sheaf::dlpack PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SHEAF_DLPACK_INCLUDE_DIR}")
endif()
