#include "cpu/conv_kernel.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/conv_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

void ConvSiluImpl(const ConvRun& run, int64_t channel_begin, int64_t channel_end) {
  const DF df;
  const int64_t past = run.d_conv - 1;
  // The input `steps_back` tokens before token t: in this run, or in the window.
  const auto input_at = [&](int64_t t, int64_t steps_back) HWY_ATTR {
    const int64_t at = t - steps_back;
    return at >= 0 ? run.input + at * run.input_stride : run.window + (past + at) * run.channels;
  };
  for (int64_t t = 0; t < run.tokens; ++t) {
    for (int64_t c = channel_begin; c < channel_end; c += kStep) {
      const int64_t count = channel_end - c;
      VF sum = run.bias != nullptr ? LoadChannels(run.bias + c, count) : hn::Zero(df);
      for (int64_t tap = 0; tap <= past; ++tap) {
        sum = hn::MulAdd(LoadChannels(input_at(t, past - tap) + c, count),
                         LoadChannels(run.weight + tap * run.channels + c, count), sum);
      }
      StoreChannels(Silu(sum), run.output + t * run.output_stride + c, count);
    }
  }
  // The window becomes the last `past` inputs. Oldest first, so nothing is overwritten too early.
  const auto bytes = static_cast<size_t>(channel_end - channel_begin) * sizeof(float);
  for (int64_t i = 0; i < past; ++i) {
    const float* from = input_at(run.tokens, past - i) + channel_begin;
    std::memcpy(run.window + i * run.channels + channel_begin, from, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(ConvSiluImpl);

void ConvSilu(const ConvRun& run, int64_t channel_begin, int64_t channel_end) {
  HWY_DYNAMIC_DISPATCH(ConvSiluImpl)(run, channel_begin, channel_end);
}

}  // namespace adder
#endif  // HWY_ONCE
