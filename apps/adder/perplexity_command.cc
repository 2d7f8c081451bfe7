// adder perplexity: how well a model predicts a text.
#include <algorithm>
#include <cmath>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "measure/perplexity.h"

namespace adder::cli {
namespace {

constexpr int64_t kDefaultWindow = 1024;

struct Options {
  ModelOptions model;
  std::string file;
  std::optional<int64_t> window;
  bool json = false;
};

void Run(const Options& options) {
  const LoadedModel model = Load(options.model);
  const std::string text = ReadFile(options.file);
  const auto tokens = RequireTokenizer(model).Encode(text, /*add_special_tokens=*/false);
  PerplexityOptions measure;
  const int64_t max_positions = model.plan->max_positions;
  measure.window = options.window.value_or(
      max_positions > 0 ? std::min(max_positions, kDefaultWindow) : kDefaultWindow);
  CheckPositions(*model.plan, measure.window, 0, "lower --window.");
  measure.begin_id = model.begin_id;
  if (measure.begin_id < 0 && !model.end_ids.empty()) measure.begin_id = model.end_ids.front();
  ProgressBar bar("Scoring");
  measure.progress = [&](double fraction) { bar.Update(fraction); };
  const PerplexityResult result = MeasurePerplexity(*model.executor, tokens, measure);

  const auto bytes = static_cast<int64_t>(text.size());
  const double bits_per_byte = result.nats / std::log(2.0) / static_cast<double>(bytes);
  const double perplexity = std::exp(result.NatsPerToken());
  if (options.json) {
    PrintJson({{"nats_per_token", result.NatsPerToken()},
               {"perplexity", perplexity},
               {"bits_per_byte", bits_per_byte},
               {"tokens", tokens.size()},
               {"scored_tokens", result.scored_tokens},
               {"bytes", bytes},
               {"window", measure.window},
               {"windows", result.windows},
               {"begin_id", measure.begin_id < 0 ? Json() : Json(measure.begin_id)},
               {"compute", options.model.compute},
               {"state_dtype", options.model.state_dtype}});
    return;
  }
  const std::string begin =
      measure.begin_id >= 0
          ? Concat("each from an empty state after token ", measure.begin_id)
          : Concat("each from an empty state; the first token of each is not scored");
  Print(Concat("nats per token  ", Fixed(result.NatsPerToken(), 5), "\nperplexity      ",
               Fixed(perplexity, 4), "\nbits per byte   ", Fixed(bits_per_byte, 5),
               "\ntokens          ", tokens.size(), " (", result.scored_tokens,
               " scored)\nbytes           ", bytes, "\nwindows         ", result.windows, " of ",
               measure.window, " tokens, ", begin, "\n"));
}

}  // namespace

void AddPerplexityCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "perplexity", "Measure how well a model predicts a text: nats per token, bits per byte");
  AddModelOption(*command, options->model.model)->required();
  command->add_option("--file", options->file, "The text")->required();
  command
      ->add_option("--window", options->window,
                   "Tokens per window; default: 1024, or the model's maximum if that is less")
      ->check(CheckWholeNumber);
  AddDeviceOptions(*command, options->model);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
