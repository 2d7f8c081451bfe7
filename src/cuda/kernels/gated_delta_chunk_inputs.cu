// What chunks of the gated delta rule need besides the state (see gated_delta_chunks.cu).
//
// A block owns a chunk and head. Phases: (1) q, k and v of the chunk to shared memory, and sums of
// decay; (2) dot products of rows, a warp for sixteen rows: scores go to global memory, A to shared
// memory; (3) T by forward substitution, a column per thread of the first two warps, sixteen rows
// at a time; the other two warps scale and store queries and keys meanwhile; (4) T, with the
// factors of its columns, becomes bf16; (5) T times v and times k.
//
// With one decay per head, all factors of q and k (their lengths, decays) are those of rows: they
// are applied to sums, and q and k stay as the convolution left them. With a decay per channel the
// dot products are taken in blocks of sixteen tokens: before a block on the diagonal the decays of
// both tokens are split at the block's first token, so that every exponent is at most 0; within it
// every product has an exponential of its own.
#include <cuda_runtime.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/gated_delta_chunk_inputs.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = kDeltaThreads;
constexpr int kTokens = kDeltaTokens;

// Dynamic shared memory.
template <int kK>
struct InputLayout {
  static constexpr int kQ = 0;                    // tile [tokens][kK]
  static constexpr int kKeys = kTokens * kK * 2;  // tile [tokens][kK]
  static constexpr int kSystem = 2 * kKeys;       // f32 [tokens][kSystemStride], by column
  static constexpr int kInverse = kSystem + kTokens * kSystemStride * 4;  // f32 [tokens][tokens]
  static constexpr int kValues = kInverse + kTokens * kTokens * 4;        // tiles [tokens][64]
  // In place of the system, which is then solved: tiles [tokens][tokens].
  static constexpr int kOfValues = kSystem;
  static constexpr int kOfKeys = kSystem + kTokens * kTokens * 2;

  static size_t Bytes(int columns) {
    return static_cast<size_t>(kValues) + static_cast<size_t>(kTokens * columns * 2);
  }
};

// By one warp: two tokens per lane.
__device__ __forceinline__ void PutSums(const GatedDeltaParams& p, const DeltaPlace& place,
                                        int lane, DeltaRows& rows) {
  const int head = place.head;
  const float rate = p.a[head] * kLog2E;
  const float bias = p.dt_bias[head];
  float of_tokens[2];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    float logarithm = 0;
    float beta = 0;
    if (token < place.tokens) {
      const long long row = place.first_row + token;
      logarithm = rate * Softplus(p.decay[row * p.decay_stride + head] + bias);
      beta = BetaOf(p, row, head);
    }
    sum += logarithm;
    of_tokens[i] = sum;
    rows.betas[token] = beta;
  }
  float before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, before, offset);
    if (lane >= offset) before += other;
  }
  before -= sum;
  rows.sums[2 * lane] = before + of_tokens[0];
  rows.sums[2 * lane + 1] = before + of_tokens[1];
}

// Rows of a tile, times a factor each, to global memory, by the threads from kTokens on.
template <int kK, class Factor>
__device__ __forceinline__ void StoreScaled(const unsigned char* tile, __nv_bfloat16* to,
                                            Factor factor) {
  constexpr int kUnits = kK / 8;
  for (int i = static_cast<int>(threadIdx.x) - kTokens; i < kTokens * kUnits;
       i += kThreads - kTokens) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    float x[8];
    Unpack(*reinterpret_cast<const uint4*>(tile + UnitOffset<kK>(row, unit)), x);
    const float by = factor(row);
    *reinterpret_cast<uint4*>(to + row * kK + unit * 8) =
        make_uint4(PackBf16(by * x[0], by * x[1]), PackBf16(by * x[2], by * x[3]),
                   PackBf16(by * x[4], by * x[5]), PackBf16(by * x[6], by * x[7]));
  }
}

