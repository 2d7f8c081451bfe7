// adder bench conv: why a decode step never calls a convolution library.
#include <fstream>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "measure/conv_bench.h"
#ifdef ADDER_HAS_CUDA
#include "measure/cuda/conv_runner.h"
#endif

namespace adder::cli {
namespace {

struct Options {
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes{"f32", "bf16", "f16"};
  std::string csv;
  bool json = false;
};

std::vector<ConvBenchRow> Measure([[maybe_unused]] const std::vector<ConvShape>& shapes,
                                  [[maybe_unused]] const std::vector<DType>& dtypes) {
#ifdef ADDER_HAS_CUDA
  ProgressBar bar("Comparing");
  return RunConvBench(shapes, dtypes, [&](double fraction) { bar.Update(fraction); });
#else
  Fail(
      "adder bench conv compares kernels of a GPU, and this adder was built without CUDA; build "
      "it ",
      "with: cmake --preset cuda && cmake --build --preset cuda");
#endif
}

void Run(const Options& options) {
  std::vector<ConvShape> shapes;
  for (const std::string& text : options.shapes) shapes.push_back(ParseConvShape(text));
  if (shapes.empty()) shapes = KnownConvShapes();
  std::vector<DType> dtypes;
  for (const std::string& name : options.dtypes) {
    dtypes.push_back(name == "f32" ? DType::kF32 : name == "f16" ? DType::kF16 : DType::kBF16);
  }
  const std::vector<ConvBenchRow> rows = Measure(shapes, dtypes);
  if (options.json) {
    PrintJson(ConvBenchJson(rows));
  } else {
    Print(ConvBenchText(rows));
  }
  if (!options.csv.empty()) {
    std::ofstream file(options.csv);
    file << ConvBenchCsv(rows);
    if (!file.flush()) Fail("Cannot write to ", options.csv, ".");
  }
  for (const ConvBenchRow& row : rows) {
    if (row.agree()) continue;
    Fail("The convolutions of ", row.shape.model, " (", row.shape.channels, " channels, ",
         row.shape.taps, " taps, ", DTypeName(row.dtype),
         ") disagree: adder's kernels or cuDNN compute something else.");
  }
}

}  // namespace

void AddBenchConvCommand(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "conv", "The convolution of a decode step: adder's, cuDNN's and the one for prompts");
  command
      ->add_option("--shape", options->shapes,
                   "Channels and taps, such as 1792x4; may be given several times. Without it, "
                   "those of known models")
      ->delimiter(',');
  command->add_option("--dtype", options->dtypes, "f32, bf16 and f16: what to compare in")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  command->add_option("--csv", options->csv, "Write the rows to this file");
  command->add_flag("--json", options->json, "Print one JSON array");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
