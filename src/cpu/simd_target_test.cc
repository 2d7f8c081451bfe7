#include "cpu/simd_target.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "cpu/cpu_executor.h"

namespace adder {
namespace {

TEST(SimdTargetTest, EachTargetCanBeChosen) {
  const std::vector<std::string> names = SimdTargets();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    UseSimdTarget(name);
    EXPECT_EQ(CpuSimdTarget(), name);
    EXPECT_EQ(SimdTargets(), names);
  }
  UseSimdTarget("");
  EXPECT_EQ(CpuSimdTarget(), names.front());
}

TEST(SimdTargetTest, UnknownNameIsAnError) {
  EXPECT_THROW(UseSimdTarget("MMX"), Error);
  EXPECT_EQ(CpuSimdTarget(), SimdTargets().front());
}

}  // namespace
}  // namespace adder
