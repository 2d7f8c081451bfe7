// Any bytes as a chat template, rendered for one conversation: either an Error, or a valid text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

namespace {

adder::text::jinja::Template::Variables MakeVariables() {
  const adder::Json context = adder::ParseJson(R"({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Gr\u00f6\u00dfe \u4f60\u597d <b> 'x' \"y\"\n 12"},
      {"role": "assistant", "content": null,
       "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]},
      {"role": "tool", "content": [{"type": "text", "text": "part"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "f": -0.25, "l": [3, 1, 2]})",
                                               "context");
  adder::text::jinja::Template::Variables variables;
  for (auto item = context.begin(); item != context.end(); ++item) {
    variables.emplace_back(item.key(), *item);
  }
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto variables = MakeVariables();
  // Small bounds, so that inputs which use them up do not take seconds.
  adder::text::jinja::Limits limits;
  limits.steps = 200'000;
  limits.memory_bytes = size_t{32} << 20;
  limits.text_bytes = size_t{8} << 20;
  try {
    const adder::text::jinja::Template parsed(
        std::string_view(reinterpret_cast<const char*>(data), size), "template");
    const std::string text = parsed.Render(variables, adder::text::jinja::LocalTime, limits);
    if (!adder::text::IsValidUtf8(text)) __builtin_trap();
  } catch (const adder::Error&) {
  }
  return 0;
}
