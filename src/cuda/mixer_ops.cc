// Ops of mixers that few families have, and of residuals with rules of their own: NarrowOps puts
// each together from one kernel or two.
#include "cuda/kernels/attention_step_wide.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/lightning.h"
#include "cuda/kernels/rg_lru.h"
#include "cuda/kernels/rwkv7.h"
#include "cuda/narrow_ops.h"
#include "cuda/op_params.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

}  // namespace

// Of mixed_, per row.
int64_t NarrowOps::MixedFloats(const Op& op) const {
  if (const auto* lru = std::get_if<RgLruOp>(&op.body)) return 2 * lru->mixer.width;
  if (const auto* latent = std::get_if<LatentAttentionOp>(&op.body)) {
    return latent->mixer.heads * latent->mixer.key_dim();
  }
  return 0;
}

RowNorm NarrowOps::MakeRowNorm(const RmsNorm& norm) const {
  return cuda::MakeRowNorm(norm, program_, weights_);
}

// Of all rows of the slice, over the input's width; the output may be wider.
void NarrowOps::PlaceUpdate(BufferId input, BufferId output, RowUpdateParams& params) {
  params.input = Values(input);
  params.input_stride = Stride(input);
  params.rows = slice_.rows;
  params.width = Width(input);
  params.output = Values(output);
  params.output_stride = Stride(output);
  params.rounded_output = RoundedOutput(output);
  params.rounded_stride = RoundedStride(output);
}

RowUpdateParams NarrowOps::UpdateParams(BufferId input, BufferId output) {
  RowUpdateParams params;
  PlaceUpdate(input, output, params);
  return params;
}

// normalized_ [tokens, as the op's input]: what the op's norm makes of `input`, of input_rows or of
// the first rows.
void NarrowOps::NormInput(const LinearOp& op, const float* input, int tokens,
                          const int* input_rows) {
  // The input's rounded copy is not needed: its place serves the normalised rows.
  uint16_t* rounded = rounded_[static_cast<size_t>(op.input)];
  rounded_fresh_[static_cast<size_t>(op.input)] = false;
  if (op.norm->centered || op.norm->weight == kNoId) {
    RowUpdateParams update;
    update.input = input;
    update.input_stride = update.output_stride = Stride(op.input);
    update.input_rows = input_rows;
    update.rows = tokens;
    update.width = Width(op.input);
    update.norm = MakeRowNorm(*op.norm);
    update.output = normalized_;
    update.rounded_output = rounded;
    update.rounded_stride = RoundedStride(op.input);
    LaunchRowUpdate(update, stream_.get());
    return;
  }
  RmsNormParams norm = NormParams(*op.norm, op.input);
  norm.input = input;
  norm.rows = tokens;
  norm.input_rows = input_rows;
  norm.output = normalized_;
  norm.rounded_output = rounded;
  norm.rounded_stride = RoundedStride(op.input);
  LaunchRmsNorm(norm, stream_.get());
}

void NarrowOps::Launch(const JoinOp& op) {
  int column = 0;
  for (const BufferId input : op.inputs) {
    RowUpdateParams copy = UpdateParams(input, op.output);
    copy.output += column;
    if (copy.rounded_output != nullptr) copy.rounded_output += column;
    column += copy.width;
    LaunchRowUpdate(copy, stream_.get());
  }
}

void NarrowOps::Launch(const NormAddOp& op) {
  if (op.norm.centered || op.norm.weight == kNoId) {
    RowUpdateParams update = UpdateParams(op.input, op.output);
    update.norm = MakeRowNorm(op.norm);
    update.scale = op.scale;
    update.keep = 1;
    LaunchRowUpdate(update, stream_.get());
    return;
  }
  RmsNormParams norm = NormParams(op.norm, op.input);
  norm.epilogue = NormEpilogue::kAdd;
  norm.scale = op.scale;
  norm.output = Values(op.output);
  norm.rounded_output = RoundedOutput(op.output);
  norm.rounded_stride = RoundedStride(op.output);
  LaunchRmsNorm(norm, stream_.get());
}

