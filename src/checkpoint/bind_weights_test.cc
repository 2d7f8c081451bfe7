#include <gtest/gtest.h>
#include <cstring>

#include <cmath>
#include <limits>

#include "checkpoint/affine_quantization.h"
#include "checkpoint/temporary_checkpoint.h"
#include "checkpoint/weight_store.h"
#include "core/small_float.h"

namespace adder {
namespace {

using testing::ErrorOf;
using testing::TemporaryDirectory;
using testing::TestTensor;
using testing::WriteTensors;

// Two matrices (one of two modules, one expert of a stack of two), a conv weight and a decay.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.AddMatrix({"pair", 5, 64, {{"m.first", 3, 0, 3}, {"m.second", 2, 0, 2}}});
  plan.AddMatrix({"expert 0", 2, 64, {{"m.experts", 2, 0, 2, 2, 0}}});
  plan.AddMatrix({"expert 1", 2, 64, {{"m.experts", 2, 0, 2, 2, 1}}});
  plan.AddVector(
      {"conv", {{"conv.weight", {{3, 1, 2}, {3, 2, 1}}}}, VectorTransform::kConvTimeMajor});
  plan.AddVector("decay", "A_log", 2, VectorTransform::kNegativeExp);
  plan.AddVector("norm", "norm.weight", 2, VectorTransform::kPlusOne);
  plan.ignored_tensors = {"mtp.*", "exact"};
  return plan;
}

std::vector<TestTensor> SmallTensors() {
  return {TestTensor::Float("m.first.weight", {3, 64}, 0, 1),
          TestTensor::Float("m.second.weight", {2, 64}, 1000, 1),
          TestTensor::Float("m.experts.weight", {2, 2, 64}, -500, 1),
          TestTensor::Float("conv.weight", {3, 1, 2}, 10, 1),
          TestTensor::Float("A_log", {2}, 0, 1),
          TestTensor::Float("norm.weight", {2}, 0.5f, 1)};
}

class BindTest : public ::testing::Test {
 protected:
  std::shared_ptr<const BoundWeights> Bind(const std::vector<TestTensor>& tensors,
                                           const std::string& config = "{}") {
    directory_.Write("config.json", config);
    WriteTensors(directory_.path() / "model.safetensors", tensors);
    return BindWeights(WeightStore::Open(directory_.path()), SmallPlan());
  }
  std::string BindError(const std::vector<TestTensor>& tensors, const std::string& config = "{}") {
    return ErrorOf([&] { Bind(tensors, config); });
  }
  TemporaryDirectory directory_;
};

TEST_F(BindTest, StacksPartsPicksExpertsTransformsVectors) {
  const auto bound = Bind(SmallTensors());
  std::vector<float> row(64);
  DequantizeRow(bound->matrices[0], 3, row.data());
  EXPECT_EQ(row[1], 1001);
  DequantizeRow(bound->matrices[2], 1, row.data());
  EXPECT_EQ(row[2], -500 + 3 * 64 + 2);
  EXPECT_EQ(bound->vectors[0], (std::vector<float>{10, 12, 14, 11, 13, 15}));
  EXPECT_EQ(bound->vectors[1], (std::vector<float>{-1.0f, -std::exp(1.0f)}));
  EXPECT_EQ(bound->vectors[2], (std::vector<float>{1.5f, 2.5f}));
}

// Rows 1 and 2 of "m.first" [3, 64] as columns, the first row apart.
Plan TransposedPlan() {
  Plan plan = SmallPlan();
  MatrixPart columns{"m.first", 3, 1, 2};
  columns.transposed = true;
  plan.matrices[0] = {"columns", 64, 2, {columns}};
  plan.AddMatrix({"rows", 3, 64, {{"m.first", 3, 0, 1}, {"m.second", 2, 0, 2}}});
  return plan;
}

TEST_F(BindTest, TurnsTransposedParts) {
  directory_.Write("config.json", "{}");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<TestTensor> tensors = SmallTensors();
    if (dtype == DType::kBF16) {
      TestTensor& first = tensors[0];
      first.dtype = dtype;
      first.bytes.resize(3 * 64 * 2);
      for (size_t i = 0; i < 3 * 64; ++i) {
        const uint16_t bits = FloatToBF16(static_cast<float>(i));
        std::memcpy(first.bytes.data() + 2 * i, &bits, 2);
      }
    }
    WriteTensors(directory_.path() / "model.safetensors", tensors);
    const auto bound = BindWeights(WeightStore::Open(directory_.path()), TransposedPlan());
    EXPECT_EQ(bound->matrices[0].segments[0].dtype, dtype);
    EXPECT_FALSE(bound->mapped);
    std::vector<float> row(2);
    DequantizeRow(bound->matrices[0], 5, row.data());
    EXPECT_EQ(row, (std::vector<float>{64 + 5, 128 + 5}));
    DequantizeRow(bound->matrices[0], 63, row.data());
    EXPECT_EQ(row, (std::vector<float>{127, 191}));
  }
}

