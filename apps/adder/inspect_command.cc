// adder inspect: what a checkpoint is, and what it costs to run.
#include <algorithm>
#include <map>
#include <memory>

#include "command.h"
#include "core/error.h"
#include "program/program.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  bool plan = false;
  bool json = false;
};

struct LayerRow {
  int64_t layer = 0;
  std::string mixers;        // "Mamba2 + DenseMlp"
  int64_t weight_bytes = 0;  // read per token
  int64_t state_bytes = 0;   // recurrent state per sequence
  int64_t kv_bytes = 0;      // per position
};

std::vector<LayerRow> LayerTable(const Program& program) {
  std::map<int64_t, LayerRow> layers;
  const Plan& plan = *program.plan;
  for (const Block& block : plan.blocks) {
    LayerRow& row = layers[block.layer];
    row.layer = block.layer;
    for (const Mixer& mixer : block.mixers) {
      row.mixers += (row.mixers.empty() ? "" : " + ") + MixerName(mixer);
    }
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].layer < 0) continue;
    layers[program.ops[i].layer].weight_bytes +=
        CostOf(program, static_cast<int>(i), 1, 1, 0).weight_bytes;
  }
  const auto layer_of = [&](int block) -> LayerRow& {
    return layers[plan.blocks[static_cast<size_t>(block)].layer];
  };
  for (const RecurrentState& state : program.layout.recurrent) {
    layer_of(state.block).state_bytes += state.bytes();
  }
  for (const KvState& kv : program.layout.kv) {
    layer_of(kv.block).kv_bytes +=
        2 * kv.kv_heads * kv.head_dim * static_cast<int64_t>(sizeof(float));
  }
  std::vector<LayerRow> rows;
  for (auto& [layer, row] : layers) rows.push_back(std::move(row));
  return rows;
}

// Bytes of the matrices by storage format, such as "4-bit, groups of 64" or "BF16".
std::map<std::string, int64_t> WeightFormats(const BoundWeights& weights) {
  std::map<std::string, int64_t> bytes;
  for (const WeightMatrix& matrix : weights.matrices) {
    for (const MatrixSegment& segment : matrix.segments) {
      bytes[segment.FormatName()] += segment.bytes();
    }
  }
  return bytes;
}

std::string Pad(const std::string& text, size_t width, bool right = false) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

void PrintText(const OpenedModel& model, const Program& program) {
  const Plan& plan = *model.plan;
  const OpCost cost = CostOf(program, 1, 1, 0);
  std::string formats;
  for (const auto& [format, bytes] : WeightFormats(*model.weights)) {
    formats += Concat(formats.empty() ? "" : "; ", format, " (", Megabytes(bytes), ")");
  }
  std::string text = Concat(
      "model                     ", model.directory.string(), "\nfamily                    ",
      plan.family, "\nparameters                ", ParameterCount(plan),
      "\nhidden, vocabulary        ", plan.hidden, ", ", plan.vocab, "\nmaximum positions         ",
      plan.max_positions > 0 ? Concat(plan.max_positions) : std::string("no stated limit"),
      "\nmatrices                  ", formats, "\ncheckpoint                ",
      Megabytes(model.store->bytes()), "\nweights read per token    ", cost.weight_bytes, " bytes",
      "\nstate per sequence        ", program.layout.recurrent_bytes(), " bytes",
      "\nKV per token              ", program.layout.kv_bytes_per_position(), " bytes\n\n");
  const auto rows = LayerTable(program);
  size_t width = 6;
  for (const LayerRow& row : rows) width = std::max(width, row.mixers.size());
  text += Concat("layer  ", Pad("mixers", width), "  weight bytes   state bytes  KV bytes/token\n");
  for (const LayerRow& row : rows) {
    text += Concat(Pad(Concat(row.layer), 5, true), "  ", Pad(row.mixers, width), "  ",
                   Pad(Concat(row.weight_bytes), 12, true), "  ",
                   Pad(Concat(row.state_bytes), 12, true), "  ",
                   Pad(Concat(row.kv_bytes), 14, true), "\n");
  }
  Print(text);
}

Json InspectJson(const OpenedModel& model, const Program& program, bool with_plan) {
  const Plan& plan = *model.plan;
  Json layers = Json::array();
  for (const LayerRow& row : LayerTable(program)) {
    layers.push_back({{"layer", row.layer},
                      {"mixers", row.mixers},
                      {"weight_bytes", row.weight_bytes},
                      {"state_bytes", row.state_bytes},
                      {"kv_bytes_per_token", row.kv_bytes}});
  }
  Json formats = Json::object();
  for (const auto& [format, bytes] : WeightFormats(*model.weights)) formats[format] = bytes;
  Json json = {{"model", model.directory.string()},
               {"family", plan.family},
               {"parameters", ParameterCount(plan)},
               {"hidden", plan.hidden},
               {"vocab", plan.vocab},
               {"max_positions", plan.max_positions > 0 ? Json(plan.max_positions) : Json()},
               {"matrix_bytes", formats},
               {"checkpoint_bytes", model.store->bytes()},
               {"bytes_read_per_token", CostOf(program, 1, 1, 0).weight_bytes},
               {"state_bytes_per_sequence", program.layout.recurrent_bytes()},
               {"kv_bytes_per_token", program.layout.kv_bytes_per_position()},
               {"layers", layers}};
  if (with_plan) {
    json["plan"] = PlanString(plan);
    json["program"] = ProgramString(program);
  }
  return json;
}

void Run(const Options& options) {
  const OpenedModel model = OpenModel(options.model);
  const Program program = LowerPlan(model.plan, model.weights);
  if (options.json) return PrintJson(InspectJson(model, program, options.plan));
  PrintText(model, program);
  if (options.plan) Print(Concat("\n", PlanString(*model.plan), "\n", ProgramString(program)));
}

}  // namespace

void AddInspectCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      program.add_subcommand("inspect", "Show what a checkpoint is and what it costs to run");
  AddModelOption(*command, options->model)->required();
  command->add_flag("--plan", options->plan, "Also print the plan and the program");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
