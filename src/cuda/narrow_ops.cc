#include "cuda/narrow_ops.h"

#include <algorithm>

#include "cuda/cuda_call.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/expert_step.h"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/mamba2_deferred.h"
#include "cuda/kernels/mamba2_selected.h"
#include "cuda/kernels/route.h"
#include "cuda/kernels/selection.h"
#include "cuda/nvtx_range.h"
#include "cuda/op_params.h"
#include "cuda/supported.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

// Rows of floats begin on 16-byte boundaries.
int StrideOf(int width) { return (width + 3) / 4 * 4; }
int Bf16StrideOf(int64_t width) { return static_cast<int>((width + 7) / 8 * 8); }

}  // namespace

NarrowOps::NarrowOps(const Program& program, const DeviceWeights& weights, const DeviceState& state,
                     const TiledWeights& tiled_weights, const Stream& stream, int multiprocessors,
                     bool f32, int rows)
    : program_(program),
      weights_(weights),
      state_(state),
      tiled_weights_(tiled_weights),
      stream_(stream),
      multiprocessors_(multiprocessors),
      f32_(f32),
      rows_(rows) {
  AllocateBuffers();
  AllocateRounded();
  FindJoined();
}

int NarrowOps::Width(BufferId id) const { return BufferWidth(program_, id); }
int NarrowOps::Stride(BufferId id) const { return BufferStride(program_, id); }

void NarrowOps::Launch(const Op& op, const Slice& slice) {
  const NvtxRange range(op.name);
  slice_ = slice;
  MarkWritten(OutputOf(op));
  // CheckSupported has refused programs with other ops.
  std::visit(
      [this](const auto& body) {
        if constexpr (kHasKernels<std::decay_t<decltype(body)>>) Launch(body);
      },
      op.body);
}

void NarrowOps::LaunchHead(const LinearOp& head, int rows, const float* input,
                           const int* input_rows) {
  LaunchLinearOp(head, rows, input, input_rows);
}

int NarrowOps::RoundedStride(BufferId id) const { return Bf16StrideOf(Width(id)); }

// Where an op writes the rounded copy of its output; null: nobody will read it.
uint16_t* NarrowOps::RoundedOutput(BufferId id) {
  uint16_t* rounded = rounded_[static_cast<size_t>(id)];
  if (rounded == nullptr || !ReadsRounded(Shape(), slice_.rows)) return nullptr;
  rounded_fresh_[static_cast<size_t>(id)] = true;
  return rounded;
}
// The rounded copy of `rows` rows of `values`, the buffer's or as wide: of input_rows, or of the
// first.
const uint16_t* NarrowOps::RoundedInput(BufferId id, const float* values, int rows,
                                        const int* input_rows) {
  const auto index = static_cast<size_t>(id);
  if (!rounded_fresh_[index] || input_rows != nullptr) {
    LaunchRound(values, Stride(id), input_rows, rows, Width(id), rounded_[index], RoundedStride(id),
                stream_.get());
    rounded_fresh_[index] = input_rows == nullptr;
  }
  return rounded_[index];
}

