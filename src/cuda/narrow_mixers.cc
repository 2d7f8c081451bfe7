// The gated delta rule of NarrowOps.
#include "cuda/kernels/gated_delta.h"
#include "cuda/narrow_ops.h"
#include "cuda/op_params.h"

namespace adder::cuda {

// Of a step: whether the op is a convolution that the launch of the op behind it makes.
bool NarrowOps::JoinsMixer(size_t index) const {
  if (index + 1 >= program_.ops.size()) return false;
  const auto* conv = std::get_if<CausalConvOp>(&program_.ops[index].body);
  const auto* mixer = std::get_if<GatedDeltaOp>(&program_.ops[index + 1].body);
  return conv != nullptr && mixer != nullptr && conv->input == mixer->projected &&
         conv->output == mixer->convolved && conv->x == 0 && conv->gate_before < 0 &&
         conv->gate_after < 0 && conv->silu;
}

void NarrowOps::Launch(const GatedDeltaOp& op) {
  GatedDeltaParams params = MixerParams(op, weights_, state_, slice_);
  PlaceInputs(
      op, program_, [this](BufferId id) { return Values(id); }, params);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.rounded_output = RoundedOutput(op.output);
  params.rounded_output_stride = RoundedStride(op.output);
  if (joined_conv_ == nullptr) {
    params.qkv = Values(op.convolved);
    params.qkv_stride = Stride(op.convolved);
    LaunchGatedDeltaScan(params, stream_.get());
    return;
  }
  const CausalConvParams conv = MixerParams(*joined_conv_, weights_, state_, slice_);
  params.d_conv = conv.d_conv;
  params.conv_weight = conv.weight;
  params.conv_bias = conv.bias;
  params.conv_offset = conv.conv_offset;
  params.qkv = Values(op.projected);
  params.qkv_stride = Stride(op.projected);
  params.exact = f32_;
  LaunchGatedDeltaStep(params, stream_.get());
}

}  // namespace adder::cuda
