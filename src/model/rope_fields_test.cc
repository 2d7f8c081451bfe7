#include "model/rope_fields.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace adder {
namespace {

Rope RopeOf(const std::string& text, int64_t head_dim = 8) {
  const Json config = ParseJson(text, "config.json");
  return ReadRope(JsonObject(config, "config.json"), head_dim, /*default_partial_factor=*/1.0);
}
// The message of the Error that reading gives; "" without one.
std::string RopeError(const std::string& text, int64_t head_dim = 8) {
  try {
    RopeOf(text, head_dim);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
int64_t MaxPositionsOf(const std::string& text) {
  const Json config = ParseJson(text, "config.json");
  return ReadMaxPositions(JsonObject(config, "config.json"), 100);
}

void ExpectNames(const std::string& error, const std::string& words) {
  EXPECT_NE(error.find(words), std::string::npos) << "\"" << words << "\" is not in: " << error;
}

void ExpectFrequencies(const Rope& rope, const std::vector<double>& expected) {
  ASSERT_EQ(rope.inverse_frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(rope.inverse_frequencies[i], expected[i], 1e-6 * expected[i]) << "pair " << i;
  }
}

TEST(RopeFields, DefaultRope) {
  for (const char* text : {R"({"rope_theta": 10000, "rope_scaling": null})", R"({})",
                           R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}})"}) {
    const Rope rope = RopeOf(text);
    EXPECT_EQ(rope.rotary_dim, 8);
    EXPECT_EQ(rope.theta, 10000.0);
    EXPECT_EQ(rope.scaling, "default");
    ASSERT_EQ(rope.inverse_frequencies.size(), 4u);
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[0], 1.0f);
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], 0.1f);
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[2], 0.01f);
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[3], 0.001f);
  }
}

TEST(RopeFields, RopeParametersOverrideTheTopLevel) {
  const Rope rope = RopeOf(R"({"rope_theta": 7, "partial_rotary_factor": 1.0, "rope_parameters":
      {"rope_theta": 100, "partial_rotary_factor": 0.5}})");
  EXPECT_EQ(rope.theta, 100.0);
  EXPECT_EQ(rope.rotary_dim, 4);
  ASSERT_EQ(rope.inverse_frequencies.size(), 2u);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], 0.1f);
}

TEST(RopeFields, TwoDescriptionsOfTheRotationSayTheSame) {
  EXPECT_EQ(RopeOf(R"({"rope_scaling": {"type": "default", "factor": null},
                       "rope_parameters": {"rope_type": "default", "rope_theta": 100}})")
                .theta,
            100.0);
  ExpectNames(RopeError(R"({"rope_scaling": {"type": "linear", "factor": 2},
                            "rope_parameters": {"rope_type": "default"}})"),
              "rope_scaling");
  ExpectNames(RopeError(R"({"rope_scaling": {"factor": 2}, "rope_parameters": {}})"), "factor 2");
}

TEST(RopeFields, LinearRopeInBothSpellings) {
  for (const char* key : {"rope_type", "type"}) {
    const Rope rope =
        RopeOf(Concat(R"({"rope_scaling": {")", key, R"(": "linear", "factor": 4.0}})"));
    EXPECT_EQ(rope.scaling, "linear");
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[0], 0.25f);
    EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], 0.025f);
  }
}

// Frequencies of head_dim 8 at theta 10000 turn 1/(2 pi) * 64 * {1, .1, .01, .001} = {10.2, 1.02,
// 0.102, 0.0102} times within 64 positions: kept, interpolated, stretched, stretched.
TEST(RopeFields, Llama3Rope) {
  const Rope rope = RopeOf(R"({"rope_theta": 10000, "rope_scaling": {"rope_type": "llama3",
      "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 64}})");
  EXPECT_EQ(rope.scaling, "llama3");
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[0], 1.0f);
  const double kept = (64 * 0.1 / (2 * 3.14159265358979) - 1) / 3;
  EXPECT_NEAR(rope.inverse_frequencies[1], (1 - kept) * 0.1 / 8 + kept * 0.1, 1e-8);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[2], 0.01f / 8);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[3], 0.001f / 8);
}

TEST(RopeFields, UnknownOrDamagedRopeIsRefused) {
  for (const char* type : {"su", "mrope", "ntk"}) {
    ExpectNames(RopeError(Concat(R"({"rope_scaling": {"type": ")", type, R"(", "factor": 2}})")),
                Concat("rope_type \"", type, "\""));
  }
  ExpectNames(RopeError(R"({"rope_scaling": {"factor": 2}})"), "factor, but no rope_type");
  ExpectNames(RopeError(R"({"rope_theta": 0})"), "rope_theta");
  ExpectNames(RopeError(R"({"rope_theta": NaN})"), "rope_theta");
  ExpectNames(RopeError(R"({"rope_theta": -5})"), "rope_theta");
  ExpectNames(RopeError(R"({"rope_theta": 1e-300})"), "rope_theta");
  ExpectNames(RopeError(R"({"partial_rotary_factor": 1.5})"), "partial_rotary_factor");
  ExpectNames(RopeError(R"({"partial_rotary_factor": 0.01})"), "partial_rotary_factor");
  ExpectNames(RopeError(R"({})", 7), "head_dim 7");
  ExpectNames(RopeError(R"({"rope_scaling": 3})"), "rope_scaling");
  ExpectNames(RopeError(R"({"rope_scaling": {"type": "linear"}})"), "factor");
  ExpectNames(RopeError(R"({"rope_scaling": {"type": "linear", "factor": 0}})"), "factor");
  ExpectNames(RopeError(R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 4, "original_max_position_embeddings": 64}})"),
              "high_freq_factor");
}

