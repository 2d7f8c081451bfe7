// Mamba-2 over pieces of kPieceTokens tokens, in four kernels. With s the running sum of dt * a
// within a piece, S the state before it, and i, j positions in it:
//   y_i = exp(s_i) C_i S + sum over j <= i of exp(s_i - s_j) dt_j (C_i . B_j) x_j + D x_i
//   S'  = exp(s_last) S + sum over j of exp(s_last - s_j) dt_j B_j x_j^T
// Every exponent is at most 0. Sums s are f32 and begin anew with each piece, so differences keep
// their precision however long the sequence.
//
// (1) Convolution: a thread owns four channels of sixteen tokens; other blocks compute dt and s, a
//     warp per head and piece.
// (2) What each piece adds to the state: a block owns a piece and some heads of a group, whose B it
//     keeps in shared memory.
// (3) States from piece to piece: a thread owns two elements of a run's state. Writes the state
//     before each piece, the final state, and the convolution's window, which nothing after (1)
//     reads.
// (4) Outputs: a block owns one half of a piece and some heads of a group. Its products C_i . B_j
//     stay in registers; head after head they are weighted and multiplied with x, as attention
//     weights are with values.
// A head wider than 64 is worked on in parts of 64 channels: "unit" means a head's part.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kConvTokens = 16;
constexpr int kConvSegments = kPieceTokens / kConvTokens;
constexpr int kMostTaps = 8;
constexpr int kHalf = kPieceTokens / 2;
constexpr int kPassThreads = 256;
constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ __forceinline__ void StepSizes(const Mamba2ChunkParams& c, const Piece& piece,
                                          int head) {
  const Mamba2Params& p = c.mixer;
  constexpr int kTokens = kPieceTokens / 32;
  const int lane = threadIdx.x % 32;
  const float dt_bias = p.dt_bias[head];
  const float rate = p.a[head] * kLog2E;
  const float* inputs = p.projected + p.inner() + p.conv_channels() + head;
  float dt[kTokens];
  float sums[kTokens];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = lane * kTokens + i;
    dt[i] = 0;
    if (token < piece.tokens) {
      const float input = inputs[static_cast<long long>(piece.row + token) * p.projected_stride];
      dt[i] = fminf(fmaxf(Softplus(input + dt_bias), p.dt_min), p.dt_max);
    }
    sum = fmaf(dt[i], rate, sum);
    sums[i] = sum;
  }
  float before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, before, offset);
    if (lane >= offset) before += other;
  }
  before -= sum;
  float2* out = c.steps + static_cast<long long>(head) * c.rows + piece.row;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = lane * kTokens + i;
    if (token < piece.tokens) out[token] = make_float2(dt[i], before + sums[i]);
  }
}