void NarrowOps::AllocateBuffers() {
  const auto rows = static_cast<size_t>(rows_);
  size_t total = 0;
  std::vector<size_t> offsets;
  const auto add = [&](size_t floats) {
    offsets.push_back(total);
    total += (floats + 63) / 64 * 64;
  };
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    const auto id = static_cast<BufferId>(b);
    const int of_buffer = id == program_.logits ? std::min(kMostDecodeRows, rows_) : rows_;
    add(static_cast<size_t>(of_buffer) * static_cast<size_t>(Stride(id)));
  }
  size_t convolved = 0;
  size_t partial = 0;
  size_t scores = 0;
  size_t normalized = 0;
  size_t products = 0;
  size_t steps = 0;
  size_t mixed = 0;
  size_t counters = rows;
  int64_t exchange = 0;
  for (const Op& op : program_.ops) {
    mixed = std::max(mixed, rows * static_cast<size_t>(MixedFloats(op)));
    if (const auto* mamba = std::get_if<Mamba2Op>(&op.body)) {
      convolved = std::max(convolved, rows * static_cast<size_t>(mamba->mixer.conv_channels()));
    } else if (const auto* selected = std::get_if<Mamba2SelectedOp>(&op.body)) {
      const Mamba2& m = selected->mixer;
      convolved = std::max(convolved, rows * static_cast<size_t>(m.scan_channels()));
      steps = std::max(steps, rows * static_cast<size_t>(StrideOf(Narrow(m.heads))));
    } else if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
      steps = std::max(steps, rows * static_cast<size_t>(StrideOf(Narrow(scan->mixer.inner))));
    } else if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      const Attention& m = attention->mixer;
      partial =
          std::max(partial, AttentionScratchFloats(rows_, Narrow(m.heads), Narrow(m.head_dim)));
      counters = std::max(counters, AttentionCounters(rows_, Narrow(m.heads)));
    } else if (const auto* latent = std::get_if<LatentAttentionOp>(&op.body)) {
      const LatentAttention& m = latent->mixer;
      partial = std::max(partial, AttentionScratchFloats(rows_, Narrow(m.heads), Narrow(m.latent)));
      counters = std::max(counters, AttentionCounters(rows_, Narrow(m.heads)));
    } else if (const auto* router = std::get_if<RouterOp>(&op.body)) {
      const int choices = weights_.matrix(router->router.weight).rows;
      scores = std::max(scores, rows * static_cast<size_t>(StrideOf(choices)));
      exchange = std::max<int64_t>(exchange, choices);
    } else if (const auto* down = std::get_if<ExpertDownOp>(&op.body)) {
      exchange = std::max(exchange, ExpertExchangeWords(weights_.stack(down->down)));
    } else if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
      if (linear->norm && NormsApart(*linear->norm)) {
        normalized = std::max(normalized, rows * static_cast<size_t>(Stride(linear->input)));
      }
      if (FinishesApart(*linear)) {
        const int matrix_rows = weights_.matrix(linear->linear.weight).rows;
        products = std::max(products, rows * static_cast<size_t>(StrideOf(matrix_rows)));
      }
    } else if (const auto* shift = std::get_if<TokenShiftOp>(&op.body)) {
      normalized = std::max(normalized, rows * static_cast<size_t>(Stride(shift->input)));
    }
  }
  for (size_t floats : {convolved, partial, scores, normalized, products, steps, mixed}) {
    add(floats);
  }
  activations_ = DeviceMemory(total * sizeof(float));
  buffers_.clear();
  for (size_t offset : offsets) buffers_.push_back(activations_.as<float>() + offset);
  float** const scratch[] = {&mixed_,  &steps_,   &products_, &normalized_,
                             &scores_, &partial_, &convolved_};
  for (float** place : scratch) {
    *place = buffers_.back();
    buffers_.pop_back();
  }
  counters_ = DeviceMemory(counters * sizeof(unsigned));
  Check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream_.get()), "cudaMemset");
  if (exchange == 0) return;
  exchange_ = DeviceMemory(static_cast<size_t>(exchange) * sizeof(unsigned));
  Check(cudaMemsetAsync(exchange_.data(), 0xff, exchange_.bytes(), stream_.get()), "cudaMemset");
}

void NarrowOps::PlaceBuffer(BufferId id, const NarrowOps& with, int first_row) {
  const auto index = static_cast<size_t>(id);
  const auto row = static_cast<size_t>(first_row);
  buffers_[index] = with.buffers_[index] + row * static_cast<size_t>(Stride(id));
  if (rounded_[index] == nullptr) return;
  rounded_[index] = with.rounded_[index] + row * static_cast<size_t>(RoundedStride(id));
}

void NarrowOps::AllocateRounded() {
  rounded_.assign(program_.buffers.size(), nullptr);
  rounded_fresh_.assign(program_.buffers.size(), false);
  if (f32_) return;
  std::vector<size_t> offsets(program_.buffers.size(), 0);
  size_t total = 0;
  for (const Op& op : program_.ops) {
    BufferId input = kNoId;
    if (const auto* linear = std::get_if<LinearOp>(&op.body)) input = linear->input;
    if (const auto* router = std::get_if<RouterOp>(&op.body)) input = router->input;
    if (input == kNoId || rounded_fresh_[static_cast<size_t>(input)]) continue;
    rounded_fresh_[static_cast<size_t>(input)] = true;
    offsets[static_cast<size_t>(input)] = total;
    total +=
        (static_cast<size_t>(rows_) * static_cast<size_t>(RoundedStride(input)) + 63) / 64 * 64;
  }
  const size_t low_rank = total;
  for (const Op& op : program_.ops) {
    int64_t rank = 0;
    if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) rank = scan->mixer.dt_rank;
    if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
      rank = scan->mixer.selection->dt_rank;
    }
    const auto floats = static_cast<size_t>(rows_) * static_cast<size_t>(Bf16StrideOf(rank));
    total = std::max(total, low_rank + floats);
  }
  rounded_memory_ = DeviceMemory(total * sizeof(uint16_t));
  low_rank_ = rounded_memory_.as<uint16_t>() + low_rank;
  for (size_t i = 0; i < rounded_.size(); ++i) {
    if (rounded_fresh_[i]) rounded_[i] = rounded_memory_.as<uint16_t>() + offsets[i];
    rounded_fresh_[i] = false;
  }
}

