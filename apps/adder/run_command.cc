// adder run: writing together with a model, line by line.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string_view>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "line_reader.h"
#include "measure/bandwidth_probe.h"

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
      PrintStats();
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
    GenerationOptions generation;
    generation.max_tokens = max_tokens_;
    generation.sampling = sampling_;
    // Replies of one run differ, and the run as a whole follows from its seed.
    generation.sampling.seed += replies_++;
    generation.end_ids = model_.end_ids;
    generation.cancel = &InterruptFlag::raised();
    const auto tokens = static_cast<int64_t>(session_.tokens().size() + prompt.size());
    CheckPositions(*model_.plan, tokens, 0, "/reset begins anew.");
    if (const int64_t positions = model_.plan->max_positions; positions > 0) {
      generation.max_tokens = std::min(max_tokens_, positions - tokens + 1);
    }
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

  void PrintStats() const {
    Print(Concat("device   ", model_.executor->Description(), "\ntokens   ",
                 session_.tokens().size(), " in this text\nprompt   ", Fixed(last_.PromptRate(), 1),
                 " tok/s (last reply, ", last_.prompt_tokens, " tokens)\ndecode   ",
                 Fixed(last_.DecodeRate(), 1), " tok/s (last reply, ", last_.decode_steps,
                 " tokens)\nmemory   weights ", Megabytes(model_.executor->WeightBytes()),
                 ", state ", Megabytes(model_.executor->StateBytes()), ", peak ",
                 Megabytes(PeakResidentBytes()), "\nsampling temperature ", sampling_.temperature,
                 ", top-k ", sampling_.top_k, ", top-p ", sampling_.top_p, ", min-p ",
                 sampling_.min_p, ", repeat penalty ", sampling_.repeat_penalty, ", seed ",
                 sampling_.seed, "\n"));
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
  if (options.max_tokens < 1) {
    Fail("--max-tokens is ", options.max_tokens, "; it must be at least 1.");
  }
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
  std::string line;
  for (;;) {
    const LineReader::Outcome outcome = reader.Read(line);
    if (outcome == LineReader::Outcome::kInterrupted) continue;
    if (outcome == LineReader::Outcome::kEnd) break;
    try {
      if (!conversation.Handle(line)) return;
    } catch (const Error& error) {
      // At a terminal the next line may do better; a pipe should not go on unnoticed.
      if (!reader.interactive()) throw;
      std::cerr << "adder: " << error.what() << "\n";
    }
  }
  if (reader.interactive()) Print("\n");
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
