#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace adder::text {
namespace {

OutputFormat Format(std::string tools, std::string reasoning = "none", bool inside = false) {
  return {std::move(tools), std::move(reasoning), inside};
}

// All of an output on one line: <reasoning>content[name arguments]...
std::string Summary(const ParsedOutput& output) {
  std::string text = output.reasoning.empty() ? "" : "<" + output.reasoning + ">";
  text += output.content;
  for (const ToolCall& call : output.calls) text += "[" + call.name + " " + call.arguments + "]";
  return text;
}

std::string InPieces(const std::string& text, const std::vector<size_t>& cuts,
                     const OutputFormat& format, const OutputParserOptions& options) {
  OutputParser parser(format, options);
  ParsedOutput output;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    output.Add(parser.Push(text.substr(begin, cut - begin)));
    begin = cut;
  }
  output.Add(parser.Push(text.substr(begin)));
  output.Add(parser.Finish());
  return Summary(output);
}

// Parses whole, cut at every place, byte by byte, and cut at random; all must agree.
std::string Parse(const std::string& text, const OutputFormat& format,
                  const OutputParserOptions& options = {}) {
  const std::string whole = Summary(ParseOutput(text, format, options));
  std::vector<size_t> every;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(InPieces(text, {cut}, format, options), whole) << "cut at " << cut;
    every.push_back(cut);
  }
  EXPECT_EQ(InPieces(text, every, format, options), whole) << "byte by byte";
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> cuts;
    for (size_t at = random() % 9; at < text.size(); at += random() % 9) cuts.push_back(at);
    EXPECT_EQ(InPieces(text, cuts, format, options), whole) << "round " << round;
  }
  return whole;
}

Json Tools(const std::string& properties) {
  return ParseJson(R"([{"type": "function", "function": {"name": "f", "parameters": {
      "type": "object", "properties": )" +
                       properties + "}}}]",
                   "tools");
}

TEST(OutputParser, TextWithoutMarksIsContentUnchanged) {
  const std::string text = " \n a < b <tool and <think> </tool_call> \n\n";
  EXPECT_EQ(Parse(text, Format("none")), text);
  EXPECT_EQ(Parse(text, Format("hermes", "think")), text);
  EXPECT_EQ(Parse("", Format("hermes", "think")), "");
  EXPECT_EQ(Parse(" \n", Format("hermes", "think")), " \n");
}

TEST(OutputParser, Reasoning) {
  const OutputFormat format = Format("none", "think");
  EXPECT_EQ(Parse("<think>\nI think.\n</think>\n\nYes.", format), "<I think.>Yes.");
  EXPECT_EQ(Parse("\n<think>I</think>Yes.\n", format), "<I>Yes.\n");
  EXPECT_EQ(Parse("<think>never closed </thin", format), "<never closed </thin>");
  EXPECT_EQ(Parse("<think></think>Yes", format), "Yes");
  EXPECT_EQ(Parse("Use <think>x</think>.", format), "Use <think>x</think>.");
  EXPECT_EQ(Parse("<thin", format), "<thin");
  const OutputFormat inside = Format("none", "think", true);
  EXPECT_EQ(Parse("I think.\n</think>\n\nYes.", inside), "<I think.>Yes.");
  EXPECT_EQ(Parse("<think>\nI think.</think>Yes.", inside), "<I think.>Yes.");
  EXPECT_EQ(Parse(" </think>Yes.", inside), "Yes.");
  EXPECT_EQ(Parse("a <think> b", inside), "<a <think> b>");
}

TEST(OutputParser, OtherMarksOfReasoning) {
  EXPECT_EQ(Parse("<think>a</think><response>b</response>", Format("none", "granite")), "<a>b");
  EXPECT_EQ(
      Parse("Here is my thought process:\na\n\nHere is my response:\nb", Format("none", "granite")),
      "<a>b");
  EXPECT_EQ(Parse("Here is a list.", Format("none", "granite")), "Here is a list.");
  EXPECT_EQ(Parse("<think>\na\n</think>\n<answer>\nb\n</answer>", Format("none", "hunyuan_a13b")),
            "<a>b");
  EXPECT_EQ(Parse("<seed:think>a</seed:think>b", Format("none", "seed_oss")), "<a>b");
  EXPECT_EQ(Parse("◁think▷a◁/think▷b◁", Format("none", "kimi_vl")), "<a>b◁");
  EXPECT_EQ(Parse("[THINK]a[/THINK]b", Format("none", "mistral")), "<a>b");
}

