#include "model/family.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace adder {
namespace {

// The model_type found for a config text, or the error's message.
std::string Found(const std::string& text) {
  const Json config = ParseJson(text, "config.json");
  try {
    return std::string(FindFamily(JsonObject(config, "config.json")).model_type);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Family, ListIsSortedAndDescribed) {
  const std::vector<const Family*>& families = AllFamilies();
  ASSERT_GE(families.size(), 4u);
  for (size_t i = 0; i < families.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(families[i - 1]->model_type, families[i]->model_type);
    }
    EXPECT_FALSE(families[i]->description.empty()) << families[i]->model_type;
    EXPECT_FALSE(families[i]->architectures.empty()) << families[i]->model_type;
    EXPECT_NE(families[i]->build, nullptr);
  }
}

TEST(Family, FoundByModelType) {
  EXPECT_EQ(Found(R"({"model_type": "granitemoehybrid"})"), "granitemoehybrid");
  EXPECT_EQ(Found(R"({"model_type": "granite", "architectures": ["LlamaForCausalLM"]})"),
            "granite");
}

TEST(Family, FoundByArchitecture) {
  EXPECT_EQ(Found(R"({"architectures": ["GraniteMoeHybridForCausalLM"]})"), "granitemoehybrid");
  EXPECT_EQ(Found(R"({"model_type": null, "architectures": ["X", "LlamaForCausalLM"]})"), "llama");
  EXPECT_EQ(Found(R"({"architectures": ["Mamba2ForCausalLM"]})"), "mamba2");
}

TEST(Family, OriginalMambaFoundByItsLayer) {
  EXPECT_EQ(Found(R"({"d_model": 8, "ssm_cfg": {"layer": "Mamba2"}})"), "mamba2");
  // Without a layer the original code builds the first Mamba.
  EXPECT_EQ(Found(R"({"d_model": 8, "ssm_cfg": {}})"), "mamba");
  EXPECT_EQ(Found(R"({"d_model": 8, "ssm_cfg": {"layer": "Mamba1"}})"), "mamba");
  const std::string error = Found(R"({"d_model": 8, "ssm_cfg": {"layer": "Mamba9"}})");
  EXPECT_NE(error.find("ssm_cfg"), std::string::npos) << error;
  EXPECT_NE(error.find("mamba9"), std::string::npos) << error;
}

TEST(Family, UnknownListsTheSupported) {
  for (const char* text : {R"({"model_type": "unheard_of"})", R"({})",
                           R"({"architectures": ["UnheardOfForCausalLM"]})"}) {
    const std::string error = Found(text);
    EXPECT_NE(error.find("config.json"), std::string::npos) << error;
    EXPECT_NE(error.find("granite, granitemoehybrid"), std::string::npos) << error;
  }
  EXPECT_NE(Found(R"({"model_type": "unheard_of"})").find("unheard_of"), std::string::npos);
  EXPECT_NE(Found(R"({"architectures": ["OddLM"]})").find("OddLM"), std::string::npos);
}

TEST(Family, WrongTypesAreErrors) {
  EXPECT_NE(Found(R"({"model_type": 5})").find("model_type"), std::string::npos);
  EXPECT_NE(Found(R"({"architectures": "LlamaForCausalLM"})").find("architectures"),
            std::string::npos);
  EXPECT_NE(Found(R"({"ssm_cfg": 1})").find("ssm_cfg"), std::string::npos);
}

}  // namespace
}  // namespace adder
