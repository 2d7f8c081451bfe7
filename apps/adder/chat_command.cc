// adder chat: a conversation with a model through its chat template.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "engine/prompt_reuse.h"
#include "interactive.h"
#include "line_reader.h"
#include "template_options.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace adder::cli {
namespace {

constexpr int64_t kDefaultTokens = 1024;

constexpr std::string_view kNoTemplateAdvice =
    "A base model has none and continues text: \"adder run\" and \"adder generate\" do that.";

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kClearLine = "\r\x1b[K";

constexpr std::string_view kHelp =
    "Type a message and the model answers.\n"
    "  /help         this text\n"
    "  /reset        forget the conversation and begin anew (so does /clear)\n"
    "  /system TEXT  begin anew with TEXT as system prompt; without TEXT with none\n"
    "  /save FILE    write the conversation to FILE as JSON messages\n"
    "  /stats        tokens, speed and memory\n"
    "  /exit         end (so do /quit and Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  int64_t max_tokens = kDefaultTokens;
  std::string system;
  TemplateOptions source;
  std::string tool_parser = "auto";
  std::string reasoning_parser = "auto";
  bool show_reasoning = false;
};

// Writes an answer as it comes. Reasoning is dimmed at a terminal, or hidden behind one word.
class AnswerPrinter {
 public:
  AnswerPrinter(bool show_reasoning, bool terminal)
      : show_reasoning_(show_reasoning), terminal_(terminal) {}

  void Add(const std::vector<text::OutputEvent>& events) {
    for (const text::OutputEvent& event : events) {
      switch (event.kind) {
        case text::OutputEvent::Kind::kReasoning:
          AddReasoning(event.text);
          break;
        case text::OutputEvent::Kind::kContent:
          EndReasoning();
          Print(event.text);
          line_begun_ = !event.text.ends_with('\n');
          break;
        case text::OutputEvent::Kind::kToolCall:
          EndReasoning();
          Print(Concat(line_begun_ ? "\n" : "", "[tool call] ", event.call.name, " ",
                       event.call.arguments, "\n"));
          line_begun_ = false;
          break;
      }
    }
  }
  // Ends the answer, with a remark where a person should know why it ended.
  void End(std::string_view remark) {
    EndReasoning();
    Print(Concat(remark.empty() ? "" : " ", remark, line_begun_ || !remark.empty() ? "\n" : ""));
  }

 private:
  void AddReasoning(const std::string& text) {
    if (show_reasoning_) {
      if (!reasoning_ && terminal_) Print(kDim);
      Print(text);
    } else if (!reasoning_ && terminal_) {
      Print(Concat(kDim, "thinking…", kPlain));
    }
    reasoning_ = true;
  }
  void EndReasoning() {
    if (!reasoning_) return;
    reasoning_ = false;
    if (show_reasoning_) {
      Print(Concat(terminal_ ? kPlain : "", "\n\n"));
    } else if (terminal_) {
      Print(kClearLine);
    }
  }

  bool show_reasoning_;
  bool terminal_;
  bool reasoning_ = false;
  bool line_begun_ = false;
};

class Chat {
 public:
  Chat(const LoadedModel& model, const Options& options, bool interactive)
      : model_(model),
        tokenizer_(RequireTokenizer(model)),
        template_(LoadChatTemplate(model.directory, options.source, kNoTemplateAdvice)),
        options_(options),
        sampling_(ResolveSampling(model.sampling, options.sampling)),
        interactive_(interactive),
        reuse_(*model.executor, model.tokenizer.get()) {
    template_options_.variables = TemplateVariables(options.source);
    // An unknown name is an error now rather than at the first answer.
    Format("");
    BeginAnew(options.system);
  }

