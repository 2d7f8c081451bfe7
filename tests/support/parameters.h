// Tests that run for every pair of a model and a backend.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/support/backends.h"
#include "tests/support/test_models.h"

namespace adder::test {

using ModelAndBackend = std::tuple<TestModel, Backend>;

// "granitemoehybrid_moe_cpu_f32".
inline std::string NameOf(const testing::TestParamInfo<ModelAndBackend>& info) {
  return std::get<0>(info.param).name + "_" + BackendName(std::get<1>(info.param));
}

// Skips a test of a model that the backend says it cannot run.
#define ADDER_SKIP_UNSUPPORTED(backend, program)                                 \
  if (const std::string part = UnsupportedPart(backend, program); !part.empty()) \
  GTEST_SKIP() << "no kernel for " << part

}  // namespace adder::test
