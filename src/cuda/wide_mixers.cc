// Mixers of WideOps.
#include "cuda/kernels/attention_chunks.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/mamba1_chunks.h"
#include "cuda/kernels/selection.h"
#include "cuda/op_params.h"
#include "cuda/wide_ops.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

}  // namespace

// What any scan of mamba2_chunks.h has of the slice, and scratch.
Mamba2ChunkParams WideOps::ChunkParams(const Slice& slice) const {
  Mamba2ChunkParams params;
  params.rows = slice.rows;
  params.pieces = slice.pieces;
  params.piece_count = slice.piece_count;
  params.first_pieces = slice.first_pieces;
  params.steps = steps_;
  params.added = added_;
  params.before = before_;
  return params;
}

void WideOps::Launch(const CausalConvOp& op, const Slice& slice) {
  CausalConvParams params = MixerParams(op, weights_, state_, slice);
  params.input = Values(op.input);
  params.input_stride = Stride(op.input);
  if (ConvPiecesSupport(params)) {
    params.rounded_output = reinterpret_cast<uint16_t*>(Bf16Values(op.output));
    params.rounded_output_stride = Bf16Stride(Width(op.output));
    LaunchCausalConvPieces(params, slice.pieces, slice.piece_count, stream_.get());
    return;
  }
  params.output = F32Values(op.output);
  params.output_stride = Stride(op.output);
  LaunchCausalConv(params, slice.most_tokens, stream_.get());
}

void WideOps::Launch(const Mamba2Op& op, const Slice& slice) {
  const Mamba2& m = op.mixer;
  Mamba2ChunkParams params = ChunkParams(slice);
  params.mixer = MixerParams(op, weights_, state_, slice);
  params.mixer.projected = Values(op.input);
  params.mixer.projected_stride = Stride(op.input);
  params.mixer.gates = !m.norm_before_gate;
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  params.convolved = convolved_;
  LaunchMamba2Chunks(params, multiprocessors_, stream_.get());
  if (!m.norm_before_gate) return;
  Bf16NormParams norm;
  norm.bf16_input = norm.output = params.output;
  norm.stride = params.output_stride;
  norm.rows = slice.rows;
  norm.width = Width(op.output);
  norm.groups = Narrow(m.gated_norm->groups);
  norm.weight = weights_.vector(m.gated_norm->weight);
  norm.eps = m.gated_norm->eps;
  norm.gate = params.mixer.projected;
  norm.gate_stride = params.mixer.projected_stride;
  LaunchBf16Norm(norm, stream_.get());
}

void WideOps::MakeSteps(const Linear& linear, int rows) {
  const PackedMatrix& matrix = weights_.matrix(linear.weight);
  DenseProduct product;
  product.output = step_rows_;
  product.output_stride = Narrow(RowStride(matrix.rows));
  Multiply(matrix, {activations_, matrix.cols}, rows, product);
}

