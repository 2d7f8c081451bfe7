// What the commands share: options, loading with a progress bar, output.
//
// Every command is a file <name>_command.cc with a function Add<Name>Command, which adds its
// subcommand with options to the program; its callback does the work and throws Error.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "engine/generation.h"
#include "loader/loader.h"

namespace adder::cli {

void AddRunCommand(CLI::App& program);
void AddChatCommand(CLI::App& program);
void AddGenerateCommand(CLI::App& program);
void AddLogitsCommand(CLI::App& program);
void AddInspectCommand(CLI::App& program);
void AddTokenizeCommand(CLI::App& program);
void AddTemplateCommand(CLI::App& program);
void AddPerplexityCommand(CLI::App& program);
void AddQuantizeCommand(CLI::App& program);
void AddSynthesizeCommand(CLI::App& program);
void AddBenchCommand(CLI::App& program);
// Subcommands of bench.
void AddBenchTokenizeCommand(CLI::App& bench);
void AddBenchConvCommand(CLI::App& bench);
void AddAuditCommand(CLI::App& program);
void AddFamiliesCommand(CLI::App& program);

// Several lines: version and commit, compiler, SIMD target, CUDA.
std::string VersionText();

// --- options

struct ModelOptions {
  std::string model;
  std::string device = "auto";
  std::string compute = "fast";
  std::string state_dtype = "f32";
  int threads = 0;
  int64_t context = 0;
};
// -m/--model.
CLI::Option* AddModelOption(CLI::App& command, std::string& model);
// --state-dtype.
void AddStateDTypeOption(CLI::App& command, ModelOptions& options);
// --device (auto, cpu, cuda and, where wanted, reference), --compute, --state-dtype, --threads and
// --context.
void AddDeviceOptions(CLI::App& command, ModelOptions& options, bool with_reference = false);

struct SamplingOptions {
  std::optional<float> temperature;
  std::optional<int64_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repeat_penalty;
  std::optional<uint64_t> seed;
};
void AddSamplingOptions(CLI::App& command, SamplingOptions& options);
// The model's defaults with what was given put over them, and a random seed unless one was given.
SamplingParameters ResolveSampling(const SamplingParameters& defaults,
                                   const SamplingOptions& options);

// --- loading

// LoadModel; shows a progress bar when it takes over a second and stderr is a terminal.
LoadedModel Load(const ModelOptions& options);

// The tokenizer, or an Error that says what works without one.
const text::Tokenizer& RequireTokenizer(const LoadedModel& model);

// Throws Error when a sequence of `tokens` tokens, continued by `more`, is longer than the model
// was made for. `advice` ends the message.
void CheckPositions(const Plan& plan, int64_t tokens, int64_t more, std::string_view advice);

// --- output

// A validator of integer options: the text is a whole number that fits in 64 bits. Older releases
// of the option parser clip larger ones silently. Returns the complaint, empty when there is none.
std::string CheckWholeNumber(const std::string& text);

// A bar on stderr. It appears when the work has taken a second and stderr is a terminal, and goes
// when the object is destroyed.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Update(double fraction);

 private:
  std::string label_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point shown_;
  bool visible_ = false;
};

// Writes to standard output at once. Throws Error when that fails (a full disk).
void Print(std::string_view text);
void PrintJson(const Json& json);

// "1.23" with `digits` digits behind the point.
std::string Fixed(double value, int digits);
// "12.3 MB".
std::string Megabytes(int64_t bytes);

}  // namespace adder::cli
