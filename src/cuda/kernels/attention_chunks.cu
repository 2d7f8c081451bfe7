// Attention with an online softmax whose weights never leave registers.
//
// A block of 4 warps owns one query head and one half of a piece, sixteen queries per warp. Phases:
// (1) queries to shared memory as bf16, then to registers; (2) per kKeys positions: keys and values
// of the next are on their way to shared memory while this one's products, maxima and sums are
// made; each warp for itself, with a barrier before a buffer is filled again; (3) division by the
// sums. Positions behind the sequence's end enter as zeros with weight 0: pages hold anything
// there. With a window, positions before the first query's are left out. Preconditions: every
// position of the batch's runs is in the pages (LaunchKvAppend).
#include <algorithm>

#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_wide_heads.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kQueries = kPieceTokens / 2;
constexpr float kLog2E = 1.44269504f;
// Below any product, but finite: queries of a window may see nothing of the first positions.
constexpr float kLowest = -1e30f;

// Positions per step: what two buffers of keys and values leave of the shared memory of the
// smallest devices.
constexpr int KeysOf(int dim) { return dim > 128 ? 32 : 64; }

// kDim: head_dim rounded up to a size that is compiled.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    AttentionChunkKernel(const __grid_constant__ AttentionChunkParams c) {
  const AttentionParams& p = c.attention;
  constexpr int kKeys = KeysOf(kDim);
  constexpr int kUnits = kDim / 8;
  constexpr int kTileBytes = kKeys * kDim * 2;
  extern __shared__ __align__(128) unsigned char shared[];  // keys | values, twice
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int head = static_cast<int>(blockIdx.x);
  const int kv_head = head / (p.heads / p.kv_heads);
  PdlWait();
  PdlTrigger();
  // The last pieces see the most positions: they start first.
  const int from_end = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const Piece piece = c.pieces[from_end / 2];
  const int first = from_end % 2 * kQueries;
  if (first >= piece.tokens) return;
  const SequenceRun run = p.runs[piece.run];
  const int first_position = run.position + piece.row - run.row + first;
  const int queries = min(kQueries, piece.tokens - first);
  const int length = run.position + run.tokens;
  const int blocks = (first_position + queries - 1) / kKeys + 1;
  // Positions of a query are after its own less this.
  const int window = p.window > 0 ? p.window : first_position + kQueries;
  const int first_block = max(0, first_position - window + 1) / kKeys;
  const unsigned tiles = SharedAddress(shared);

  // Queries take the place of the second buffer for a moment.
  static_assert(kQueries * kDim * 2 <= 2 * kTileBytes);
  unsigned char* q_bytes = shared + 2 * kTileBytes;
  for (int i = threadIdx.x; i < kQueries * kUnits; i += kThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (r < queries && unit * 8 < p.head_dim) {
      const float* from = p.qkv + static_cast<long long>(piece.row + first + r) * p.qkv_stride +
                          head * p.head_dim + unit * 8;
      const float4 low = *reinterpret_cast<const float4*>(from);
      const float4 high = *reinterpret_cast<const float4*>(from + 4);
      words = make_uint4(PackBf16(low.x, low.y), PackBf16(low.z, low.w), PackBf16(high.x, high.y),
                         PackBf16(high.z, high.w));
    }
    *reinterpret_cast<uint4*>(q_bytes + UnitOffset<kDim>(r, unit)) = words;
  }

  const long long to_values = static_cast<long long>(p.kv_heads) * p.page_positions * p.head_dim;
  const auto copy = [&](int block, int buffer) {
    const int begin = block * kKeys;
    const char* page = run.pages[begin / p.page_positions];
    const auto* keys =
        reinterpret_cast<const __nv_bfloat16*>(page + p.kv_offset) +
        (static_cast<long long>(kv_head) * p.page_positions + begin % p.page_positions) *
            p.head_dim;
    const unsigned k_tile = tiles + buffer * 2 * kTileBytes;
    for (int i = threadIdx.x; i < kKeys * kUnits; i += kThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool valid = begin + r < length && unit * 8 < p.head_dim;
      const __nv_bfloat16* from = valid ? keys + r * p.head_dim + unit * 8 : keys;
      CopyAsync(k_tile + UnitOffset<kDim>(r, unit), from, valid);
      CopyAsync(k_tile + kTileBytes + UnitOffset<kDim>(r, unit), from + to_values, valid);
    }
    CopyCommit();
  };
  copy(first_block, 0);
  __syncthreads();
  unsigned q[kDim / 16][4];
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    LoadA<kDim>(q[k], tiles + 2 * kTileBytes, warp * 16, 2 * k, lane);
  }
  __syncthreads();

  const float scale = p.scale * kLog2E;
  const int position0 = first_position + warp * 16 + g;
  const int position1 = position0 + 8;
  float out[kDim / 8][4] = {};
  float largest[2] = {kLowest, kLowest};
  float sums[2] = {};
