// A strip of channels goes through all tokens before the next one begins: its columns of both gate
// matrices are read once per run, its state stays in a register. For more than a few tokens the
// columns are copied first, since in place their rows lie `block` floats apart, which for powers of
// two is the same few sets of the cache.
#include "cpu/rg_lru_kernel.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rg_lru_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file once per target.
#include "hwy/highway.h"

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace adder {
namespace HWY_NAMESPACE {

inline constexpr int64_t kCopyTokens = 4;

// The columns of a strip in one of the matrices.
struct Columns {
  const float* values;
  int64_t stride;
  int64_t count;  // columns left, of which the strip takes up to kStep
};

Columns CopyColumns(const Columns& from, int64_t rows, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    hn::StoreU(LoadChannels(from.values + i * from.stride, from.count), DF(), to + i * kStep);
  }
  return {to, kStep, kStep};
}

// The sum over a head's channels of x times a row of the strip. Even and odd channels are summed
// apart, so that additions do not wait for each other.
HWY_INLINE VF Multiply(const float* x, int64_t rows, const Columns& columns) {
  const DF df;
  VF even = hn::Zero(df);
  VF odd = hn::Zero(df);
  int64_t i = 0;
  for (; i + 2 <= rows; i += 2) {
    const float* at = columns.values + i * columns.stride;
    even = hn::MulAdd(hn::Set(df, x[i]), LoadChannels(at, columns.count), even);
    odd = hn::MulAdd(hn::Set(df, x[i + 1]), LoadChannels(at + columns.stride, columns.count), odd);
  }
  if (i < rows) {
    const float* at = columns.values + i * columns.stride;
    even = hn::MulAdd(hn::Set(df, x[i]), LoadChannels(at, columns.count), even);
  }
  return hn::Add(even, odd);
}

// Up to kStep channels from `channel`, of which `count` are left in the head.
void ScanStrip(const RgLruRun& run, int64_t channel, int64_t count, float* scratch) {
  const DF df;
  const VF one = hn::Set(df, 1.0f);
  const int64_t head = channel / run.block * run.block;
  const int64_t first = head * run.block + channel - head;
  Columns input{run.input_weight + first, run.block, count};
  Columns recurrent{run.recurrent_weight + first, run.block, count};
  if (run.tokens >= kCopyTokens) {
    input = CopyColumns(input, run.block, scratch);
    recurrent = CopyColumns(recurrent, run.block, scratch + run.block * kStep);
  }
  const VF input_bias = LoadChannels(run.input_bias + channel, count);
  const VF recurrent_bias = LoadChannels(run.recurrent_bias + channel, count);
  const VF rate =
      hn::Mul(hn::Set(df, -run.decay_scale), Softplus(LoadChannels(run.decay + channel, count)));
  VF h = LoadChannels(run.state + channel, count);
  for (int64_t t = 0; t < run.tokens; ++t) {
    const float* x = run.x + t * run.width;
    const VF taken = Sigmoid(hn::Add(Multiply(x + head, run.block, input), input_bias));
    const VF kept = Sigmoid(hn::Add(Multiply(x + head, run.block, recurrent), recurrent_bias));
    const VF log_a = hn::Mul(rate, kept);
    // 1 - a^2 without cancellation.
    const VF rest = hn::Neg(hn::Expm1(df, hn::Add(log_a, log_a)));
    const VF size = t == 0 && run.starts ? one : hn::Sqrt(rest);
    const VF u = hn::Mul(size, hn::Mul(taken, LoadChannels(x + channel, count)));
    h = hn::MulAdd(hn::Exp(df, log_a), h, u);
    StoreChannels(h, run.output + t * run.output_stride + channel, count);
  }
  StoreChannels(h, run.state + channel, count);
}

void RgLruScanImpl(const RgLruRun& run, int64_t channel_begin, int64_t channel_end,
                   float* scratch) {
  for (int64_t channel = channel_begin; channel < channel_end;) {
    const int64_t end = std::min(channel_end, (channel / run.block + 1) * run.block);
    ScanStrip(run, channel, end - channel, scratch);
    channel = std::min(channel + kStep, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace adder
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace adder {

HWY_EXPORT(RgLruScanImpl);

int64_t RgLruScratch(int64_t block) { return 2 * block * 16; }

void RgLruScan(const RgLruRun& run, int64_t channel_begin, int64_t channel_end, float* scratch) {
  HWY_DYNAMIC_DISPATCH(RgLruScanImpl)(run, channel_begin, channel_end, scratch);
}

}  // namespace adder
#endif  // HWY_ONCE