LinearShape NarrowOps::Shape() const {
  LinearShape shape;
  shape.multiprocessors = multiprocessors_;
  shape.batch_invariant = f32_;
  return shape;
}

LinearParams NarrowOps::Params(BufferId input, const std::optional<RmsNorm>& norm,
                               int tokens) const {
  LinearParams params;
  params.input = Values(input);
  params.input_stride = Stride(input);
  params.tokens = tokens;
  if (norm) {
    params.norm_weight = weights_.vector(norm->weight);
    params.norm_eps = norm->eps;
  }
  return params;
}

RmsNormParams NarrowOps::NormParams(const RmsNorm& norm, BufferId input) const {
  RmsNormParams params;
  params.input = Values(input);
  params.stride = Stride(input);
  params.rows = slice_.rows;
  params.width = Width(input);
  params.groups = Narrow(norm.groups);
  params.weight = weights_.vector(norm.weight);
  params.eps = norm.eps;
  return params;
}

void NarrowOps::Launch(const EmbedOp& op) {
  LaunchEmbed(weights_.matrix(op.embedding), slice_.tokens, slice_.rows, op.scale,
              Values(op.output), Stride(op.output), RoundedOutput(op.output),
              RoundedStride(op.output), stream_.get());
  if (!op.norm) return;
  RowUpdateParams update = UpdateParams(op.output, op.output);
  update.norm = MakeRowNorm(*op.norm);
  LaunchRowUpdate(update, stream_.get());
}

void NarrowOps::Launch(const LinearOp& op) {
  LaunchLinearOp(op, slice_.rows, Values(op.input), nullptr);
}

void NarrowOps::LaunchLinearOp(const LinearOp& op, int tokens, const float* input,
                               const int* input_rows) {
  LinearParams params = Params(op.input, op.norm, tokens);
  params.input = input;
  params.matrix = weights_.matrix(op.linear.weight);
  params.input_rows = input_rows;
  const bool finishes = NeedsFinish(op);
  if (FinishesApart(op)) {
    params.output = products_;
    params.output_stride = StrideOf(params.matrix.rows);
  } else {
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
  }
  // Gates of rows come behind the epilogue.
  if (!finishes || GatesRowsAlone(op)) SetEpilogue(op, params);
  if (!finishes) {
    params.rounded_output = RoundedOutput(op.output);
    params.rounded_output_stride = RoundedStride(op.output);
  }
  LinearShape shape = Shape();
  const int begin = op.input_begin == -1 ? 0 : Narrow(op.input_begin);
  // Only the exact kernel reads rows from any place on.
  if (begin % 8 != 0) shape.batch_invariant = true;
  if (op.norm && op.norm->groups > 1 && !op.norm->centered && !finishes && begin == 0 &&
      tokens == 1 && input_rows == nullptr && params.epilogue == LinearEpilogue::kAdd &&
      params.bias == nullptr && params.norm_weight != nullptr &&
      CanGroup(params.matrix, Narrow(op.norm->groups), shape)) {
    return LaunchGroupedLinear(params, Narrow(op.norm->groups), shape, stream_.get());
  }
  if (op.norm && NormsApart(*op.norm)) {
    NormInput(op, input, tokens, input_rows);
    params.input = normalized_;
    params.input_rows = nullptr;
    params.norm_weight = nullptr;
    params.rounded_input = rounded_[static_cast<size_t>(op.input)];
  } else if (ReadsRounded(shape, tokens)) {
    params.rounded_input = RoundedInput(op.input, input, tokens, input_rows) + begin;
  }
  params.input += begin;
  params.rounded_input_stride = RoundedStride(op.input);
  shape.unpacked = tiled_weights_.Find(params.matrix, params.norm_weight);
  LaunchLinear(params, shape, stream_.get());
  if (!finishes) return;
  FinishParams finish;
  if (!GatesRowsAlone(op)) finish = FinishRules(op, weights_);
  finish.products = params.output;
  finish.products_stride = params.output_stride;
  finish.rows = tokens;
  finish.width = Width(op.output);
  if (op.row_gate != kNoId) {
    finish.row_gate = Values(op.row_gate);
    finish.row_gate_stride = Stride(op.row_gate);
  }
  if (op.addend != kNoId) {
    finish.addend = Values(op.addend);
    finish.addend_stride = Stride(op.addend);
  }
  if (op.factor != kNoId) {
    finish.factor = Values(op.factor) + op.factor_column;
    finish.factor_stride = Stride(op.factor);
  }
  finish.output = Values(op.output);
  finish.output_stride = Stride(op.output);
  finish.rounded_output = RoundedOutput(op.output);
  finish.rounded_output_stride = RoundedStride(op.output);
  LaunchFinish(finish, stream_.get());
}

