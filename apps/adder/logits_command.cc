// adder logits: logits, or the output of any one op, of given token ids.
#include <algorithm>
#include <memory>
#include <span>

#include "checkpoint/safetensors.h"
#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "engine/token_lists.h"

namespace adder::cli {
namespace {

constexpr int64_t kDefaultChunk = 256;

struct Options {
  ModelOptions model;
  std::string prompts;
  std::string output;
  int64_t chunk = kDefaultChunk;
  bool step = false;
  std::string stop_after;
  bool list_ops = false;
};

// Appends rows [tokens, width] of one prompt to the file, chunk by chunk.
class Runner {
 public:
  // last_op: the op whose output is wanted; the last one of the program means logits.
  Runner(Executor& executor, SafetensorsWriter& writer, int last_op)
      : executor_(executor), writer_(writer), last_op_(last_op) {}

  void Run(std::span<const int32_t> prompt, int64_t chunk) {
    const SequenceId sequence = executor_.CreateSequence();
    for (size_t done = 0; done < prompt.size(); done += static_cast<size_t>(chunk)) {
      const auto tokens =
          prompt.subspan(done, std::min(static_cast<size_t>(chunk), prompt.size() - done));
      if (last_op_ + 1 == static_cast<int>(executor_.program().ops.size())) {
        executor_.Forward({{sequence, tokens, LogitsRows::kAll}});
        for (int64_t row = 0; row < executor_.LogitsCount(); ++row) Append(executor_.Logits(row));
        continue;
      }
      // A forward pass that stops on the way leaves a half-updated state, so a copy takes it.
      const SequenceId copy = executor_.CopySequence(sequence);
      Append(executor_.ForwardUntil({{copy, tokens, LogitsRows::kAll}}, last_op_));
      executor_.FreeSequence(copy);
      if (done + tokens.size() < prompt.size()) {
        executor_.Forward({{sequence, tokens, LogitsRows::kNone}});
      }
    }
    executor_.FreeSequence(sequence);
  }

 private:
  void Append(std::span<const float> values) { writer_.Append(std::as_bytes(values)); }

  Executor& executor_;
  SafetensorsWriter& writer_;
  int last_op_;
};

void ListOps(const Options& options) {
  const OpenedModel model = OpenModel(options.model.model);
  std::string text;
  for (const Op& op : LowerPlan(model.plan, model.weights).ops) text += op.name + "\n";
  Print(text);
}

void Run(const Options& options) {
  const LoadedModel model = Load(options.model);
  const Program& program = model.executor->program();
  const auto prompts =
      ParsePrompts(ReadFile(options.prompts), options.prompts, program.plan->vocab);
  for (const auto& prompt : prompts) {
    CheckPositions(*program.plan, static_cast<int64_t>(prompt.size()), 0,
                   Concat("shorten the prompt in ", options.prompts, "."));
  }
  const bool logits = options.stop_after.empty();
  const int last_op =
      logits ? static_cast<int>(program.ops.size()) - 1 : program.FindOp(options.stop_after);
  const BufferId buffer = OutputOf(program.ops[static_cast<size_t>(last_op)]);
  const int64_t width = program.buffers[static_cast<size_t>(buffer)].width;

  std::vector<TensorSpec> tensors;
  int64_t all_tokens = 0;
  for (const auto& prompt : prompts) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    tensors.push_back(
        {Concat(logits ? "logits_" : "output_", tensors.size()), DType::kF32, {tokens, width}});
    all_tokens += tokens;
  }
  SafetensorsWriter writer(options.output, tensors,
                           {{"model", model.directory.string()},
                            {"device", model.executor->Description()},
                            {"op", program.ops[static_cast<size_t>(last_op)].name}});
  Runner runner(*model.executor, writer, last_op);
  ProgressBar bar("Running");
  int64_t done = 0;
  for (const auto& prompt : prompts) {
    runner.Run(prompt, options.step ? 1 : options.chunk);
    done += static_cast<int64_t>(prompt.size());
    bar.Update(static_cast<double>(done) / static_cast<double>(all_tokens));
  }
  writer.Finish();
}

}  // namespace

void AddLogitsCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "logits", "Write the logits of token ids to a safetensors file, to compare with a reference");
  AddModelOption(*command, options->model.model)->required();
  command->add_option("--prompts", options->prompts, "JSON file {\"prompts\": [[1, 2, 3], ...]}");
  command->add_option("--output", options->output,
                      "File to write: tensors logits_<i> [tokens, vocab] f32");
  AddDeviceOptions(*command, options->model, /*with_reference=*/true);
  CLI::Option* chunk = command->add_option("--chunk", options->chunk, "Tokens that are run at once")
                           ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
                           ->capture_default_str();
  command->add_flag("--step", options->step, "Token by token, as in decoding")->excludes(chunk);
  command->add_option("--stop-after", options->stop_after,
                      "Write the output of this op instead: tensors output_<i> [tokens, width]");
  command->add_flag("--list-ops", options->list_ops,
                    "Print the names of the ops, and nothing else");
  command->callback([options] {
    if (options->list_ops) return ListOps(*options);
    if (options->prompts.empty() || options->output.empty()) {
      throw CLI::RequiredError("logits: --prompts and --output");
    }
    Run(*options);
  });
}

}  // namespace adder::cli
