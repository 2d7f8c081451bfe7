// Mixers of WideOps.
#include "cuda/kernels/attention_wide_heads.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/mamba1_chunks.h"
#include "cuda/kernels/rg_lru_chunks.h"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/rwkv7_chunks.h"
#include "cuda/kernels/selection.h"
#include "cuda/op_params.h"
#include "cuda/wide_ops.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

template <class Params>
void SetPieces(const Slice& slice, Params& params) {
  params.pieces = slice.pieces;
  params.piece_count = slice.piece_count;
  if constexpr (requires { params.first_pieces; }) params.first_pieces = slice.first_pieces;
}

}  // namespace

// What any scan of mamba2_chunks.h has of the slice, and scratch.
Mamba2ChunkParams WideOps::ChunkParams(const Slice& slice) const {
  Mamba2ChunkParams params;
  params.rows = slice.rows;
  SetPieces(slice, params);
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
  if (m.norm_before_gate) {
    NormOutput(*m.gated_norm, op.output, slice.rows, Values(op.input), Stride(op.input));
  }
}

void WideOps::NormOutput(const RmsNorm& norm, BufferId output, int rows, const float* gate,
                         int gate_stride) {
  Bf16NormParams params;
  params.bf16_input = params.output = Bf16Values(output);
  params.width = Width(output);
  params.stride = Bf16Stride(params.width);
  params.rows = rows;
  params.groups = Narrow(norm.groups);
  params.weight = weights_.vector(norm.weight);
  params.eps = norm.eps;
  params.gate = gate;
  params.gate_stride = gate_stride;
  LaunchBf16Norm(params, stream_.get());
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
  selected.parts[0] = {0, rank, MakeSmallNorm(m.dt_norm, weights_), activations_, Bf16Stride(rank)};
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
  SetPieces(slice, params);
  params.states = added_;
  params.sums = sums_;
  LaunchMamba1Chunks(params, stream_.get());
}

void WideOps::Launch(const RgLruOp& op, const Slice& slice) {
  RgLruChunkParams params;
  params.mixer = MixerParams(op, weights_, state_, slice);
  params.mixer.y = Values(op.projected) + op.mixer.width;
  params.mixer.y_stride = Stride(op.projected);
  params.x = reinterpret_cast<const __nv_bfloat16*>(Values(op.convolved));
  params.x_stride = Bf16Stride(Width(op.convolved));
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  SetPieces(slice, params);
  params.recurrences = reinterpret_cast<float2*>(step_rows_);
  params.segments = reinterpret_cast<float2*>(added_);
  LaunchRgLruChunks(params, stream_.get());
}

// As a Mamba-2 mixer whose heads are groups of their own: q, k and v are C, B and x.
void WideOps::Launch(const LightningOp& op, const Slice& slice) {
  const int head_dim = Narrow(op.mixer.head_dim);
  Mamba2ChunkParams params = ChunkParams(slice);
  params.mixer.heads = params.mixer.groups = Narrow(op.mixer.heads);
  params.mixer.head_dim = params.mixer.d_state = head_dim;
  params.mixer.d_conv = 1;
  params.mixer.gates = false;
  params.mixer.ssm_offset = state_.RecurrentOffset(op.state);
  params.mixer.runs = slice.runs;
  params.mixer.run_count = slice.run_count;
  params.slopes = weights_.slopes(op.mixer);
  params.c = reinterpret_cast<const __nv_bfloat16*>(Values(op.input));
  params.b = params.c + head_dim;
  params.x = params.b + head_dim;
  params.x_stride = params.b_c_stride = Bf16Stride(Width(op.input));
  params.x_step = params.b_c_step = 3 * head_dim;
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  LaunchMamba2Chunks(params, multiprocessors_, stream_.get());
  NormOutput(op.mixer.norm, op.output, slice.rows, nullptr, 0);
}

void WideOps::Launch(const TokenShiftOp& op, const Slice& slice) {
  TokenShiftParams params = MixerParams(op, weights_, state_, slice);
  params.width = Width(op.input);
  params.input = Values(op.input);
  params.input_stride = Stride(op.input);
  if (op.norm) {
    NormRows(*op.norm, op.input, slice.rows, params.input, widened_);
    params.input = widened_;
  }
  params.rounded_output = reinterpret_cast<uint16_t*>(Bf16Values(op.output));
  params.rounded_output_stride = Bf16Stride(Width(op.output));
  LaunchTokenShift(params, kPieceTokens, stream_.get());
}

void WideOps::Launch(const Rwkv7Op& op, const Slice& slice) {
  Rwkv7ChunkParams params;
  params.mixer = MixerParams(op, weights_, state_, slice);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, params.mixer);
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  SetPieces(slice, params);
  params.records = delta_records_;
  params.keeps = delta_keeps_;
  params.sums = added_;
  params.own = sums_;
  LaunchRwkv7Chunks(params, stream_.get());
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
  SetPieces(slice, params);
  params.records = delta_records_;
  params.keeps = delta_keeps_;
  LaunchGatedDeltaChunks(params, stream_.get());
}

void WideOps::Launch(const HeadMixOp& op, const Slice& slice) {
  HeadMixParams params = MixerParams(op, weights_, state_, slice);
  params.input = Values(op.input);
  params.output = F32Values(op.output);
  params.stride = Stride(op.input);
  LaunchHeadMix(params, slice.most_tokens, stream_.get());
}

void WideOps::Launch(const LatentAttentionOp& op, const Slice& slice) {
  LatentPlaceParams place = MixerParams(op, program_, weights_, state_, slice);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, place);
  AttentionChunkParams params;
  params.attention = place.attention;
  SetPieces(slice, params);
  // Of the queries the attention takes care.
  place.attention.heads = 0;
  LaunchLatentPlace(place, stream_.get());
  LatentQueries queries;
  queries.absorbed = reinterpret_cast<const __nv_bfloat16*>(Values(op.absorbed));
  queries.absorbed_stride = Bf16Stride(Width(op.absorbed));
  queries.query = place.query;
  queries.query_stride = place.query_stride;
  queries.nope_dim = place.nope_dim;
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  LaunchLatentChunks(params, queries, stream_.get());
}

void WideOps::Launch(const AttentionOp& op, const Slice& slice) {
  AttentionChunkParams params;
  params.attention = MixerParams(op, program_, weights_, state_, slice);
  params.attention.qkv = Values(op.input);
  params.attention.qkv_stride = Stride(op.input);
  SetPieces(slice, params);
  LaunchKvAppend(params.attention, stream_.get());
  params.output = Bf16Values(op.output);
  params.output_stride = Bf16Stride(Width(op.output));
  LaunchAttentionChunks(params, stream_.get());
}

}  // namespace adder::cuda
