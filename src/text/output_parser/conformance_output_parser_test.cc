// What the chat templates of the kit write for an assistant's turn is what the models were taught
// to write: every turn with tool calls, given to the parser that the template's source suggests,
// must come back as the message it was rendered from.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/file.h"
#include "core/json.h"
#include "text/kit_for_test.h"
#include "text/output_parser.h"

namespace adder::text {
namespace {

namespace fs = std::filesystem;

struct Template {
  const char* name;
  const char* tool_parser;       // that the source must suggest
  const char* reasoning_parser;  // likewise
  const char* turn_begin;        // the assistant's turn is between these
  const char* turn_end;
  bool drops_content = false;  // the template leaves out text beside calls
};

constexpr Template kTemplates[] = {
    {"Bielik-11B-v3.0-Instruct", "hermes", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"MiMo-VL", "hermes", "none", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen-QwQ-32B", "hermes", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen-Qwen2.5-7B-Instruct", "hermes", "none", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen-Qwen3-0.6B", "hermes", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", "none", "<|im_start|>assistant\n",
     "<|im_end|>", true},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", "none", "<|im_start|>assistant\n",
     "<|im_end|>", true},
    {"Reka-Edge", "hermes", "think", "assistant: ", "\n\n<sep>"},
    {"ibm-granite-granite-4.0", "hermes", "none", "<|start_of_role|>assistant<|end_of_role|>",
     "<|end_of_text|>"},
    {"ibm-granite-granite-4.1", "hermes", "none", "<|start_of_role|>assistant<|end_of_role|>",
     "<|end_of_text|>"},
    {"Qwen3-Coder", "qwen3_coder", "none", "<|im_start|>assistant\n", "<|im_end|>"},
    {"Qwen3.5-4B", "qwen3_coder", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", "think", "<|im_start|>assistant\n",
     "\n<|im_end|>"},
    {"StepFun3.5-Flash", "qwen3_coder", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"NVIDIA-Nemotron-Nano-v2", "nemotron_json", "think", "<SPECIAL_11>Assistant\n",
     "\n<SPECIAL_12>"},
    {"LFM2.5-8B-A1B", "lfm2", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"LiquidAI-LFM2.5-VL-450M", "lfm2", "think", "<|im_start|>assistant\n", "<|im_end|>"},
    {"ai21labs-AI21-Jamba-Large-1.6", "jamba", "none", "<|assistant|> ", "<|eom|>"},
    {"tencent-Hunyuan-A13B-Instruct", "jamba", "hunyuan_a13b", "<|extra_0|>", "<|eos|>"},
    {"unsloth-Apriel-1.5", "jamba", "none", "<|assistant|>\n", "\n<|end|>"},
    {"moonshotai-Kimi-K2", "kimi_k2", "none", "<|im_assistant|>assistant<|im_middle|>",
     "<|im_end|>"},
    {"GLM-4.6", "glm45", "think", "<|assistant|>", "<|observation|>"},
    {"GLM-4.7-Flash", "glm45", "think", "<|assistant|>", "<|observation|>"},
    {"zai-org-GLM-5.1", "glm45", "think", "<|assistant|>", "<|observation|>"},
    {"poolside-Laguna-S-2.1", "glm45", "think", "<assistant>", "</assistant>"},
    {"poolside-Laguna-XS-2.1", "glm45", "think", "<assistant>\n", "\n</assistant>"},
    {"MiniMax-M2", "minimax_m2", "think", "]~b]ai\n", "[e~["},
    {"ByteDance-Seed-OSS", "seed_oss", "seed_oss", "<seed:bos>assistant\n", "<seed:eos>"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral", "none", "[/INST]", "</s>", true},
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral", "none", "[/INST]", "</s>", true},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral", "mistral", "[/INST]", "</s>"},
    {"unsloth-mistral-Devstral-Small-2507", "mistral", "none", "[/INST]", "</s>"},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek_v3", "think", "<｜Assistant｜>",
     "<｜end▁of▁sentence｜>"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", "think", "<｜Assistant｜>",
     "<｜end▁of▁sentence｜>", true},
    {"deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "think", "<｜Assistant｜>",
     "<｜end▁of▁sentence｜>"},
    {"deepseek-ai-DeepSeek-V4", "deepseek_v4", "think", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", "cohere", "<|CHATBOT_TOKEN|>",
     "<|END_OF_TURN_TOKEN|>", true},
    {"upstage-Solar-Open-100B", "solar", "none", "<|begin|>assistant", "<|calls|>", true},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json", "none",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    {"meta-llama-Llama-3.2-3B-Instruct", "llama3_json", "none",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
};