TEST_F(BindTest, AcceptsTheMlxConvLayoutAndIgnoredTensors) {
  std::vector<TestTensor> tensors = SmallTensors();
  tensors[3].shape = {3, 2, 1};
  tensors.push_back(TestTensor::Float("mtp.layers.0", {1}, 0, 1));
  tensors.push_back(TestTensor::Float("exact", {1}, 0, 1));
  EXPECT_EQ(Bind(tensors)->vectors[0], (std::vector<float>{10, 12, 14, 11, 13, 15}));
}

TEST_F(BindTest, MissingMisshapenAndExtraTensorsAreNamed) {
  std::vector<TestTensor> tensors = SmallTensors();
  tensors.erase(tensors.begin());
  EXPECT_NE(BindError(tensors).find("the tensor m.first.weight of shape [3, 64] is missing"),
            std::string::npos);
  tensors = SmallTensors();
  tensors[1] = TestTensor::Float("m.second.weight", {2, 32}, 0, 1);
  EXPECT_NE(BindError(tensors).find(
                "the tensor m.second.weight should have shape [2, 64], it has [2, 32]"),
            std::string::npos);
  tensors = SmallTensors();
  tensors[3].shape = {2, 3, 1};
  EXPECT_NE(BindError(tensors).find("conv.weight should have shape [3, 1, 2], it has [2, 3, 1]"),
            std::string::npos);
  tensors = SmallTensors();
  tensors.push_back(TestTensor::Float("surplus", {4, 1}, 0, 1));
  EXPECT_NE(BindError(tensors).find("does not have: surplus [4, 1]"), std::string::npos);
  tensors = SmallTensors();
  tensors[4].dtype = DType::kI32;
  EXPECT_NE(BindError(tensors).find("A_log should hold floating-point numbers, it holds I32"),
            std::string::npos);
  tensors = SmallTensors();
  tensors[5] = TestTensor::Float("norm.weight", {2}, std::numeric_limits<float>::quiet_NaN(), 1);
  EXPECT_NE(BindError(tensors).find("norm.weight holds a value that is not finite"),
            std::string::npos);
}

// Replaces the module "m.first" [3, 64] by its quantised form.
std::vector<TestTensor> WithQuantizedFirst(int bits, int group_size, DType dtype) {
  std::vector<TestTensor> tensors = SmallTensors();
  const size_t groups = 64 / static_cast<size_t>(group_size);
  const size_t row_bytes = 64 * static_cast<size_t>(bits) / 8;
  TestTensor packed{"m.first.weight", DType::kU32, {3, 64 * bits / 32}, {}};
  TestTensor scales{"m.first.scales", dtype, {3, 64 / group_size}, {}};
  TestTensor biases{"m.first.biases", dtype, {3, 64 / group_size}, {}};
  packed.bytes.resize(3 * row_bytes);
  scales.bytes.resize(3 * groups * DTypeSize(dtype));
  biases.bytes.resize(scales.bytes.size());
  for (size_t r = 0; r < 3; ++r) {
    std::vector<float> row(64);
    for (size_t k = 0; k < 64; ++k) row[k] = std::sin(static_cast<float>(r * 64 + k));
    EXPECT_TRUE(QuantizeRow(row, bits, group_size, dtype, packed.bytes.data() + r * row_bytes,
                            scales.bytes.data() + r * groups * DTypeSize(dtype),
                            biases.bytes.data() + r * groups * DTypeSize(dtype)));
  }
  tensors[0] = packed;
  tensors.push_back(scales);
  tensors.push_back(biases);
  return tensors;
}

