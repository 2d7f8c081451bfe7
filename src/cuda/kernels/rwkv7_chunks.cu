// RWKV-7's generalised delta rule over chunks of kDeltaTokens tokens (Peng et al., "RWKV-7 Goose",
// 2025, for the rule; Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024,
// for its form). With P_i the products of the decays of a chunk's tokens up to i, per channel of
// the key, S the state before it, kappa, k, v, r as in model/plan.h and b = alpha kappa, the
// recurrence says of u_i = S_(i-1)^T kappa_i
//   u_i = S^T (P_(i-1) kappa_i) + sum over j < i of (kappa_i . P_(i-1)/P_j k_j) v_j
//                               - sum over j < i of (kappa_i . P_(i-1)/P_j b_j) u_j
// a system with a triangular matrix. With T = (1 + A)^-1, A and B the coefficients of u and v, it
// is -u = values - past S where past = T P kappa and values = -T B v; then
//   y_i = S^T (P_i r_i) + sum over j <= i of (r_i . P_i/P_j k_j) v_j + (r_i . P_i/P_j b_j) (-u_j)
//   S'  = P_last S + sum over j of P_last/P_j (k_j v_j^T + b_j (-u_j)^T)
// Decays are at least exp(-exp(-1/2)), so that a chunk's product is at least 2^-56: quotients of P
// may be split into two factors, which all floats have room for, and the coefficients are plain
// products of matrices.
//
// (1) What needs no state: a block owns a chunk and head. Sums of logarithms of decay, a channel of
//     half a chunk per thread; the rows of all matrices, a warp for sixteen tokens; coefficients,
//     those of v being multiplied with it at once; T by forward substitution in two warps, while
//     the other two make what the chunk adds to the state by k v^T; T times B v and P kappa.
// (2) States from chunk to chunk: that of the gated delta rule, which this has been put in the form
//     of (gated_delta_chunks.cu): keys are P_last/P b, queries P r, scores r . P/P b.
// (3) Answers, a block for a chunk and head, sixteen tokens per warp; their layer norm, the bonus
//     and the gate.
#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/gated_delta_chunk_inputs.cuh"
#include "cuda/kernels/rwkv7_chunks.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kTokens = kDeltaTokens;
constexpr int kThreads = kDeltaThreads;
constexpr int kDim = kMostRwkv7ChunkDim;
constexpr int kTileBytes = kTokens * kDim * 2;
using Record = DeltaRecord<kDim>;
static_assert(kRwkv7Keeps == kMostChunkKeyDim && kRwkv7Own == kTokens);
static_assert(kRwkv7Record == 6 * kTokens * kDim && kRwkv7Sums == 2 * kDim * kDim);

// Dynamic shared memory of InputKernel.
struct InputLayout {
  static constexpr int kKappa = 0;                  // tile [tokens][kDim]: P kappa
  static constexpr int kAnswers = kTileBytes;       // P r
  static constexpr int kKeys = 2 * kTileBytes;      // k / P
  static constexpr int kRemovals = 3 * kTileBytes;  // b / P
  static constexpr int kAdding = 4 * kTileBytes;    // P_last k / P
  static constexpr int kValues = 5 * kTileBytes;    // v
  static constexpr int kOfValues = 6 * kTileBytes;  // -B v
  static constexpr int kSystem = 7 * kTileBytes;    // f32 [tokens][kSystemStride], by column
  static constexpr int kLogarithms = kSystem;       // before: f32 [tokens][kSystemStride]
  static constexpr int kTriangle = kSystem;         // after: tile [tokens][tokens]
  static constexpr int kInverse = kSystem + kTokens * kSystemStride * 4;  // f32 [tokens][tokens]
  static constexpr int kBytes = kInverse + kTokens * kTokens * 4;
};

