#include "command.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "core/error.h"

namespace adder::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kShowAfter = std::chrono::seconds(1);
constexpr auto kShowEvery = std::chrono::milliseconds(100);
constexpr int kBarWidth = 30;
constexpr int kMaxThreads = 1024;

}  // namespace

CLI::Option* AddModelOption(CLI::App& command, std::string& model) {
  return command.add_option("-m,--model", model,
                            "Model directory, or owner/name in the local Hugging Face cache");
}

std::string CheckWholeNumber(const std::string& text) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  int64_t number = 0;
  uint64_t positive = 0;
  const auto whole = [end](std::from_chars_result result) {
    return result.ec == std::errc() && result.ptr == end;
  };
  if (whole(std::from_chars(begin, end, number)) || whole(std::from_chars(begin, end, positive))) {
    return "";
  }
  return text + " is not a whole number of at most 64 bits";
}

void AddStateDTypeOption(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--state-dtype", options.state_dtype,
                  "How a GPU keeps Mamba-2 states; f16 and bf16 halve them and round them at every "
                  "step, f16 less")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
}

void AddDeviceOptions(CLI::App& command, ModelOptions& options, bool with_reference) {
  std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  if (with_reference) devices.push_back("reference");
  command
      .add_option("--device", options.device,
                  "Where to run; auto: a CUDA device when there is one, else the CPU")
      ->check(CLI::IsMember(devices))
      ->capture_default_str();
  command
      .add_option("--compute", options.compute,
                  "f32: exact activations; fast: activations rounded to int8 (CPU) or bf16 (CUDA)")
      ->check(CLI::IsMember({"f32", "fast"}))
      ->capture_default_str();
  AddStateDTypeOption(command, options);
  command.add_option("--threads", options.threads, "CPU threads; 0: one per core")
      ->check(CLI::Range(0, kMaxThreads))
      ->capture_default_str();
  command
      .add_option(
          "--context", options.context,
          "Tokens of the longest text; 0: all of the model's positions. Rotary embeddings of "
          "the types longrope and dynamic depend on it")
      ->check(CLI::Range(int64_t{0}, kMaxSize))
      ->capture_default_str();
}

void AddSamplingOptions(CLI::App& command, SamplingOptions& options) {
  command.add_option("--temperature", options.temperature,
                     "0: always the most likely token. Without these options the model's "
                     "generation_config.json decides, and without it 0");
  command.add_option("--top-k", options.top_k, "Sample from the K most likely tokens; 0: all")
      ->check(CheckWholeNumber);
  command.add_option("--top-p", options.top_p,
                     "Sample from the fewest tokens with this much probability");
  command.add_option("--min-p", options.min_p,
                     "Leave out tokens less likely than this times the likeliest");
  command.add_option("--repeat-penalty", options.repeat_penalty,
                     "Above 1: make tokens of the last 64 less likely");
  command
      .add_option("--seed", options.seed,
                  "The same seed gives the same text; without it, every run differs")
      ->check(CheckWholeNumber);
}

SamplingParameters ResolveSampling(const SamplingParameters& defaults,
                                   const SamplingOptions& options) {
  SamplingParameters sampling = defaults;
  sampling.temperature = options.temperature.value_or(defaults.temperature);
  sampling.top_k = options.top_k.value_or(defaults.top_k);
  sampling.top_p = options.top_p.value_or(defaults.top_p);
  sampling.min_p = options.min_p.value_or(defaults.min_p);
  sampling.repeat_penalty = options.repeat_penalty.value_or(defaults.repeat_penalty);
  sampling.seed = options.seed ? *options.seed : RandomSeed();
  ValidateSampling(sampling);
  return sampling;
}

LoadedModel Load(const ModelOptions& options) {
  ProgressBar bar("Loading " + options.model);
  LoadOptions load;
  load.device = options.device == "auto"        ? DefaultDevice()
                : options.device == "cuda"      ? Device::kCuda
                : options.device == "reference" ? Device::kReference
                                                : Device::kCpu;
  load.compute = options.compute == "f32" ? Compute::kF32 : Compute::kFast;
  load.state_dtype = ParseStateDType(options.state_dtype);
  load.threads = options.threads;
  load.context = options.context;
  load.progress = [&](double fraction) { bar.Update(fraction); };
  return LoadModel(options.model, load);
}

const text::Tokenizer& RequireTokenizer(const LoadedModel& model) {
  if (!model.tokenizer) {
    Fail(model.directory.string(),
         " has no tokenizer (tokenizer.json, tokenizer.model or tokenizer.jsonl), so adder cannot "
         "read or write text with it; \"adder generate --tokens\" and \"adder logits\" work on "
         "token "
         "ids.");
  }
  return *model.tokenizer;
}

void CheckPositions(const Plan& plan, int64_t tokens, int64_t more, std::string_view advice) {
  const int64_t positions = plan.max_positions;
  if (positions == 0 || (tokens <= positions && more <= positions - tokens)) return;
  Fail("The model has ", positions, " positions, which ", tokens, " tokens",
       more > 0 ? Concat(" and ", more, " more") : std::string(), " would exceed; ", advice);
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (visible_) std::cerr << "\r\x1b[K" << std::flush;
}

void ProgressBar::Update(double fraction) {
  const auto now = Clock::now();
  if (!terminal_ || now - start_ < kShowAfter || (visible_ && now - shown_ < kShowEvery)) return;
  shown_ = now;
  visible_ = true;
  const int filled = static_cast<int>(fraction * kBarWidth);
  std::cerr << '\r' << label_ << " [" << std::string(static_cast<size_t>(filled), '=')
            << std::string(static_cast<size_t>(kBarWidth - filled), ' ') << "] "
            << static_cast<int>(fraction * 100) << "%\x1b[K" << std::flush;
}

void Print(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    Fail("Cannot write to standard output: ", std::strerror(errno), ".");
  }
}

void PrintJson(const Json& json) {
  Print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string Fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string Megabytes(int64_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  return Fixed(megabytes, megabytes < 10 ? 2 : 1) + " MB";
}

}  // namespace adder::cli
