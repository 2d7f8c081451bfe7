// adder synthesize: random weights of a real model's shape.
#include "checkpoint/synthesize.h"

#include <memory>

#include "command.h"
#include "core/error.h"

namespace adder::cli {

void AddSynthesizeCommand(CLI::App& program) {
  struct Options {
    std::string geometry;
    std::string output;
    std::string bits = "4";
    SynthesizeOptions synthesize;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "synthesize", "Write a checkpoint with random weights, for speed tests only");
  command->add_option("--geometry", options->geometry, "A config.json")->required();
  command->add_option("--output", options->output, "Directory to write; must not exist yet")
      ->required();
  command->add_option("--bits", options->bits, "Bits per weight; none: bf16")
      ->check(CLI::IsMember({"2", "3", "4", "5", "6", "8", "none"}))
      ->capture_default_str();
  command->add_option("--group-size", options->synthesize.group_size, "Weights that share a scale")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  command->add_option("--seed", options->synthesize.seed, "Seed of the random weights")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  command->callback([options] {
    ProgressBar bar("Writing random weights");
    SynthesizeOptions& synthesize = options->synthesize;
    synthesize.geometry = options->geometry;
    synthesize.output = options->output;
    synthesize.bits = options->bits == "none" ? 0 : options->bits.front() - '0';
    synthesize.progress = [&](double fraction) { bar.Update(fraction); };
    SynthesizeCheckpoint(synthesize);
    Print(Concat("Wrote ", options->output,
                 ". Its weights are random: it is for speed tests only, ",
                 "and what it writes means nothing.\n"));
  });
}

}  // namespace adder::cli