__device__ __forceinline__ float2 Two(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ __forceinline__ float FastSigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

// v of two channels, mixed with the first mixer's.
__device__ __forceinline__ float2 MixedValue(const Rwkv7Params& p, long long at) {
  float2 v = Two(p.v + at);
  if (p.value_mix != nullptr) {
    const float2 mix = Two(p.value_mix + at);
    const float2 first = Two(p.first_value + at);
    v.x = fmaf(FastSigmoid(mix.x), first.x - v.x, v.x);
    v.y = fmaf(FastSigmoid(mix.y), first.y - v.y, v.y);
  }
  return v;
}

// Sums of each half of the chunk for itself; tokens and channels that are not there add nothing.
__device__ __forceinline__ void PutLogarithms(const Rwkv7Params& p, const DeltaPlace& place,
                                              float* logarithms) {
  constexpr float kRate = -kRwkv7DecayScale * kLog2E;
  const int channel = static_cast<int>(threadIdx.x) % kDim;
  const int first = static_cast<int>(threadIdx.x) / kDim * (kTokens / 2);
  const bool inside = channel < p.head_dim;
  const float* from = p.decay + static_cast<long long>(place.first_row) * p.stride +
                      place.head * p.head_dim + channel;
  float sum = 0;
#pragma unroll 8
  for (int token = first; token < first + kTokens / 2; ++token) {
    if (inside && token < place.tokens) {
      sum = fmaf(kRate, FastSigmoid(from[static_cast<long long>(token) * p.stride]), sum);
    }
    logarithms[token * kSystemStride + channel] = sum;
  }
}

// The rows of a warp's tokens, two channels per lane.
__device__ __forceinline__ void PutRows(const Rwkv7ChunkParams& c, const DeltaPlace& place,
                                        unsigned char* shared, __nv_bfloat16* record) {
  const Rwkv7Params& p = c.mixer;
  const float* logarithms = reinterpret_cast<const float*>(shared + InputLayout::kLogarithms);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int channel = 2 * lane;
  const bool inside = channel < p.head_dim;
  const int of_vectors = place.head * p.head_dim + channel;
  const float2 zero = make_float2(0, 0);
  const float2 key_scale = inside ? Two(p.key_scale + of_vectors) : zero;
  const float2 key_rate = inside ? Two(p.key_rate + of_vectors) : zero;
  const float2 bonus = inside ? Two(p.bonus + of_vectors) : zero;
  const float2 half = Two(logarithms + (kTokens / 2 - 1) * kSystemStride + channel);
  const auto sum_of = [&](int token) {
    float2 sum = Two(logarithms + token * kSystemStride + channel);
    if (token >= kTokens / 2) sum.x += half.x, sum.y += half.y;
    return sum;
  };
  const float2 last = sum_of(kTokens - 1);
  if (warp == 0) {
    *reinterpret_cast<float2*>(c.keeps + place.index * kRwkv7Keeps + channel) =
        make_float2(Exp2(last.x), Exp2(last.y));
  }
#pragma unroll 2
  for (int i = 0; i < kTokens / 4; ++i) {
    const int token = warp * (kTokens / 4) + i;
    const bool used = inside && token < place.tokens;
    const long long at = static_cast<long long>(place.first_row + token) * p.stride + of_vectors;
    const float2 r = used ? Two(p.r + at) : zero;
    const float2 k = used ? Two(p.k + at) : zero;
    const float2 rate = used ? Two(p.rate + at) : zero;
    const float2 v = used ? MixedValue(p, at) : zero;
    float2 kappa = make_float2(k.x * key_scale.x, k.y * key_scale.y);
    const float2 alpha = make_float2(FastSigmoid(rate.x), FastSigmoid(rate.y));
    const float2 key = make_float2(k.x * (1.0f + (alpha.x - 1.0f) * key_rate.x),
                                   k.y * (1.0f + (alpha.y - 1.0f) * key_rate.y));
    const float length = sqrtf(WarpSum(kappa.x * kappa.x + kappa.y * kappa.y));
    const float own = WarpSum(r.x * key.x * bonus.x + r.y * key.y * bonus.y);
    if (lane == 0) c.own[place.index * kRwkv7Own + token] = own;
    const float factor = 1.0f / fmaxf(length, kRwkv7ShortestKey);
    kappa.x *= factor, kappa.y *= factor;
    const float2 sum = sum_of(token);
    const float2 before = token == 0 ? zero : sum_of(token - 1);
    const int offset = UnitOffset<kDim>(token, lane / 4) + lane % 4 * 4;
    const auto put = [&](int tile, float2 x, float2 logarithm) {
      const unsigned pair = PackBf16(x.x * Exp2(logarithm.x), x.y * Exp2(logarithm.y));
      if (tile >= 0) *reinterpret_cast<unsigned*>(shared + tile + offset) = pair;
      return pair;
    };
    const auto minus = [](float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); };
    const float2 removal = make_float2(alpha.x * kappa.x, alpha.y * kappa.y);
    const auto store = [&](int matrix, unsigned pair) {
      *reinterpret_cast<unsigned*>(record + matrix + token * kDim + channel) = pair;
    };
    put(InputLayout::kKappa, kappa, before);
    store(Record::kQueries, put(InputLayout::kAnswers, r, sum));
    put(InputLayout::kKeys, key, minus(zero, sum));
    put(InputLayout::kRemovals, removal, minus(zero, sum));
    put(InputLayout::kAdding, key, minus(last, sum));
    store(Record::kKeys, put(-1, removal, minus(last, sum)));
    put(InputLayout::kValues, v, zero);
  }
}

