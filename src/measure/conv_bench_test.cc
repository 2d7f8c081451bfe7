#include "measure/conv_bench.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "core/error.h"

namespace adder {
namespace {

ConvBenchRow GoodRow() {
  ConvBenchRow row;
  row.shape = {"mamba2", "a,b", 1792, 4};
  row.step = {1e-6, 1, "ConvStepKernel", 1e-7};
  row.cudnn = {3e-6, 2, "first, second", 2e-7};
  row.multi_position = {2e-6, 1, "ConvPrefillKernel", 1e-7};
  return row;
}

TEST(ConvShapes, AreParsed) {
  const ConvShape shape = ParseConvShape("1792x4");
  EXPECT_EQ(shape.channels, 1792);
  EXPECT_EQ(shape.taps, 4);
  for (const char* text : {"", "x", "1792", "1792x", "x4", "0x4", "-1x4", "8x1", "8x9", "8x4x2",
                           "8 x4", "99999999999999999999x4"}) {
    EXPECT_THROW(ParseConvShape(text), Error) << text;
  }
}

TEST(ConvShapes, KnownOnesAreDistinctAndInRange) {
  std::set<std::string> names;
  for (const ConvShape& shape : KnownConvShapes()) {
    EXPECT_TRUE(names.insert(shape.model).second) << shape.model;
    EXPECT_FALSE(shape.family.empty());
    const ConvShape parsed = ParseConvShape(Concat(shape.channels, "x", shape.taps));
    EXPECT_EQ(parsed.channels, shape.channels);
    EXPECT_EQ(parsed.taps, shape.taps);
  }
}

TEST(ConvBenchRow, Verdicts) {
  ConvBenchRow row = GoodRow();
  EXPECT_TRUE(row.agree());
  EXPECT_EQ(row.verdict(), "step, 3.0x cudnn, 2.0x multi");
  row.step.launches = 2;
  EXPECT_FALSE(row.step_wins());
  row = GoodRow();
  row.cudnn.seconds = 0.5e-6;
  EXPECT_EQ(row.verdict(), "OTHER, 0.5x cudnn, 2.0x multi");
  row = GoodRow();
  row.cudnn.max_error = 1e-3;
  EXPECT_FALSE(row.agree());
  EXPECT_EQ(row.verdict(), "RESULTS DIFFER");
  row.dtype = DType::kBF16;
  EXPECT_TRUE(row.agree());
  row.cudnn.max_error = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(row.agree());
}

TEST(ConvBench, TextJsonAndCsv) {
  const std::vector<ConvBenchRow> rows{GoodRow(), GoodRow()};
  const std::string text = ConvBenchText(rows);
  EXPECT_NE(text.find("1792"), std::string::npos);
  EXPECT_NE(text.find("2.0e-07"), std::string::npos);
  // Each kernel is named once.
  EXPECT_EQ(text.find("cudnn: first, second"), text.rfind("cudnn: first, second"));
  const Json json = ConvBenchJson(rows);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["cudnn_launches"], 2);
  EXPECT_EQ(json[0]["step_wins"], true);
  const std::string csv = ConvBenchCsv(rows);
  EXPECT_TRUE(csv.starts_with("family,model,channels,taps,dtype,step_seconds,"));
  EXPECT_NE(csv.find("\"a,b\",1792,4,\"F32\""), std::string::npos);
  EXPECT_EQ(ConvBenchCsv({}), "");
}

}  // namespace
}  // namespace adder
