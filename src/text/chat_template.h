// Chat templates: the prompt of a conversation, as transformers' apply_chat_template writes it.
//
// A template is Jinja source that comes with the model. It is rendered as Python's jinja2 does with
// the settings of transformers: blocks trimmed, a sandbox in which values cannot be changed, loop
// controls, the block `generation`, and the functions raise_exception and strftime_now.
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace adder::text {

// What one rendering is given besides the messages.
struct ChatTemplateOptions {
  Json tools;      // an array of tool descriptions, or null for none
  Json documents;  // an array of documents, or null for none
  // Ends the prompt with the beginning of the assistant's turn.
  bool add_generation_prompt = false;
  // Further variables (an object or null), e.g. {"enable_thinking": false}. They win over the
  // special tokens, but cannot have the name of a field above or "messages".
  Json variables;
  // The local time that strftime_now writes; the clock's when empty.
  std::function<std::tm()> now;
};

// One parsed template, or one with a variant for conversations with tools. Copies share the parsed
// source. Rendering does not change it: several threads may render at once.
class ChatTemplate {
 public:
  // The template of a model directory: chat_template.jinja, else chat_template.json, else the field
  // chat_template of tokenizer_config.json, which holds one source or a list of named ones. Of
  // named ones, "tool_use" renders conversations with tools and "default" all others. The special
  // tokens of tokenizer_config.json and special_tokens_map.json become variables (bos_token, ...).
  // Nothing when the directory has no template. Throws Error for files that cannot be read and for
  // templates that cannot be parsed (with file and line).
  static std::optional<ChatTemplate> Load(const std::filesystem::path& model_dir);

  // The special tokens that Load passes as variables, for a template from elsewhere: an object.
  static Json SpecialTokens(const std::filesystem::path& model_dir);

  // `name` stands for the source in errors. `variables` (an object) are passed to every rendering.
  static ChatTemplate Parse(std::string_view source, const std::string& name,
                            Json variables = Json::object());

  // `messages` is an array of objects that have a "role". Throws Error when it is not, when the
  // template calls raise_exception (the message is in the error), and for every mistake of the
  // template, with its name and line. Time, memory and the size of the text are bounded.
  std::string Render(const Json& messages, const ChatTemplateOptions& options = {}) const;

  // The template's text, behind it that of a variant for tools: what the model's answers look like
  // can be told from it (see output_parser.h).
  std::string_view Source() const;

  // Whether the template reads a variable of this name that it is to be given, such as
  // "enable_thinking" or "tools".
  bool Reads(std::string_view variable) const;

 private:
  struct Sources;
  explicit ChatTemplate(std::shared_ptr<const Sources> sources);

  std::shared_ptr<const Sources> sources_;
};

}  // namespace adder::text