// Coefficients of a warp's sixteen tokens with all up to them: those of v times v, negative for
// kappa, to the tile of B v and to `answers`; those of u to the system and the scores.
__device__ __forceinline__ void PutProducts(unsigned char* shared, __nv_bfloat16* scores,
                                            float* answers) {
  const unsigned tiles = SharedAddress(shared);
  float* system = reinterpret_cast<float*>(shared + InputLayout::kSystem);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  unsigned kappa[kDim / 16][4];
  unsigned r[kDim / 16][4];
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    LoadA<kDim>(kappa[k], tiles + InputLayout::kKappa, warp * 16, 2 * k, lane);
    LoadA<kDim>(r[k], tiles + InputLayout::kAnswers, warp * 16, 2 * k, lane);
  }
  float of_values[kDim / 8][4] = {};
  float y[kDim / 8][4] = {};
#pragma unroll 1
  for (int block = 0; block < kTokens / 16; ++block) {
    if (block > warp) {
      // Scores of later tokens.
      for (int row = 0; row < 2; ++row) {
        for (int n = 0; n < 2; ++n) {
          PutPair(scores + (warp * 16 + g + 8 * row) * kTokens + block * 16 + n * 8 + 2 * t, 0, 0);
        }
      }
      continue;
    }
    const auto multiply = [&](int tile, float(&of_kappa)[2][4], float(&of_r)[2][4]) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        unsigned b[4];
        LoadB<kDim>(b, tiles + tile, block * 16, 2 * k, lane);
        MmaPair(of_kappa[0], of_kappa[1], kappa[k], b);
        MmaPair(of_r[0], of_r[1], r[k], b);
      }
      if (block < warp) return;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = g + e / 2 * 8;
          const int column = n * 8 + 2 * t + e % 2;
          if (column >= row) of_kappa[n][e] = 0;
          if (column > row) of_r[n][e] = 0;
        }
      }
    };
    float of_kappa[2][4] = {};
    float of_r[2][4] = {};
    multiply(InputLayout::kKeys, of_kappa, of_r);
    const auto packed = [](const float(&x)[2][4], unsigned(&a)[4]) {
      a[0] = PackBf16(x[0][0], x[0][1]), a[1] = PackBf16(x[0][2], x[0][3]);
      a[2] = PackBf16(x[1][0], x[1][1]), a[3] = PackBf16(x[1][2], x[1][3]);
    };
    unsigned a_kappa[4];
    unsigned a_r[4];
    packed(of_kappa, a_kappa);
    packed(of_r, a_r);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned b[4];
      LoadBTransposed<kDim>(b, tiles + InputLayout::kValues, block * 16, 2 * n, lane);
      MmaPair(of_values[2 * n], of_values[2 * n + 1], a_kappa, b);
      MmaPair(y[2 * n], y[2 * n + 1], a_r, b);
    }
    float by_removal[2][4] = {};
    float answered[2][4] = {};
    multiply(InputLayout::kRemovals, by_removal, answered);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int token = warp * 16 + g + 8 * row;
        const int column = block * 16 + n * 8 + 2 * t;
        system[column * kSystemStride + token] = by_removal[n][2 * row];
        system[(column + 1) * kSystemStride + token] = by_removal[n][2 * row + 1];
        PutPair(scores + token * kTokens + column, answered[n][2 * row], answered[n][2 * row + 1]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      *reinterpret_cast<unsigned*>(shared + InputLayout::kOfValues +
                                   UnitOffset<kDim>(warp * 16 + g + 8 * row, n) + 4 * t) =
          PackBf16(-of_values[n][2 * row], -of_values[n][2 * row + 1]);
    }
    *reinterpret_cast<float4*>(answers + (warp * (kDim / 8) + n) * kAddedTile + 4 * lane) =
        make_float4(y[n][0], y[n][1], y[n][2], y[n][3]);
  }
}

