// adder bench tokenize: speed of encoding text, without a model.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "loader/model_path.h"
#include "measure/decode_bench.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  std::string file;
  int repeat = 5;
  bool json = false;
};

void Run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const std::string text = ReadFile(options.file);
  if (text.empty()) Fail(options.file, " is empty; there is nothing to measure.");
  const auto load_begin = Clock::now();
  const auto tokenizer = text::Tokenizer::Load(ResolveModelPath(options.model));
  const double load_seconds = seconds(load_begin);

  std::vector<double> rates;
  size_t tokens = 0;
  for (int i = 0; i < options.repeat; ++i) {
    const auto begin = Clock::now();
    tokens = tokenizer.Encode(text, /*add_special_tokens=*/false).size();
    rates.push_back(static_cast<double>(text.size()) / seconds(begin) / 1e6);
  }
  const Spread rate = SpreadOf(std::move(rates));
  if (options.json) {
    PrintJson({{"bytes", text.size()},
               {"tokens", tokens},
               {"vocab", tokenizer.vocab_size()},
               {"repeat", options.repeat},
               {"megabytes_per_second_median", rate.median},
               {"megabytes_per_second_min", rate.min},
               {"megabytes_per_second_max", rate.max},
               {"load_seconds", load_seconds}});
    return;
  }
  Print(Concat("text        ", text.size(), " bytes, ", tokens, " tokens\nvocabulary  ",
               tokenizer.vocab_size(), " tokens, loaded in ", Fixed(load_seconds, 2),
               " s\nencode      ", Fixed(rate.median, 1), " MB/s median (min ", Fixed(rate.min, 1),
               ", max ", Fixed(rate.max, 1), "), one thread\n"));
}

}  // namespace

void AddBenchTokenizeCommand(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("tokenize", "Speed of encoding a text, on one thread");
  AddModelOption(*command, options->model)->required();
  command->add_option("--file", options->file, "The text; encoded as a whole")->required();
  command->add_option("--repeat", options->repeat, "How often to measure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
