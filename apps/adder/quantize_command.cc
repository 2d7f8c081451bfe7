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
    std::string mode = "affine";
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "quantize", "Write a quantised checkpoint in MLX format, which mlx-lm loads too");
  AddModelOption(*command, options->model)->required();
  command->add_option("--output", options->output, "Directory to write; must not exist yet")
      ->required();
  command->add_option("--mode", options->mode, "Mode of quantisation, as MLX names it")
      ->check(CLI::IsMember({"affine", "mxfp4", "mxfp8", "nvfp4"}))
      ->capture_default_str();
  command
      ->add_option("--bits", options->quantize.bits,
                   "Affine bits per weight; default: 4 (the other modes have one width each)")
      ->check(CLI::IsMember({2, 3, 4, 5, 6, 8}));
  command
      ->add_option("--group-size", options->quantize.group_size,
                   "Weights that share an affine scale; default: 64")
      ->check(CLI::IsMember({32, 64, 128}));
  command
      ->add_option("--keep-head-bits", options->quantize.keep_head_bits,
                   "Affine bits of the head, and of an embedding tied to it; default: as others")
      ->check(CLI::IsMember({2, 3, 4, 5, 6, 8}));
  command->callback([options] {
    ProgressBar bar("Quantising");
    options->quantize.model = ResolveModelPath(options->model);
    options->quantize.output = options->output;
    ParseQuantizationMode(options->mode, options->quantize.mode);
    options->quantize.progress = [&](double fraction) { bar.Update(fraction); };
    QuantizeCheckpoint(options->quantize);
    Print(Concat("Wrote ", options->output, "\n"));
  });
}

}  // namespace adder::cli