// kTaps: taps held; those before the mixer's are zero.
template <int kTaps>
__global__ void __launch_bounds__(kThreads)
    ConvKernel(const __grid_constant__ Mamba2ChunkParams c, int channel_blocks) {
  const Mamba2Params& p = c.mixer;
  PdlWait();
  PdlTrigger();
  // Blocks of segments, then blocks of heads.
  const int segment_blocks = channel_blocks * c.piece_count * kConvSegments;
  if (static_cast<int>(blockIdx.x) >= segment_blocks) {
    const int block = static_cast<int>(blockIdx.x) - segment_blocks;
    const int head = block / c.piece_count * (kThreads / 32) + static_cast<int>(threadIdx.x / 32);
    if (head < p.heads) StepSizes(c, c.pieces[block % c.piece_count], head);
    return;
  }
  const int segment = static_cast<int>(blockIdx.x) / channel_blocks;
  const Piece piece = c.pieces[segment / kConvSegments];
  const int first = segment % kConvSegments * kConvTokens;
  const int channels = p.conv_channels();
  const int channel = 4 * (static_cast<int>(blockIdx.x) % channel_blocks * kThreads +
                           static_cast<int>(threadIdx.x));
  if (channel >= channels || first >= piece.tokens) return;
  const SequenceRun run = p.runs[piece.run];
  const float* ring = run.recurrent + p.conv_offset + channel;
  const float* input = p.projected + p.inner() + channel +
                       static_cast<long long>(piece.row + first) * p.projected_stride;
  __nv_bfloat16* out = c.convolved + static_cast<long long>(piece.row + first) * channels + channel;
  const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  const float4 zero = make_float4(0, 0, 0, 0);
  const float4 bias = p.conv_bias == nullptr ? zero : four(p.conv_bias + channel);
  const int in_run = piece.row + first - run.row;
  float4 weights[kTaps];
  float4 window[kTaps];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const int back = kTaps - 1 - tap;
    weights[tap] = zero;
    window[tap] = zero;
    if (back >= p.d_conv) continue;
    weights[tap] =
        four(p.conv_weight + static_cast<long long>(p.d_conv - 1 - back) * channels + channel);
    if (back == 0) continue;
    if (in_run >= back) {
      window[tap] = four(input - static_cast<long long>(back) * p.projected_stride);
    } else {
      const int row = (run.position + in_run - back + p.d_conv) % p.d_conv;
      window[tap] = four(ring + static_cast<long long>(row) * channels);
    }
  }
  const int count = min(kConvTokens, piece.tokens - first);
  constexpr int kAhead = 8;
#pragma unroll 1
  for (int base = 0; base < count; base += kAhead) {
    float4 newest[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      newest[i] = base + i < count
                      ? four(input + static_cast<long long>(base + i) * p.projected_stride)
                      : zero;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      window[kTaps - 1] = newest[i];
      float4 sum = bias;
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        sum.x = fmaf(weights[tap].x, window[tap].x, sum.x);
        sum.y = fmaf(weights[tap].y, window[tap].y, sum.y);
        sum.z = fmaf(weights[tap].z, window[tap].z, sum.z);
        sum.w = fmaf(weights[tap].w, window[tap].w, sum.w);
        if (tap + 1 < kTaps) window[tap] = window[tap + 1];
      }
      if (base + i >= count) break;
      *reinterpret_cast<uint2*>(out + static_cast<long long>(base + i) * channels) = make_uint2(
          PackBf16(FastSilu(sum.x), FastSilu(sum.y)), PackBf16(FastSilu(sum.z), FastSilu(sum.w)));
    }
  }
}

// The units a block works on: `share` consecutive ones of a group.
struct Units {
  int group;
  int first;
  int end;
};
__device__ __forceinline__ Units FindUnits(const Mamba2Params& p, int parts, int share) {
  const int per_group = p.heads / p.groups * parts;
  const int blocks = (per_group + share - 1) / share;
  const int group = static_cast<int>(blockIdx.x) / blocks;
  const int first = static_cast<int>(blockIdx.x) % blocks * share;
  return {group, group * per_group + first, group * per_group + min(first + share, per_group)};
}

// Rows of B (0) or C (1) of a group to a tile [.., kN] in the background.
template <int kN>
__device__ __forceinline__ void CopyBc(const Mamba2ChunkParams& c, unsigned tile, int row, int rows,
                                       int valid_rows, int group, int b_or_c) {
  const Mamba2Params& p = c.mixer;
  const int channels = p.conv_channels();
  const __nv_bfloat16* from = c.convolved + static_cast<long long>(row) * channels + p.inner() +
                              (b_or_c * p.groups + group) * p.d_state;
  constexpr int kUnits = kN / 8;
  for (int i = threadIdx.x; i < rows * kUnits; i += kThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    const bool valid = r < valid_rows && unit * 8 < p.d_state;
    CopyAsync(tile + UnitOffset<kN>(r, unit),
              valid ? from + static_cast<long long>(r) * channels + unit * 8 : from, valid);
  }
}