TEST(OutputParser, Hermes) {
  const OutputFormat format = Format("hermes", "think");
  EXPECT_EQ(Parse("Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": "
                  "\"</tool_call>\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
                  "{}}\n</tool_call>",
                  format),
            "Let me look.[f {\"a\": 1, \"b\": \"</tool_call>\"}][g {}]");
  EXPECT_EQ(Parse("<think>t</think>\n\n<tool_call>{\"arguments\": {\"x\": 1e5}, \"name\": "
                  "\"f\"}</tool_call>",
                  format),
            "<t>[f {\"x\": 1e5}]");
  EXPECT_EQ(
      Parse("<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]</tool_call>",
            format),
      "[f {}][g {}]");
  EXPECT_EQ(
      Parse("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>", format),
      "[f {\"a\": 2}]");
  EXPECT_EQ(Parse("<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                  "\"parameters\": null}}</tool_call>",
                  format),
            "[f {}]");
  // Text around calls; the space between a call and text is kept where text came before too.
  EXPECT_EQ(Parse("A <tool_call>{\"name\": \"f\"}</tool_call> B", format), "A B[f {}]");
  EXPECT_EQ(Parse("<tool_call>{\"name\": \"f\"}</tool_call>\nB", format), "B[f {}]");
}

TEST(OutputParser, ClosingMarkMissing) {
  const OutputFormat format = Format("hermes");
  EXPECT_EQ(Parse("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", format), "[f {}]");
  EXPECT_EQ(Parse("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_", format), "[f {}]");
  EXPECT_EQ(Parse("<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"g\"}</tool_call>", format),
            "[f {}][g {}]");
}

TEST(OutputParser, WhatIsNoCallIsContentUnchanged) {
  for (const std::string text : {
           "Write <tool_call> around it.",
           "x <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
           "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
           "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call> after",
           "<tool_call>{\"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": NaN}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1e999}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"a\": 2}}</tool_call>",
           "<tool_call>{\"name\": \"f\", }</tool_call>",
           "<tool_call>{\"name\": f</tool_call>",
           "<tool_call>[]</tool_call>",
           "<tool_call></tool_call>",
           "<tool_call>",
           "<tool_call>{\"name\": \"\xFF\"}</tool_call>",
       }) {
    EXPECT_EQ(Parse(text, Format("hermes")), text);
  }
  // What follows is looked at again.
  EXPECT_EQ(Parse("<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", Format("hermes")),
            "<tool_call>[f {}]");
  EXPECT_EQ(Parse("<tool_call>{\"name\": f</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>",
                  Format("hermes")),
            "<tool_call>{\"name\": f</tool_call>[f {}]");
}

TEST(OutputParser, NestingIsBounded) {
  const std::string deep(100000, '[');
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + deep +
                           std::string(deep.size(), ']') + "}}</tool_call>";
  EXPECT_EQ(Summary(ParseOutput(text, Format("hermes"))), text);
  const std::string python = "<|tool_call_start|>[f(a=" + deep + ")]<|tool_call_end|>";
  EXPECT_EQ(Summary(ParseOutput(python, Format("lfm2"))), python);
}

TEST(OutputParser, LongCallsPassThrough) {
  OutputParserOptions options;
  options.max_call_bytes = 40;
  const std::string text =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"long, too long\"}}</tool_call>";
  EXPECT_EQ(Parse(text, Format("hermes"), options), text);
  EXPECT_EQ(Parse("<tool_call>{\"name\": \"f\"}</tool_call>", Format("hermes"), options), "[f {}]");
}