void NarrowOps::Launch(const UpdateOp& op) {
  RowUpdateParams update = RulesOf(op, program_, weights_);
  PlaceUpdate(op.input, op.output, update);
  LaunchRowUpdate(update, stream_.get());
}

// All but the rounded output.
CausalConvParams NarrowOps::ConvOf(const CausalConvOp& op) const {
  CausalConvParams params = MixerParams(op, weights_, state_, slice_);
  params.input = Values(op.input);
  params.input_stride = Stride(op.input);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  return params;
}

void NarrowOps::Launch(const CausalConvOp& op) {
  CausalConvParams params = ConvOf(op);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  LaunchCausalConv(params, slice_.most_tokens, stream_.get());
}

void NarrowOps::Launch(const HeadsLinearOp& op) {
  LinearParams params = Params(op.input, std::nullopt, slice_.rows);
  params.matrix = weights_.stack(op.matrices);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  LaunchHeadsLinear(params, static_cast<int>(op.matrices.size()), Narrow(op.step), stream_.get());
}

void NarrowOps::Launch(const HeadMixOp& op) {
  HeadMixParams params = MixerParams(op, weights_, state_, slice_);
  params.input = Values(op.input);
  params.output = Values(op.output);
  params.stride = Stride(op.input);
  LaunchHeadMix(params, slice_.most_tokens, stream_.get());
}

void NarrowOps::Launch(const LatentAttentionOp& op) {
  const LatentAttention& m = op.mixer;
  LatentPlaceParams place = MixerParams(op, program_, weights_, state_, slice_);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, place);
  place.absorbed = Values(op.absorbed);
  place.absorbed_stride = Stride(op.absorbed);
  AttentionParams& params = place.attention;
  params.qkv = mixed_;
  params.qkv_stride = Narrow(m.heads * m.key_dim());
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  params.partial = partial_;
  params.arrivals = counters_.as<unsigned>();
  if (slice_.most_tokens == 1 && TakesLatentStep(params)) {
    return LaunchLatentStep(place, stream_.get());
  }
  LaunchLatentPlace(place, stream_.get());
  LaunchAttention(params, stream_.get());
}

void NarrowOps::Launch(const LightningOp& op) {
  LightningParams params;
  params.heads = Narrow(op.mixer.heads);
  params.head_dim = Narrow(op.mixer.head_dim);
  params.slopes = weights_.slopes(op.mixer);
  params.state_offset = state_.RecurrentOffset(op.state);
  params.runs = slice_.runs;
  params.run_count = slice_.run_count;
  params.qkv = Values(op.input);
  params.qkv_stride = Stride(op.input);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  LaunchLightning(params, stream_.get());
  RowUpdateParams update = UpdateParams(op.output, op.output);
  update.norm = MakeRowNorm(op.mixer.norm);
  LaunchRowUpdate(update, stream_.get());
}

void NarrowOps::Launch(const TokenShiftOp& op) {
  TokenShiftParams params = MixerParams(op, weights_, state_, slice_);
  params.input = Values(op.input);
  params.input_stride = Stride(op.input);
  if (op.norm) {
    RowUpdateParams update;
    update.input = params.input;
    update.input_stride = update.output_stride = params.input_stride;
    update.rows = slice_.rows;
    update.width = Width(op.input);
    update.norm = MakeRowNorm(*op.norm);
    update.output = normalized_;
    LaunchRowUpdate(update, stream_.get());
    params.input = normalized_;
  }
  params.width = Width(op.input);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  LaunchTokenShift(params, slice_.most_tokens, stream_.get());
}

void NarrowOps::Launch(const RgLruOp& op) {
  RgLruParams params = MixerParams(op, weights_, state_, slice_);
  params.x = Values(op.convolved);
  params.x_stride = Stride(op.convolved);
  params.y = Values(op.projected) + op.mixer.width;
  params.y_stride = Stride(op.projected);
  params.gates = mixed_;
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  LaunchRgLru(params, slice_.most_tokens, stream_.get());
}

void NarrowOps::Launch(const Rwkv7Op& op) {
  Rwkv7Params params = MixerParams(op, weights_, state_, slice_);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, params);
  params.output = Values(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  LaunchRwkv7(params, stream_.get());
}

}  // namespace adder::cuda