template <int kN, int kP>
__global__ void __launch_bounds__(kThreads)
    AddedStateKernel(const __grid_constant__ Mamba2ChunkParams c, int parts, int share) {
  const Mamba2Params& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float weights[kPieceTokens];
  constexpr int kRowTiles = kN / 64;  // of sixteen state rows, per warp
  unsigned char* x_bytes = shared + kPieceTokens * kN * 2;
  const unsigned b_tile = SharedAddress(shared);
  const unsigned x_tile = SharedAddress(x_bytes);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Units units = FindUnits(p, parts, share);
  PdlWait();
  PdlTrigger();
  const Piece piece = c.pieces[blockIdx.y];
  const int channels = p.conv_channels();
  const int padded = (piece.tokens + 15) / 16 * 16;
  CopyBc<kN>(c, b_tile, piece.row, padded, piece.tokens, units.group, 0);
  CopyCommit();
  for (int of_all = units.first; of_all < units.end; ++of_all) {
    const int head = of_all / parts;
    const int part = of_all % parts * kP;
    constexpr int kUnits = kP / 8;
    constexpr int kCopies = kPieceTokens * kUnits / kThreads;
    const int unit = static_cast<int>(threadIdx.x) % kUnits;
    const int first_row = static_cast<int>(threadIdx.x) / kUnits;
    const __nv_bfloat16* x = c.convolved + static_cast<long long>(piece.row) * channels +
                             head * p.head_dim + part + unit * 8;
    uint4 words[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = first_row + i * (kThreads / kUnits);
      const bool valid = r < piece.tokens && part + unit * 8 < p.head_dim;
      words[i] = valid ? *reinterpret_cast<const uint4*>(x + static_cast<long long>(r) * channels)
                       : make_uint4(0, 0, 0, 0);
    }
    const float2* steps = c.steps + static_cast<long long>(head) * c.rows + piece.row;
    const int token = static_cast<int>(threadIdx.x);
    if (token < piece.tokens) {
      const float2 step = steps[token];
      weights[token] = Exp2(steps[piece.tokens - 1].y - step.y) * step.x;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = first_row + i * (kThreads / kUnits);
      if (r >= padded) break;
      const float weight = r < piece.tokens ? weights[r] : 0.0f;
      unsigned four[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const unsigned both = Component(words[i], k);
        four[k] = PackBf16(weight * __uint_as_float(both << 16),
                           weight * __uint_as_float(both & 0xffff0000u));
      }
      *reinterpret_cast<uint4*>(x_bytes + UnitOffset<kP>(r, unit)) =
          make_uint4(four[0], four[1], four[2], four[3]);
    }
    CopyWait<0>();
    __syncthreads();
    float acc[kRowTiles][kP / 8][4] = {};
#pragma unroll 1
    for (int k = 0; k < padded; k += 16) {
      unsigned b[kP / 16][4];
#pragma unroll
      for (int n = 0; n < kP / 16; ++n) LoadBTransposed<kP>(b[n], x_tile, k, 2 * n, lane);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        unsigned a[4];
        LoadATransposed<kN>(a, b_tile, k, (warp * kRowTiles + m) * 2, lane);
#pragma unroll
        for (int n = 0; n < kP / 16; ++n) MmaPair(acc[m][2 * n], acc[m][2 * n + 1], a, b[n]);
      }
    }
    float* out =
        c.added + (static_cast<long long>(blockIdx.y) * p.heads + head) * p.d_state * p.head_dim;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kP / 8; ++n) {
        const int col = part + n * 8 + lane % 4 * 2;
        const int row = (warp * kRowTiles + m) * 16 + lane / 4;
        if (col >= p.head_dim) continue;
        float* to = out + static_cast<long long>(row) * p.head_dim + col;
        if (row < p.d_state) {
          *reinterpret_cast<float2*>(to) = make_float2(acc[m][n][0], acc[m][n][1]);
        }
        if (row + 8 < p.d_state) {
          *reinterpret_cast<float2*>(to + 8 * p.head_dim) = make_float2(acc[m][n][2], acc[m][n][3]);
        }
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kPassThreads)
    PassStatesKernel(const __grid_constant__ Mamba2ChunkParams c, int state_blocks) {
  const Mamba2Params& p = c.mixer;
  PdlWait();
  PdlTrigger();
  const SequenceRun run = p.runs[blockIdx.y];
  if (static_cast<int>(blockIdx.x) >= state_blocks) {
    // The last inputs go to the convolution's window.
    const int channels = p.conv_channels();
    const int channel = (static_cast<int>(blockIdx.x) - state_blocks) * kPassThreads +
                        static_cast<int>(threadIdx.x);
    if (channel >= channels || p.d_conv <= 1) return;
    float* ring = run.recurrent + p.conv_offset + channel;
    const float* input = p.projected + p.inner() + channel;
    for (int i = max(0, run.tokens - p.d_conv); i < run.tokens; ++i) {
      ring[static_cast<long long>((run.position + i) % p.d_conv) * channels] =
          input[static_cast<long long>(run.row + i) * p.projected_stride];
    }
    return;
  }
  const int per_head = p.d_state * p.head_dim / 2;
  const long long per_piece = static_cast<long long>(p.heads) * per_head;
  const int element = static_cast<int>(blockIdx.x) * kPassThreads + static_cast<int>(threadIdx.x);
  if (element >= per_piece) return;
  const int head = element / per_head;
  float2* slot = reinterpret_cast<float2*>(run.recurrent + p.ssm_offset) + element;
  float2 state = *slot;
  const float2* steps = c.steps + static_cast<long long>(head) * c.rows;
  const float2* added = reinterpret_cast<const float2*>(c.added) + element;
  unsigned* before = reinterpret_cast<unsigned*>(c.before) + element;
  const int first = c.first_pieces[blockIdx.y];
  const int end = c.first_pieces[blockIdx.y + 1];
  constexpr int kAhead = 8;
#pragma unroll 1
  for (int base = first; base < end; base += kAhead) {
    float2 more[kAhead];
    float sums[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= end) break;
      more[i] = __ldcs(added + (base + i) * per_piece);
      const int last = min(run.tokens, (base + i - first + 1) * kPieceTokens) - 1;
      sums[i] = steps[run.row + last].y;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= end) break;
      before[(base + i) * per_piece] = PackBf16(state.x, state.y);
      const float decay = Exp2(sums[i]);
      state.x = fmaf(decay, state.x, more[i].x);
      state.y = fmaf(decay, state.y, more[i].y);
    }
  }
  *slot = state;
}

