#include "text/chat_template.h"

#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "text/jinja/template.h"

namespace adder::text {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;

using NamedSources = std::vector<std::pair<std::string, std::string>>;

const std::string& RequireString(const Json& value, const std::string& where) {
  if (!value.is_string()) Fail(where, " should be a string.");
  return value.get_ref<const std::string&>();
}

// The field chat_template: one source, or a list of {"name": ..., "template": ...}.
NamedSources ParseField(const Json& field, const std::string& where) {
  NamedSources sources;
  if (!field.is_array()) {
    sources.emplace_back("default", RequireString(field, where));
    return sources;
  }
  for (const Json& entry : field) {
    const JsonObject object(entry, where);
    sources.emplace_back(object.String({"name"}), object.String({"template"}));
  }
  return sources;
}

const std::string* FindSource(const NamedSources& sources, std::string_view name) {
  for (const auto& [given, source] : sources) {
    if (given == name) return &source;
  }
  return nullptr;
}

Json ReadObject(const std::filesystem::path& path) {
  Json json = ReadJsonFile(path.string(), kMaxFileBytes);
  if (!json.is_object()) Fail(path.string(), " should hold a JSON object.");
  return json;
}

// The text of a special token, which may be an object with its text and flags.
std::optional<std::string> TokenText(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (!token.is_object()) return std::nullopt;
  const auto content = token.find("content");
  if (content == token.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

void AddSpecialTokens(const Json& fields, Json& tokens) {
  for (auto field = fields.begin(); field != fields.end(); ++field) {
    const std::string& key = field.key();
    if (key.ends_with("_token")) {
      if (const auto text = TokenText(*field)) tokens[key] = *text;
    } else if (key == "additional_special_tokens" && field->is_array()) {
      Json texts = Json::array();
      for (const Json& token : *field) {
        if (const auto text = TokenText(token)) texts.push_back(*text);
      }
      tokens[key] = std::move(texts);
    } else if (key == "extra_special_tokens" && field->is_object()) {
      for (auto token = field->begin(); token != field->end(); ++token) {
        if (const auto text = TokenText(*token)) tokens[token.key()] = *text;
      }
    }
  }
}

void CheckMessages(const Json& messages) {
  if (!messages.is_array()) Fail("The messages should be an array of objects.");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) Fail("Message ", i, " should be an object.");
    const auto role = messages[i].find("role");
    if (role == messages[i].end()) Fail("Message ", i, " lacks the field role.");
    if (!role->is_string()) Fail("Message ", i, ": the field role should be a string.");
  }
}

void CheckList(const Json& list, std::string_view name) {
  if (!list.is_null() && !list.is_array()) Fail("The ", name, " should be an array.");
}

}  // namespace

struct ChatTemplate::Sources {
  jinja::Template standard;
  std::optional<jinja::Template> for_tools;
  Json variables;
  std::string text;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Sources> sources) : sources_(std::move(sources)) {}

std::optional<ChatTemplate> ChatTemplate::Load(const std::filesystem::path& model_dir) {
  NamedSources sources;
  std::string where;
  const auto single_file = model_dir / "chat_template.jinja";
  const auto json_file = model_dir / "chat_template.json";
  const auto config_file = model_dir / "tokenizer_config.json";
  if (std::filesystem::exists(single_file)) {
    where = single_file.string();
    sources.emplace_back("default", ReadFile(single_file, kMaxFileBytes));
    const auto tool_file = model_dir / "additional_chat_templates" / "tool_use.jinja";
    if (std::filesystem::exists(tool_file)) {
      sources.emplace_back("tool_use", ReadFile(tool_file, kMaxFileBytes));
    }
  } else {
    for (const auto& file : {json_file, config_file}) {
      if (!std::filesystem::exists(file)) continue;
      const Json fields = ReadObject(file);
      const auto field = fields.find("chat_template");
      if (field == fields.end() || field->is_null()) continue;
      where = Concat(file.string(), ": chat_template");
      sources = ParseField(*field, where);
      break;
    }
  }
  if (sources.empty()) return std::nullopt;

  const std::string* standard = FindSource(sources, "default");
  const std::string* for_tools = FindSource(sources, "tool_use");
  if (standard == nullptr) {
    if (sources.size() > 1) Fail(where, " has several templates, but none is named default.");
    standard = &sources[0].second;
    for_tools = nullptr;
  }
  std::optional<jinja::Template> tool_template;
  if (for_tools != nullptr) tool_template.emplace(*for_tools, Concat(where, " (tool_use)"));
  return ChatTemplate(std::make_shared<const Sources>(
      Sources{jinja::Template(*standard, where), std::move(tool_template), SpecialTokens(model_dir),
              for_tools != nullptr ? *standard + *for_tools : *standard}));
}

Json ChatTemplate::SpecialTokens(const std::filesystem::path& model_dir) {
  Json tokens = Json::object();
  const auto config_file = model_dir / "tokenizer_config.json";
  const auto map_file = model_dir / "special_tokens_map.json";
  const Json config =
      std::filesystem::exists(config_file) ? ReadObject(config_file) : Json::object();
  AddSpecialTokens(config, tokens);
  // Only configurations of before 2023, without added_tokens_decoder, leave tokens to this file.
  if (!config.contains("added_tokens_decoder") && std::filesystem::exists(map_file)) {
    AddSpecialTokens(ReadObject(map_file), tokens);
  }
  return tokens;
}

ChatTemplate ChatTemplate::Parse(std::string_view source, const std::string& name, Json variables) {
  if (!variables.is_object()) Fail(name, ": the variables should be a JSON object.");
  return ChatTemplate(std::make_shared<const Sources>(Sources{
      jinja::Template(source, name), std::nullopt, std::move(variables), std::string(source)}));
}

std::string ChatTemplate::Render(const Json& messages, const ChatTemplateOptions& options) const {
  CheckMessages(messages);
  CheckList(options.tools, "tools");
  CheckList(options.documents, "documents");
  jinja::Template::Variables variables = {{"messages", messages},
                                          {"tools", options.tools},
                                          {"documents", options.documents},
                                          {"add_generation_prompt", options.add_generation_prompt}};
  const size_t own = variables.size();
  if (!options.variables.is_null()) {
    if (!options.variables.is_object()) Fail("The template's variables should be a JSON object.");
    for (auto variable = options.variables.begin(); variable != options.variables.end();
         ++variable) {
      for (size_t i = 0; i < own; ++i) {
        if (variables[i].first == variable.key()) {
          Fail("The template's variables cannot include ", variable.key(),
               ", which has its own place.");
        }
      }
      variables.emplace_back(variable.key(), *variable);
    }
  }
  for (auto token = sources_->variables.begin(); token != sources_->variables.end(); ++token) {
    variables.emplace_back(token.key(), *token);
  }
  const bool with_tools = options.tools.is_array();
  const jinja::Template& chosen =
      with_tools && sources_->for_tools ? *sources_->for_tools : sources_->standard;
  return options.now ? chosen.Render(variables, options.now) : chosen.Render(variables);
}

std::string_view ChatTemplate::Source() const { return sources_->text; }

bool ChatTemplate::Reads(std::string_view variable) const {
  return sources_->standard.Reads(variable) ||
         (sources_->for_tools && sources_->for_tools->Reads(variable));
}

}  // namespace adder::text
