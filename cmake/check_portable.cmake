# cmake -DPROGRAM=FILE -P check_portable.cmake: fails if the program needs a shared library that is
# neither the C library's nor lies beside the program.
execute_process(COMMAND ldd ${PROGRAM} OUTPUT_VARIABLE needed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "ldd ${PROGRAM} failed")
endif()
get_filename_component(folder ${PROGRAM} DIRECTORY)
string(REPLACE "\n" ";" lines "${needed}")
foreach(line ${lines})
  string(STRIP "${line}" line)
  string(FIND "${line}" "=> ${folder}/" beside)
  if(line AND beside EQUAL -1 AND
     NOT line MATCHES "^(linux-vdso|/lib.*/ld-linux|libc\\.|libm\\.|libpthread\\.|libdl\\.|librt\\.|libcuda\\.)")
    message(FATAL_ERROR "${PROGRAM} is not portable: it needs ${line}")
  endif()
endforeach()
message(STATUS "needs only:\n${needed}")
