// A fixture that runs each test on every SIMD target this machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cpu/simd_target.h"

namespace adder {

class OnEveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { UseSimdTarget(GetParam()); }
  void TearDown() override { UseSimdTarget(""); }
};

}  // namespace adder

// Once per suite derived from OnEveryTarget.
#define ADDER_ON_EVERY_TARGET(Suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(Simd, Suite, ::testing::ValuesIn(::adder::SimdTargets()), \
                           [](const auto& test) { return test.param; })
