#include "program/launch_bound.h"

#include <gtest/gtest.h>

#include "program/plan_builder_for_test.h"

namespace adder {
namespace {

TEST(MostLaunches, ByKindOfLayer) {
  Program program = test::TwoLayerPlan().Lower();
  EXPECT_EQ(MostLaunches(program, -1), 4);
  EXPECT_EQ(MostLaunches(program, 0), 8);  // Mamba-2 with experts and an MLP: nine by its ops
  EXPECT_EQ(MostLaunches(program, 1), 7);  // attention with an MLP
}

TEST(MostLaunches, ShortLayersAreGivenLess) {
  Program program = test::TwoLayerPlan().Lower();
  std::erase_if(program.ops, [](const Op& op) {
    return op.name.find("mlp") != std::string::npos || op.name.find("moe") != std::string::npos;
  });
  EXPECT_EQ(MostLaunches(program, 0), 4);
  EXPECT_EQ(MostLaunches(program, 1), 5);
}

}  // namespace
}  // namespace adder
