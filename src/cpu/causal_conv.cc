#include "cpu/causal_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/causal_conv.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

void CausalConvImpl(const CausalConvWeights& weights, const CausalConvRun& run,
                    int64_t channel_begin, int64_t channel_end) {
  const DF df;
  const CausalConvOp& op = *weights.op;
  const int64_t channels = op.channels;
  const int64_t past = op.d_conv - 1;
  for (int64_t c = channel_begin; c < channel_end; c += static_cast<int64_t>(kLanes)) {
    const int64_t count = channel_end - c;
    // What enters the convolution at token t of the run, or before it, from the window. A product
    // is rounded the same now and when it comes out of the window.
    const auto entering = [&](int64_t t) HWY_ATTR {
      if (t < 0) return LoadChannels(run.window + (past + t) * channels + c, count);
      const float* row = run.input + t * run.input_stride + c;
      const VF x = LoadChannels(row + op.x, count);
      return op.gate_before < 0 ? x : hn::Mul(x, LoadChannels(row + op.gate_before, count));
    };
    for (int64_t t = 0; t < run.tokens; ++t) {
      VF sum = weights.bias != nullptr ? LoadChannels(weights.bias + c, count) : hn::Zero(df);
      for (int64_t tap = 0; tap <= past; ++tap) {
        sum = hn::MulAdd(entering(t - past + tap),
                         LoadChannels(weights.weight + tap * channels + c, count), sum);
      }
      if (op.silu) sum = Silu(sum);
      if (op.gate_after >= 0) {
        const float* row = run.input + t * run.input_stride + c;
        sum = hn::Mul(sum, LoadChannels(row + op.gate_after, count));
      }
      StoreChannels(sum, run.output + t * run.output_stride + c, count);
    }
    // The window becomes the last `past` inputs. Oldest first, so nothing is overwritten too early.
    for (int64_t i = 0; i < past; ++i) {
      StoreChannels(entering(run.tokens - past + i), run.window + i * channels + c, count);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(CausalConvImpl);

void CausalConv(const CausalConvWeights& weights, const CausalConvRun& run, int64_t channel_begin,
                int64_t channel_end) {
  HWY_DYNAMIC_DISPATCH(CausalConvImpl)(weights, run, channel_begin, channel_end);
}

}  // namespace adder
#endif  // HWY_ONCE
