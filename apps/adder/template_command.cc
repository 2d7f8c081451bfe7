// adder template: the prompt that a model's chat template makes of a conversation.
#include <iostream>
#include <iterator>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "loader/model_path.h"
#include "template_options.h"
#include "text/chat_template.h"

namespace adder::cli {
namespace {

constexpr uint64_t kMaxInputBytes = uint64_t{256} << 20;

struct Options {
  std::string model;
  std::string messages;
  std::optional<std::string> tools;
  std::optional<std::string> documents;
  TemplateOptions source;
  bool add_generation_prompt = false;
};

// A JSON file, or standard input for "-".
Json ReadInput(const std::string& path) {
  // Templates print integers exactly or not at all.
  if (path != "-") return ReadJsonFile(path, kMaxInputBytes, LargeIntegers::kRefuse);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  return ParseJson(text, "standard input", kMaxJsonDepth, LargeIntegers::kRefuse);
}

void Run(const Options& options) {
  const text::ChatTemplate chat_template =
      LoadChatTemplate(ResolveModelPath(options.model), options.source);
  Json messages = ReadInput(options.messages);
  text::ChatTemplateOptions settings;
  settings.add_generation_prompt = options.add_generation_prompt;
  if (messages.is_object()) {
    const Json conversation = std::move(messages);
    const auto found = conversation.find("messages");
    if (found == conversation.end()) {
      Fail(options.messages, " should hold an array of messages, or an object with \"messages\".");
    }
    messages = *found;
    if (conversation.contains("tools")) settings.tools = conversation["tools"];
    if (conversation.contains("documents")) settings.documents = conversation["documents"];
  }
  if (options.tools) settings.tools = ReadInput(*options.tools);
  if (options.documents) settings.documents = ReadInput(*options.documents);
  settings.variables = TemplateVariables(options.source);
  Print(chat_template.Render(messages, settings));
}

}  // namespace

void AddTemplateCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("template", "Show the prompt that a conversation becomes");
  AddModelOption(*command, options->model)->required();
  command
      ->add_option("--messages", options->messages,
                   "JSON file with an array of messages, or an object with \"messages\" and "
                   "perhaps \"tools\"; - reads standard input")
      ->required();
  command->add_option("--tools", options->tools, "JSON file with an array of tools");
  command->add_option("--documents", options->documents, "JSON file with an array of documents");
  command->add_flag("--add-generation-prompt", options->add_generation_prompt,
                    "End with the beginning of the assistant's turn");
  AddTemplateOptions(*command, options->source);
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