// What a chunk adds to the state by k v^T: sixteen rows of the state.
__device__ __forceinline__ void PutAdded(unsigned tiles, int row_tile, float* added) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kDim / 8][4] = {};
#pragma unroll
  for (int k = 0; k < kTokens / 16; ++k) {
    unsigned a[4];
    LoadATransposed<kDim>(a, tiles + InputLayout::kAdding, k * 16, row_tile * 2, lane);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned b[4];
      LoadBTransposed<kDim>(b, tiles + InputLayout::kValues, k * 16, 2 * n, lane);
      MmaPair(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    *reinterpret_cast<float4*>(added + (row_tile * (kDim / 8) + n) * kAddedTile + 4 * lane) =
        make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
  }
}

// Where a chunk's two kinds of sums lie: answers of all chunks and heads behind what they add.
__device__ __forceinline__ float* AnswersOf(const Rwkv7ChunkParams& c, long long index) {
  return c.sums + (2LL * c.piece_count * c.mixer.heads + index) * (kDim * kDim);
}

__global__ void __launch_bounds__(kThreads)
    Rwkv7InputKernel(const __grid_constant__ Rwkv7ChunkParams c) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned tiles = SharedAddress(shared);
  float* system = reinterpret_cast<float*>(shared + InputLayout::kSystem);
  float* inverse = reinterpret_cast<float*>(shared + InputLayout::kInverse);
  const int thread = static_cast<int>(threadIdx.x);
  PdlWait();
  PdlTrigger();
  const DeltaPlace place = FindDeltaPlace(c.pieces, c.mixer.heads);
  if (place.tokens <= 0) return;
  __nv_bfloat16* record = c.records + place.index * kRwkv7Record;
  PutLogarithms(c.mixer, place, reinterpret_cast<float*>(shared + InputLayout::kLogarithms));
  __syncthreads();
  PutRows(c, place, shared, record);
  __syncthreads();
  PutProducts(shared, record + Record::kScores, AnswersOf(c, place.index));
  __syncthreads();
  if (thread < kTokens) {
    Solve(system, inverse, thread);
  } else {
    float* added = c.sums + place.index * (kDim * kDim);
    for (int row_tile = thread / 32 - 2; row_tile < kDim / 16; row_tile += 2) {
      PutAdded(tiles, row_tile, added);
    }
  }
  __syncthreads();
  PutTile(inverse, shared + InputLayout::kTriangle, [](int) { return 1.0f; });
  __syncthreads();
  MultiplyTile<kDim>(tiles + InputLayout::kTriangle, tiles + InputLayout::kOfValues, 0,
                     record + Record::kValues, kDim);
  MultiplyTile<kDim>(tiles + InputLayout::kTriangle, tiles + InputLayout::kKappa, 0,
                     record + Record::kPast, kDim);
}

__global__ void __launch_bounds__(kThreads)
    Rwkv7OutputKernel(const __grid_constant__ Rwkv7ChunkParams c) {
  __shared__ __align__(128) unsigned char shared[4 * kTileBytes];  // queries, scores, state, -u
  const Rwkv7Params& p = c.mixer;
  const unsigned tiles = SharedAddress(shared);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int t = lane % 4;
  PdlWait();
  PdlTrigger();
  const DeltaPlace place = FindDeltaPlace(c.pieces, c.mixer.heads);
  if (place.tokens <= 0) return;
  const __nv_bfloat16* record = c.records + place.index * kRwkv7Record;
  CopyRows<kDim>(tiles, record + Record::kQueries, kTokens, kDim);
  CopyRows<kTokens>(tiles + kTileBytes, record + Record::kScores, kTokens, kTokens);
  CopyRows<kDim>(tiles + 2 * kTileBytes, record + Record::State(kDim), kDim, kDim);
  CopyRows<kDim>(tiles + 3 * kTileBytes, record + Record::kValues, kTokens, kDim);
  CopyCommit();
  float y[kDim / 8][4];
  const float* answers = AnswersOf(c, place.index);
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const float4 four =
        *reinterpret_cast<const float4*>(answers + (warp * (kDim / 8) + n) * kAddedTile + 4 * lane);
    y[n][0] = four.x, y[n][1] = four.y, y[n][2] = four.z, y[n][3] = four.w;
  }
  CopyWait<0>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    unsigned a[4];
    LoadA<kDim>(a, tiles, warp * 16, 2 * k, lane);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned b[4];
      LoadBTransposed<kDim>(b, tiles + 2 * kTileBytes, k * 16, 2 * n, lane);
      MmaPair(y[2 * n], y[2 * n + 1], a, b);
    }
  }