TEST_F(BindTest, QuantisedModulesWithinAStep) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const std::string config =
          R"({"quantization": {"bits": )" + std::to_string(bits) + R"(, "group_size": 32}})";
      const auto bound = Bind(WithQuantizedFirst(bits, 32, dtype), config);
      const float step = 2.0f / static_cast<float>((1 << bits) - 1);
      std::vector<float> row(64);
      for (int64_t r = 0; r < 3; ++r) {
        DequantizeRow(bound->matrices[0], r, row.data());
        for (size_t k = 0; k < 64; ++k) {
          // Half a step of rounding, up to half a step more at the end of the range that is not
          // kept exact, and the 2^-9 rounding of scale (times the code) and bias.
          EXPECT_NEAR(row[k], std::sin(static_cast<float>(r) * 64 + static_cast<float>(k)),
                      step + (2.0f + 1.0f) * 0x1p-9f)
              << bits;
        }
      }
    }
  }
}

TEST_F(BindTest, TransposedPartsOfPackedTensorsAreUnpacked) {
  const std::string config = R"({"quantization": {"bits": 4, "group_size": 32}})";
  const std::vector<TestTensor> tensors = WithQuantizedFirst(4, 32, DType::kF32);
  const auto rows = Bind(tensors, config);
  const auto columns = BindWeights(WeightStore::Open(directory_.path()), TransposedPlan());
  EXPECT_EQ(columns->matrices[0].segments[0].dtype, DType::kF32);
  std::vector<float> source(64);
  std::vector<float> turned(2);
  for (int64_t r = 0; r < 2; ++r) {
    DequantizeRow(rows->matrices[0], r + 1, source.data());
    for (int64_t c = 0; c < 64; ++c) {
      DequantizeRow(columns->matrices[0], c, turned.data());
      EXPECT_EQ(turned[static_cast<size_t>(r)], source[static_cast<size_t>(c)]);
    }
  }
}

TEST_F(BindTest, OverridesApplyWithAndWithoutPrefix) {
  const std::vector<TestTensor> tensors = WithQuantizedFirst(8, 64, DType::kBF16);
  for (const std::string name : {"m.first", "language_model.m.first", "first"}) {
    const std::string config = R"({"quantization_config": {"bits": 4, "group_size": 32, ")" + name +
                               R"(": {"bits": 8, "group_size": 64}}})";
    EXPECT_EQ(Bind(tensors, config)->matrices[0].segments[0].bits, 8) << name;
  }
}

TEST_F(BindTest, TheNearestOverrideWins) {
  const std::vector<TestTensor> tensors = WithQuantizedFirst(8, 64, DType::kBF16);
  const std::string config = R"({"quantization": {"bits": 4, "group_size": 32,
      "first": {"bits": 2}, "model.m.first": {"bits": 8, "group_size": 64},
      "rst": {"bits": 3}, "tower.model.m.first": {"bits": 5}}})";
  EXPECT_EQ(Bind(tensors, config)->matrices[0].segments[0].bits, 8);
}