TEST(OutputParser, Lfm2) {
  const OutputFormat format = Format("lfm2");
  const auto call = [](const std::string& list) {
    return "<|tool_call_start|>" + list + "<|tool_call_end|>";
  };
  EXPECT_EQ(Parse(call("[get_weather(location=\"São Paulo\", n=3), add(a=1.0, b=-2.5e-07, "
                       "exact=True, note=None, list=[1, 'two', {'three': 3}])]") +
                      "Checking.",
                  format),
            "Checking.[get_weather {\"location\": \"São Paulo\", \"n\": 3}]"
            "[add {\"a\": 1.0, \"b\": -2.5e-07, \"exact\": true, \"note\": null, \"list\": "
            "[1,\"two\",{\"three\":3}]}]");
  EXPECT_EQ(Parse(call("[f()]"), format), "[f {}]");
  EXPECT_EQ(Parse(call("f(a=())"), format), "[f {\"a\": []}]");
  EXPECT_EQ(Parse(call(R"([f(a='it\'s "x"\n\\ \u00e9\x41\101 \q', b="]", c=(1,), d=(2), e=+.5,)])"),
                  format),
            R"([f {"a": "it's \"x\"\n\\ éAA \\q", "b": "]", "c": [1], "d": 2, "e": 0.5}])");
  EXPECT_EQ(Parse(call(R"([f(a='\ud83d\ude00', b='\ud83d', c={"x": false, "y": null})])"), format),
            "[f {\"a\": \"😀\", \"b\": \"\xEF\xBF\xBD\", \"c\": {\"x\":false,\"y\":null}}]");
  EXPECT_EQ(Parse(call("[f(a='''x\n'y' ''', b=1_000)]"), format),
            R"([f {"a": "x\n'y' ", "b": 1000}])");
  // The template puts quotes around strings and escapes nothing.
  EXPECT_EQ(Parse(call("[f(a='it's', b='say \"so\"')]"), format),
            R"([f {"a": "it's", "b": "say \"so\""}])");
  EXPECT_EQ(Parse(call(R"([{"name": "f", "arguments": {"a": 1}}])"), format), "[f {\"a\": 1}]");
  for (const std::string list : {"[f(1)]", "[f(a=1, a=2)]", "[f(a=g())]", "[f(a=1]", "[]", "",
                                 "[f(a=1) g(b=2)]", "[f(a=007)]", "[f(a=x)]", "[f(a='x)]"}) {
    EXPECT_EQ(Parse(call(list), format), call(list));
  }
}

TEST(OutputParser, QwenXml) {
  OutputParserOptions options;
  options.tools = Tools(R"({"text": {"type": "string"}, "count": {"type": "integer"},
      "on": {"type": "boolean"}, "list": {"type": "array"},
      "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}})");
  const OutputFormat format = Format("qwen3_coder");
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  EXPECT_EQ(Parse("Look.\n\n" + call("<parameter=text>\n123\n</parameter>\n<parameter=count>\n7\n"
                                     "</parameter>\n<parameter=on>\nTrue\n</parameter>\n"),
                  format, options),
            R"(Look.[f {"text": "123", "count": 7, "on": true}])");
  EXPECT_EQ(
      Parse(call("<parameter=text>\n\na\n  b </tool_call> \n\n</parameter>\n"), format, options),
      R"([f {"text": "\na\n  b </tool_call> \n"}])");
  EXPECT_EQ(Parse(call("<parameter=maybe>\nnull\n</parameter>\n<parameter=list>\n[1, 'a']\n"
                       "</parameter>\n<parameter=count>\nmany\n</parameter>\n"),
                  format, options),
            R"([f {"maybe": null, "list": [1,"a"], "count": "many"}])");
  // Without a schema, what reads as a value is one.
  EXPECT_EQ(Parse(call("<parameter=a>\n5\n</parameter><parameter=b>x</parameter>"), format),
            R"([f {"a": 5, "b": "x"}])");
  EXPECT_EQ(Parse(call(""), format), "[f {}]");
  EXPECT_EQ(Parse("<tool_call>\n<function=f>\n</function>", format), "[f {}]");
  for (const std::string text :
       {"<tool_call>\n<function=f>\n<parameter=a>\n1", "<tool_call> like this",
        "<tool_call>\n<function=",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"
        "</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=f>text</function></tool_call>"}) {
    EXPECT_EQ(Parse(text, format), text);
  }
}

TEST(OutputParser, OtherTags) {
  OutputParserOptions options;
  options.tools = Tools(R"({"text": {"type": "string"}})");
  EXPECT_EQ(Parse("<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>1</tool_call></arg_value>\n"
                  "<arg_key>n</arg_key>\n<arg_value>[2]</arg_value>\n</tool_call>",
                  Format("glm45"), options),
            R"([f {"text": "1</tool_call>", "n": [2]}])");
  EXPECT_EQ(Parse("<tool_call>f</tool_call>", Format("glm47")), "[f {}]");
  EXPECT_EQ(Parse("a <tool_call> is a tag", Format("glm45")), "a <tool_call> is a tag");
  EXPECT_EQ(
      Parse("<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">1</parameter>\n"
            "</invoke>\n</minimax:tool_call>",
            Format("minimax_m2"), options),
      R"([f {"text": "1"}])");
  EXPECT_EQ(Parse("<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n"
                  "</seed:tool_call>",
                  Format("seed_oss")),
            R"([f {"a": 1}])");
}

TEST(OutputParser, JsonLists) {
  const std::string list =
      R"([{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}}])";
  const std::string calls = R"([f {"a": [1]}][g {}])";
  EXPECT_EQ(Parse("Ok.<TOOLCALL>" + list + "</TOOLCALL>", Format("nemotron_json")), "Ok." + calls);
  EXPECT_EQ(Parse(" <tool_calls>[\n" + list.substr(1) + "</tool_calls>", Format("jamba")), calls);
  EXPECT_EQ(Parse("<|tool_call|>" + list, Format("granite")), calls);
  EXPECT_EQ(Parse("<tool_call> " + list + " done", Format("granite")), "done" + calls);
  EXPECT_EQ(Parse("[TOOL_CALLS]" + list, Format("mistral")), calls);
  EXPECT_EQ(
      Parse("[TOOL_CALLS]f[ARGS]{\"a\": [1]}[TOOL_CALLS]g[CALL_ID]x[ARGS]{}", Format("mistral")),
      calls);
  EXPECT_EQ(Parse("[TOOL_CALLS]\nnothing", Format("mistral")), "[TOOL_CALLS]\nnothing");
}

TEST(OutputParser, LlamaJson) {
  const OutputFormat format = Format("llama3_json");
  EXPECT_EQ(Parse(R"({"name": "f", "parameters": {"a": 1}})", format), R"([f {"a": 1}])");
  EXPECT_EQ(
      Parse(R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})",
            format),
      "[f {}][g {}]");
  for (const std::string text :
       {R"({"name": "Paris", "size": 2})", R"({"a": 1} and more)", R"({"name": "f", )",
        R"(The object {"name": "f", "parameters": {}})", "<|python_tag|>print(1)"}) {
    EXPECT_EQ(Parse(text, format), text);
  }
}