#pragma unroll
  for (int k = 0; k < kTokens / 16; ++k) {
    if (k > warp) break;  // scores of later tokens are 0
    unsigned a[4];
    LoadA<kTokens>(a, tiles + kTileBytes, warp * 16, 2 * k, lane);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      unsigned b[4];
      LoadBTransposed<kDim>(b, tiles + 3 * kTileBytes, k * 16, 2 * n, lane);
      MmaPair(y[2 * n], y[2 * n + 1], a, b);
    }
  }
  const float size = 1.0f / static_cast<float>(p.head_dim);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    // Columns behind head_dim are 0 before the norm.
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) sum += y[n][2 * row] + y[n][2 * row + 1];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float mean = sum * size;
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= p.head_dim) break;
      const float first = y[n][2 * row] - mean;
      const float second = y[n][2 * row + 1] - mean;
      squares = fmaf(first, first, fmaf(second, second, squares));
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    const float factor = rsqrtf(squares * size + p.norm_eps);
    const int token = warp * 16 + lane / 4 + 8 * row;
    if (token >= place.tokens) continue;
    const float own = c.own[place.index * kRwkv7Own + token];
    const long long of_row = place.first_row + token;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= p.head_dim) break;
      const int at = place.head * p.head_dim + n * 8 + 2 * t;
      const float2 v = MixedValue(p, of_row * p.stride + at);
      const float2 gate = Two(p.gate + of_row * p.stride + at);
      const float2 weight = p.norm_weight == nullptr ? make_float2(1, 1) : Two(p.norm_weight + at);
      const float2 bias = p.norm_bias == nullptr ? make_float2(0, 0) : Two(p.norm_bias + at);
      const auto finish = [&](float x, float of_weight, float of_bias, float of_v, float of_gate) {
        return (fmaf((x - mean) * factor, of_weight, of_bias) + own * of_v) * of_gate;
      };
      PutPair(c.output + of_row * c.output_stride + at,
              finish(y[n][2 * row], weight.x, bias.x, v.x, gate.x),
              finish(y[n][2 * row + 1], weight.y, bias.y, v.y, gate.y));
    }
  }
}

}  // namespace

bool Rwkv7ChunksSupport(int head_dim) {
  return head_dim % 8 == 0 && head_dim <= kMostRwkv7ChunkDim;
}

void LaunchRwkv7Chunks(const Rwkv7ChunkParams& params, cudaStream_t stream) {
  const Rwkv7Params& p = params.mixer;
  const dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(2 * params.piece_count));
  AllowSharedMemory(Rwkv7InputKernel, InputLayout::kBytes);
  Launch("the kernel of inputs of RWKV-7's rule", Rwkv7InputKernel, grid, dim3(kThreads),
         InputLayout::kBytes, stream, params);
  GatedDeltaChunkParams delta;
  delta.mixer.key_heads = delta.mixer.value_heads = p.heads;
  delta.mixer.key_dim = delta.mixer.value_dim = p.head_dim;
  delta.mixer.state_offset = p.state_offset;
  delta.mixer.runs = p.runs;
  delta.mixer.run_count = p.run_count;
  delta.first_pieces = params.first_pieces;
  delta.records = params.records;
  delta.keeps = params.keeps;
  LaunchDeltaPassAdding(delta, params.sums, stream);
  Launch("the kernel of answers of RWKV-7's rule", Rwkv7OutputKernel, grid, dim3(kThreads), 0,
         stream, params);
}

}  // namespace adder::cuda
