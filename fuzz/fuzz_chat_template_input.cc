// Any JSON as a conversation for a few templates: either an Error, or a valid text.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace {

// Templates that together use what real ones use: tags around turns, tools as JSON, contents in
// parts, reasoning that is cut out, tool calls, macros that walk schemas.
constexpr std::string_view kTemplates[] = {
    R"({{ bos_token }}{% for message in messages %}
<|start|>{{ message['role'] }}
{% if message.content is string %}{{ message.content | trim }}{% else %}
{%- for part in message.content %}{{ part.text if part.type == 'text' else '[' ~ part.type ~ ']' }}{% endfor %}
{% endif %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %})",
    R"({%- set ns = namespace(system='', last=-1) %}
{%- for m in messages if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endfor %}
{%- if messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% endif %}
{{- ns.system }}{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{% endif %}
{%- for m in messages[1:] %}
{%- if m.role == 'assistant' and m.content and '</think>' in m.content %}
{{- m.content.split('</think>')[-1].lstrip('\n') }}
{%- elif m.tool_calls %}{% for call in m.tool_calls %}{{ call.function.name }}(
{%- for key, value in call.function.arguments.items() %}{{ key }}={{ value | tojson }}
{%- if not loop.last %}, {% endif %}{% endfor %}){% endfor %}
{%- elif m.role not in ['user', 'tool', 'assistant'] %}{{ raise_exception('Unknown role ' + m.role) }}
{%- else %}{{ m.role | title }}: {{ m.content }}{% endif %}{% endfor %})",
    R"({% macro schema(value, depth) %}{% for key, item in value | dictsort %}
{{ '  ' * depth }}{{ key }}: {% if item is mapping %}{{ schema(item, depth + 1) }}
{%- elif item is iterable and item is not string %}{{ item | map('string') | join('|') }}
{%- else %}{{ item }} {{ item is number }}{% endif %}{% endfor %}{% endmacro %}
{% for message in messages | reverse %}{{ schema(message, 0) }}{{ message | length }}
{{ message.content[:10] ~ message.content[::-1] if message.content is sequence }}
{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | count }})"};

std::vector<adder::text::ChatTemplate> ParseTemplates() {
  std::vector<adder::text::ChatTemplate> templates;
  for (std::string_view source : kTemplates) {
    templates.push_back(adder::text::ChatTemplate::Parse(source, "template"));
  }
  return templates;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto templates = ParseTemplates();
  adder::Json input;
  try {
    input = adder::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size), "input");
  } catch (const adder::Error&) {
    return 0;
  }
  adder::text::ChatTemplateOptions options;
  options.add_generation_prompt = true;
  const bool is_object = input.is_object();
  if (is_object && input.contains("tools")) options.tools = input["tools"];
  if (is_object && input.contains("variables")) options.variables = input["variables"];
  const adder::Json messages = is_object && input.contains("messages") ? input["messages"] : input;
  for (const auto& parsed : templates) {
    try {
      if (!adder::text::IsValidUtf8(parsed.Render(messages, options))) __builtin_trap();
    } catch (const adder::Error&) {
    }
  }
  return 0;
}
