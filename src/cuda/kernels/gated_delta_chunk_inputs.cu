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

#include "cuda/kernels/gated_delta_chunks.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = kDeltaThreads;
constexpr int kTokens = kDeltaTokens;
constexpr float kLog2E = 1.44269504f;
constexpr int kSystemStride = kTokens + 4;

__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

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

// Of each token of a chunk. Tokens that are not there have beta 0 and decay 1.
struct Rows {
  float sums[kTokens];  // of the logarithms of decay to base 2, up to and including the token
  float betas[kTokens];
  float queries[kTokens];  // query_scale / |q|
  float keys[kTokens];     // 1 / |k|
};

__device__ __forceinline__ float BetaOf(const GatedDeltaParams& p, long long row, int head) {
  return __fdividef(p.beta_scale, 1.0f + __expf(-p.beta[row * p.beta_stride + head]));
}

// By one warp: two tokens per lane.
__device__ __forceinline__ void PutSums(const GatedDeltaParams& p, int first_row, int tokens,
                                        int head, int lane, Rows& rows) {
  const float rate = p.a[head] * kLog2E;
  const float bias = p.dt_bias[head];
  float of_tokens[2];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    float logarithm = 0;
    float beta = 0;
    if (token < tokens) {
      const long long row = first_row + token;
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

__device__ __forceinline__ void Unpack(uint4 words, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned both = Component(words, i);
    x[2 * i] = __uint_as_float(both << 16);
    x[2 * i + 1] = __uint_as_float(both & 0xffff0000u);
  }
}

// Lengths: a thread per row of q or of k.
template <int kK>
__device__ __forceinline__ void PutLengths(const GatedDeltaParams& p, const unsigned char* shared,
                                           Rows& rows) {
  using Layout = InputLayout<kK>;
  const int row = static_cast<int>(threadIdx.x) % kTokens;
  const bool is_key = static_cast<int>(threadIdx.x) >= kTokens;
  const unsigned char* tile = shared + (is_key ? Layout::kKeys : Layout::kQ);
  float squares = p.qk_eps;
#pragma unroll 4
  for (int unit = 0; unit < kK / 8; ++unit) {
    float x[8];
    Unpack(*reinterpret_cast<const uint4*>(tile + UnitOffset<kK>(row, unit)), x);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
  }
  if (is_key) {
    rows.keys[row] = rsqrtf(squares);
  } else {
    rows.queries[row] = p.query_scale * rsqrtf(squares);
  }
}

// Phase (3), for one column: x = (1 + A)^-1 e_column. system: A by column.
__device__ __forceinline__ void Solve(const float* system, float* inverse, int column) {
#pragma unroll 1
  for (int block = 0; block < kTokens; block += 16) {
    float x[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) x[r] = block + r == column ? 1.0f : 0.0f;
#pragma unroll 2
    for (int j = 0; j < block; ++j) {
      const float solved = inverse[j * kTokens + column];
      const float4* of_column = reinterpret_cast<const float4*>(system + j * kSystemStride + block);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 four = of_column[r];
        x[4 * r] = fmaf(-four.x, solved, x[4 * r]);
        x[4 * r + 1] = fmaf(-four.y, solved, x[4 * r + 1]);
        x[4 * r + 2] = fmaf(-four.z, solved, x[4 * r + 2]);
        x[4 * r + 3] = fmaf(-four.w, solved, x[4 * r + 3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int r = j + 1; r < 16; ++r) {
        x[r] = fmaf(-system[(block + j) * kSystemStride + block + r], x[j], x[r]);
      }
      inverse[(block + j) * kTokens + column] = x[j];
    }
  }
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

// Phase (4): the inverse with each column times a factor, as a tile.
template <class Factor>
__device__ __forceinline__ void PutTile(const float* inverse, unsigned char* tile, Factor factor) {
  const int column = static_cast<int>(threadIdx.x) % (kTokens / 2) * 2;
  const float first = factor(column);
  const float second = factor(column + 1);
  for (int row = static_cast<int>(threadIdx.x) / (kTokens / 2); row < kTokens;
       row += 2 * kThreads / kTokens) {
    const float2 two = *reinterpret_cast<const float2*>(inverse + row * kTokens + column);
    *reinterpret_cast<unsigned*>(tile + UnitOffset<kTokens>(row, column / 8) + column % 8 * 2) =
        PackBf16(two.x * first, two.y * second);
  }
}

// Phase (5): rows of a triangular tile times 64 columns of another, to rows `stride` apart.
template <int kColumns>
__device__ __forceinline__ void MultiplyTile(unsigned triangle, unsigned tile, int first_unit,
                                             __nv_bfloat16* to, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float sums[8][4] = {};
#pragma unroll
  for (int k = 0; k < kTokens / 16; ++k) {
    if (k > warp) break;
    unsigned a[4];
    LoadA<kTokens>(a, triangle, warp * 16, 2 * k, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      unsigned b[4];
      LoadBTransposed<kColumns>(b, tile, k * 16, first_unit + 2 * n, lane);
      MmaPair(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
  __nv_bfloat16* out = to + (warp * 16 + lane / 4) * stride + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    PutPair(out + n * 8, sums[n][0], sums[n][1]);
    PutPair(out + 8 * stride + n * 8, sums[n][2], sums[n][3]);
  }
}

// Phase (1), in the background; columns and rows that are not there become zeros.
template <int kK>
__device__ __forceinline__ void CopyInputs(const GatedDeltaChunkParams& c, unsigned tiles,
                                           int first_row, int tokens, int head, int columns) {
  using Layout = InputLayout<kK>;
  const GatedDeltaParams& p = c.mixer;
  const int key_head = head / (p.value_heads / p.key_heads);
  const __nv_bfloat16* rows = c.convolved + static_cast<long long>(first_row) * c.convolved_stride;
  const auto copy = [&](unsigned to, int row, int unit, int column, int count) {
    const bool valid = row < tokens && unit * 8 < count;
    const __nv_bfloat16* from =
        rows + static_cast<long long>(row) * c.convolved_stride + column + unit * 8;
    CopyAsync(to, valid ? from : rows, valid);
  };
  constexpr int kUnits = kK / 8;
  for (int i = threadIdx.x; i < kTokens * kUnits; i += kThreads) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    const int offset = UnitOffset<kK>(row, unit);
    const int column = key_head * p.key_dim;
    copy(tiles + Layout::kQ + offset, row, unit, column, p.key_dim);
    copy(tiles + Layout::kKeys + offset, row, unit, p.keys() + column, p.key_dim);
  }
  const int units = columns / 8;
  const int column = 2 * p.keys() + head * p.value_dim;
  for (int i = threadIdx.x; i < kTokens * units; i += kThreads) {
    const int row = i / units;
    const int unit = i % units;
    copy(tiles + Layout::kValues + unit / 8 * kTokens * 128 + UnitOffset<64>(row, unit % 8), row,
         unit, column, p.value_dim);
  }
  CopyCommit();
}

template <int kK>
__global__ void __launch_bounds__(kThreads)
    InputKernel(const __grid_constant__ GatedDeltaChunkParams c, const int columns) {
  using Layout = InputLayout<kK>;
  using Record = DeltaRecord<kK>;
  const GatedDeltaParams& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Rows rows;
  const unsigned tiles = SharedAddress(shared);
  float* system = reinterpret_cast<float*>(shared + Layout::kSystem);
  float* inverse = reinterpret_cast<float*>(shared + Layout::kInverse);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int head = static_cast<int>(blockIdx.x);
  const int chunk = static_cast<int>(blockIdx.y);
  PdlWait();
  PdlTrigger();
  const Piece piece = c.pieces[chunk / 2];
  const int first = chunk % 2 * kTokens;
  const int tokens = min(kTokens, piece.tokens - first);
  if (tokens <= 0) return;
  const long long index = static_cast<long long>(chunk) * p.value_heads + head;
  __nv_bfloat16* record = c.records + index * Record::Size(columns);
  CopyInputs<kK>(c, tiles, piece.row + first, tokens, head, columns);
  if (warp == 0) PutSums(p, piece.row + first, tokens, head, lane, rows);
  CopyWait<0>();
  __syncthreads();
  PutLengths<kK>(p, shared, rows);
  __syncthreads();
  const float last = rows.sums[kTokens - 1];
  if (thread < kK) c.keeps[index * kMostChunkKeyDim + thread] = Exp2(last);

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
  for (int slice = 0; slice < columns / 64; ++slice) {
    MultiplyTile<64>(tiles + Layout::kOfValues, tiles + Layout::kValues + slice * kTokens * 128, 0,
                     record + Record::kValues + slice * 64, columns);
  }
#pragma unroll 1
  for (int slice = 0; slice < kK / 64; ++slice) {
    MultiplyTile<kK>(tiles + Layout::kOfKeys, tiles + Layout::kKeys, slice * 8,
                     record + Record::kPast + slice * 64, kK);
  }
}

template <int kK>
void LaunchKey(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  const int columns = DeltaColumns(params.mixer.value_dim);
  const size_t bytes = InputLayout<kK>::Bytes(columns);
  const auto kernel = InputKernel<kK>;
  AllowSharedMemory(kernel, bytes);
  Launch("the kernel of inputs of the delta rule", kernel,
         dim3(static_cast<unsigned>(params.mixer.value_heads),
              static_cast<unsigned>(2 * params.piece_count)),
         dim3(kThreads), bytes, stream, params, columns);
}

}  // namespace

void LaunchDeltaInputs(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  if (params.mixer.key_dim <= 64) return LaunchKey<64>(params, stream);
  LaunchKey<kMostChunkKeyDim>(params, stream);
}

}  // namespace adder::cuda