template <int kK>
__global__ void __launch_bounds__(kThreads)
    InputKernel(const __grid_constant__ GatedDeltaChunkParams c, const int columns) {
  using Layout = InputLayout<kK>;
  using Record = DeltaRecord<kK>;
  const GatedDeltaParams& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ DeltaRows rows;
  const unsigned tiles = SharedAddress(shared);
  float* system = reinterpret_cast<float*>(shared + Layout::kSystem);
  float* inverse = reinterpret_cast<float*>(shared + Layout::kInverse);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  PdlWait();
  PdlTrigger();
  const DeltaPlace place = FindDeltaPlace(c.pieces, c.mixer.value_heads);
  if (place.tokens <= 0) return;
  __nv_bfloat16* record = c.records + place.index * Record::Size(columns);
  CopyKeys<kK>(c, place, tiles + Layout::kQ, tiles + Layout::kKeys);
  CopyValues(c, place, tiles + Layout::kValues, columns);
  CopyCommit();
  if (warp == 0) PutSums(p, place, lane, rows);
  CopyWait<0>();
  __syncthreads();
  PutLengths<kK>(p, shared + Layout::kQ, shared + Layout::kKeys, rows);
  __syncthreads();
  const float last = rows.sums[kTokens - 1];
  if (thread < kK) c.keeps[place.index * kMostChunkKeyDim + thread] = Exp2(last);

  float k_products[kTokens / 8][4] = {};
  float q_products[kTokens / 8][4] = {};
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    unsigned of_keys[4];
    unsigned of_queries[4];
    LoadA<kK>(of_keys, tiles + Layout::kKeys, warp * 16, 2 * k, lane);
    LoadA<kK>(of_queries, tiles + Layout::kQ, warp * 16, 2 * k, lane);
#pragma unroll
    for (int n = 0; n < kTokens / 16; ++n) {
      if (n > warp) break;
      unsigned b[4];
      LoadB<kK>(b, tiles + Layout::kKeys, n * 16, 2 * k, lane);
      MmaPair(k_products[2 * n], k_products[2 * n + 1], of_keys, b);
      MmaPair(q_products[2 * n], q_products[2 * n + 1], of_queries, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    if (n / 2 > warp) break;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + lane / 4 + 8 * r;
      float scores[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n * 8 + lane % 4 * 2 + i;
        const float factor = rows.keys[column] * Exp2(rows.sums[row] - rows.sums[column]);
        scores[i] = column <= row ? rows.queries[row] * factor * q_products[n][2 * r + i] : 0.0f;
        if (column < row) {
          system[column * kSystemStride + row] =
              rows.betas[row] * rows.keys[row] * factor * k_products[n][2 * r + i];
        }
      }
      PutPair(record + Record::kScores + row * kTokens + n * 8 + lane % 4 * 2, scores[0],
              scores[1]);
    }
  }
  __syncthreads();
  if (thread < kTokens) {
    Solve(system, inverse, thread);
  } else {
    StoreScaled<kK>(shared + Layout::kQ, record + Record::kQueries,
                    [&](int row) { return rows.queries[row] * Exp2(rows.sums[row]); });
    StoreScaled<kK>(shared + Layout::kKeys, record + Record::kKeys,
                    [&](int row) { return rows.keys[row] * Exp2(last - rows.sums[row]); });
  }
  __syncthreads();
  PutTile(inverse, shared + Layout::kOfValues, [&](int token) { return rows.betas[token]; });
  PutTile(inverse, shared + Layout::kOfKeys,
          [&](int token) { return rows.betas[token] * rows.keys[token] * Exp2(rows.sums[token]); });
  __syncthreads();
  MultiplyInverse<kK, Record>(tiles + Layout::kOfValues, tiles + Layout::kValues,
                              tiles + Layout::kOfKeys, tiles + Layout::kKeys, columns, record);
}

template <int kK>
void LaunchKey(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  const int columns = DeltaColumns(params.mixer.value_dim);
  LaunchDeltaInputKernel(InputKernel<kK>, InputLayout<kK>::Bytes(columns), kThreads, params,
                         columns, stream);
}

}  // namespace

void LaunchDeltaInputs(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  if (params.mixer.decay_per_channel) return LaunchDeltaChannelInputs(params, stream);
  if (params.mixer.key_dim <= 64) return LaunchKey<64>(params, stream);
  LaunchKey<kMostChunkKeyDim>(params, stream);
}

}  // namespace adder::cuda
