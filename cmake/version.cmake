# cmake -DSOURCE=DIR -DOUTPUT=FILE -DVERSION=V -DCOMPILER=NAME -P version.cmake: writes a header with
# version, commit ("-dirty" with uncommitted changes, "unknown" outside git) and compiler.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Written at build time by cmake/version.cmake.
#pragma once
#define ADDER_VERSION "@VERSION@"
#define ADDER_COMMIT "@commit@"
#define ADDER_COMPILER "@COMPILER@"
]])
