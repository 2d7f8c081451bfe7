// What kernels' parameters take from an op, its weights and a slice, whatever buffers it runs on.
#pragma once

#include "cuda/device_state.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/attention_place.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/head_mix.h"
#include "cuda/kernels/linear_finish.h"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/rg_lru.h"
#include "cuda/kernels/route.h"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/rwkv7.h"
#include "cuda/slice.h"
#include "program/program.h"

namespace adder::cuda {

int BufferWidth(const Program& program, BufferId id);
// In floats; rows begin on 16-byte boundaries.
int BufferStride(const Program& program, BufferId id);

// All but the activations and the window.
Mamba2Params ScanParams(const Mamba2& mixer, int ssm_state, const DeviceWeights& weights,
                        const DeviceState& state, const Slice& slice);
// All but the activations.
Mamba2Params MixerParams(const Mamba2Op& op, const DeviceWeights& weights, const DeviceState& state,
                         const Slice& slice);
// All but the activations, and without the convolution.
GatedDeltaParams MixerParams(const GatedDeltaOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice);
// Where the gated delta rule finds beta, decays and gates; values(id) is where a buffer lies.
template <class Values>
void PlaceInputs(const GatedDeltaOp& op, const Program& program, Values values,
                 GatedDeltaParams& params) {
  const GatedDelta& m = op.mixer;
  params.beta = values(op.projected) + m.conv_channels();
  params.beta_stride = BufferStride(program, op.projected);
  params.decay = m.decay_proj ? values(op.decay) : params.beta + m.value_heads;
  params.decay_stride = BufferStride(program, m.decay_proj ? op.decay : op.projected);
  const int64_t own_decays = m.decay_proj ? 0 : m.decay_rows();
  params.gate = m.gate_proj ? values(op.gate) : params.beta + m.value_heads + own_decays;
  params.gate_stride = BufferStride(program, m.gate_proj ? op.gate : op.projected);
}
// What becomes of a linear op's products, without the buffers.
FinishParams FinishRules(const LinearOp& op, const DeviceWeights& weights);
// All but the activations.
HeadMixParams MixerParams(const HeadMixOp& op, const DeviceWeights& weights,
                          const DeviceState& state, const Slice& slice);
// All but the activations.
CausalConvParams MixerParams(const CausalConvOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice);
RowNorm MakeRowNorm(const RmsNorm& norm, const Program& program, const DeviceWeights& weights);
// All but input and output.
RowUpdateParams RulesOf(const UpdateOp& op, const Program& program, const DeviceWeights& weights);
SmallNorm MakeSmallNorm(const std::optional<RmsNorm>& norm, const DeviceWeights& weights);
// All but the activations.
Mamba1Params MixerParams(const Mamba1ScanOp& op, const DeviceWeights& weights,
                         const DeviceState& state, const Slice& slice);
// All but the activations.
RgLruParams MixerParams(const RgLruOp& op, const DeviceWeights& weights, const DeviceState& state,
                        const Slice& slice);
// All but the activations.
TokenShiftParams MixerParams(const TokenShiftOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice);
// All but the activations.
Rwkv7Params MixerParams(const Rwkv7Op& op, const DeviceWeights& weights, const DeviceState& state,
                        const Slice& slice);
// Where RWKV-7 finds its inputs; values(id) is where a buffer lies.
template <class Values>
void PlaceInputs(const Rwkv7Op& op, const Program& program, Values values, Rwkv7Params& params) {
  params.stride = BufferStride(program, op.output);
  params.r = values(op.r);
  params.k = values(op.k);
  params.v = values(op.v);
  params.decay = values(op.decay);
  params.rate = values(op.rate);
  params.gate = values(op.gate);
  if (op.value_mix == kNoId) return;
  params.value_mix = values(op.value_mix);
  params.first_value = values(op.first_value);
}
// A router's rule, without what is of the slice.
RouteParams RuleOf(const RouterOp& op, const DeviceWeights& weights);
// All but the activations and scratch.
AttentionParams MixerParams(const AttentionOp& op, const Program& program,
                            const DeviceWeights& weights, const DeviceState& state,
                            const Slice& slice);
// The same of latent attention, whose keys are one head.
LatentPlaceParams MixerParams(const LatentAttentionOp& op, const Program& program,
                              const DeviceWeights& weights, const DeviceState& state,
                              const Slice& slice);
// Where latent attention finds queries and keys but for `absorbed`; values(id) is where a buffer
// lies.
template <class Values>
void PlaceInputs(const LatentAttentionOp& op, const Program& program, Values values,
                 LatentPlaceParams& params) {
  params.query = values(op.query);
  params.query_stride = BufferStride(program, op.query);
  params.kv = values(op.kv);
  params.kv_stride = BufferStride(program, op.kv);
}

}  // namespace adder::cuda