// Shared memory of OutputKernel: C [kHalf, kN] | B [kPieceTokens, kN], over which x [kPieceTokens,
// kP] and the state [kN, kP] of a unit come to lie | {dt, s} of the unit.
template <int kN, int kP>
struct OutputLayout {
  static constexpr int kX = kHalf * kN * 2;
  static constexpr int kState = kX + kPieceTokens * kP * 2;
  static constexpr int kUnitEnd = kState + kN * kP * 2;
  static constexpr int kBEnd = kX + kPieceTokens * kN * 2;
  static constexpr int kSteps = kUnitEnd > kBEnd ? kUnitEnd : kBEnd;
  static constexpr int kBytes = kSteps + kPieceTokens * 8;
};

__device__ __forceinline__ unsigned MultiplyBf16(unsigned a, unsigned b) {
  unsigned product;
  // Adding -0 changes nothing; a product alone needs compute capability 9.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

// Products C_i . B_j are kept as bf16: they are rounded to it anyway once they are weighted.
template <int kN, int kP>
__global__ void __launch_bounds__(kThreads, kN > 128   ? 2
                                            : kP == 32 ? 4
                                                       : 3)
    OutputKernel(const __grid_constant__ Mamba2ChunkParams c, int parts, int share) {
  using Layout = OutputLayout<kN, kP>;
  const Mamba2Params& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned c_tile = SharedAddress(shared);
  const unsigned b_tile = c_tile + Layout::kX;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const Units units = FindUnits(p, parts, share);
  // Second halves, which have more to do, come first.
  const int piece_index = static_cast<int>(blockIdx.y) % c.piece_count;
  const int first_token = static_cast<int>(blockIdx.y) < c.piece_count ? kHalf : 0;
  PdlWait();
  PdlTrigger();
  const Piece piece = c.pieces[piece_index];
  if (first_token >= piece.tokens) return;
  const int channels = p.conv_channels();
  // Tokens whose x takes part, and those rounded up to whole multiplications.
  const int keys = min(piece.tokens, first_token + kHalf);
  const int padded = (keys + 15) / 16 * 16;

  const auto copy_unit = [&](int of_all) {
    const int head = of_all / parts;
    const int part = of_all % parts * kP;
    constexpr int kUnits = kP / 8;
    const __nv_bfloat16* x =
        c.convolved + static_cast<long long>(piece.row) * channels + head * p.head_dim + part;
    for (int i = threadIdx.x; i < padded * kUnits; i += kThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool valid = r < keys && part + unit * 8 < p.head_dim;
      CopyAsync(c_tile + Layout::kX + UnitOffset<kP>(r, unit),
                valid ? x + static_cast<long long>(r) * channels + unit * 8 : x, valid);
    }
    const __nv_bfloat16* state =
        c.before + (static_cast<long long>(piece_index) * p.heads + head) * p.d_state * p.head_dim +
        part;
    for (int i = threadIdx.x; i < kN * kUnits; i += kThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool valid = r < p.d_state && part + unit * 8 < p.head_dim;
      CopyAsync(c_tile + Layout::kState + UnitOffset<kP>(r, unit),
                valid ? state + static_cast<long long>(r) * p.head_dim + unit * 8 : state, valid);
    }
    const int token = static_cast<int>(threadIdx.x);
    const float2* steps = c.steps + static_cast<long long>(head) * c.rows + piece.row;
    const bool valid = token < keys;
    CopyAsync8(c_tile + Layout::kSteps + token * 8, valid ? steps + token : steps, valid);
    CopyCommit();
  };

  CopyBc<kN>(c, c_tile, piece.row + first_token, kHalf, piece.tokens - first_token, units.group, 1);
  CopyBc<kN>(c, b_tile, piece.row, padded, keys, units.group, 0);
  CopyCommit();
  CopyWait<0>();
  __syncthreads();

  // C_i . B_j of this warp's sixteen rows i, as the A operand of the product with x: blocks of
  // sixteen j up to the diagonal.
  constexpr int kBlocks = kPieceTokens / 16;
  const int last_block = (first_token + warp * 16) / 16;
  unsigned cb[kBlocks][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float products[kBlocks][4] = {};
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      unsigned a[4];
      LoadA<kN>(a, c_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int i = 0; i < kBlocks / 2; ++i) {
        const int block = half * (kBlocks / 2) + i;
        if (block > last_block || block * 16 >= padded) break;
        unsigned b[4];
        LoadB<kN>(b, b_tile, block * 16, 2 * k, lane);
        MmaPair(products[2 * i], products[2 * i + 1], a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      cb[half * (kBlocks / 2) + i / 2][i % 2 * 2] = PackBf16(products[i][0], products[i][1]);
      cb[half * (kBlocks / 2) + i / 2][i % 2 * 2 + 1] = PackBf16(products[i][2], products[i][3]);
    }
  }
  unsigned diagonal[4] = {};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block != last_block) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) diagonal[e] = cb[block][e];
  }
  __syncthreads();
  copy_unit(units.first);

  const int i0 = first_token + warp * 16 + g;
  const int i1 = i0 + 8;
  const float2* steps = reinterpret_cast<const float2*>(shared + Layout::kSteps);
