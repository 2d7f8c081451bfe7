get_filename_component(ADDER_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

# Compiler flags shared by every target of the project.
add_library(adder_flags INTERFACE)
target_compile_options(adder_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough -Werror>)
# These come from GCC's optimiser, which reports impossible paths of the standard library in some
# versions and with sanitizers: seen, they stay warnings.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   (ADDER_SANITIZE OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13))
  target_compile_options(adder_flags INTERFACE
    -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=stringop-overread
    -Wno-error=maybe-uninitialized -Wno-error=free-nonheap-object)
endif()
target_include_directories(adder_flags INTERFACE ${ADDER_ROOT}/src ${ADDER_ROOT}/include)
if(ADDER_SANITIZE)
  target_compile_options(adder_flags INTERFACE -fsanitize=${ADDER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(adder_flags INTERFACE -fsanitize=${ADDER_SANITIZE})
endif()

# adder_room(NAME [DEPS targets...]): the library of src/NAME. Every .cc below the folder is part of
# it, except *_test.cc (unit tests, one binary per room, run by ctest) and *_benchmark.cc, and except
# a subfolder cuda/ in builds without CUDA.
function(adder_room NAME)
  cmake_parse_arguments(ROOM "" "" "DEPS;EXTRA_SOURCES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT ADDER_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cc)
    list(REMOVE_ITEM sources ${cuda_sources})
  endif()
  set(tests ${sources})
  set(benchmarks ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benchmarks INCLUDE REGEX "_benchmark\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|benchmark)\\.cc$")
  add_library(adder_${NAME} STATIC ${sources} ${ROOM_EXTRA_SOURCES})
  target_link_libraries(adder_${NAME} PUBLIC adder_flags ${ROOM_DEPS})
  if(ADDER_TESTS AND tests)
    adder_test(${NAME}_test SOURCES ${tests} DEPS adder_${NAME})
  endif()
  if(ADDER_BENCHMARKS)
    foreach(source ${benchmarks})
      get_filename_component(target ${source} NAME_WE)
      add_executable(${target} ${source})
      target_link_libraries(${target} PRIVATE adder_${NAME} benchmark::benchmark)
    endforeach()
  endif()
endfunction()

# adder_cuda_options(TARGET): how CUDA sources are compiled.
function(adder_cuda_options TARGET)
  target_compile_options(${TARGET} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo -Werror=all-warnings
      -Xcompiler=-Wall,-Wextra,-Werror>)
endfunction()

# adder_test(NAME SOURCES files... DEPS targets... [LABELS labels...]): a GoogleTest binary registered
# with ctest; its label is "unit" unless given (the other in use: conformance). The target adder_tests
# builds all of them.
function(adder_test NAME)
  cmake_parse_arguments(TEST "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${NAME} ${TEST_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${TEST_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${NAME} PRIVATE ADDER_SOURCE_DIR="${ADDER_ROOT}")
  if(NOT TARGET adder_tests)
    add_custom_target(adder_tests)
  endif()
  add_dependencies(adder_tests ${NAME})
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  # Discovered when ctest starts rather than while building: a loaded machine cannot break the build.
  gtest_discover_tests(${NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
                       PROPERTIES LABELS "${TEST_LABELS}")
endfunction()