// The turn behind the text of the user's message; empty when it is not there.
std::string Turn(const std::string& text, const std::string& user, const Template& item) {
  size_t begin = text.find(user);
  if (begin != std::string::npos) begin = text.find(item.turn_begin, begin);
  if (begin == std::string::npos) return "";
  begin += std::string_view(item.turn_begin).size();
  return text.substr(begin, text.find(item.turn_end, begin) - begin);
}

void CheckTurn(const std::string& turn, const OutputFormat& detected, const Template& item,
               const Json& message, const Json& tools) {
  OutputFormat format = detected;
  // A prompt that closes the reasoning at once is part of these turns.
  format.starts_in_reasoning = turn.starts_with("</think>");
  OutputParserOptions options;
  options.tools = tools;
  const ParsedOutput output = ParseOutput(turn, format, options);
  SCOPED_TRACE(turn);
  if (message["content"].is_string()) {
    EXPECT_EQ(output.content, item.drops_content ? "" : message["content"].get<std::string>());
  } else if (output.content != "None") {  // as some templates write null
    EXPECT_EQ(output.content, "");
  }
  if (!output.reasoning.empty()) {
    EXPECT_EQ(output.reasoning, message.value("reasoning_content", ""));
  }
  ASSERT_EQ(output.calls.size(), message["tool_calls"].size());
  for (size_t i = 0; i < output.calls.size(); ++i) {
    const Json& function = message["tool_calls"][i]["function"];
    EXPECT_EQ(output.calls[i].name, function["name"].get<std::string>());
    Json arguments = function["arguments"];
    if (arguments.is_string()) arguments = ParseJson(arguments.get<std::string>(), "arguments");
    EXPECT_EQ(ParseJson(output.calls[i].arguments, "parsed arguments").dump(), arguments.dump());
  }
}

TEST(OutputParserConformance, TurnsOfEveryTemplateComeBack) {
  const fs::path kit = SharedFolder(ADDER_SOURCE_DIR) / "chat_templates";
  if (!fs::is_directory(kit)) {
    GTEST_SKIP() << "There are no chat templates at " << kit << "; set ADDER_SHARED.";
  }
  const Json cases = ReadJsonFile((kit / "cases.json").string());
  for (const Template& item : kTemplates) {
    SCOPED_TRACE(item.name);
    const std::string name = item.name;
    const std::string source = ReadFile((kit / (name + ".jinja")).string(), 1 << 20);
    const Json expected = ReadJsonFile((kit / "expected" / (name + ".json")).string());
    const OutputFormat format = DetectOutputFormat(source, "");
    EXPECT_EQ(format.tool_parser, item.tool_parser);
    EXPECT_EQ(format.reasoning_parser, item.reasoning_parser);
    int turns = 0;
    for (const Json& entry : cases["cases"]) {
      const Json& rendered = expected[entry["name"].get<std::string>()];
      const Json& messages = entry["messages"];
      if (!rendered.contains("text")) continue;
      for (size_t i = 1; i < messages.size(); ++i) {
        if (!messages[i].contains("tool_calls")) continue;
        const std::string turn = Turn(rendered["text"].get<std::string>(),
                                      messages[i - 1]["content"].get<std::string>(), item);
        // Hunyuan's shows no calls where no tools are offered.
        const std::string function = messages[i]["tool_calls"][0]["function"]["name"];
        if (entry["tools"].is_null() && turn.find(function) == std::string::npos) continue;
        // One of Mistral's puts arguments that are text into quotes, which no model writes.
        if (turn.find("[ARGS]\"") != std::string::npos) continue;
        SCOPED_TRACE(entry["name"].get<std::string>());
        CheckTurn(turn, format, item, messages[i], entry["tools"]);
        ++turns;
      }
    }
    EXPECT_GE(turns, 3);
  }
}

}  // namespace
}  // namespace adder::text