void WideOps::Launch(const Mamba2SelectedOp& op, const Slice& slice) {
  const Mamba2& m = op.mixer;
  const Mamba2Selection& selection = *m.selection;
  const int states = Narrow(m.groups * m.d_state);
  const int rank = Narrow(selection.dt_rank);
  RoundedParts selected;
  selected.rows = slice.rows;
  selected.input = Values(op.selected);
  selected.input_stride = Stride(op.selected);
  selected.count = 3;
  // B | C are rows of `convolved_`.
  const SmallNorm b_norm = MakeSmallNorm(selection.b_norm, weights_);
  const SmallNorm c_norm = MakeSmallNorm(selection.c_norm, weights_);
  selected.parts[0] = {0, states, b_norm, convolved_, 2 * states};
  selected.parts[1] = {states, states, c_norm, convolved_ + states, 2 * states};
  selected.parts[2] = {2 * states, rank, MakeSmallNorm(selection.dt_norm, weights_), activations_,
                       Bf16Stride(rank)};
  normalized_ = kNoId;
  LaunchRoundParts(selected, stream_.get());
  MakeSteps(selection.dt_proj, slice.rows);
  Mamba2ChunkParams params = ChunkParams(slice);
  params.mixer = ScanParams(m, op.ssm_state, weights_, state_, slice);
  params.mixer.d_conv = 1;
  params.mixer.projected = Values(op.projected);
  params.mixer.projected_stride = Stride(op.projected);
  params.mixer.dt = step_rows_;
  params.mixer.dt_stride = Narrow(RowStride(m.heads));
  if (const float* bias = weights_.vector(selection.dt_proj.bias)) {
    LaunchAddBias(bias, 1, slice.rows, params.mixer.heads, step_rows_, params.mixer.dt_stride,
                  stream_.get());
  }
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  params.x = reinterpret_cast<const __nv_bfloat16*>(Values(op.convolved));
  params.x_stride = Bf16Stride(Width(op.convolved));
  params.x_step = params.mixer.head_dim;
  params.b = convolved_;
  params.c = convolved_ + states;
  params.b_c_stride = 2 * states;
  params.b_c_step = params.mixer.d_state;
  LaunchMamba2Chunks(params, multiprocessors_, stream_.get());
}

void WideOps::Launch(const Mamba1ScanOp& op, const Slice& slice) {
  const Mamba1& m = op.mixer;
  const int rank = Narrow(m.dt_rank);
  RoundedParts selected;
  selected.rows = slice.rows;
  selected.input = Values(op.selected);
  selected.input_stride = Stride(op.selected);
  selected.count = 1;
  selected.parts[0] = {0, rank, MakeSmallNorm(m.dt_norm, weights_), activations_,
                       Bf16Stride(rank)};
  normalized_ = kNoId;
  LaunchRoundParts(selected, stream_.get());
  MakeSteps(m.dt_proj, slice.rows);
  Mamba1ChunkParams params;
  params.mixer = MixerParams(op, weights_, state_, slice);
  params.mixer.b_c = selected.input + m.dt_rank;
  params.mixer.b_c_stride = selected.input_stride;
  params.mixer.dt = step_rows_;
  params.mixer.dt_stride = Narrow(RowStride(m.inner));
  params.mixer.z = Values(op.projected) + m.inner;
  params.mixer.z_stride = Stride(op.projected);
  params.dt_bias = weights_.vector(m.dt_proj.bias);
  params.x = reinterpret_cast<const __nv_bfloat16*>(Values(op.convolved));
  params.x_stride = Bf16Stride(Width(op.convolved));
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  params.pieces = slice.pieces;
  params.piece_count = slice.piece_count;
  params.first_pieces = slice.first_pieces;
  params.states = added_;
  params.sums = sums_;
  LaunchMamba1Chunks(params, stream_.get());
}

void WideOps::Launch(const GatedDeltaOp& op, const Slice& slice) {
  GatedDeltaChunkParams params;
  params.mixer = MixerParams(op, weights_, state_, slice);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, params.mixer);
  params.convolved = reinterpret_cast<const __nv_bfloat16*>(Values(op.convolved));
  params.convolved_stride = Bf16Stride(Width(op.convolved));
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  params.pieces = slice.pieces;
  params.piece_count = slice.piece_count;
  params.first_pieces = slice.first_pieces;
  params.records = delta_records_;
  params.keeps = delta_keeps_;
  LaunchGatedDeltaChunks(params, stream_.get());
}

void WideOps::Launch(const AttentionOp& op, const Slice& slice) {
  AttentionChunkParams params;
  params.attention = MixerParams(op, program_, weights_, state_, slice);
  params.attention.qkv = Values(op.input);
  params.attention.qkv_stride = Stride(op.input);
  params.pieces = slice.pieces;
  params.piece_count = slice.piece_count;
  LaunchKvAppend(params.attention, stream_.get());
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  LaunchAttentionChunks(params, stream_.get());
}

}  // namespace adder::cuda
