#include "model/config_parts.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace adder {
namespace {

std::vector<bool> Listed(const std::string& config, int64_t layers, int64_t first) {
  const Json parsed = ParseJson(config, "config.json");
  return ReadListedLayers(JsonObject(parsed, "config.json"), "layers", layers, first);
}

TEST(ConfigParts, FieldsThatDescribeTheLayersHaveToAgree) {
  const Json empty = Json::object();
  const JsonObject config(empty, "config.json");
  AgreedLayers<std::string> agreed(config);
  EXPECT_FALSE(agreed.get().has_value());
  agreed.Add("pattern", "MM*");
  agreed.Add("types", "MM*");
  EXPECT_EQ(agreed.get(), "MM*");
  for (const char* other : {"M**", "MM", "MM*M"}) {
    try {
      agreed.Add("list", other);
      ADD_FAILURE() << other << " was accepted";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "config.json: the fields pattern and list describe different layers.");
    }
  }
}

TEST(ConfigParts, ListedLayers) {
  EXPECT_EQ(Listed(R"({"layers": [2, 0]})", 4, 0), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(Listed(R"({"layers": [3, 1.0]})", 3, 1), (std::vector<bool>{true, false, true}));
  for (const char* none : {"{}", R"({"layers": null})", R"({"layers": []})"}) {
    EXPECT_EQ(Listed(none, 2, 0), (std::vector<bool>{false, false})) << none;
  }
}

TEST(ConfigParts, LayersThatAreNotThereAreNamed) {
  for (const char* list : {"[4]", "[-1]", "[0.5]", "[NaN]", "[Infinity]", "[1e300]", "[1, 2, 1]",
                           "[\"1\"]", "[null]", "[true]", "[[1]]", "1", "\"1\"", "{}", "false"}) {
    try {
      Listed(Concat("{\"layers\": ", list, "}"), 4, 0);
      ADD_FAILURE() << list << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("config.json: the field layers"), std::string::npos)
          << error.what();
    }
  }
}

TEST(ConfigParts, LayersOfTwoTypes) {
  const auto read = [](const char* text) {
    const Json config = ParseJson(text, "config.json");
    return ReadLayersOfType(JsonObject(config, "config.json"), "types", 3, "sparse", "dense");
  };
  EXPECT_EQ(read(R"({"types": ["dense", "sparse", "sparse"]})"),
            (std::vector<bool>{false, true, true}));
  for (const char* text : {R"({"types": ["dense", "sparse"]})", R"({"types": []})", "{}",
                           R"({"types": ["dense", "sparse", "both"]})", R"({"types": "dense"})"}) {
    try {
      read(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("config.json: the field types"), std::string::npos)
          << error.what();
    }
  }
}

TEST(ConfigParts, NamesOfOneThingSayTheSame) {
  const auto check = [](const char* text) {
    const Json config = ParseJson(text, "config.json");
    RequireSame(JsonObject(config, "config.json"), {"a", "b", "c"});
  };
  for (const char* same : {"{}", R"({"b": 2})", R"({"a": 2, "c": 2.0})", R"({"a": null, "b": 1})",
                           R"({"a": [1, 2], "b": [1, 2]})"}) {
    EXPECT_NO_THROW(check(same)) << same;
  }
  for (const char* other :
       {R"({"a": 1, "c": 2})", R"({"b": 1, "c": true})", R"({"a": [1], "b": 1})"}) {
    try {
      check(other);
      ADD_FAILURE() << other << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("they should say the same"), std::string::npos)
          << error.what();
    }
  }
}

TEST(ConfigParts, TheTextModelMayBeApart) {
  const Json nested =
      ParseJson(R"({"hidden_size": 1, "text_config": {"hidden_size": 2}})", "config.json");
  const JsonObject text = ReadTextConfig(JsonObject(nested, "config.json"));
  EXPECT_EQ(text.Int({"hidden_size"}, 1, 9), 2);
  EXPECT_EQ(text.where(), "config.json: text_config");
  const Json plain = ParseJson(R"({"hidden_size": 1, "text_config": null})", "config.json");
  EXPECT_EQ(ReadTextConfig(JsonObject(plain, "config.json")).Int({"hidden_size"}, 1, 9), 1);
  const Json neither = ParseJson(R"({"vision_config": {"hidden_size": 1}})", "config.json");
  EXPECT_THROW(ReadTextConfig(JsonObject(neither, "config.json")), Error);
}

}  // namespace
}  // namespace adder
