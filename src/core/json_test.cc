#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"

namespace adder {
namespace {

std::string MessageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseJson, KeepsKeyOrderAndValues) {
  const Json value = ParseJson(R"({"b": [1, 2.5, "x"], "a": {"c": null, "d": true}})", "test");
  EXPECT_EQ(value.dump(), R"({"b":[1,2.5,"x"],"a":{"c":null,"d":true}})");
}

TEST(ParseJson, AcceptsPythonNonFiniteWordsOutsideStrings) {
  const Json value =
      ParseJson(R"({"limit": [0.0, Infinity], "low": -Infinity, "s": "Infinity \" NaN"})", "test");
  const JsonObject object(value, "test");
  EXPECT_EQ(object.Numbers({"limit"})[1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(object.Number({"low"}), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(object.String({"s"}), "Infinity \" NaN");
  EXPECT_TRUE(std::isnan(JsonObject(ParseJson("{\"x\": NaN}", "t"), "t").Number({"x"})));
}

TEST(ParseJson, RejectsBadTextNamingTheSource) {
  EXPECT_NE(MessageOf([] { ParseJson("{\"a\": }", "config.json"); }).find("config.json"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseJson("", "config.json"); }).find("not valid JSON"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseJson("{} x", "config.json"); }).find("not valid JSON"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseJson("\"\xff\"", "config.json"); }).find("not valid JSON"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseJson("1e999", "config.json"); }).find("not valid JSON"),
            std::string::npos);
}

TEST(ParseJson, IntegersBeyond64BitsAreRoundedOrRefused) {
  const std::string text = R"([18446744073709551615, 1e30, 123456789012345678901234567890])";
  EXPECT_EQ(ParseJson(text, "x.json")[2].get<double>(), 123456789012345678901234567890.0);
  EXPECT_EQ(
      MessageOf([&] { ParseJson(text, "x.json", kMaxJsonDepth, LargeIntegers::kRefuse); }),
      "x.json holds the integer 123456789012345678901234567890, which does not fit in 64 bits.");
  EXPECT_EQ(ParseJson("[1e30]", "x.json", kMaxJsonDepth, LargeIntegers::kRefuse)[0], 1e30);
}

TEST(ParseJson, ErrorsDoNotNameTheLibrary) {
  EXPECT_EQ(MessageOf([] { ParseJson("[1 2]", "x.json"); }).find("json.exception"),
            std::string::npos);
  EXPECT_NE(
      MessageOf([] { ParseJson("[1 2]", "x.json"); }).find("near byte 4: parse error at line"),
      std::string::npos);
}

TEST(ParseJson, RejectsDuplicateKeysAndDeepNesting) {
  EXPECT_EQ(MessageOf([] { ParseJson(R"({"a": {"k": 1, "k": 2}})", "x.json"); }),
            "x.json has the key \"k\" twice in one object.");
  EXPECT_EQ(MessageOf([] { ParseJson(std::string(100000, '['), "x.json"); }),
            "x.json is nested deeper than 64 levels.");
}

TEST(JsonObject, IntegersAreCheckedForTypeAndRange) {
  const Json value = ParseJson(
      R"({"n": 7, "whole": 4.0, "half": 4.5, "big": 18446744073709551615, "text": "7", "no": null})",
      "config.json");
  const JsonObject object(value, "config.json");
  EXPECT_EQ(object.Int({"n"}, 1, 10), 7);
  EXPECT_EQ(object.Int({"missing", "n"}, 1, 10), 7);
  EXPECT_EQ(object.Int({"whole"}, 1, 10), 4);
  EXPECT_EQ(object.Int({"no"}, 1, 10, 3), 3);
  EXPECT_EQ(MessageOf([&] { object.Int({"n"}, 8, 10); }),
            "config.json: the field n is 7, outside 8 to 10.");
  EXPECT_EQ(MessageOf([&] { object.Int({"half"}, 0, 10); }),
            "config.json: the field half should be an integer, it is 4.5.");
  EXPECT_EQ(MessageOf([&] { object.Int({"text"}, 0, 10); }),
            "config.json: the field text should be an integer, it is \"7\".");
  const Json infinite = ParseJson(R"({"n": -Infinity})", "config.json");
  EXPECT_EQ(MessageOf([&] { JsonObject(infinite, "config.json").Int({"n"}, 0, 10); }),
            "config.json: the field n should be an integer, it is -Infinity.");
  EXPECT_NE(MessageOf([&] { object.Int({"big"}, 0, INT64_MAX); }).find("outside"),
            std::string::npos);
  EXPECT_EQ(MessageOf([&] { object.Int({"a", "b"}, 0, 1); }), "config.json lacks the field a / b.");
}

TEST(JsonObject, NestedObjectsCarryTheirPath) {
  const Json value = ParseJson(R"({"rope_scaling": {"factor": "x"}, "list": [1, "a"]})", "c.json");
  const JsonObject object(value, "c.json");
  EXPECT_EQ(MessageOf([&] { object.Object({"rope_scaling"})->Number({"factor"}); }),
            "c.json: rope_scaling: the field factor should be a number, it is \"x\".");
  EXPECT_FALSE(object.Object({"missing"}).has_value());
  EXPECT_NE(MessageOf([&] { object.Strings({"list"}); }).find("strings only"), std::string::npos);
  EXPECT_NE(MessageOf([&] { object.Numbers({"list"}); }).find("numbers only"), std::string::npos);
  EXPECT_EQ(MessageOf([&] { object.Object({"list"}); }), "c.json: list should hold a JSON object.");
  const Json number = ParseJson(R"({"rope_scaling": NaN})", "c.json");
  EXPECT_EQ(MessageOf([&] { JsonObject(number, "c.json").Object({"rope_scaling"}); }),
            "c.json: rope_scaling should hold a JSON object.");
}

TEST(PrintJson, WritesWhatItReadAndNonFiniteWordsBare) {
  const std::string text = R"({
  "limit": [
    0.0,
    Infinity,
    -Infinity,
    NaN
  ],
  "empty": {},
  "nested \"name\"": {
    "a": null
  }
}
)";
  EXPECT_EQ(PrintJson(ParseJson(text, "test")), text);
  EXPECT_EQ(PrintJson(ParseJson(R"({"x": {"__float__": "Infinity"}})", "test")),
            "{\n  \"x\": Infinity\n}\n");
  EXPECT_EQ(PrintJson(Json(3)), "3\n");
}

}  // namespace
}  // namespace adder
