# ADDER_STATIC: a program that runs on another machine with the same or a newer C library, without
# the packages it was built with. Include this before the dependencies are looked for.
#
# Libraries are taken from their .a files. One that comes only as a shared library (Highway on
# Debian) is copied beside the program and found there.

set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
add_link_options(-static-libstdc++ -static-libgcc)

# adder_link_private(TARGET names...): what a static library needs that its .pc file lists as private.
function(adder_link_private TARGET)
  get_target_property(libraries ${TARGET} INTERFACE_LINK_LIBRARIES)
  if(NOT libraries MATCHES "\\.a(;|$)")
    return()
  endif()
  foreach(name ${ARGN})
    find_library(adder_private_${name} ${name} REQUIRED)
    target_link_libraries(${TARGET} INTERFACE ${adder_private_${name}})
  endforeach()
endfunction()

# adder_make_portable(TARGET dependencies...): copies the shared libraries that remain among the
# dependencies beside the program, and checks what the program still asks of the system.
function(adder_make_portable TARGET)
  set_target_properties(${TARGET} PROPERTIES BUILD_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON
                        SKIP_BUILD_RPATH OFF)
  get_target_property(folder ${TARGET} BINARY_DIR)
  foreach(dependency ${ARGN})
    get_target_property(libraries ${dependency} INTERFACE_LINK_LIBRARIES)
    foreach(library ${libraries})
      if(library MATCHES "\\.so$")
        # The name the loader asks for is the soname, which the development link points to.
        file(REAL_PATH ${library} file)
        execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${file} OUTPUT_VARIABLE headers)
        string(REGEX MATCH "SONAME +([^\n]+)" soname "${headers}")
        file(COPY_FILE ${file} ${folder}/${CMAKE_MATCH_1} ONLY_IF_DIFFERENT)
      endif()
    endforeach()
  endforeach()
  if(ADDER_TESTS)
    add_test(NAME portable_${TARGET} COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${TARGET}>
             -P ${ADDER_ROOT}/cmake/check_portable.cmake)
    set_tests_properties(portable_${TARGET} PROPERTIES LABELS unit)
  endif()
endfunction()
