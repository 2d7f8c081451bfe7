#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "text/kit_for_test.h"

namespace adder::text {
namespace {

const Json kMessages = {{{"role", "user"}, {"content", "Hi"}}};

TEST(ChatTemplate, PassesVariables) {
  const auto parsed = ChatTemplate::Parse(
      "{{ a }}{{ b }}{{ messages[0].content }}{{ tools }}{{ tools is defined }}{{ documents }}"
      "{{ add_generation_prompt }}{{ strftime_now('%Y') }}",
      "test", {{"a", "1"}, {"b", "2"}});
  ChatTemplateOptions options;
  options.now = KitClock;
  options.variables = {{"b", "3"}};
  EXPECT_EQ(parsed.Render(kMessages, options), "13HiNoneTrueNoneFalse2025");
  options.tools = Json::array({{{"name", "f"}}});
  options.add_generation_prompt = true;
  EXPECT_EQ(parsed.Render(kMessages, options), "13Hi[{'name': 'f'}]TrueNoneTrue2025");
}

TEST(ChatTemplate, KnowsWhatItReads) {
  const auto parsed = ChatTemplate::Parse(
      "{% set own = 1 %}{{ own }}{% if enable_thinking %}{{ messages }}{% endif %}", "test");
  EXPECT_TRUE(parsed.Reads("enable_thinking"));
  EXPECT_TRUE(parsed.Reads("messages"));
  EXPECT_FALSE(parsed.Reads("own"));
  EXPECT_FALSE(parsed.Reads("tools"));
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  const auto parsed = ChatTemplate::Parse("x", "test");
  EXPECT_THROW(parsed.Render(Json("x")), Error);
  EXPECT_THROW(parsed.Render(Json::array({1})), Error);
  EXPECT_THROW(parsed.Render(Json::array({Json{{"content", "x"}}})), Error);
  ChatTemplateOptions options;
  options.tools = Json::object();
  EXPECT_THROW(parsed.Render(kMessages, options), Error);
  options.tools = nullptr;
  options.variables = {{"tools", 1}};
  EXPECT_THROW(parsed.Render(kMessages, options), Error);
  EXPECT_THROW(ChatTemplate::Parse("{{", "test"), Error);
  EXPECT_FALSE(ChatTemplate::Load("/nonexistent").has_value());
}

}  // namespace
}  // namespace adder::text
