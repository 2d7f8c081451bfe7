#include "measure/conv_bench.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "measure/text_table.h"

namespace adder {
namespace {

constexpr int64_t kMostChannels = 1 << 20;
constexpr int64_t kMostTaps = 8;

struct NamedTiming {
  const char* name;
  ConvTiming ConvBenchRow::*timing;
};
constexpr NamedTiming kWays[] = {{"step", &ConvBenchRow::step},
                                 {"cudnn", &ConvBenchRow::cudnn},
                                 {"multi_position", &ConvBenchRow::multi_position}};

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::string Scientific(double value) {
  char text[32];
  const auto result =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific, 1);
  return {text, result.ptr};
}

Json RowJson(const ConvBenchRow& row) {
  Json json = {{"family", row.shape.family},
               {"model", row.shape.model},
               {"channels", row.shape.channels},
               {"taps", row.shape.taps},
               {"dtype", std::string(DTypeName(row.dtype))}};
  for (const NamedTiming& way : kWays) {
    const ConvTiming& timing = row.*way.timing;
    const std::string name = way.name;
    json[name + "_seconds"] = timing.seconds;
    json[name + "_launches"] = timing.launches;
    json[name + "_kernel"] = timing.kernel;
    json[name + "_max_error"] = timing.max_error;
  }
  json["agree"] = row.agree();
  json["step_wins"] = row.step_wins();
  return json;
}

}  // namespace

// Mamba-2: heads * head_dim + 2 * groups * d_state channels; Mamba-1: the inner width; gated
// short convolutions and recurrent blocks: their width; gated delta rule: keys, queries and values;
// mixed heads: queries and keys. Families that the kit knows but no published file was at hand of
// (olmo_hybrid, zaya) have the sizes that transformers' configuration classes default to.
std::vector<ConvShape> KnownConvShapes() {
  return {{"granitemoehybrid", "granite-4.0-h-350m", 1792, 4},
          {"granitemoehybrid", "granite-4.0-h-1b", 3328, 4},
          {"granitemoehybrid", "granite-4.0-h-micro", 4352, 4},
          {"granitemoehybrid", "granite-4.0-h-small", 8448, 4},
          {"mamba2", "mamba2-2.7b", 5376, 4},
          {"mamba", "mamba-130m", 1536, 4},
          {"falcon_mamba", "falcon-mamba-7b", 8192, 4},
          {"jamba", "jamba-reasoning-3b", 5120, 4},
          {"falcon_h1", "falcon-h1-tiny-90m-instruct", 896, 4},
          {"falcon_h1", "falcon-h1-1.5b", 3584, 4},
          {"nemotron_h", "nemotron-h-8b", 10240, 4},
          {"nemotron_h", "nvidia-nemotron-nano-9b-v2", 12288, 4},
          {"plamo2", "plamo-2-1b", 4096, 4},
          {"lfm2", "lfm2-350m", 1024, 3},
          {"lfm2", "lfm2-1.2b", 2048, 3},
          {"qwen3_5", "qwen3.5-0.8b", 6144, 4},
          {"qwen3_next", "qwen3-next-80b-a3b", 8192, 4},
          {"recurrent_gemma", "recurrentgemma-2b", 2560, 4},
          {"bamba", "bamba-9b", 8448, 4},
          {"zamba2", "zamba2-1.2b", 4352, 4},
          {"lfm2_moe", "lfm2-8b-a1b", 2048, 3},
          {"qwen3_5_moe", "qwen3.5-35b-a3b", 8192, 4},
          {"kimi_linear", "kimi-linear-48b-a3b", 12288, 4},
          {"olmo_hybrid", "olmo_hybrid-defaults", 11520, 4},
          {"zaya", "zaya-defaults", 1280, 2}};
}

ConvShape ParseConvShape(const std::string& text) {
  ConvShape shape{"", text, 0, 0};
  const char* end = text.data() + text.size();
  const std::from_chars_result channels = std::from_chars(text.data(), end, shape.channels);
  const bool has_taps = channels.ec == std::errc() && channels.ptr != end && *channels.ptr == 'x';
  const std::from_chars_result taps =
      has_taps ? std::from_chars(channels.ptr + 1, end, shape.taps) : channels;
  if (!has_taps || taps.ec != std::errc() || taps.ptr != end || shape.channels < 1 ||
      shape.channels > kMostChannels || shape.taps < 2 || shape.taps > kMostTaps) {
    Fail("\"", text, "\" is not the shape of a convolution: give channels (1 to ", kMostChannels,
         ") and taps (2 to ", kMostTaps, "), such as 1792x4.");
  }
  return shape;
}

double ConvBenchRow::tolerance() const {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    default:
      return 1e-5;
  }
}

bool ConvBenchRow::agree() const {
  for (const NamedTiming& way : kWays) {
    // Also false for an error that is not a number.
    if (!((this->*way.timing).max_error <= tolerance())) return false;
  }
  return true;
}

bool ConvBenchRow::step_wins() const {
  return step.launches == 1 && step.seconds <= cudnn.seconds &&
         step.seconds <= multi_position.seconds;
}

std::string ConvBenchRow::verdict() const {
  if (!agree()) return "RESULTS DIFFER";
  return Concat(step_wins() ? "step, " : "OTHER, ",
                FixedDigits(Ratio(cudnn.seconds, step.seconds), 1), "x cudnn, ",
                FixedDigits(Ratio(multi_position.seconds, step.seconds), 1), "x multi");
}

std::string ConvBenchText(const std::vector<ConvBenchRow>& rows) {
  std::vector<std::vector<std::string>> table{{"model", "channels", "taps", "dtype", "step us",
                                               "launches", "cudnn us", "launches", "multi us",
                                               "launches", "largest error", "verdict"}};
  std::string kernels;
  for (const ConvBenchRow& row : rows) {
    std::vector<std::string> cells{row.shape.model, std::to_string(row.shape.channels),
                                   std::to_string(row.shape.taps),
                                   std::string(DTypeName(row.dtype))};
    double error = 0;
    for (const NamedTiming& way : kWays) {
      const ConvTiming& timing = row.*way.timing;
      cells.push_back(FixedDigits(timing.seconds * 1e6, 2));
      cells.push_back(std::to_string(timing.launches));
      error = std::max(error, timing.max_error);
      const std::string line = Concat(way.name, ": ", timing.kernel, "\n");
      if (kernels.find(line) == std::string::npos) kernels += line;
    }
    cells.push_back(Scientific(error));
    cells.push_back(row.verdict());
    table.push_back(std::move(cells));
  }
  return Concat(TextTable(table), "\nkernels\n", kernels);
}

Json ConvBenchJson(const std::vector<ConvBenchRow>& rows) {
  Json json = Json::array();
  for (const ConvBenchRow& row : rows) json.push_back(RowJson(row));
  return json;
}

std::string ConvBenchCsv(const std::vector<ConvBenchRow>& rows) {
  std::string text;
  for (const ConvBenchRow& row : rows) {
    std::vector<std::string> names;
    std::vector<std::string> values;
    const Json json = RowJson(row);
    for (const auto& [name, value] : json.items()) {
      names.push_back(name);
      values.push_back(value.dump());
    }
    if (text.empty()) text = Joined(names, ",") + "\n";
    text += Joined(values, ",") + "\n";
  }
  return text;
}

}  // namespace adder