TEST(OutputParser, Kimi) {
  const std::string text =
      "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get.it:0"
      "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.add:1"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
  EXPECT_EQ(Parse(text, Format("kimi_k2")), R"(Ok.[get.it {"a": 1}][add {}])");
  EXPECT_EQ(Parse("<think>t " + text.substr(3), Format("kimi_k2", "kimi_k2")),
            R"(<t>[get.it {"a": 1}][add {}])");
  EXPECT_EQ(ParseOutput(text, Format("kimi_k2")).calls[1].id, "functions.add:1");
}

TEST(OutputParser, DeepSeekAndSolar) {
  const std::string v3 =
      "A<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
      "\"```\"}\n"
      "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
      "｜tool▁calls▁end｜>";
  EXPECT_EQ(Parse(v3, Format("deepseek_v3")), "A[f {\"a\": \"```\"}][g {}]");
  const std::string broken =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜><"
      "｜tool▁calls▁end｜>";
  EXPECT_EQ(Parse(broken, Format("deepseek_v3")), broken);
  EXPECT_EQ(
      Parse("<|tool_calls|><|tool_call:begin|>7<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}"
            "<|tool_call:end|><|calls|>",
            Format("solar")),
      "[f {\"a\": 1}]");
}

// Values with the signs of the format around them, and escapes.
TEST(OutputParser, ArgumentsThatLookLikeSyntax) {
  EXPECT_EQ(
      Parse(
          R"(<tool_call>{"name": "f", "arguments": {"a": "}]\\\" {\n\u00e9\ud83d\ude00"}}</tool_call>)",
          Format("hermes")),
      R"([f {"a": "}]\\\" {\n\u00e9\ud83d\ude00"}])");
  EXPECT_EQ(
      Parse(R"(<tool_call>{"name": "f\u00e9", "arguments": {}}</tool_call>)", Format("hermes")),
      "[fé {}]");
  EXPECT_EQ(Parse("<|tool_call_start|>[f(a=\"[g(b=1)]\", c={'d': ['e', (1, 2)]})]<|tool_call_end|>",
                  Format("lfm2")),
            R"([f {"a": "[g(b=1)]", "c": {"d":["e",[1,2]]}}])");
  // A call while the model still thinks is a thought.
  EXPECT_EQ(Parse("<think>a <tool_call>{\"name\": \"f\"}</tool_call> b</think>c",
                  Format("hermes", "think")),
            "<a <tool_call>{\"name\": \"f\"}</tool_call> b>c");
}