#pragma unroll 1
  for (int of_all = units.first; of_all < units.end; ++of_all) {
    const int head = of_all / parts;
    const int part = of_all % parts * kP;
    const long long row = piece.row + i0;
    const float* z0 = p.projected + row * p.projected_stride + head * p.head_dim + part + 2 * t;
    const float* z1 = z0 + 8LL * p.projected_stride;
    float2 z[2][kP / 8];
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
      const bool inside = part + n * 8 < p.head_dim;
      const auto two = [](const float* from) { return *reinterpret_cast<const float2*>(from); };
      z[0][n] = inside && i0 < piece.tokens ? two(z0 + n * 8) : make_float2(0, 0);
      z[1][n] = inside && i1 < piece.tokens ? two(z1 + n * 8) : make_float2(0, 0);
    }
    CopyWait<0>();
    __syncthreads();
    const float s0 = steps[i0].y;
    const float s1 = steps[i1].y;
    float acc[kP / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      unsigned a[4];
      LoadA<kN>(a, c_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < kP / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kP>(b, c_tile + Layout::kState, k * 16, 2 * n, lane);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    }
    // With `border` the sum s before the warp's rows, exp(s_i - s_j) is exp(s_i - border) times
    // exp(border - s_j) for every j before them, both exponents at most 0: one exponential per j
    // and one per i, which is applied to the sum.
    const float border = last_block == 0 ? 0.0f : steps[last_block * 16 - 1].y;
    const float border_decay = Exp2(border);
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= border_decay;
    }
    const auto multiply_x = [&](const unsigned(&a)[4], int block) {
#pragma unroll
      for (int n = 0; n < kP / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kP>(b, c_tile + Layout::kX, block * 16, 2 * n, lane);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    };
#pragma unroll
    for (int block = 0; block < kBlocks - 1; ++block) {
      if (block >= last_block) break;
      unsigned a[4];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const float4 two = *reinterpret_cast<const float4*>(steps + block * 16 + q * 8 + 2 * t);
        const unsigned weights =
            PackBf16(two.x * Exp2(border - two.y), two.z * Exp2(border - two.w));
        a[2 * q] = MultiplyBf16(cb[block][2 * q], weights);
        a[2 * q + 1] = MultiplyBf16(cb[block][2 * q + 1], weights);
      }
      multiply_x(a, block);
    }
    const float decay0 = Exp2(s0 - border);
    const float decay1 = Exp2(s1 - border);
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
      acc[n][0] *= decay0, acc[n][1] *= decay0;
      acc[n][2] *= decay1, acc[n][3] *= decay1;
    }
    // The block on the diagonal.
    unsigned a[4];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int j = last_block * 16 + q * 8 + 2 * t;
      const float4 two = *reinterpret_cast<const float4*>(steps + j);
      const auto weigh = [&](unsigned products, float s, int i) {
        return MultiplyBf16(products, PackBf16(j <= i ? two.x * Exp2(s - two.y) : 0.0f,
                                               j + 1 <= i ? two.z * Exp2(s - two.w) : 0.0f));
      };
      a[2 * q] = weigh(diagonal[2 * q], s0, i0);
      a[2 * q + 1] = weigh(diagonal[2 * q + 1], s1, i1);
    }
    if (last_block * 16 < padded) multiply_x(a, last_block);
    const float d = p.d[head];
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned x = *reinterpret_cast<const unsigned*>(
            shared + Layout::kX + UnitOffset<kP>(r == 0 ? i0 : i1, n) + t * 4);
        acc[n][2 * r] = fmaf(d, __uint_as_float(x << 16), acc[n][2 * r]);
        acc[n][2 * r + 1] = fmaf(d, __uint_as_float(x & 0xffff0000u), acc[n][2 * r + 1]);
      }
    }
    __syncthreads();
    if (of_all + 1 < units.end) copy_unit(of_all + 1);
    float* out = p.output + row * p.output_stride + head * p.head_dim + part + 2 * t;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((r == 0 ? i0 : i1) >= piece.tokens) continue;