  // Handles one line; false ends the program.
  bool Handle(const std::string& line) {
    if (line.find_first_not_of(" \t") == std::string::npos) return true;
    if (!line.starts_with('/')) {
      Answer(line);
      return true;
    }
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help") {
      Print(kHelp);
    } else if (command == "/reset" || command == "/clear") {
      BeginAnew(system_);
      Print("Begun anew.\n");
    } else if (command == "/system") {
      BeginAnew(argument);
      Print("Begun anew.\n");
    } else if (command == "/save") {
      if (argument.empty()) Fail("/save needs the name of a file.");
      WriteFile(argument, adder::PrintJson(messages_));
      Print(Concat("Wrote ", messages_.size(), " messages to ", argument, ".\n"));
    } else if (command == "/stats") {
      Print(StatsText(model_, reuse_.session().tokens().size(), last_, sampling_));
      Print(Concat("reused   ", reused_, " tokens of the last prompt were there from before\n"));
    } else {
      Print(Concat("There is no command ", command, "; /help lists them.\n"));
    }
    return true;
  }

 private:
  text::OutputFormat Format(std::string_view prompt) const {
    return text::DetectOutputFormat(template_.Source(), prompt, options_.tool_parser,
                                    options_.reasoning_parser);
  }

  void BeginAnew(const std::string& system) {
    // JSON holds only valid UTF-8, whatever was typed.
    system_ = text::ToValidUtf8(system);
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
    reuse_.Reset();
  }

  std::string Render(bool add_generation_prompt) {
    template_options_.add_generation_prompt = add_generation_prompt;
    return template_.Render(messages_, template_options_);
  }

  // How many tokens of the prompt will begin the next one too, however the template then writes the
  // answer: those before the beginning of the assistant's turn.
  size_t StableTokens(const std::vector<int32_t>& prompt) {
    std::vector<int32_t> conversation;
    try {
      conversation = tokenizer_.Encode(Render(false), /*add_special_tokens=*/false);
    } catch (const Error&) {
      return 0;  // a template that only renders prompts
    }
    const auto ends =
        std::mismatch(prompt.begin(), prompt.end(), conversation.begin(), conversation.end());
    return static_cast<size_t>(ends.first - prompt.begin());
  }

  void Answer(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", text::ToValidUtf8(line)}});
    try {
      Generate();
    } catch (const Error&) {
      // The message was not taken.
      while (messages_.back()["role"] != "user") messages_.erase(messages_.size() - 1);
      messages_.erase(messages_.size() - 1);
      throw;
    }
  }

  void Generate() {
    const std::string prompt_text = Render(true);
    // The template writes the special tokens itself.
    const std::vector<int32_t> prompt =
        tokenizer_.Encode(prompt_text, /*add_special_tokens=*/false);
    const auto tokens = static_cast<int64_t>(prompt.size());
    GenerationOptions generation = ReplyOptions(model_, sampling_, replies_++, options_.max_tokens,
                                                tokens, "/reset begins anew.");
    const text::OutputFormat format = Format(prompt_text);
    for (const std::string& mark : text::OutputMarks(format)) {
      const int32_t id = tokenizer_.TokenToId(mark);
      if (id >= 0 && tokenizer_.IsSpecial(id)) generation.shown_special.insert(id);
    }
    text::OutputParserOptions parser_options;
    parser_options.id_seed = generation.sampling.seed;
    text::OutputParser parser(format, std::move(parser_options));
    text::ParsedOutput answer;
    AnswerPrinter printer(options_.show_reasoning, interactive_);
    const auto show = [&](const std::vector<text::OutputEvent>& events) {
      answer.Add(events);
      printer.Add(events);
    };

    const int64_t most_tokens = generation.max_tokens;
    const PromptReuse::Loaded loaded = reuse_.Load(prompt, StableTokens(prompt), generation.cancel);
    GenerationSession& session = reuse_.session();
    const GenerationResult& result =
        session.Generate(std::span(prompt).subspan(session.tokens().size()), std::move(generation),
                         [&](const GeneratedPiece& piece) { show(parser.Push(piece.text)); });
    show(parser.Finish());
    InterruptFlag::Take();
    last_ = result.timings;
    last_.prompt_tokens += static_cast<int64_t>(loaded.run);
    last_.prompt_seconds += loaded.seconds;
    reused_ = loaded.reused;
    Remember(answer);
    printer.End(Remark(result.finish, most_tokens));
  }

  // What a person at a terminal is told about the end of an answer.
  std::string Remark(FinishReason finish, int64_t most_tokens) const {
    if (!interactive_) return "";
    if (finish == FinishReason::kCancelled) return "[stopped]";
    if (finish != FinishReason::kLength) return "";
    if (most_tokens < options_.max_tokens) return "[no position is left; /reset begins anew]";
    return Concat("[stopped after ", most_tokens, " tokens; --max-tokens allows more]");
  }

  // The answer as templates expect it in the history. They drop reasoning of earlier turns
  // themselves, or keep it where the model was taught so.
  void Remember(const text::ParsedOutput& answer) {
    Json message = {{"role", "assistant"}, {"content", answer.content}};
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    for (const text::ToolCall& call : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function",
            {{"name", call.name}, {"arguments", ParseJson(call.arguments, "a tool call")}}}});
    }
    messages_.push_back(std::move(message));
  }

  const LoadedModel& model_;
  const text::Tokenizer& tokenizer_;
  text::ChatTemplate template_;
  text::ChatTemplateOptions template_options_;
  Options options_;
  SamplingParameters sampling_;
  bool interactive_;
  PromptReuse reuse_;

  std::string system_;
  Json messages_;
  GenerationTimings last_;
  size_t reused_ = 0;
  uint64_t replies_ = 0;
};

void Run(const Options& options) {
  CheckMaxTokens(options.max_tokens);
  const LoadedModel model = Load(options.model);
  const InterruptFlag interrupts;
  LineReader reader("> ", HistoryFile());
  Chat chat(model, options, reader.interactive());
  if (reader.interactive()) {
    Print(Concat(model.directory.string(), ", ", model.plan->family, ", ",
                 ParameterCount(*model.plan), " parameters. /help lists commands.\n"));
  }
  Converse(reader, [&](const std::string& line) { return chat.Handle(line); });
}

}  // namespace

void AddChatCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("chat", "Talk with a model through its chat template, line by line");
  AddModelOption(*command, options->model.model)->required();
  command->add_option("--system", options->system, "System prompt");
  command->add_flag("--show-reasoning", options->show_reasoning,
                    "Show what a thinking model thinks before it answers");
  command->add_option("-n,--max-tokens", options->max_tokens, "Longest answer, in tokens")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  AddTemplateOptions(*command, options->source);
  command
      ->add_option("--tool-call-parser", options->tool_parser,
                   "Format of tool calls: auto (as the template suggests), none, or a name that "
                   "vLLM knows, such as hermes")
      ->capture_default_str();
  command
      ->add_option("--reasoning-parser", options->reasoning_parser,
                   "Format of reasoning: auto, none, or a name such as qwen3")
      ->capture_default_str();
  AddSamplingOptions(*command, options->sampling);
  AddDeviceOptions(*command, options->model);
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
