// Steps of decoding: token shifts with all matrices that read them, and matrices that read those
// ones' results. What is decided here follows from the program and the number of rows alone.
#include <algorithm>

#include "cuda/cuda_call.h"
#include "cuda/kernels/several_linear.h"
#include "cuda/narrow_ops.h"
#include "cuda/nvtx_range.h"
#include "cuda/op_params.h"
#include "cuda/supported.h"
#include "program/launch_bound.h"

namespace adder::cuda {
namespace {

static_assert(kMostSeveralTokens == kMostJoinedSequences);

// Whether a launch of several matrices can make the op's output.
bool IsProductAlone(const LinearOp& op) {
  return (op.epilogue == Epilogue::kStore || op.epilogue == Epilogue::kActivate) && !op.norm &&
         !op.linear.scaled() && !op.logits_rows_only && op.scale == 1 && !NeedsFinish(op);
}

bool IsLayerNorm(const std::optional<RmsNorm>& norm) {
  return norm && norm->centered && norm->groups == 1 && norm->weight != kNoId &&
         norm->bias != kNoId;
}

}  // namespace

// Groups of ops that steps launch together: a token shift and what reads it; and behind it what
// reads the results of those, with the mixer that reads these in turn or without. Matrices of a
// shift are the only readers of its output, which the launch does not write, and come right behind
// it.
void NarrowOps::FindSeveral() {
  const std::vector<Op>& ops = program_.ops;
  for (size_t begin = 0; begin < ops.size(); ++begin) {
    const auto* shift = std::get_if<TokenShiftOp>(&ops[begin].body);
    if (shift == nullptr || !IsLayerNorm(shift->norm)) continue;
    Several readers;
    Several behind;
    readers.ops.push_back(begin);
    bool fits = true;
    const auto reads_first = [&](BufferId id) {
      return std::any_of(readers.ops.begin() + 1, readers.ops.end(),
                         [&](size_t op) { return OutputOf(ops[op]) == id; });
    };
    const auto is_written = [&](BufferId id) {
      return id == shift->output || id == shift->input || reads_first(id) ||
             std::any_of(behind.ops.begin(), behind.ops.end(),
                         [&](size_t op) { return OutputOf(ops[op]) == id; });
    };
    size_t i = begin + 1;
    for (; i < ops.size(); ++i) {
      const auto* op = std::get_if<LinearOp>(&ops[i].body);
      if (op == nullptr) break;
      const bool reads = op->input == shift->output;
      if (!reads && !(reads_first(op->input) && op->input_begin == -1)) break;
      const PackedMatrix& matrix = weights_.matrix(op->linear.weight);
      const std::vector<size_t>& like = reads ? readers.ops : behind.ops;
      const size_t named = reads ? 1 : 0;
      const PackedMatrix& first =
          like.size() <= named
              ? matrix
              : weights_.matrix(std::get<LinearOp>(ops[like[named]].body).linear.weight);
      const bool takes = IsProductAlone(*op) && !is_written(op->output) &&
                         like.size() - named < size_t{kMostSeveral} &&
                         CanLaunchTogether(first, matrix, reads, Shape()) &&
                         (!reads || matrix.cols == Width(shift->input));
      if (reads) {
        fits = fits && takes;
        readers.ops.push_back(i);
      } else if (takes) {
        behind.ops.push_back(i);
      } else if (is_written(op->output) || op->epilogue == Epilogue::kAdd) {
        break;
      }
    }
    const size_t end = i;
    for (; i < ops.size() && OutputOf(ops[i]) != shift->output; ++i) {
      const auto* op = std::get_if<LinearOp>(&ops[i].body);
      fits = fits && (op == nullptr || op->input != shift->output);
    }
    if (!fits || readers.ops.size() == 1) continue;
    AddSeveral(readers);
    if (!AddMixer(begin, end) && behind.ops.size() > 1) AddSeveral(behind);
  }
  if (several_.empty()) return;
  arrivals_ = DeviceMemory(several_.size() * kMostSeveralTokens * sizeof(unsigned));
  Check(cudaMemsetAsync(arrivals_.data(), 0, arrivals_.bytes(), stream_.get()), "cudaMemset");
}

void NarrowOps::AddSeveral(const Several& group) {
  several_.push_back(group);
  for (const size_t op : group.ops) joined_[op].several = several_.size();
}

// If the op `mixer` is one whose launch can make what it reads of ops in [begin, mixer), makes them
// a group.
bool NarrowOps::AddMixer(size_t begin, size_t mixer) {
  if (mixer >= program_.ops.size()) return false;
  const auto* scan = std::get_if<Rwkv7Op>(&program_.ops[mixer].body);
  if (scan == nullptr) return false;
  Several group;
  group.has_mixer = true;
  for (const BufferId made : {scan->decay, scan->rate, scan->gate, scan->value_mix}) {
    for (size_t i = begin; i < mixer && made != kNoId; ++i) {
      const auto* op = std::get_if<LinearOp>(&program_.ops[i].body);
      if (op == nullptr || op->output != made) continue;
      if (!IsProductAlone(*op) || op->epilogue != Epilogue::kStore || op->input_begin != -1 ||
          joined_[i].several != 0) {
        return false;
      }
      group.ops.push_back(i);
    }
  }
  if (group.ops.size() != (scan->value_mix == kNoId ? 3 : 4)) return false;
  group.ops.push_back(mixer);
  if (!CanStepRwkv7(StepOf(group), Shape())) return false;
  AddSeveral(group);
  return true;
}

// All but what the step has of its own.
Rwkv7StepParams NarrowOps::StepOf(const Several& group) const {
  Rwkv7StepParams params;
  const auto& scan = std::get<Rwkv7Op>(program_.ops[group.ops.back()].body);
  params.mixer = MixerParams(scan, weights_, state_, slice_);
  Rwkv7Up* const ups[] = {&params.decay, &params.rate, &params.gate, &params.value_mix};
  for (size_t i = 0; i + 1 < group.ops.size(); ++i) {
    const auto& op = std::get<LinearOp>(program_.ops[group.ops[i]].body);
    *ups[i] = {weights_.matrix(op.linear.weight), weights_.vector(op.linear.bias), Values(op.input),
               Stride(op.input)};
  }
  return params;
}

void NarrowOps::LaunchMixer(const Several& group) {
  const Op& op = program_.ops[group.ops.back()];
  const NvtxRange range(op.name);
  const auto& scan = std::get<Rwkv7Op>(op.body);
  Rwkv7StepParams params = StepOf(group);
  PlaceInputs(
      scan, program_, [this](BufferId id) { return Values(id); }, params.mixer);
  params.mixer.output = Values(scan.output);
  MarkWritten(scan.output);
  LaunchRwkv7Step(params, stream_.get());
}

// Of a step: the launch of a group that the op belongs to, at the op at which all that it reads has
// been launched; false where the op is launched by itself.
bool NarrowOps::LaunchSeveral(size_t index) {
  const size_t number = joined_[index].several;
  if (number == 0 || slice_.rows > kMostSeveralTokens) return false;
  const std::vector<size_t>& group = several_[number - 1].ops;
  if (several_[number - 1].has_mixer) {
    if (index == group.back()) LaunchMixer(several_[number - 1]);
    return true;
  }
  if (index != group.front()) return true;
  const NvtxRange range(program_.ops[index].name);
  SeveralLinearParams params;
  params.tokens = slice_.rows;
  const auto* shift = std::get_if<TokenShiftOp>(&program_.ops[index].body);
  if (shift != nullptr) {
    params.shifts = true;
    params.shift = MixerParams(*shift, weights_, state_, slice_);
    params.shift.input = Values(shift->input);
    params.shift.input_stride = Stride(shift->input);
    params.norm = MakeRowNorm(*shift->norm);
    params.arrivals = arrivals_.as<unsigned>() + (number - 1) * kMostSeveralTokens;
  }
  for (const size_t i : group) {
    const auto* op = std::get_if<LinearOp>(&program_.ops[i].body);
    if (op == nullptr) continue;
    OneOfSeveral& one = params.matrices[params.count++];
    one.matrix = weights_.matrix(op->linear.weight);
    one.bias = weights_.vector(op->linear.bias);
    one.activates = op->epilogue == Epilogue::kActivate;
    one.activation = op->activation;
    if (shift != nullptr) {
      one.mix = params.shift.mix + std::max<int64_t>(0, op->input_begin);
    } else {
      one.input = Values(op->input);
      one.input_stride = Stride(op->input);
    }
    one.output = Values(op->output);
    one.output_stride = Stride(op->output);
    MarkWritten(op->output);
  }
  LaunchSeveralLinear(params, Shape(), stream_.get());
  return true;
}

}  // namespace adder::cuda
