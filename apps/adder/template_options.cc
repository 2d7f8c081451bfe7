#include "template_options.h"

#include "core/error.h"
#include "core/file.h"

namespace adder::cli {

void AddTemplateOptions(CLI::App& command, TemplateOptions& options) {
  command.add_option("--chat-template", options.file,
                     "A Jinja file to use in place of the model's template");
  command.add_option("--template-kwargs", options.variables,
                     "Further variables as a JSON object, such as {\"enable_thinking\": false}");
}

text::ChatTemplate LoadChatTemplate(const std::filesystem::path& directory,
                                    const TemplateOptions& options, std::string_view advice) {
  if (options.file) {
    return text::ChatTemplate::Parse(ReadFile(*options.file), *options.file,
                                     text::ChatTemplate::SpecialTokens(directory));
  }
  auto loaded = text::ChatTemplate::Load(directory);
  if (!loaded) {
    Fail(directory.string(),
         " has no chat template: neither chat_template.jinja nor chat_template.json nor a field "
         "chat_template in tokenizer_config.json. Give one with --chat-template FILE.",
         advice.empty() ? "" : " ", advice);
  }
  return *loaded;
}

Json TemplateVariables(const TemplateOptions& options) {
  if (!options.variables) return nullptr;
  Json variables =
      ParseJson(*options.variables, "--template-kwargs", kMaxJsonDepth, LargeIntegers::kRefuse);
  if (!variables.is_object()) {
    Fail("--template-kwargs should be a JSON object such as {\"enable_thinking\": false}, it is ",
         *options.variables, ".");
  }
  return variables;
}

}  // namespace adder::cli