TEST_F(BindTest, ReadsDoublePrecisionAsSingle) {
  std::vector<TestTensor> tensors = SmallTensors();
  tensors[1].dtype = DType::kF64;
  tensors[1].bytes.resize(2 * 64 * 8);
  for (size_t i = 0; i < 128; ++i) {
    const double value = 0.5 - static_cast<double>(i);
    std::memcpy(tensors[1].bytes.data() + 8 * i, &value, 8);
  }
  const auto bound = Bind(tensors);
  std::vector<float> row(64);
  DequantizeRow(bound->matrices[0], 4, row.data());
  EXPECT_EQ(row[3], 0.5f - 67.0f);
  EXPECT_EQ(bound->matrices[0].segments[1].dtype, DType::kF32);
  EXPECT_FALSE(bound->mapped);
  EXPECT_TRUE(Bind(SmallTensors())->mapped);
}

TEST_F(BindTest, RowsAreUsedOnce) {
  directory_.Write("config.json", "{}");
  WriteTensors(directory_.path() / "model.safetensors",
               {TestTensor::Float("m.weight", {5, 2}, 0, 1)});
  const auto error = [&](int64_t begin, int64_t count) {
    Plan plan;
    plan.family = "test";
    plan.AddMatrix({"top", 1, 2, {{"m", 5, 0, 1}}});
    if (count > 0) plan.AddMatrix({"rest", count, 2, {{"m", 5, begin, count}}});
    return ErrorOf([&] { BindWeights(WeightStore::Open(directory_.path()), plan); });
  };
  EXPECT_EQ(error(1, 4), "no error");
  EXPECT_NE(error(1, 3).find("of the 5 rows of the tensor m.weight only 4 would be used"),
            std::string::npos);
  EXPECT_NE(error(0, 0).find("of the 5 rows of the tensor m.weight only 1 would be used"),
            std::string::npos);
  EXPECT_NE(error(0, 4).find("the tensor m.weight would be used twice"), std::string::npos);
}

TEST_F(BindTest, ADecayPerStateRowIsTransposed) {
  directory_.Write("config.json", "{}");
  WriteTensors(directory_.path() / "model.safetensors",
               {TestTensor::Float("A_log", {3, 2}, 0, 0.5f)});
  Plan plan;
  plan.family = "test";
  plan.AddVector({"decay", {{"A_log", {{3, 2}}}}, VectorTransform::kNegativeExpTransposed});
  const auto bound = BindWeights(WeightStore::Open(directory_.path()), plan);
  std::vector<float> expected;
  for (const float log : {0.0f, 1.0f, 2.0f, 0.5f, 1.5f, 2.5f}) expected.push_back(-std::exp(log));
  EXPECT_EQ(bound->vectors[0], expected);
}

// Two and one channels of two taps, side by side.
TEST_F(BindTest, ConvolutionsOfSeveralTensorsAreJoined) {
  directory_.Write("config.json", "{}");
  WriteTensors(directory_.path() / "model.safetensors",
               {TestTensor::Float("q", {2, 1, 2}, 0, 1), TestTensor::Float("v", {1, 2, 1}, 10, 1)});
  Plan plan;
  plan.family = "test";
  plan.AddVector({"conv",
                  {{"q", {{2, 1, 2}, {2, 2, 1}}}, {"v", {{1, 1, 2}, {1, 2, 1}}}},
                  VectorTransform::kConvTimeMajor});
  const auto bound = BindWeights(WeightStore::Open(directory_.path()), plan);
  EXPECT_EQ(bound->vectors[0], (std::vector<float>{0, 2, 10, 1, 3, 11}));
}

TEST_F(BindTest, ValuesThatOverflowInTheTransformAreRefused) {
  std::vector<TestTensor> tensors = SmallTensors();
  tensors[4] = TestTensor::Float("A_log", {2}, 1000, 1);
  EXPECT_NE(BindError(tensors).find("the tensor A_log holds a value that is too large"),
            std::string::npos);
}

