#include "text/output_parser/tool_format.h"

namespace adder::text {
namespace {

using Body = SectionRules::Body;

ParsedCalls ParseNothing(std::string_view, const ToolSchemas&) { return std::nullopt; }

// A JSON value between two marks.
SectionRules JsonUntil(std::string_view closer) {
  SectionRules rules;
  rules.body = Body::kJson;
  rules.begins = {"{", "["};
  rules.closer = closer;
  return rules;
}

// Anything up to a closing mark, which as a special token does not occur inside.
SectionRules MarksUntil(std::string_view begin, std::string_view closer) {
  SectionRules rules;
  rules.begins = {begin, ""};
  rules.closer = closer;
  return rules;
}

// Tags up to a closing mark that does not count inside a parameter's value.
SectionRules TagsUntil(std::string_view begin, std::string_view closer, std::string_view value_open,
                       std::string_view value_close) {
  SectionRules rules = MarksUntil(begin, closer);
  rules.value_open = value_open;
  rules.value_close = value_close;
  return rules;
}

// A function's name, then tags.
SectionRules NameAndTagsUntil(std::string_view closer, std::string_view value_open,
                              std::string_view value_close) {
  SectionRules rules = TagsUntil("", closer, value_open, value_close);
  rules.body = Body::kName;
  return rules;
}

SectionRules NamedJson() {
  SectionRules rules;
  rules.body = Body::kNamedJson;
  return rules;
}

std::vector<ToolFormat> MakeFormats() {
  std::vector<ToolFormat> formats;
  const auto add = [&](ToolFormat format) { formats.push_back(std::move(format)); };
  add({.names = {"none"},
       .openers = {},
       .rules = {},
       .parse = ParseNothing,
       .inner_marks = {},
       .signs = {}});
  // LFM2's first templates do not show calls, only how tools are listed.
  add({.names = {"lfm2"},
       .openers = {"<|tool_call_start|>"},
       .rules = MarksUntil("", "<|tool_call_end|>"),
       .parse = ParsePythonicCalls,
       .inner_marks = {},
       .signs = {{"<|tool_call_start|>"}, {"<|tool_list_start|>"}, {"List of tools: ["}}});
  add({.names = {"kimi_k2"},
       .openers = {"<|tool_calls_section_begin|>"},
       .rules = MarksUntil("<|tool_call_begin|>", "<|tool_calls_section_end|>"),
       .parse = ParseKimiCalls,
       .inner_marks = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
       .signs = {{"<|tool_calls_section_begin|>"}}});
  add({.names = {"nemotron_json"},
       .openers = {"<TOOLCALL>"},
       .rules = JsonUntil("</TOOLCALL>"),
       .parse = ParseJsonCalls,
       .inner_marks = {},
       .signs = {{"<TOOLCALL>"}}});
  // Granite 3 writes the special token or, when it came out as text, the tag, neither closed.
  add({.names = {"granite"},
       .openers = {"<|tool_call|>", "<tool_call>"},
       .rules = JsonUntil(""),
       .parse = ParseJsonCalls,
       .inner_marks = {},
       .signs = {{"<|tool_call|>"}}});
  add({.names = {"deepseek_v3", "deepseek_v31"},
       .openers = {"<｜tool▁calls▁begin｜>"},
       .rules = MarksUntil("<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
       .parse = ParseDeepSeekCalls,
       .inner_marks = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
       .signs = {{"<｜tool▁calls▁begin｜>"}}});
  add({.names = {"deepseek_v32"},
       .openers = {"<｜DSML｜function_calls>"},
       .rules = TagsUntil("<｜DSML｜invoke", "</｜DSML｜function_calls>", "<｜DSML｜parameter",
                          "</｜DSML｜parameter>"),
       .parse = ParseDsmlCalls,
       .inner_marks = {"｜DSML｜"},
       .signs = {{"｜DSML｜", "function_calls>"}}});
  add({.names = {"deepseek_v4"},
       .openers = {"<｜DSML｜tool_calls>"},
       .rules = TagsUntil("<｜DSML｜invoke", "</｜DSML｜tool_calls>", "<｜DSML｜parameter",
                          "</｜DSML｜parameter>"),
       .parse = ParseDsmlCalls,
       .inner_marks = {"｜DSML｜"},
       .signs = {{"｜DSML｜"}}});
  add({.names = {"seed_oss"},
       .openers = {"<seed:tool_call>"},
       .rules = TagsUntil("<function=", "</seed:tool_call>", "<parameter=", "</parameter>"),
       .parse = ParseQwenXmlCalls,
       .inner_marks = {},
       .signs = {{"<seed:tool_call>"}}});
  add({.names = {"minimax_m2"},
       .openers = {"<minimax:tool_call>"},
       .rules = TagsUntil("<invoke", "</minimax:tool_call>", "<parameter", "</parameter>"),
       .parse = ParseInvokeCalls,
       .inner_marks = {},
       .signs = {{"<minimax:tool_call>"}}});
  add({.names = {"qwen3_coder", "qwen3_xml", "nemotron_v3", "step3p5"},
       .openers = {"<tool_call>"},
       .rules = TagsUntil("<function=", "</tool_call>", "<parameter=", "</parameter>"),
       .parse = ParseQwenXmlCalls,
       .inner_marks = {},
       .signs = {{"<function=", "<parameter="}}});
  add({.names = {"glm45", "glm47"},
       .openers = {"<tool_call>"},
       .rules = NameAndTagsUntil("</tool_call>", "<arg_value>", "</arg_value>"),
       .parse = ParseGlmCalls,
       .inner_marks = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
       .signs = {{"<arg_key>"}}});
  add({.names = {"jamba", "hunyuan_a13b"},
       .openers = {"<tool_calls>"},
       .rules = JsonUntil("</tool_calls>"),
       .parse = ParseJsonCalls,
       .inner_marks = {},
       .signs = {{"<tool_calls>"}}});
  add({.names = {"hermes", "qwen25", "granite4", "falcon_h1"},
       .openers = {"<tool_call>"},
       .rules = JsonUntil("</tool_call>"),
       .parse = ParseJsonCalls,
       .inner_marks = {},
       .signs = {{"<tool_call>"}}});
  add({.names = {"cohere"},
       .openers = {"<|START_ACTION|>"},
       .rules = JsonUntil("<|END_ACTION|>"),
       .parse = ParseJsonCalls,
       .inner_marks = {},
       .signs = {{"<|START_ACTION|>"}}});
  add({.names = {"solar"},
       .openers = {"<|tool_calls|>"},
       .rules = MarksUntil("<|tool_call:begin|>", "<|calls|>"),
       .parse = ParseSolarCalls,
       .inner_marks = {"<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>",
                       "<|tool_call:end|>"},
       .signs = {{"<|tool_call:begin|>"}}});
  add({.names = {"mistral"},
       .openers = {"[TOOL_CALLS]"},
       .rules = NamedJson(),
       .parse = ParseMistralCalls,
       .ids = CallIdStyle::kMistral,
       .inner_marks = {"[CALL_ID]", "[ARGS]"},
       .signs = {{"[TOOL_CALLS]"}}});
  add({.names = {"llama3_json"},
       .openers = {"<|python_tag|>"},
       .rules = JsonUntil(""),
       .parse = ParseBareJsonCalls,
       .bare_json = true,
       .inner_marks = {},
       .signs = {{"<|python_tag|>"}, {"Environment: ipython"}}});
  return formats;
}

}  // namespace

const std::vector<ToolFormat>& ToolFormats() {
  static const std::vector<ToolFormat> kFormats = MakeFormats();
  return kFormats;
}

}  // namespace adder::text
