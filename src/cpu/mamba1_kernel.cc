// A strip of kLanes channels goes through all tokens before the next one begins, kStripRows rows of
// the state at a time. The strip's rows of the state and of `a` are copied: in place they lie
// `inner` floats apart, which for powers of two is the same few sets of the cache. With more rows
// than that, the sum of C . h so far waits in the output.
#include "cpu/mamba1_kernel.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/mamba1_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

inline constexpr int64_t kStripRows = 16;

// Rows [row_begin, row_end) of the state of `count` channels from `channel`, through all tokens.
void ScanRows(const Mamba1Run& run, int64_t channel, int64_t count, int64_t row_begin,
              int64_t row_end) {
  const DF df;
  const int64_t rows = row_end - row_begin;
  const bool first = row_begin == 0;
  const bool last = row_end == run.d_state;
  HWY_ALIGN float a[kStripRows * kLanes];
  HWY_ALIGN float state[kStripRows * kLanes];
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t at = (row_begin + n) * run.inner + channel;
    hn::Store(LoadChannels(run.a + at, count), df, a + n * kStep);
    hn::Store(LoadChannels(run.state + at, count), df, state + n * kStep);
  }
  const VF skip = LoadChannels(run.d + channel, count);
  for (int64_t t = 0; t < run.tokens; ++t) {
    const VF x = LoadChannels(run.x + t * run.inner + channel, count);
    float* dt_at = run.dt + t * run.inner + channel;
    VF dt = LoadChannels(dt_at, count);
    if (first) {
      dt = Softplus(dt);
      StoreChannels(dt, dt_at, count);
    }
    float* out = run.output + t * run.output_stride + channel;
    VF y = first ? hn::Zero(df) : LoadChannels(out, count);
    const VF dt_x = hn::Mul(dt, x);
    const float* b = run.b + t * run.bc_stride + row_begin;
    const float* c = run.c + t * run.bc_stride + row_begin;
    for (int64_t n = 0; n < rows; ++n) {
      const VF decay = hn::Exp(df, hn::Mul(dt, hn::Load(df, a + n * kStep)));
      const VF h =
          hn::MulAdd(decay, hn::Load(df, state + n * kStep), hn::Mul(hn::Set(df, b[n]), dt_x));
      hn::Store(h, df, state + n * kStep);
      y = hn::MulAdd(hn::Set(df, c[n]), h, y);
    }
    if (last) {
      y = hn::MulAdd(skip, x, y);
      y = hn::Mul(y, Silu(LoadChannels(run.z + t * run.z_stride + channel, count)));
    }
    StoreChannels(y, out, count);
  }
  for (int64_t n = 0; n < rows; ++n) {
    StoreChannels(hn::Load(df, state + n * kStep),
                  run.state + (row_begin + n) * run.inner + channel, count);
  }
}

void Mamba1ScanImpl(const Mamba1Run& run, int64_t channel_begin, int64_t channel_end) {
  for (int64_t channel = channel_begin; channel < channel_end; channel += kStep) {
    for (int64_t row = 0; row < run.d_state; row += kStripRows) {
      ScanRows(run, channel, channel_end - channel, row, std::min(row + kStripRows, run.d_state));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(Mamba1ScanImpl);

void Mamba1Scan(const Mamba1Run& run, int64_t channel_begin, int64_t channel_end) {
  HWY_DYNAMIC_DISPATCH(Mamba1ScanImpl)(run, channel_begin, channel_end);
}

}  // namespace adder
#endif  // HWY_ONCE