#pragma unroll
      for (int n = 0; n < kP / 8; ++n) {
        if (part + n * 8 >= p.head_dim) continue;
        *reinterpret_cast<float2*>(out + 8LL * r * p.output_stride + n * 8) = make_float2(
            acc[n][2 * r] * FastSilu(z[r][n].x), acc[n][2 * r + 1] * FastSilu(z[r][n].y));
      }
    }
  }
}

// Calls with the compile-time sizes that hold the mixer's.
template <class Call>
void WithSizes(const Mamba2Params& p, Call call) {
  const auto with_width = [&]<int kN>() {
    return p.head_dim <= 32 ? call.template operator()<kN, 32>()
                            : call.template operator()<kN, 64>();
  };
  if (p.d_state <= 64) return with_width.template operator()<64>();
  if (p.d_state <= 128) return with_width.template operator()<128>();
  return with_width.template operator()<kMaxStateSize>();
}

}  // namespace

bool Mamba2ChunksSupport(int head_dim, int d_state, int d_conv) {
  return head_dim % 8 == 0 && d_state % 8 == 0 && d_state <= kMaxStateSize && d_conv <= kMostTaps;
}

void LaunchMamba2Chunks(const Mamba2ChunkParams& params, int multiprocessors, cudaStream_t stream) {
  const Mamba2Params& p = params.mixer;
  const int channels = p.conv_channels();
  const int channel_blocks = (channels / 4 + kThreads - 1) / kThreads;
  const int head_blocks = (p.heads + kThreads / 32 - 1) / (kThreads / 32);
  Launch("the causal convolution kernel", p.d_conv <= 4 ? ConvKernel<4> : ConvKernel<kMostTaps>,
         dim3(static_cast<unsigned>((channel_blocks * kConvSegments + head_blocks) *
                                    params.piece_count)),
         dim3(kThreads), 0, stream, params, channel_blocks);
  const int state_blocks = (p.heads * p.d_state * p.head_dim / 2 + kPassThreads - 1) / kPassThreads;
  const int window_blocks = (channels + kPassThreads - 1) / kPassThreads;
  WithSizes(p, [&]<int kN, int kP>() {
    const int parts = (p.head_dim + kP - 1) / kP;
    const int per_group = p.heads / p.groups * parts;
    // Blocks share B and C among as many heads as leave eight blocks per multiprocessor.
    const auto blocks_of = [&](int blocks_per_unit, int& share) {
      share = std::clamp(
          params.piece_count * blocks_per_unit * p.groups * per_group / (8 * multiprocessors), 1,
          std::min(per_group, 8));
      return static_cast<unsigned>(p.groups * ((per_group + share - 1) / share));
    };
    int share = 1;
    constexpr size_t kAddedBytes = kPieceTokens * (kN + kP) * 2;
    const auto added = AddedStateKernel<kN, kP>;
    AllowSharedMemory(added, kAddedBytes);
    unsigned blocks = blocks_of(1, share);
    Launch("the kernel of chunk states", added,
           dim3(blocks, static_cast<unsigned>(params.piece_count)), dim3(kThreads), kAddedBytes,
           stream, params, parts, share);
    Launch("the kernel that passes states on", PassStatesKernel,
           dim3(static_cast<unsigned>(state_blocks + window_blocks),
                static_cast<unsigned>(p.run_count)),
           dim3(kPassThreads), 0, stream, params, state_blocks);
    const auto output = OutputKernel<kN, kP>;
    constexpr size_t kOutputBytes = OutputLayout<kN, kP>::kBytes;
    AllowSharedMemory(output, kOutputBytes);
    blocks = blocks_of(2, share);
    Launch("the kernel of chunk outputs", output,
           dim3(blocks, static_cast<unsigned>(2 * params.piece_count)), dim3(kThreads),
           kOutputBytes, stream, params, parts, share);
  });
}

}  // namespace adder::cuda
