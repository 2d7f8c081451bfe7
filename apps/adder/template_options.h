// The options of the commands that use a chat template: chat and template.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "text/chat_template.h"

namespace adder::cli {

struct TemplateOptions {
  std::optional<std::string> file;
  std::optional<std::string> variables;  // a JSON object as text
};
// --chat-template and --template-kwargs.
void AddTemplateOptions(CLI::App& command, TemplateOptions& options);

// The template of the file that was given, else of the model directory. Throws Error when there is
// none; `advice`, a sentence or nothing, ends the message.
text::ChatTemplate LoadChatTemplate(const std::filesystem::path& directory,
                                    const TemplateOptions& options, std::string_view advice = "");

// What --template-kwargs gives; null without it.
Json TemplateVariables(const TemplateOptions& options);

}  // namespace adder::cli