// Of head_dim 16 at theta 10000 pair 0 turns 10.2 times within 64 positions, fewer than beta_fast,
// and pair 2.016 would turn once: pairs 0 to 3 are interpolated, by thirds. The numbers are the
// reference's formulas evaluated in double precision.
TEST(RopeFields, YarnRope) {
  const char* const kYarn = R"({"max_position_embeddings": 256, "rope_scaling": {"type": "yarn",
      "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 0}})";
  const Rope rope = RopeOf(kYarn, 16);
  EXPECT_EQ(rope.scaling, "yarn");
  ExpectFrequencies(rope, {1, 0.23717082451262847, 0.05, 0.007905694150420948, 0.0025,
                           0.0007905694150420947, 0.00025, 7.905694150420948e-05});
  EXPECT_FLOAT_EQ(rope.factor, 1.138629436111989f);
  EXPECT_EQ(MaxPositionsOf(kYarn), 256);
}

TEST(RopeFields, YarnWithoutTruncation) {
  const Rope rope = RopeOf(R"({"rope_parameters": {"rope_type": "yarn", "factor": 4,
      "original_max_position_embeddings": 64, "truncate": false, "attention_factor": 1.5}})",
                           16);
  ExpectFrequencies(rope, {1, 0.19858352015369318, 0.02559524589192421, 0.007905694150420948,
                           0.0025, 0.0007905694150420947, 0.00025, 7.905694150420948e-05});
  EXPECT_FLOAT_EQ(rope.factor, 1.5f);
}

TEST(RopeFields, YarnWithOtherTurns) {
  const Rope rope = RopeOf(R"({"original_max_position_embeddings": 64, "rope_scaling": {
      "type": "yarn", "factor": 4, "beta_fast": 8, "beta_slow": 2}})",
                           16);
  ExpectFrequencies(rope, {1, 0.19764235376052372, 0.025, 0.007905694150420948, 0.0025,
                           0.0007905694150420947, 0.00025, 7.905694150420948e-05});
}

TEST(RopeFields, YarnMagnitudes) {
  const auto factor_of = [](const std::string& fields) {
    return RopeOf(Concat(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", )",
                         fields, "}}"))
        .factor;
  };
  EXPECT_FLOAT_EQ(factor_of(R"("factor": 40, "mscale": 2, "mscale_all_dim": 0.5)"),
                  1.4671659705887825f);
  EXPECT_FLOAT_EQ(factor_of(R"("factor": 40, "mscale": 1, "mscale_all_dim": 1)"), 1);
  // One of the two alone does nothing.
  EXPECT_FLOAT_EQ(factor_of(R"("factor": 4, "mscale": 2)"), 1.138629436111989f);
  EXPECT_EQ(factor_of(R"("factor": 0.5)"), 1);
  // Without a factor the positions give it.
  EXPECT_FLOAT_EQ(factor_of(R"("original_max_position_embeddings": 16)"), 1.138629436111989f);
}

// Files of models that yarn stretches often keep the positions they were trained on.
TEST(RopeFields, YarnStretchesThePositions) {
  EXPECT_EQ(MaxPositionsOf(R"({"max_position_embeddings": 40960, "rope_scaling": {
      "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})"),
            131072);
  EXPECT_EQ(MaxPositionsOf(R"({"max_position_embeddings": 40, "rope_scaling": {
      "rope_type": "linear", "factor": 4.0}})"),
            40);
  EXPECT_EQ(MaxPositionsOf("{}"), 100);
}

TEST(RopeFields, LongRope) {
  const std::string scaling = R"("rope_scaling": {"type": "longrope", "short_factor": [1, 2],
      "long_factor": [4, 8], "original_max_position_embeddings": 64})";
  Rope rope = RopeOf(Concat(R"({"max_position_embeddings": 256, )", scaling, "}"), 4);
  ExpectFrequencies(rope, {0.25, 0.01 / 8});
  EXPECT_FLOAT_EQ(rope.factor, 1.1547005383792517f);  // sqrt(1 + ln 4 / ln 64)
  FitRope(rope, 64);
  ExpectFrequencies(rope, {1, 0.005});
  FitRope(rope, 65);
  ExpectFrequencies(rope, {0.25, 0.01 / 8});
  const Rope within = RopeOf(Concat(R"({"max_position_embeddings": 64, )", scaling, "}"), 4);
  ExpectFrequencies(within, {1, 0.005});
  EXPECT_EQ(within.factor, 1);
}