void NarrowOps::SetEpilogue(const LinearOp& op, LinearParams& params) const {
  if (NeedsRule(op)) {
    const DeviceWeights::RowVectors vectors = weights_.row_vectors(op.linear);
    params.epilogue = LinearEpilogue::kRule;
    params.rule.factors = vectors.factors;
    params.rule.activates = op.epilogue == Epilogue::kGated || op.epilogue == Epilogue::kActivate;
    params.rule.activation = op.activation;
    params.rule.adds = op.epilogue == Epilogue::kAdd;
    params.bias = vectors.bias;
    params.scale = op.scale;
    return;
  }
  params.epilogue = op.epilogue == Epilogue::kGated ? LinearEpilogue::kSiluMul
                    : op.epilogue == Epilogue::kAdd ? LinearEpilogue::kAdd
                                                    : LinearEpilogue::kStore;
  params.bias = weights_.vector(op.linear.bias);
  params.scale = op.scale * UniformFactor(op.linear);
}

void NarrowOps::Launch(const Mamba2Op& op) {
  Mamba2Params params = MixerParams(op, weights_, state_, slice_);
  params.projected = Values(op.input);
  params.projected_stride = Stride(op.input);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.gates = !op.mixer.norm_before_gate;
  params.beside_previous = beside_previous_;
  if (slice_.most_tokens == 1) {
    if (params.gates) {
      params.rounded_output = RoundedOutput(op.output);
      params.rounded_output_stride = RoundedStride(op.output);
    }
    params.multiprocessors = multiprocessors_;
    LaunchMamba2Step(params, stream_.get());
  } else {
    LaunchMamba2Prefill(params, slice_.most_tokens, convolved_, stream_.get());
  }
  if (params.gates) return;
  RmsNormParams norm = NormParams(*op.mixer.gated_norm, op.output);
  norm.epilogue = NormEpilogue::kGate;
  norm.gate = params.projected;
  norm.gate_stride = params.projected_stride;
  norm.output = params.output;
  norm.rounded_output = RoundedOutput(op.output);
  norm.rounded_stride = RoundedStride(op.output);
  LaunchRmsNorm(norm, stream_.get());
}

void NarrowOps::SettleStates(std::span<const SequenceId> sequences) const {
  std::vector<SequenceRun> runs;
  for (const SequenceId sequence : sequences) {
    if (state_.Defers(sequence)) runs.push_back(state_.Run(sequence, 0, 0));
  }
  if (runs.empty()) return;
  Slice slice;
  slice.run_count = static_cast<int>(runs.size());
  for (const Op& op : program_.ops) {
    const auto* mamba = std::get_if<Mamba2Op>(&op.body);
    if (mamba == nullptr || state_.DeferredOffset(mamba->ssm_state) < 0) continue;
    if (slice.runs == nullptr) {
      const size_t bytes = runs.size() * sizeof(SequenceRun);
      if (bytes > settled_runs_.bytes()) settled_runs_ = DeviceMemory(bytes);
      Upload(settled_runs_.data(), runs.data(), bytes, stream_);
      slice.runs = settled_runs_.as<const SequenceRun>();
    }
    LaunchMamba2Settle(MixerParams(*mamba, weights_, state_, slice), stream_.get());
  }
  for (const SequenceId sequence : sequences) state_.MarkSettled(sequence);
}

