# The libraries Sheaf needs, found the same way when Sheaf is built and when its installed package is used:
#   sheaf::dlpack   headers only, named by Sheaf's public headers
#   sheaf::jansson  JSON, inside the library; those who link the static library need it too
find_path(SHEAF_DLPACK_INCLUDE_DIR dlpack/dlpack.h DOC "Folder that holds dlpack/dlpack.h")
find_path(SHEAF_JANSSON_INCLUDE_DIR jansson.h DOC "Folder that holds jansson.h")
find_library(SHEAF_JANSSON_LIBRARY jansson DOC "libjansson")
mark_as_advanced(SHEAF_DLPACK_INCLUDE_DIR SHEAF_JANSSON_INCLUDE_DIR SHEAF_JANSSON_LIBRARY)

if(SHEAF_DLPACK_INCLUDE_DIR AND NOT TARGET sheaf::dlpack)
  add_library(sheaf::dlpack INTERFACE IMPORTED)
  set_target_properties(sheaf::dlpack PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SHEAF_DLPACK_INCLUDE_DIR}")
endif()

if(SHEAF_JANSSON_LIBRARY AND NOT TARGET sheaf::jansson)
  add_library(sheaf::jansson UNKNOWN IMPORTED)
  set_target_properties(sheaf::jansson PROPERTIES IMPORTED_LOCATION "${SHEAF_JANSSON_LIBRARY}")
  if(SHEAF_JANSSON_INCLUDE_DIR)
    set_target_properties(sheaf::jansson PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SHEAF_JANSSON_INCLUDE_DIR}")
  endif()
endif()
