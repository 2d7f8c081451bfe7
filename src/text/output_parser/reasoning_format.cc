#include "text/output_parser/reasoning_format.h"

namespace adder::text {

const std::vector<ReasoningFormat>& ReasoningFormats() {
  // Most models write <think>; the names of their parsers in other engines lead to the same marks.
  static const std::vector<ReasoningFormat> kFormats = {
      {.names = {"none"}, .opens = {}, .closes = {}, .answer_marks = {}, .signs = {}},
      {.names = {"seed_oss"},
       .opens = {"<seed:think>"},
       .closes = {"</seed:think>"},
       .answer_marks = {},
       .signs = {{"<seed:think>"}}},
      {.names = {"minimax_m3"},
       .opens = {"<mm:think>"},
       .closes = {"</mm:think>"},
       .answer_marks = {},
       .signs = {{"<mm:think>"}}},
      {.names = {"mistral"},
       .opens = {"[THINK]"},
       .closes = {"[/THINK]"},
       .answer_marks = {},
       .signs = {{"[THINK]"}}},
      {.names = {"cohere"},
       .opens = {"<|START_THINKING|>"},
       .closes = {"<|END_THINKING|>"},
       .answer_marks = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"},
       .signs = {{"<|START_THINKING|>"}}},
      {.names = {"kimi_vl"},
       .opens = {"◁think▷"},
       .closes = {"◁/think▷"},
       .answer_marks = {},
       .signs = {{"◁think▷"}, {"◁/think▷"}}},
      // Granite 3.2 writes sentences, 3.3 tags.
      {.names = {"granite"},
       .opens = {"<think>", "Here is my thought process:", "Here's my thought process:"},
       .closes = {"</think>", "Here is my response:", "Here's my response:"},
       .answer_marks = {"<response>", "</response>"},
       .signs = {{"<think></think>", "<response></response>"},
                 {"Here is my thought process:"},
                 {"Here's my thought process:"}}},
      {.names = {"hunyuan_a13b"},
       .opens = {"<think>"},
       .closes = {"</think>"},
       .answer_marks = {"<answer>", "</answer>"},
       .signs = {{"<think>", "<|extra_0|>"}}},
      {.names = {"kimi_k2"},
       .opens = {"<think>"},
       .closes = {"</think>"},
       .answer_marks = {},
       .ends_at_tool_call = true,
       .signs = {{"<think>", "<|tool_calls_section_begin|>"}}},
      {.names = {"deepseek_r1"},
       .opens = {"<think>"},
       .closes = {"</think>"},
       .answer_marks = {},
       .always_starts = true,
       .signs = {}},
      {.names = {"think", "qwen3", "glm45", "deepseek_v3", "nemotron_v3", "minimax_m2", "step3p5",
                 "lfm2"},
       .opens = {"<think>"},
       .closes = {"</think>"},
       .answer_marks = {},
       .signs = {{"<think>"}, {"</think>"}}},
  };
  return kFormats;
}

}  // namespace adder::text
