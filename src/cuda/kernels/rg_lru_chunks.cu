// RG-LRU over segments of kRgLruSegmentTokens tokens (De et al., "Griffin", 2024, section 2.4,
// whose recurrence is scanned in parallel as any linear one). Per channel, with P_i the product of
// a_1 .. a_i since the segment began:
//   g_i = a_i g_(i-1) + b_i      (g_0 = 0)
//   h_i = g_i + P_i h_0
//
// (1) a and b of every token: a block owns kRows rows and kOutputs channels of a head, sixteen rows
//     per warp. Both gates' weights are rounded to bf16 on their way to shared memory, kDepth
//     inputs at a time; those of the next are loaded while this one's products are made.
// (2) P and g of every segment's end: a thread owns a channel of a segment.
// (3) States from segment to segment: a thread owns a channel of a run. Leaves the state before
//     each segment where g stood, and the final state.
// (4) Outputs: as (2), but from the state before.
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rg_lru.cuh"
#include "cuda/kernels/rg_lru_chunks.h"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kGateThreads = kWarps * 32;
constexpr int kRows = kWarps * 16;
constexpr int kOutputs = 64;
constexpr int kDepth = 64;
constexpr int kScanThreads = 128;
constexpr int kTokens = kRgLruSegmentTokens;
constexpr int kAhead = 16;
// Units of eight inputs' or outputs' values in a row of a tile.
constexpr int kUnits = kDepth / 8;
static_assert(kDepth == kOutputs);
// Eight weights of both gates that a thread brings per step.
constexpr int kBrought = kDepth * kUnits / kGateThreads;

struct Weights {
  float4 input[2];
  float4 recurrent[2];
};

__global__ void __launch_bounds__(kGateThreads)
    RgLruChunkGatesKernel(const __grid_constant__ RgLruChunkParams c, const int blocks_per_head) {
  __shared__ __align__(128) unsigned char x_bytes[kRows * kDepth * 2];
  __shared__ __align__(128) unsigned char input_bytes[kDepth * kOutputs * 2];
  __shared__ __align__(128) unsigned char recurrent_bytes[kDepth * kOutputs * 2];
  const RgLruParams& p = c.mixer;
  const unsigned x_tile = SharedAddress(x_bytes);
  const unsigned input_tile = SharedAddress(input_bytes);
  const unsigned recurrent_tile = SharedAddress(recurrent_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int head = static_cast<int>(blockIdx.x) / blocks_per_head;
  const int first_output = static_cast<int>(blockIdx.x) % blocks_per_head * kOutputs;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int rows = min(kRows, p.rows - first_row);
  const int unit = thread % kUnits;

  Weights weights[kBrought];
  const auto load_weights = [&](int depth) {
    const float4 zero = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kBrought; ++i) {
      const int in = depth + thread / kUnits + i * (kGateThreads / kUnits);
      const bool valid = in < p.block && first_output + unit * 8 < p.block;
      const long long at =
          (static_cast<long long>(head) * p.block + in) * p.block + first_output + unit * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long from = at + 4 * half;
        weights[i].input[half] =
            valid ? *reinterpret_cast<const float4*>(p.input_weight + from) : zero;
        weights[i].recurrent[half] =
            valid ? *reinterpret_cast<const float4*>(p.recurrent_weight + from) : zero;
      }
    }
  };
  const auto store = [](unsigned char* tile, int row, int of_unit, const float4(&eight)[2]) {
    *reinterpret_cast<uint4*>(tile + UnitOffset<kOutputs>(row, of_unit)) =
        make_uint4(PackBf16(eight[0].x, eight[0].y), PackBf16(eight[0].z, eight[0].w),
                   PackBf16(eight[1].x, eight[1].y), PackBf16(eight[1].z, eight[1].w));
  };
  load_weights(0);
  PdlWait();
  PdlTrigger();
  float input[kOutputs / 8][4] = {};
  float recurrent[kOutputs / 8][4] = {};
#pragma unroll 1
  for (int depth = 0; depth < p.block; depth += kDepth) {
    const __nv_bfloat16* x =
        c.x + static_cast<long long>(first_row) * c.x_stride + head * p.block + depth;
    for (int i = thread; i < kRows * kUnits; i += kGateThreads) {
      const int r = i / kUnits;
      const bool valid = r < rows && depth + unit * 8 < p.block;
      CopyAsync(x_tile + UnitOffset<kDepth>(r, unit),
                valid ? x + static_cast<long long>(r) * c.x_stride + unit * 8 : c.x, valid);
    }
    CopyCommit();
#pragma unroll
    for (int i = 0; i < kBrought; ++i) {
      const int row = thread / kUnits + i * (kGateThreads / kUnits);
      store(input_bytes, row, unit, weights[i].input);
      store(recurrent_bytes, row, unit, weights[i].recurrent);
    }
    if (depth + kDepth < p.block) load_weights(depth + kDepth);
    CopyWait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      unsigned a[4];
      LoadA<kDepth>(a, x_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < kOutputs / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kOutputs>(b, input_tile, k * 16, 2 * n, lane);
        MmaPair(input[2 * n], input[2 * n + 1], a, b);
        LoadBTransposed<kOutputs>(b, recurrent_tile, k * 16, 2 * n, lane);
        MmaPair(recurrent[2 * n], recurrent[2 * n + 1], a, b);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of_block = warp * 16 + lane / 4 + 8 * r;
    if (of_block >= rows) continue;
    const long long row = first_row + of_block;
    const SequenceRun run = p.runs[p.row_runs[row]];
    const bool first = run.position + static_cast<int>(row) - run.row == 0;
#pragma unroll
    for (int n = 0; n < kOutputs / 8; ++n) {
      const int in_head = first_output + n * 8 + lane % 4 * 2;
      if (in_head >= p.block) continue;
      const int channel = head * p.block + in_head;
      const __nv_bfloat162 x =
          *reinterpret_cast<const __nv_bfloat162*>(c.x + row * c.x_stride + channel);
      const auto of = [&](int i, float of_x) {
        return RecurrenceOf(p, input[n][2 * r + i] + p.input_bias[channel + i],
                            recurrent[n][2 * r + i] + p.recurrent_bias[channel + i],
                            p.decay[channel + i], of_x, first);
      };
      const Recurrence low = of(0, __low2float(x));
      const Recurrence high = of(1, __high2float(x));
      *reinterpret_cast<float4*>(c.recurrences + row * p.width + channel) =
          make_float4(low.a, low.b, high.a, high.b);
    }
  }
}