TEST(RopeFields, DynamicRope) {
  Rope rope = RopeOf(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic",
      "factor": 2}})");
  ExpectFrequencies(rope, {1, 0.1, 0.01, 0.001});
  FitRope(rope, 10);
  ExpectFrequencies(rope, {1, 0.1, 0.01, 0.001});
  FitRope(rope, 192);
  ExpectFrequencies(rope, {1, 0.05848035476425732, 0.0034199518933533944, 0.0002});
  FitRope(rope, 64);
  ExpectFrequencies(rope, {1, 0.1, 0.01, 0.001});
}

TEST(RopeFields, DamagedScalingsAreRefused) {
  const auto error_of = [](const std::string& fields) {
    return RopeError(Concat(R"({"max_position_embeddings": 64, "rope_scaling": {)", fields, "}}"),
                     4);
  };
  ExpectNames(error_of(R"("type": "yarn", "factor": -1)"), "factor");
  ExpectNames(error_of(R"("type": "yarn", "factor": 2, "beta_fast": -3)"), "beta_fast");
  ExpectNames(error_of(R"("type": "yarn", "factor": 2, "attention_factor": NaN)"),
              "attention_factor");
  ExpectNames(error_of(R"("type": "yarn", "factor": 2, "original_max_position_embeddings": 0)"),
              "original_max_position_embeddings");
  ExpectNames(RopeError(R"({"rope_scaling": {"type": "yarn", "factor": 2}})"),
              "original_max_position_embeddings");
  ExpectNames(RopeError(R"({"rope_theta": 1, "max_position_embeddings": 64, "rope_scaling":
      {"type": "yarn", "factor": 2}})"),
              "rope_theta");
  ExpectNames(error_of(R"("type": "longrope", "long_factor": [1, 1])"), "short_factor");
  ExpectNames(error_of(R"("type": "longrope", "short_factor": [1, 1], "long_factor": [1])"),
              "long_factor");
  ExpectNames(error_of(R"("type": "longrope", "short_factor": [1, 0], "long_factor": [1, 1])"),
              "short_factor");
  ExpectNames(error_of(R"("type": "dynamic")"), "factor");
  ExpectNames(error_of(R"("type": "dynamic", "alpha": 1000)"), "alpha");
  EXPECT_THROW(MaxPositionsOf(R"({"max_position_embeddings": 64, "rope_scaling": {"type": "yarn",
      "factor": 1e30}})"),
               Error);
}

TEST(RopeFields, HeadsTurnWholeWhereTheFamilyHasNoPart) {
  const auto read = [](const char* text) {
    const Json config = ParseJson(text, "config.json");
    return ReadRope(JsonObject(config, "config.json"), 8).rotary_dim;
  };
  EXPECT_EQ(read("{}"), 8);
  EXPECT_EQ(read(R"({"partial_rotary_factor": 1.0})"), 8);
  for (const char* part : {R"({"partial_rotary_factor": 0.5})",
                           R"({"rope_parameters": {"partial_rotary_factor": 0.5}})"}) {
    try {
      read(part);
      ADD_FAILURE() << part << " was accepted";
    } catch (const Error& error) {
      ExpectNames(error.what(), "partial_rotary_factor is 0.5; only 1 is implemented");
    }
  }
}

TEST(RopeFields, RopesOfLayerTypesAndNothingForAllLayers) {
  const auto error_of = [](const char* text) -> std::string {
    const Json config = ParseJson(text, "config.json");
    try {
      RequireRopesOfLayerTypes(JsonObject(config, "config.json"), {"near", "far"});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const char* fine :
       {"{}", R"({"rope_scaling": null, "rope_parameters": null})", R"({"rope_scaling": false})",
        R"({"rope_parameters": {"near": {"rope_theta": 5}, "far": null, "rope_type": "default"}})",
        R"({"rope_theta": 5, "rope_parameters": {"near": {"rope_theta": 7}}})"}) {
    EXPECT_EQ(error_of(fine), "") << fine;
  }
  ExpectNames(error_of(R"({"rope_theta": 5})"), "config.json: the field rope_theta is 5");
  ExpectNames(error_of(R"({"rope_theta": 5, "rope_parameters": {"near": {"rope_theta": 7},
                           "far": {}}})"),
              "config.json: the field rope_theta is 5");
  ExpectNames(error_of(R"({"partial_rotary_factor": 0.5})"), "partial_rotary_factor is 0.5");
  ExpectNames(error_of(R"({"rope_scaling": {"type": "linear"}})"), "rope_scaling is {");
  ExpectNames(error_of(R"({"rope_parameters": {"near": {}, "factor": 2}})"),
              "rope_parameters: the field factor is 2");
  ExpectNames(error_of(R"({"rope_parameters": {"rope_type": "yarn"}})"), "rope_type is \"yarn\"");
  ExpectNames(error_of(R"({"rope_parameters": {"middle": {}}})"), "the field middle is {}");
  ExpectNames(error_of(R"({"rope_parameters": {"rope_theta": 5}})"),
              "in rope_parameters: \"near\"");
}

}  // namespace
}  // namespace adder
