# cmake -DPROGRAM=FILE -P check_portable.cmake: fails if the program asks for a shared library that
# is neither the C library's nor lies beside the program. What a library beside it asks for in turn
# is not judged: Debian's libhwy needs libstdc++, any version from the last ten years.
execute_process(COMMAND objdump -p ${PROGRAM} OUTPUT_VARIABLE headers RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "objdump -p ${PROGRAM} failed")
endif()
get_filename_component(folder ${PROGRAM} DIRECTORY)
string(REGEX MATCHALL "NEEDED +[^\n]+" entries "${headers}")
foreach(entry ${entries})
  string(REGEX REPLACE "NEEDED +" "" library "${entry}")
  if(NOT EXISTS ${folder}/${library} AND
     NOT library MATCHES "^(ld-linux|libc\\.|libm\\.|libpthread\\.|libdl\\.|librt\\.|libcuda\\.)")
    message(FATAL_ERROR "${PROGRAM} is not portable: it needs ${library}")
  endif()
  message(STATUS "needs ${library}")
endforeach()