TEST_F(BindTest, QuantisationThatDoesNotFitIsRefused) {
  const std::vector<TestTensor> tensors = WithQuantizedFirst(4, 64, DType::kBF16);
  EXPECT_NE(BindError(tensors).find("gives no bits and group_size for it"), std::string::npos);
  EXPECT_NE(BindError(tensors, R"({"quantization": {"bits": 8, "group_size": 64}})")
                .find("m.first.weight should have shape [3, 16], it has [3, 8]"),
            std::string::npos);
  EXPECT_NE(BindError(tensors, R"({"quantization": {"bits": 4, "group_size": 32}})")
                .find("m.first.scales should have shape [3, 2], it has [3, 1]"),
            std::string::npos);
  EXPECT_NE(
      BindError(tensors, R"({"quantization": {"bits": 7, "group_size": 64}})").find("bits is 7"),
      std::string::npos);
  for (const char* entry : {"7", "\"x\"", "[]", "null"}) {
    const std::string config =
        R"({"quantization": {"bits": 4, "group_size": 64, "m.first": )" + std::string(entry) + "}}";
    EXPECT_NE(
        BindError(tensors, config).find("the entry of the module m.first is " + std::string(entry)),
        std::string::npos);
  }
  EXPECT_NE(BindError(tensors, R"({"quantization": {"bits": 4, "group_size": 48}})")
                .find("group_size is 48"),
            std::string::npos);
  EXPECT_NE(
      BindError(tensors, R"({"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp6"}})")
          .find("the quantisation mode \"mxfp6\" is not supported; affine, mxfp4, mxfp8 and nvfp4"),
      std::string::npos);
  EXPECT_NE(
      BindError(tensors, R"({"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp4"}})")
          .find("the mode mxfp4 has 4 bits in groups of 32; bits is 4 and group_size 64"),
      std::string::npos);
  EXPECT_NE(BindError(tensors, R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})")
                .find("\"gptq\" is not supported"),
            std::string::npos);
  EXPECT_NE(
      BindError(tensors, R"({"quantization": {"bits": 4, "group_size": 64, "m.first": false}})")
          .find("gives no bits and group_size for it"),
      std::string::npos);
  std::vector<TestTensor> bad = tensors;
  const uint16_t infinity = 0x7f80;
  std::memcpy(bad[6].bytes.data() + 2, &infinity, 2);
  EXPECT_NE(BindError(bad, R"({"quantization": {"bits": 4, "group_size": 64}})")
                .find("m.first.scales holds a value that is not finite"),
            std::string::npos);
  bad = tensors;
  bad.erase(bad.begin() + 6);
  EXPECT_NE(BindError(bad, R"({"quantization": {"bits": 4, "group_size": 64}})")
                .find("m.first.weight is packed (U32) but m.first.scales is missing"),
            std::string::npos);
}

// The module "m.first" [3, 64] in a mode of small floating-point numbers.
std::vector<TestTensor> WithFloatFirst(QuantizationMode mode) {
  std::vector<TestTensor> tensors = SmallTensors();
  const int bits = ModeBits(mode);
  const int groups = 64 / ModeGroupSize(mode);
  TestTensor packed{"m.first.weight", DType::kU32, {3, 2 * bits}, {}};
  TestTensor scales{"m.first.scales", DType::kU8, {3, groups}, {}};
  for (int64_t i = 0; i < 3 * 64 * bits / 8; ++i) {
    packed.bytes.push_back(static_cast<std::byte>((i * 37 % 127) | (i % 2) << 7));
  }
  for (int i = 0; i < 3 * groups; ++i) {
    scales.bytes.push_back(
        static_cast<std::byte>(mode == QuantizationMode::kNvfp4 ? 40 + 5 * i : 120 + i));
  }
  tensors[0] = packed;
  tensors.push_back(scales);
  return tensors;
}

