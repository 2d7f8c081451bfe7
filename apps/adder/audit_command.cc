// adder audit: what the GPU runs in a decode step, held against rules.
#include <chrono>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "engine/token_lists.h"
#include "measure/audit.h"
#include "measure/decode_bench.h"
#include "measure/decode_run.h"
#include "measure/text_table.h"
#ifdef ADDER_HAS_CUDA
#include "cuda/cuda_executor.h"
#include "measure/cuda/cupti_trace.h"
#endif

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  int64_t batch = 1;
  int64_t prompt_tokens = 512;
  std::optional<std::string> tokens;
  int64_t steps = 32;
  bool json = false;
};

constexpr int64_t kMostSteps = 4096;
constexpr int64_t kMostBatch = 256;

void CheckOption(const char* name, int64_t value, int64_t most) {
  if (value < 1 || value > most) {
    Fail("The audit's ", name, " is ", value, "; it must be from 1 to ", most, ".");
  }
}

#ifdef ADDER_HAS_CUDA

// Before the steps that are traced: caches, clocks and the graph are then as in the long run.
constexpr int64_t kWarmSteps = 16;

std::vector<int32_t> Prompt(const Options& options, const LoadedModel& model) {
  return options.tokens ? ParseTokenList(*options.tokens, "--tokens")
                        : RandomPrompt(model.plan->vocab, options.prompt_tokens);
}

// Runs the prompt and steps that warm up, so that `options.steps` steps can follow at once.
void GetReady(const Options& options, const LoadedModel& model, DecodeRun& run) {
  run.Prefill(Prompt(options, model));
  run.StartDecode(kWarmSteps);
  if (run.stream() == nullptr) Fail("This backend does not run whole decode steps on the device.");
  for (int64_t i = 0; i < kWarmSteps; ++i) run.Step();
  run.StartDecode(options.steps);
}

// How long a step takes when nobody looks.
void MeasureSteps(const Options& options, AuditInput& input) {
  const LoadedModel model = Load(options.model);
  CheckPositions(*model.plan, static_cast<int64_t>(Prompt(options, model).size()),
                 options.steps + kWarmSteps, "lower --prompt-tokens or --steps.");
  DecodeRun run(*model.executor, options.batch);
  GetReady(options, model, run);
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run.Step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  input.step_seconds = SpreadOf(std::move(seconds)).median;
}

// What runs in a step.
AuditReport Measure(const Options& options) {
  std::string reason;
  if (!CudaAvailable(&reason)) Fail("Cannot audit a GPU: ", reason, ".");
  AuditInput input;
  input.steps = options.steps;
  input.batch = options.batch;
  input.f32 = options.model.compute == "f32";
  MeasureSteps(options, input);
  // Graphs have to be made while the tracer is there, so the model is loaded once more.
  CuptiTrace tracer;
  const LoadedModel model = Load(options.model);
  DecodeRun run(*model.executor, options.batch);
  GetReady(options, model, run);
  input.launches = run.stream()->LaunchesPerPart();
  input.lanes = run.stream()->Lanes();
  tracer.Begin();
  for (int64_t i = 0; i < options.steps; ++i) run.Step();
  input.trace = tracer.End();
  return Audit(model.executor->program(), input);
}

#else

AuditReport Measure(const Options&) {
  Fail("An audit looks at what a GPU runs, and this adder was built without CUDA; build it with: ",
       "cmake --preset cuda && cmake --build --preset cuda");
}

#endif

void Run(const Options& options) {
  CheckOption("number of sequences", options.batch, kMostBatch);
  CheckOption("number of prompt tokens", options.prompt_tokens, 1 << 24);
  CheckOption("number of steps", options.steps, kMostSteps);
  const AuditReport report = Measure(options);
  if (options.json) {
    PrintJson(AuditJson(report));
  } else {
    Print(AuditText(report));
  }
  if (report.passed()) return;
  std::vector<std::string> broken;
  for (const AuditRule& rule : report.rules) {
    if (!rule.kept) broken.push_back(rule.name);
  }
  Fail("The audit found broken rules: ", Joined(broken, ", "), ".");
}

}  // namespace

void AddAuditCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  options->model.device = "cuda";
  CLI::App* command = program.add_subcommand(
      "audit", "Show what a GPU runs per decode step and judge it; needs NVIDIA's CUPTI");
  AddModelOption(*command, options->model.model)->required();
  command->add_option("--compute", options->model.compute, "fast, or f32: exact activations")
      ->check(CLI::IsMember({"fast", "f32"}))
      ->capture_default_str();
  AddStateDTypeOption(*command, options->model);
  command->add_option("--batch", options->batch, "Sequences decoded together")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  CLI::Option* random =
      command->add_option("--prompt-tokens", options->prompt_tokens, "Length of a random prompt")
          ->check(CheckWholeNumber)
          ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Token ids of the prompt, such as 1,2,3")
      ->excludes(random);
  command->add_option("--steps", options->steps, "Steps to trace")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