// Phase (4) if kWrites, else (2).
template <bool kWrites>
__global__ void __launch_bounds__(kScanThreads)
    RgLruSegmentKernel(const __grid_constant__ RgLruChunkParams c) {
  const RgLruParams& p = c.mixer;
  const int channel = static_cast<int>(blockIdx.x) * kScanThreads + static_cast<int>(threadIdx.x);
  PdlWait();
  PdlTrigger();
  if (channel >= p.width) return;
  const int segment = static_cast<int>(blockIdx.y);
  const Piece piece = c.pieces[segment / kRgLruSegments];
  const int begin = segment % kRgLruSegments * kTokens;
  const int count = min(kTokens, piece.tokens - begin);
  if (count <= 0) return;
  const long long row = piece.row + begin;
  float2* const of_segment = c.segments + static_cast<long long>(segment) * p.width + channel;
  const float2* from = c.recurrences + row * p.width + channel;
  float product = 1;
  float h = kWrites ? of_segment->y : 0.0f;
#pragma unroll 1
  for (int base = 0; base < count; base += kAhead) {
    float2 of[kAhead];
    float y[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= count) break;
      of[i] = from[static_cast<long long>(base + i) * p.width];
      if (kWrites) y[i] = p.y[(row + base + i) * p.y_stride + channel];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= count) break;
      product *= of[i].x;
      h = Step({of[i].x, of[i].y}, h);
      if (kWrites) {
        c.output[(row + base + i) * c.output_stride + channel] =
            __float2bfloat16_rn(h * Activate(p.gate_activation, y[i]));
      }
    }
  }
  if (!kWrites) *of_segment = make_float2(product, h);
}

__global__ void __launch_bounds__(kScanThreads)
    PassRgLruStatesKernel(const __grid_constant__ RgLruChunkParams c) {
  const RgLruParams& p = c.mixer;
  const int channel = static_cast<int>(blockIdx.x) * kScanThreads + static_cast<int>(threadIdx.x);
  PdlWait();
  PdlTrigger();
  if (channel >= p.width) return;
  const SequenceRun run = p.runs[blockIdx.y];
  float* const slot = run.recurrent + p.state_offset + channel;
  float h = *slot;
  const long long first = static_cast<long long>(c.first_pieces[blockIdx.y]) * kRgLruSegments;
  const int count = (run.tokens + kTokens - 1) / kTokens;
  float2* const segments = c.segments + first * p.width + channel;
#pragma unroll 1
  for (int base = 0; base < count; base += kAhead) {
    float2 of[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= count) break;
      of[i] = segments[static_cast<long long>(base + i) * p.width];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= count) break;
      segments[static_cast<long long>(base + i) * p.width].y = h;
      h = Step({of[i].x, of[i].y}, h);
    }
  }
  *slot = h;
}

}  // namespace

bool RgLruChunksSupport(int block) { return block % 8 == 0; }

void LaunchRgLruChunks(const RgLruChunkParams& params, cudaStream_t stream) {
  const RgLruParams& p = params.mixer;
  const auto blocks = [](int items, int per_block) {
    return static_cast<unsigned>((items + per_block - 1) / per_block);
  };
  const int blocks_per_head = static_cast<int>(blocks(p.block, kOutputs));
  Launch("the kernel of RG-LRU gates of pieces", RgLruChunkGatesKernel,
         dim3(static_cast<unsigned>(p.width / p.block * blocks_per_head), blocks(p.rows, kRows)),
         dim3(kGateThreads), 0, stream, params, blocks_per_head);
  const dim3 segments(blocks(p.width, kScanThreads),
                      static_cast<unsigned>(params.piece_count * kRgLruSegments));
  Launch("the kernel of RG-LRU segments", RgLruSegmentKernel<false>, segments, dim3(kScanThreads),
         0, stream, params);
  Launch("the kernel that passes RG-LRU states on", PassRgLruStatesKernel,
         dim3(blocks(p.width, kScanThreads), static_cast<unsigned>(p.run_count)),
         dim3(kScanThreads), 0, stream, params);
  Launch("the kernel of RG-LRU outputs", RgLruSegmentKernel<true>, segments, dim3(kScanThreads), 0,
         stream, params);
}

}  // namespace adder::cuda