TEST_F(BindTest, ModesOfSmallFloatsAreReadAsTheirNumbers) {
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    const std::string name(QuantizationModeName(mode));
    const std::vector<TestTensor> tensors = WithFloatFirst(mode);
    // As the default and as one module's own; what is not stated is the mode's.
    for (const std::string& config :
         {R"({"quantization": {"mode": ")" + name + R"("}})",
          R"({"quantization": {"bits": 4, "group_size": 64, "m.first": {"mode": ")" + name +
              R"("}}})"}) {
      const auto bound = Bind(tensors, config);
      const int bits = ModeBits(mode);
      const int group = ModeGroupSize(mode);
      EXPECT_EQ(bound->matrices[0].segments[0].FormatName(), name);
      std::vector<float> row(64);
      DequantizeRow(bound->matrices[0], 1, row.data());
      for (int k = 0; k < 64; ++k) {
        const int at = (64 + k) * bits / 8;
        unsigned code = std::to_integer<unsigned>(tensors[0].bytes[static_cast<size_t>(at)]);
        if (bits == 4) code = k % 2 == 0 ? code & 15u : code >> 4;
        const auto scale = std::to_integer<unsigned>(
            tensors.back().bytes[static_cast<size_t>(64 / group + k / group)]);
        const float expected =
            (bits == 4 ? E2M1ToFloat(code) : E4M3ToFloat(code)) *
            (mode == QuantizationMode::kNvfp4 ? E4M3ToFloat(scale) : E8M0ToFloat(scale));
        ASSERT_EQ(row[static_cast<size_t>(k)], expected) << name << ", column " << k;
      }
    }
  }
}

// Beside groups' scales nvfp4 may have one for the tensor, relative to the largest number that a
// group can hold, 6 * 448.
TEST_F(BindTest, NvFp4MayHaveAScaleOfTheTensor) {
  std::vector<TestTensor> tensors = WithFloatFirst(QuantizationMode::kNvfp4);
  const std::string config = R"({"quantization": {"mode": "nvfp4"}})";
  std::vector<float> plain(64), scaled(64);
  DequantizeRow(Bind(tensors, config)->matrices[0], 1, plain.data());
  tensors.push_back(TestTensor::Float("m.first.global_scale", {}, 2.0f * 6 * 448, 0));
  DequantizeRow(Bind(tensors, config)->matrices[0], 1, scaled.data());
  for (size_t k = 0; k < 64; ++k) EXPECT_EQ(scaled[k], 2.0f * plain[k]) << k;
  tensors.back().dtype = DType::kI32;
  EXPECT_NE(BindError(tensors, config).find("m.first.global_scale should be F32, it is I32"),
            std::string::npos);
  tensors = WithFloatFirst(QuantizationMode::kMxfp4);
  tensors.push_back(TestTensor::Float("m.first.global_scale", {}, 1, 0));
  EXPECT_NE(BindError(tensors, R"({"quantization": {"mode": "mxfp4"}})")
                .find("does not have: m.first.global_scale"),
            std::string::npos);
}

TEST_F(BindTest, SmallFloatsThatDoNotFitAreRefused) {
  const std::string mxfp8 = R"({"quantization": {"mode": "mxfp8"}})";
  std::vector<TestTensor> tensors = WithFloatFirst(QuantizationMode::kMxfp8);
  tensors.back().bytes[3] = std::byte{255};
  EXPECT_NE(BindError(tensors, mxfp8)
                .find("m.first.scales holds a scale that is not finite or too large"),
            std::string::npos);
  tensors.back().bytes[3] = std::byte{250};  // times 448
  EXPECT_NE(BindError(tensors, mxfp8).find("m.first.scales holds a scale"), std::string::npos);
  tensors = WithFloatFirst(QuantizationMode::kMxfp8);
  tensors[0].bytes[70] = std::byte{0xff};
  EXPECT_NE(BindError(tensors, mxfp8).find("m.first.weight holds a value that is not finite"),
            std::string::npos);
  tensors = WithQuantizedFirst(8, 32, DType::kBF16);
  EXPECT_NE(
      BindError(tensors, mxfp8).find("m.first.scales should be U8 for the mode mxfp8, it is BF16"),
      std::string::npos);
}

}  // namespace
}  // namespace adder