#pragma unroll 1
  for (int block = first_block; block < blocks; ++block) {
    const int buffer = (block - first_block) % 2;
    if (block + 1 < blocks) {
      copy(block + 1, buffer ^ 1);
      CopyWait<1>();
    } else {
      CopyWait<0>();
    }
    __syncthreads();
    const unsigned k_tile = tiles + buffer * 2 * kTileBytes;
    const unsigned v_tile = k_tile + kTileBytes;
    float weights[kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        unsigned b[4];
        LoadB<kDim>(b, k_tile, n * 16, 2 * k, lane);
        MmaPair(weights[2 * n], weights[2 * n + 1], q[k], b);
      }
    }
    const int begin = block * kKeys;
    const bool masked = begin + kKeys > first_position + warp * 16 + 1 ||
                        begin <= first_position + warp * 16 + 15 - window;
    float merged[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int position = begin + n * 8 + 2 * t + e % 2;
        float& weight = weights[n][e];
        weight *= scale;
        const int back = (e < 2 ? position0 : position1) - position;
        if (masked && (back < 0 || back >= window)) weight = -INFINITY;
        merged[e / 2] = fmaxf(merged[e / 2], weight);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      merged[r] = fmaxf(merged[r], __shfl_xor_sync(0xffffffffu, merged[r], 1));
      merged[r] = fmaxf(merged[r], __shfl_xor_sync(0xffffffffu, merged[r], 2));
      const float keep = Exp2(largest[r] - merged[r]);
      largest[r] = merged[r];
      sums[r] *= keep;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        out[n][2 * r] *= keep;
        out[n][2 * r + 1] *= keep;
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        weights[n][e] = Exp2(weights[n][e] - largest[e / 2]);
        sums[e / 2] += weights[n][e];
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const float(&low)[4] = weights[2 * k];
      const float(&high)[4] = weights[2 * k + 1];
      const unsigned a[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]),
                             PackBf16(high[0], high[1]), PackBf16(high[2], high[3])};
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kDim>(b, v_tile, k * 16, 2 * n, lane);
        MmaPair(out[2 * n], out[2 * n + 1], a, b);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
    sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    const int query = warp * 16 + g + 8 * r;
    if (query >= queries) continue;
    const float factor = 1.0f / sums[r];
    __nv_bfloat16* to = c.output +
                        static_cast<long long>(piece.row + first + query) * c.output_stride +
                        head * p.head_dim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int dim = n * 8 + 2 * t;
      if (dim >= p.head_dim) continue;
      float2 value = make_float2(out[n][2 * r] * factor, out[n][2 * r + 1] * factor);
      if (p.output_gate) {
        const long long row = piece.row + first + query;
        value.x *= OutputGate(p, row, head * p.head_dim + dim);
        value.y *= OutputGate(p, row, head * p.head_dim + dim + 1);
      }
      *reinterpret_cast<unsigned*>(to + dim) = PackBf16(value.x, value.y);
    }
  }
}

template <int kDim>
void LaunchDim(const AttentionChunkParams& params, cudaStream_t stream) {
  constexpr size_t kShared = size_t{4} * KeysOf(kDim) * kDim * 2;
  const auto kernel = AttentionChunkKernel<kDim>;
  AllowSharedMemory(kernel, kShared);
  Launch("the kernel of chunked attention", kernel,
         dim3(static_cast<unsigned>(params.attention.heads),
              static_cast<unsigned>(2 * params.piece_count)),
         dim3(kThreads), kShared, stream, params);
}

}  // namespace

bool AttentionChunksSupport(int head_dim, int page_positions) {
  return head_dim % 8 == 0 && head_dim <= kMostWideHeadDim && page_positions % KeysOf(64) == 0;
}

void LaunchAttentionChunks(const AttentionChunkParams& params, cudaStream_t stream) {
  const int head_dim = params.attention.head_dim;
  if (head_dim <= 64) return LaunchDim<64>(params, stream);
  if (head_dim <= 128) return LaunchDim<128>(params, stream);
  if (head_dim <= kMaxAttentionHeadDim) return LaunchDim<kMaxAttentionHeadDim>(params, stream);
  LaunchWideHeadChunks(params, stream);
}

}  // namespace adder::cuda
