// adder quantize: an MLX-format quantised checkpoint from a float one.
#include "checkpoint/quantize.h"

#include <memory>

#include "command.h"
#include "core/error.h"
#include "loader/model_path.h"

namespace adder::cli {

void AddQuantizeCommand(CLI::App& program) {
  struct Options {
    std::string model;
    QuantizeOptions quantize;
    std::string output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "quantize", "Write a quantised checkpoint in MLX format, which mlx-lm loads too");
  AddModelOption(*command, options->model)->required();
  command->add_option("--output", options->output, "Directory to write; must not exist yet")
      ->required();
  command->add_option("--bits", options->quantize.bits, "Bits per weight")
      ->check(CLI::IsMember({2, 3, 4, 5, 6, 8}))
      ->capture_default_str();
  command->add_option("--group-size", options->quantize.group_size, "Weights that share a scale")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  command
      ->add_option("--keep-head-bits", options->quantize.keep_head_bits,
                   "Bits of the head, and of an embedding tied to it; default: as --bits")
      ->check(CLI::IsMember({2, 3, 4, 5, 6, 8}));
  command->callback([options] {
    ProgressBar bar("Quantising");
    options->quantize.model = ResolveModelPath(options->model);
    options->quantize.output = options->output;
    options->quantize.progress = [&](double fraction) { bar.Update(fraction); };
    QuantizeCheckpoint(options->quantize);
    Print(Concat("Wrote ", options->output, "\n"));
  });
}

}  // namespace adder::cli