// dt_proj of a mixer: output [rows, output_stride] = linear(norm(input)), input being a part of
// each row of a buffer.
void NarrowOps::LaunchSteps(const Linear& linear, const std::optional<RmsNorm>& norm,
                            const float* input, int input_stride) {
  LinearParams params;
  params.matrix = weights_.matrix(linear.weight);
  params.input = input;
  params.input_stride = input_stride;
  params.tokens = slice_.rows;
  if (norm) {
    params.norm_weight = norm->weight == kNoId ? weights_.ones() : weights_.vector(norm->weight);
    params.norm_eps = norm->eps;
  }
  params.bias = weights_.vector(linear.bias);
  params.output = steps_;
  params.output_stride = StrideOf(params.matrix.rows);
  LinearShape shape = Shape();
  // Only the exact kernel reads rows from any place on.
  if (reinterpret_cast<uintptr_t>(input) % 16 != 0) shape.batch_invariant = true;
  if (ReadsRounded(shape, slice_.rows)) {
    params.rounded_input = low_rank_;
    params.rounded_input_stride = Bf16StrideOf(params.matrix.cols);
    LaunchRound(input, input_stride, nullptr, slice_.rows, params.matrix.cols, low_rank_,
                params.rounded_input_stride, stream_.get());
  }
  LaunchLinear(params, shape, stream_.get());
}

void NarrowOps::Launch(const Mamba2SelectedOp& op) {
  const Mamba2& m = op.mixer;
  const Mamba2Selection& selection = *m.selection;
  const float* selected = Values(op.selected);
  const int states = Narrow(m.groups * m.d_state);
  Mamba2SelectedParams params;
  params.scan = ScanParams(m, op.ssm_state, weights_, state_, slice_);
  params.scan.d_conv = 1;
  params.scan.projected = Values(op.projected);
  params.scan.projected_stride = Stride(op.projected);
  params.scan.output = Values(op.output);
  params.scan.output_stride = Stride(op.output);
  params.b_norm = MakeSmallNorm(selection.b_norm, weights_);
  params.c_norm = MakeSmallNorm(selection.c_norm, weights_);
  params.dt_rows = weights_.dense_rows(selection.dt_proj.weight);
  if (slice_.most_tokens == 1 && !f32_ && params.dt_rows != nullptr) {
    params.scan.rounded_output = RoundedOutput(op.output);
    params.scan.rounded_output_stride = RoundedStride(op.output);
    params.x = Values(op.convolved);
    params.x_stride = Stride(op.convolved);
    params.selected = selected;
    params.selected_stride = Stride(op.selected);
    params.dt_rank = Narrow(selection.dt_rank);
    params.dt_norm = MakeSmallNorm(selection.dt_norm, weights_);
    params.dt_offset = weights_.vector(selection.dt_proj.bias);
    return LaunchMamba2SelectedStep(params, stream_.get());
  }
  SelectionParams gather;
  gather.rows = slice_.rows;
  gather.inner = Narrow(m.inner());
  gather.states = states;
  gather.b_norm = params.b_norm;
  gather.c_norm = params.c_norm;
  gather.x = Values(op.convolved);
  gather.x_stride = Stride(op.convolved);
  gather.b_c = selected;
  gather.b_c_stride = Stride(op.selected);
  gather.output = convolved_;
  LaunchSelection(gather, stream_.get());
  LaunchSteps(selection.dt_proj, selection.dt_norm, selected + 2 * states, Stride(op.selected));
  params.scan.dt = steps_;
  params.scan.dt_stride = StrideOf(params.scan.heads);
  LaunchMamba2Scan(params.scan, convolved_, stream_.get());
}

void NarrowOps::Launch(const Mamba1ScanOp& op) {
  const Mamba1& m = op.mixer;
  const float* selected = Values(op.selected);
  LaunchSteps(m.dt_proj, m.dt_norm, selected, Stride(op.selected));
  Mamba1Params params = MixerParams(op, weights_, state_, slice_);
  params.x = Values(op.convolved);
  params.x_stride = Stride(op.convolved);
  params.b_c = selected + m.dt_rank;
  params.b_c_stride = Stride(op.selected);
  params.dt = steps_;
  params.dt_stride = StrideOf(params.inner);
  params.z = Values(op.projected) + m.inner;
  params.z_stride = Stride(op.projected);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  LaunchMamba1Scan(params, stream_.get());
}

void NarrowOps::Launch(const AttentionOp& op) {
  AttentionParams params = MixerParams(op, program_, weights_, state_, slice_);
  params.qkv = Values(op.input);
  params.qkv_stride = Stride(op.input);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  params.partial = partial_;
  params.arrivals = counters_.as<unsigned>();
  if (slice_.most_tokens == 1) {
    LaunchAttentionStep(params, stream_.get());
  } else {
    LaunchKvAppend(params, stream_.get());
    LaunchAttention(params, stream_.get());
  }
}

}  // namespace adder::cuda
