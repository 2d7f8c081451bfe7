// Mamba-2 over pieces of kPieceTokens tokens, in four kernels. With s the running sum of dt * a
// within a piece, S the state before it, and i, j positions in it:
//   y_i = exp(s_i) C_i S + sum over j <= i of exp(s_i - s_j) dt_j (C_i . B_j) x_j + D x_i
//   S'  = exp(s_last) S + sum over j of exp(s_last - s_j) dt_j B_j x_j^T
// Every exponent is at most 0. Sums s are f32 and begin anew with each piece, so differences keep
// their precision however long the sequence.
//
// (1) Convolution, unless it was made before: a thread owns four channels of sixteen tokens; other
//     blocks compute dt and s, a warp per head and piece.
// (2) What each piece adds to the state: a block owns a piece and some heads of a group, whose B it
//     keeps in shared memory.
// (3) States from piece to piece: a thread owns two elements of a run's state. Writes the state
//     before each piece, the final state, and the convolution's window, which nothing after (1)
//     reads.
// (4) Outputs (mamba2_chunk_outputs.cu): a block owns one half of a piece and some heads of a
// group.
//     Its products C_i . B_j stay in registers; head after head they are weighted and multiplied
//     with x, as attention weights are with values.
// A head wider than 64 is worked on in parts of 64 channels: "unit" means a head's part.
#include <cuda_runtime.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/mamba2_chunks.cuh"
#include "cuda/kernels/stored_state.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = kChunkThreads;
constexpr int kConvTokens = 16;
constexpr int kConvSegments = kPieceTokens / kConvTokens;
constexpr int kMostTaps = 8;
constexpr int kPassThreads = 256;
constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ void StepSizes(const Mamba2ChunkParams& c, const Piece& piece,
                                          int head) {
  const Mamba2Params& p = c.mixer;
  constexpr int kTokens = kPieceTokens / 32;
  const int lane = threadIdx.x % 32;
  const bool constant = c.slopes != nullptr;
  const float dt_bias = constant ? 0.0f : p.dt_bias[head];
  const float rate = (constant ? -c.slopes[head] : p.a[head]) * kLog2E;
  const bool own = p.dt != nullptr;
  const float* inputs = own ? p.dt + head : p.projected + p.inner() + p.conv_channels() + head;
  const int stride = own ? p.dt_stride : p.projected_stride;
  float dt[kTokens];
  float sums[kTokens];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = lane * kTokens + i;
    dt[i] = 0;
    if (constant) {
      dt[i] = 1;
    } else if (token < piece.tokens) {
      const float input = inputs[static_cast<long long>(piece.row + token) * stride];
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
      const float4 sum = ConvolveNext(bias, weights, window, newest[i]);
      if (base + i >= count) break;
      *reinterpret_cast<uint2*>(out + static_cast<long long>(base + i) * channels) = make_uint2(
          PackBf16(FastSilu(sum.x), FastSilu(sum.y)), PackBf16(FastSilu(sum.z), FastSilu(sum.w)));
    }
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
    const __nv_bfloat16* x =
        c.x + static_cast<long long>(piece.row) * c.x_stride + head * c.x_step + part + unit * 8;
    uint4 words[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = first_row + i * (kThreads / kUnits);
      const bool valid = r < piece.tokens && part + unit * 8 < p.head_dim;
      words[i] = valid ? *reinterpret_cast<const uint4*>(x + static_cast<long long>(r) * c.x_stride)
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

// Two neighbours of a state in memory.
template <class Stored>
using TwoStored = std::conditional_t<std::is_same_v<Stored, float>, float2, unsigned>;

template <class Stored>
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
  auto* slot = reinterpret_cast<TwoStored<Stored>*>(run.recurrent + p.ssm_offset) + element;
  float2 state;
  if constexpr (std::is_same_v<Stored, float>) {
    state = *slot;
  } else {
    state = WidenPair<Stored>(*slot);
  }
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
  if constexpr (std::is_same_v<Stored, float>) {
    *slot = state;
  } else {
    *slot = RoundPair<Stored>(state.x, state.y);
  }
}

}  // namespace

bool Mamba2ChunksSupport(int head_dim, int d_state, int d_conv) {
  return head_dim % 8 == 0 && d_state % 8 == 0 && d_state <= kMaxStateSize && d_conv <= kMostTaps;
}

void LaunchMamba2Chunks(const Mamba2ChunkParams& given, int multiprocessors, cudaStream_t stream) {
  Mamba2ChunkParams params = given;
  const Mamba2Params& p = params.mixer;
  const bool convolves = params.x == nullptr;
  const int channels = convolves ? p.conv_channels() : 0;
  if (convolves) {
    params.x = params.convolved;
    params.b = params.convolved + p.inner();
    params.c = params.b + p.groups * p.d_state;
    params.x_stride = params.b_c_stride = channels;
    params.x_step = p.head_dim;
    params.b_c_step = p.d_state;
  }
  const int channel_blocks = (channels / 4 + kThreads - 1) / kThreads;
  const int head_blocks = (p.heads + kThreads / 32 - 1) / (kThreads / 32);
  Launch("the causal convolution kernel", p.d_conv <= 4 ? ConvKernel<4> : ConvKernel<kMostTaps>,
         dim3(static_cast<unsigned>((channel_blocks * kConvSegments + head_blocks) *
                                    params.piece_count)),
         dim3(kThreads), 0, stream, params, channel_blocks);
  const int state_blocks = (p.heads * p.d_state * p.head_dim / 2 + kPassThreads - 1) / kPassThreads;
  const int window_blocks = (channels + kPassThreads - 1) / kPassThreads;
  WithSizes(p, [&]<int kN, int kP>() {
    const UnitGrid grid = ShareUnits(p, kP, params.piece_count, multiprocessors);
    const auto kernel = AddedStateKernel<kN, kP>;
    constexpr size_t kBytes = kPieceTokens * (kN + kP) * 2;
    AllowSharedMemory(kernel, kBytes);
    Launch("the kernel of chunk states", kernel,
           dim3(grid.blocks, static_cast<unsigned>(params.piece_count)), dim3(kThreads), kBytes,
           stream, params, grid.parts, grid.share);
  });
  const auto pass_states =
      WithStored(p.ssm_dtype, [&]<class Stored>() { return PassStatesKernel<Stored>; });
  Launch(
      "the kernel that passes states on", pass_states,
      dim3(static_cast<unsigned>(state_blocks + window_blocks), static_cast<unsigned>(p.run_count)),
      dim3(kPassThreads), 0, stream, params, state_blocks);
  LaunchMamba2Outputs(params, multiprocessors, stream);
}

}  // namespace adder::cuda
