// Renders every template of the conformance kit for every conversation.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/chat_template.h"
#include "text/kit_for_test.h"

namespace adder::text {
namespace {

ChatTemplateOptions MakeOptions(const Json& conversation) {
  ChatTemplateOptions options;
  options.tools = conversation["tools"];
  options.add_generation_prompt = conversation["add_generation_prompt"].get<bool>();
  options.variables = conversation["kwargs"];
  options.now = KitClock;
  return options;
}

TEST(ChatTemplateConformance, EveryTemplateOfTheKit) {
  const std::filesystem::path kit = SharedFolder(ADDER_SOURCE_DIR) / "chat_templates";
  if (!std::filesystem::is_directory(kit)) {
    GTEST_SKIP() << "There is no kit of chat templates at " << kit << "; set ADDER_SHARED.";
  }
  const Json cases = ReadJsonFile((kit / "cases.json").string());
  const Json tokens = {{"bos_token", cases["render"]["bos_token"]},
                       {"eos_token", cases["render"]["eos_token"]}};
  int texts = 0;
  int equal_texts = 0;
  int refusals = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kit)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const Json expected = ReadJsonFile((kit / "expected" / (name + ".json")).string());
    // A template that asks for a filter Jinja lacks fails as a whole.
    std::optional<ChatTemplate> parsed;
    try {
      parsed = ChatTemplate::Parse(ReadFile(entry.path()), name, tokens);
    } catch (const Error&) {
    }
    for (const Json& conversation : cases["cases"]) {
      const auto case_name = conversation["name"].get<std::string>();
      SCOPED_TRACE(case_name);
      const Json& wanted = expected[case_name];
      std::string text;
      std::string message;
      try {
        if (parsed) text = parsed->Render(conversation["messages"], MakeOptions(conversation));
      } catch (const Error& error) {
        message = error.what();
      }
      if (wanted.contains("text")) {
        ++texts;
        EXPECT_EQ(text, wanted["text"].get<std::string>()) << message;
        if (parsed && message.empty() && text == wanted["text"]) ++equal_texts;
      } else if (wanted["error"] == "raised") {
        ++refusals;
        EXPECT_NE(message.find(wanted["message"].get<std::string>()), std::string::npos) << message;
      }
    }
  }
  EXPECT_GT(texts, 1500);
  EXPECT_EQ(equal_texts, texts);
  EXPECT_GT(refusals, 30);
}

}  // namespace
}  // namespace adder::text