TEST(OutputParser, CallIds) {
  const std::string text =
      "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>";
  const ParsedOutput output = ParseOutput(text, Format("hermes"));
  ASSERT_EQ(output.calls.size(), 2u);
  EXPECT_EQ(output.calls[0].index, 0);
  EXPECT_EQ(output.calls[1].index, 1);
  EXPECT_EQ(output.calls[0].id.size(), 29u);
  EXPECT_EQ(output.calls[0].id.substr(0, 5), "call_");
  EXPECT_NE(output.calls[0].id, output.calls[1].id);
  OutputParserOptions options;
  options.id_seed = 1;
  EXPECT_NE(ParseOutput(text, Format("hermes"), options).calls[0].id, output.calls[0].id);
  const ParsedOutput mistral = ParseOutput("[TOOL_CALLS]f{}", Format("mistral"));
  ASSERT_EQ(mistral.calls.size(), 1u);
  EXPECT_EQ(mistral.calls[0].id.size(), 9u);
  EXPECT_EQ(ParseOutput("[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", Format("mistral")).calls[0].id, "abc");
}

TEST(OutputParser, HoldsBackOnlyWhatMayBecomeAMark) {
  OutputParser parser(Format("hermes", "think"));
  const auto push = [&](const std::string& text) {
    ParsedOutput output;
    output.Add(parser.Push(text));
    return Summary(output);
  };
  EXPECT_EQ(push("<thi"), "");
  EXPECT_EQ(push("s> is"), "<this> is");
  EXPECT_EQ(push(" "), "");
  EXPECT_EQ(push("a<"), " a");
  EXPECT_EQ(push("b"), "<b");
  EXPECT_EQ(push("<tool_call>"), "");
  EXPECT_EQ(push(" x"), "<tool_call> x");
  EXPECT_EQ(push("<tool_call>{\"name\": \"f\"}"), "");
  EXPECT_EQ(push("</tool_call>"), "[f {}]");
}

TEST(OutputParser, Detection) {
  const auto detect = [](std::string_view source, std::string_view prompt) {
    const OutputFormat format = DetectOutputFormat(source, prompt);
    return format.tool_parser + " " + format.reasoning_parser +
           (format.starts_in_reasoning ? " inside" : "");
  };
  EXPECT_EQ(detect("{{ messages }}", "<think>"), "none none");
  EXPECT_EQ(detect("'<tool_call>' '<think>'", "assistant\n<think>\n"), "hermes think inside");
  EXPECT_EQ(detect("'<tool_call>' '<think>'", "<think>\n\n</think>\n\n"), "hermes think");
  EXPECT_EQ(DetectOutputFormat("<tool_call>", "", "none", "deepseek_r1").tool_parser, "none");
  EXPECT_TRUE(DetectOutputFormat("", "assistant", "auto", "deepseek_r1").starts_in_reasoning);
  EXPECT_FALSE(DetectOutputFormat("", "</think>", "auto", "deepseek_r1").starts_in_reasoning);
  EXPECT_THROW(DetectOutputFormat("", "", "nonsense"), Error);
  EXPECT_THROW(OutputParser(Format("hermes", "nonsense")), Error);
  for (const std::string& name : ToolParserNames()) OutputParser(Format(name));
  for (const std::string& name : ReasoningParserNames()) OutputParser(Format("none", name));
  EXPECT_EQ(ToolParserNames()[0], "none");
}

TEST(OutputParser, MarksForTheDetokeniser) {
  const std::vector<std::string> marks = OutputMarks(Format("lfm2", "think"));
  EXPECT_EQ(marks, (std::vector<std::string>{"<|tool_call_start|>", "<think>", "</think>",
                                             "<|tool_call_end|>"}));
}

}  // namespace
}  // namespace adder::text
