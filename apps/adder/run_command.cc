// adder run: writing together with a model, line by line.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "interactive.h"
#include "line_reader.h"

namespace adder::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultTokens = 200;

constexpr std::string_view kHelp =
    "Type a text and the model continues it. Your next line is added to what is there, and the\n"
    "model goes on from it; an empty line just lets it go on.\n"
    "  /help   this text\n"
    "  /reset  forget everything and begin anew\n"
    "  /stats  tokens, speed and memory\n"
    "  /quit   end (so does Ctrl-D)\n"
    "Ctrl-C stops a reply.\n";

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  int64_t max_tokens = kDefaultTokens;
};

// The demo model: $ADDER_DEMO_MODEL, or beside the source this binary was built from, or where an
// installation puts it.
std::string FindDemoModel() {
  std::vector<fs::path> places;
  if (const char* place = std::getenv("ADDER_DEMO_MODEL"); place != nullptr && *place != '\0') {
    places.emplace_back(place);
  }
  places.push_back(fs::path(ADDER_SOURCE_DIR) / "models" / "demo");
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    places.push_back((binary.parent_path() / "../share/adder/demo").lexically_normal());
  }
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json", error)) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  Fail("Found no demo model; looked in ", looked,
       ". Name a model with -m, or the demo model's directory in ADDER_DEMO_MODEL.");
}

class Conversation {
 public:
  Conversation(const LoadedModel& model, const Options& options, bool interactive)
      : model_(model),
        tokenizer_(RequireTokenizer(model)),
        session_(*model.executor, model.tokenizer.get()),
        sampling_(ResolveSampling(model.sampling, options.sampling)),
        max_tokens_(options.max_tokens),
        interactive_(interactive) {}

  // Handles one line; false ends the program.
  bool Handle(const std::string& line) {
    if (line == "/quit") return false;
    if (line == "/help") {
      Print(kHelp);
    } else if (line == "/reset") {
      session_.Reset();
      written_.clear();
      Print("Begun anew.\n");
    } else if (line == "/stats") {
      Print(StatsText(model_, session_.tokens().size(), last_, sampling_));
    } else if (line.starts_with("/")) {
      Print(Concat("There is no command ", line, "; /help lists them.\n"));
    } else {
      Reply(line);
    }
    return true;
  }

 private:
  // A line continues the text that is there: a space goes between two words.
  std::string Continuation(const std::string& line) const {
    constexpr std::string_view kNoSpaceBefore = " \t.,;:!?)]}'\"";
    if (written_.empty() || line.empty()) return line;
    const char last = written_.back();
    const bool apart = last == ' ' || last == '\n' || last == '\t';
    return apart || kNoSpaceBefore.find(line.front()) != std::string_view::npos ? line : " " + line;
  }

  void Reply(const std::string& line) {
    const bool first = session_.tokens().empty();
    std::vector<int32_t> prompt = tokenizer_.Encode(Continuation(line), first);
    if (first && prompt.empty()) {
      if (model_.begin_id < 0) return;  // an empty line, and nothing that could begin a text
      prompt.push_back(model_.begin_id);
    }
    const auto tokens = static_cast<int64_t>(session_.tokens().size() + prompt.size());
    GenerationOptions generation =
        ReplyOptions(model_, sampling_, replies_++, max_tokens_, tokens, "/reset begins anew.");
    const GenerationResult& result =
        session_.Generate(prompt, std::move(generation), [](const GeneratedPiece& piece) {
          if (!piece.text.empty()) Print(piece.text);
        });
    written_ = result.text;
    if (written_.empty()) written_ = line;
    last_ = result.timings;
    InterruptFlag::Take();
    if (result.finish == FinishReason::kCancelled && interactive_) Print(" [stopped]");
    if (result.finish == FinishReason::kEndOfSequence && interactive_) Print(" [end of text]");
    // The model ended a text: the next line begins another.
    if (result.finish == FinishReason::kEndOfSequence) written_.clear();
    Print("\n");
  }

  const LoadedModel& model_;
  const text::Tokenizer& tokenizer_;
  GenerationSession session_;
  SamplingParameters sampling_;
  int64_t max_tokens_;
  bool interactive_;
  std::string written_;  // the end of the text, to see whether a space belongs behind it
  GenerationTimings last_;
  uint64_t replies_ = 0;
};

void Run(const Options& options) {
  CheckMaxTokens(options.max_tokens);
  ModelOptions model_options = options.model;
  if (model_options.model.empty()) model_options.model = FindDemoModel();
  const LoadedModel model = Load(model_options);
  const InterruptFlag interrupts;
  LineReader reader("> ", HistoryFile());
  Conversation conversation(model, options, reader.interactive());
  if (reader.interactive()) {
    Print(Concat(model.directory.string(), ", ", model.plan->family, ", ",
                 ParameterCount(*model.plan),
                 " parameters. Type a beginning; /help lists commands.\n"));
  }
  Converse(reader, [&](const std::string& line) { return conversation.Handle(line); });
}

}  // namespace

void AddRunCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("run", "Write together with a model; without -m, the demo model");
  AddModelOption(*command, options->model.model);
  command->add_option("-n,--max-tokens", options->max_tokens, "Longest reply, in tokens")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  AddSamplingOptions(*command, options->sampling);
  AddDeviceOptions(*command, options->model);
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
