// Attention of one token per run over bf16 keys and values: norms of heads, rotation, append,
// attention and the merge of its parts in one kernel, on tensor cores.
//
// A block of 4 teams owns one row (token) and one KV head with up to kMostHeads of its query heads.
// A team is a warp, or, where heads are wider than a warp's registers can hold, two: each
// multiplies one half of the dimensions, and they add up their scores in shared memory. The
// positions up to the row's own are cut into tiles of 16; of all teams of all blocks that share row
// and heads, every one takes every so-manieth tile and keeps an online softmax. Teams merge through
// shared memory; the blocks of a cluster push their results into the first one's shared memory. For
// long contexts there are several such units of one cluster each, which leave their results in
// scratch memory, and the last to arrive adds them up.
//
// With lane = 4 g + t, mma.m16n8k16 is used as follows. Matrix dimensions may come in any order as
// long as both operands agree, so every operand is what one lane loads as 16 contiguous bytes.
//   scores: rows g are the query heads' upper halves as bf16, rows g + 8 the lower halves (their
//     sum is nearly f32); columns g are positions; dimensions 32 j + 8 t .. + 7 of each belong to
//     a lane. The row behind the last query head is the row's own key, only to be rotated.
//   values: rows as before, of the softmax's weights; depth positions 2 t, 2 t + 1, 2 t + 8,
//     2 t + 9 of the tile; column g of the n-th of eight products is dimension 64 c + 8 g + n.
//
// Phases: (1) the first tile's keys and values are loaded, sines and cosines put into shared
// memory, and weights of norms; (2) PdlWait; (3) every warp loads, norms and rotates queries and
// key; (4) tiles: the team that takes the last one puts the own key and value into its registers
// and appends them to the page, from which nobody reads them here; (5) merges. Preconditions: as
// TakesStep.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_step.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kTeams = 4;
constexpr int kMostHeads = 7;
constexpr int kTile = 16;  // positions
constexpr int kMostClusterShift = 3;
constexpr int kBlockShift = 8;  // logarithm of a block's positions before there are more units
// To keep a device busy; of blocks in clusters fewer are resident at once.
constexpr int kEnoughBlocks = 528;
constexpr int kEnoughClusterBlocks = 264;
constexpr size_t kMostSharedBytes = 48 * 1024;
constexpr size_t kMostSharedBytesOfPairs = 96 * 1024;
constexpr float kLowest = -1e30f;  // below every score, and finite: differences stay numbers
constexpr unsigned kAll = 0xffffffffu;
// Floats in which teams of two warps exchange scores: twice, so that one barrier per tile suffices.
constexpr int kExchangeFloats = 2 * kTeams * 2 * 32 * 8;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two bf16 numbers, the first in the lower half.
__device__ __forceinline__ unsigned Pack(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  return pair;
}
__device__ __forceinline__ float First(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float Second(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
// What rounding to `pair` left over.
__device__ __forceinline__ unsigned PackRest(float first, float second, unsigned pair) {
  return Pack(first - First(pair), second - Second(pair));
}

// sum += a b. a: {rows g, rows g + 8} of depth 2 t, 2 t + 1, then of depth 2 t + 8, 2 t + 9.
__device__ __forceinline__ void Multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned& Word(uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Sine and cosine of a pair's angle, which is rounded to f32 first, as in the references. Whole
// turns are taken off in double precision, so no position is too large.
__device__ __forceinline__ float2 Rotation(const AttentionParams& p, int position, int pair) {
  const float angle = static_cast<float>(position) * p.inverse_frequencies[pair];
  const double turns = static_cast<double>(angle) * 0.15915494309189535;
  float2 rotation;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &rotation.x, &rotation.y);
  return rotation;
}

// ---- results of some positions: per head [largest, sum, values[head_dim]], scores being
// logarithms to base 2

struct Merged {
  float largest;
  float sum;
  float2 values;
};
// Elements d and d + 1 of the sum of `count` results of one head, `stride` floats apart. kGlobal:
// other blocks wrote them to global memory.
template <bool kGlobal>
__device__ __forceinline__ Merged Merge(const float* results, int count, int stride, int d) {
  const auto load = [](const float* from) {
    const float2* pair = reinterpret_cast<const float2*>(from);
    return kGlobal ? __ldcg(pair) : *pair;
  };
  Merged merged = {kLowest, 0, {0, 0}};
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    merged.largest = fmaxf(merged.largest, load(results + i * stride).x);
  }
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float2 of = load(results + i * stride);
    const float2 values = load(results + i * stride + 2 + d);
    const float scale = Exp2(of.x - merged.largest);
    merged.sum = fmaf(scale, of.y, merged.sum);
    merged.values.x = fmaf(scale, values.x, merged.values.x);
    merged.values.y = fmaf(scale, values.y, merged.values.y);
  }
  return merged;
}

// Between the two warps of a team.
__device__ __forceinline__ void TeamBarrier(int team) {
  asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory");
}

// How a launch is spread over the device.
struct Spread {
  int cluster_shift;  // blocks of a unit, as all shifts: its logarithm to base 2
  int unit_shift;     // positions, before there are more units than one
  int page_shift;     // page_positions
  int group;          // query heads of a KV head
  int owners;         // blocks that share a KV head's query heads
  int heads;          // query heads of a block, but for a KV head's last block
};

// Between rows of norms' weights, beyond head_dim: lanes of neighbouring heads then read different
// banks.
constexpr int kNormPad = 4;

// Floats of dynamic shared memory: rotations, if heads are normed the weights for each query head
// and for the key, results of teams (in their place before: exchanged scores) and, with clusters,
// of blocks.
__host__ __device__ int TeamFloats(int heads, int head_dim, bool pairs) {
  const int results = kTeams * heads * (head_dim + 2);
  return pairs && results < kExchangeFloats ? kExchangeFloats : results;
}
int SharedFloats(int heads, int head_dim, int cluster, bool normed, bool pairs) {
  const int of_blocks = cluster > 1 ? cluster * heads * (head_dim + 2) : 0;
  return head_dim + TeamFloats(heads, head_dim, pairs) + of_blocks +
         (normed ? (heads + 1) * (head_dim + kNormPad) : 0);
}

// kChunks: what a warp has of head_dim, in units of 64, rounded up. kTeam: warps of a team.
// kNormed: heads of q or of k are normed, or there is an output gate or a window; most models have
// none of them.
template <int kChunks, int kTeam, bool kNormed>
__global__ void __launch_bounds__(kTeams* kTeam * 32, kChunks == 1 ? 4 : 2 / kTeam)
    AttentionStepKernel(const __grid_constant__ AttentionParams p, const Spread spread) {
  constexpr int kSlices = 2 * kChunks;  // of 32 dimensions
  constexpr int kWarps = kTeams * kTeam;
  constexpr int kThreads = kWarps * 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int team = warp % kTeams;
  const int side = kTeam == 1 ? 0 : warp / kTeams;
  const int first_dim = side * 64 * kChunks;  // of this warp
  const int head_dim = p.head_dim;
  const int kv_head = static_cast<int>(blockIdx.y) / spread.owners;
  const int first_in_group =
      (static_cast<int>(blockIdx.y) - kv_head * spread.owners) * spread.heads;
  const int heads = min(spread.heads, spread.group - first_in_group);
  const int first_head = kv_head * spread.group + first_in_group;
  const SequenceRun run = p.runs[blockIdx.z];
  const int cluster = 1 << spread.cluster_shift;
  const int unit = static_cast<int>(blockIdx.x) >> spread.cluster_shift;
  const int rank = static_cast<int>(blockIdx.x) & (cluster - 1);
  const int units = min(static_cast<int>(gridDim.x) >> spread.cluster_shift,
                        1 + (run.position >> spread.unit_shift));
  if (unit >= units) return;

  extern __shared__ float4 shared_memory[];
  float2* rotations = reinterpret_cast<float2*>(shared_memory);
  const int norm_stride = head_dim + kNormPad;
  float* norm_weights = reinterpret_cast<float*>(shared_memory) + head_dim;
  float* of_teams = norm_weights + (kNormed ? (spread.heads + 1) * norm_stride : 0);
  const int stride = head_dim + 2;  // of a head's result
  float* of_blocks = of_teams + TeamFloats(spread.heads, head_dim, kTeam > 1);

  const int first_position = kNormed && p.window > 0 ? max(0, run.position + 1 - p.window) : 0;
  const int last_tile = run.position >> 4;
  const int tile_step = (units << spread.cluster_shift) * kTeams;
  const long long to_values = static_cast<long long>(p.kv_heads) * p.page_positions * head_dim;
  // Keys of the KV head from a tile's first position on; a tile lies in one page.
  const auto keys_of = [&](int tile) {
    const int begin = tile * kTile;
    return reinterpret_cast<__nv_bfloat16*>(run.pages[begin >> spread.page_shift] + p.kv_offset) +
           (static_cast<long long>(kv_head) * p.page_positions + (begin & (p.page_positions - 1))) *
               head_dim;
  };
  uint4 k[2][kSlices];  // positions g and g + 8
  uint4 v[4][kChunks];  // positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9
  const auto load = [&](const __nv_bfloat16* from, int cached, int d) {
    return cached > 0 && d < head_dim ? *reinterpret_cast<const uint4*>(from + d)
                                      : make_uint4(0, 0, 0, 0);
  };
  const auto load_keys = [&](const __nv_bfloat16* keys, int tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = g + 8 * i;
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        k[i][j] = load(keys + at * head_dim, run.position - tile * kTile - at,
                       first_dim + 32 * j + 8 * t);
      }
    }
  };
  const auto load_values = [&](const __nv_bfloat16* values, int tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 2 * t + i % 2 + i / 2 * 8;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        v[i][c] = load(values + at * head_dim, run.position - tile * kTile - at,
                       first_dim + 64 * c + 8 * g);
      }
    }
  };
  int tile = (first_position >> 4) + static_cast<int>(blockIdx.x) * kTeams + team;
  if (tile <= last_tile) {
    const __nv_bfloat16* keys = keys_of(tile);
    load_keys(keys, tile);
    load_values(keys + to_values, tile);
  }
  const int half = p.inverse_frequencies == nullptr ? 0 : p.rotary_dim / 2;
  for (int pair = static_cast<int>(threadIdx.x); pair < half; pair += kThreads) {
    rotations[pair] = Rotation(p, run.position, pair);
  }
  if constexpr (kNormed) {
    for (int i = static_cast<int>(threadIdx.x); i < (heads + 1) * head_dim; i += kThreads) {
      const bool of_key = i >= heads * head_dim;
      const HeadNorm& norm = of_key ? p.k_norm : p.q_norm;
      const int at = of_key ? i + (kv_head - heads) * head_dim : i + first_head * head_dim;
      norm_weights[i + i / head_dim * kNormPad] =
          norm.weight == nullptr ? 1.0f : norm.weight[at % norm.size];
    }
  }
  // Row g: a query head, the key, or nothing.
  const float* qkv = p.qkv + static_cast<long long>(run.row) * p.qkv_stride;
  const float* from = qkv + (g < heads ? first_head + g : p.heads + kv_head) * head_dim;
  const float* own_value = qkv + (p.heads + p.kv_heads + kv_head) * head_dim + first_dim + 8 * g;
  float factor = g < heads ? p.scale * 1.44269504f : 1.0f;
  float* output = p.output + static_cast<long long>(run.row) * p.output_stride +
                  static_cast<long long>(first_head) * head_dim;
  ReadyBeforeWait(from);
  ReadyBeforeWait(own_value);
  ReadyBeforeWait(factor);
  uint16_t* rounded = p.rounded_output == nullptr
                          ? nullptr
                          : p.rounded_output +
                                static_cast<long long>(run.row) * p.rounded_output_stride +
                                static_cast<long long>(first_head) * head_dim;
  ReadyBeforeWait(output);
  ReadyBeforeWait(rounded);
  if (cluster > 1) ClusterArrive();  // its wait proves that all blocks have begun
  __syncthreads();

  PdlWait();
  PdlTrigger();
  // What the end needs: on its way to the first cache meanwhile.
  if (kNormed && p.output_gate && rank == 0) {
    const float* gates = qkv + (p.heads + 2 * p.kv_heads + first_head) * head_dim;
    for (int i = static_cast<int>(threadIdx.x) * 32; i < heads * head_dim; i += kThreads * 32) {
      asm volatile("prefetch.global.L1 [%0];" ::"l"(gates + i));
    }
  }
  uint4 own_v[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (first_dim + 64 * c + 8 * g >= head_dim) continue;
    const float4 low = *reinterpret_cast<const float4*>(own_value + 64 * c);
    const float4 high = *reinterpret_cast<const float4*>(own_value + 64 * c + 4);
    own_v[c] = {Pack(low.x, low.y), Pack(low.z, low.w), Pack(high.x, high.y), Pack(high.z, high.w)};
  }
  const float* norm_weight = norm_weights + min(g, heads) * norm_stride;
  if constexpr (kNormed) {
    const HeadNorm& norm = g < heads ? p.q_norm : p.k_norm;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kTeam * kSlices; ++j) {
      const int d = 32 * j + 8 * t;
      if (g > heads || d >= head_dim) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 x = reinterpret_cast<const float4*>(from + d)[i];
        squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
      }
    }
    squares += __shfl_xor_sync(kAll, squares, 1);
    squares += __shfl_xor_sync(kAll, squares, 2);
    // A rotation changes no length: the factor of the norm is the same before it and behind it.
    if (norm.weight != nullptr) {
      factor *= rsqrtf(squares / static_cast<float>(head_dim) + norm.eps);
    }
  }
  unsigned q[kSlices][2][4];  // two operands of the first factor per slice
#pragma unroll
  for (int j = 0; j < kSlices; ++j) {
    const int d = first_dim + 32 * j + 8 * t;
    float x[8] = {};
    if (g <= heads && d < head_dim) {
      // Dimensions d .. d + 7 and those that they rotate with.
      const bool rotates = d < 2 * half;
      const bool upper = d >= half;
      const int pair = upper ? d - half : d;
      const float4* mine = reinterpret_cast<const float4*>(from + d);
      const int partner = upper ? pair : d + half;
      const float4* other = reinterpret_cast<const float4*>(from + partner);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four = mine[i];
        x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
      }
      const auto weigh = [&] {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 weight = reinterpret_cast<const float4*>(norm_weight + d)[i];
          x[4 * i] *= weight.x, x[4 * i + 1] *= weight.y;
          x[4 * i + 2] *= weight.z, x[4 * i + 3] *= weight.w;
        }
      };
      if (kNormed && !p.norm_after_rotation) weigh();
      if (rotates) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 two = reinterpret_cast<const float2*>(other)[i];
          if (kNormed && !p.norm_after_rotation) {
            const float2 weight = reinterpret_cast<const float2*>(norm_weight + partner)[i];
            two.x *= weight.x, two.y *= weight.y;
          }
          const float4 turn = reinterpret_cast<const float4*>(rotations + pair)[i];
          x[2 * i] = x[2 * i] * turn.y + (upper ? two.x : -two.x) * turn.x;
          x[2 * i + 1] = x[2 * i + 1] * turn.w + (upper ? two.y : -two.y) * turn.z;
        }
      }
      if (kNormed && p.norm_after_rotation) weigh();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = x[2 * i] * factor;
      const float second = x[2 * i + 1] * factor;
      unsigned(&operand)[4] = q[j][i / 2];
      operand[i % 2 * 2] = Pack(first, second);
      operand[i % 2 * 2 + 1] = PackRest(first, second, operand[i % 2 * 2]);
    }
  }

  float largest = kLowest;  // of head g
  float sum = 0;            // of head g, this lane's positions
  float values[kChunks][8][4] = {};
  int parity = 0;
#pragma unroll 1
  for (; tile <= last_tile; tile += tile_step) {
    if (tile == last_tile) {
      __nv_bfloat16* keys = keys_of(tile);
      const int own = run.position & (kTile - 1);
      const bool appends = first_in_group == 0;
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        // From the row of the key.
        uint4 words;
        words.x = __shfl_sync(kAll, q[j][0][0], heads * 4 + t);
        words.y = __shfl_sync(kAll, q[j][0][2], heads * 4 + t);
        words.z = __shfl_sync(kAll, q[j][1][0], heads * 4 + t);
        words.w = __shfl_sync(kAll, q[j][1][2], heads * 4 + t);
        const int d = first_dim + 32 * j + 8 * t;
        if (own == g) k[0][j] = words;
        if (own == g + 8) k[1][j] = words;
        if (appends && g == 0 && d < head_dim) {
          *reinterpret_cast<uint4*>(keys + own * head_dim + d) = words;
        }
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int d = first_dim + 64 * c + 8 * g;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (own == 2 * t + i % 2 + i / 2 * 8) v[i][c] = own_v[c];
        }
        if (appends && t == 0 && d < head_dim) {
          *reinterpret_cast<uint4*>(keys + to_values + own * head_dim + d) = own_v[c];
        }
      }
    }
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        Multiply(scores[i], q[j][0], k[i][j].x, k[i][j].y);
        Multiply(scores[i], q[j][1], k[i][j].z, k[i][j].w);
      }
    }
    if constexpr (kTeam == 2) {
      float4* exchange =
          reinterpret_cast<float4*>(of_teams) + (parity * kTeams + team) * 128 + lane;
      parity ^= 1;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        exchange[(2 * side + i) * 32] =
            make_float4(scores[i][0], scores[i][1], scores[i][2], scores[i][3]);
      }
      TeamBarrier(team);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 other = exchange[(2 * (side ^ 1) + i) * 32];
        scores[i][0] += other.x, scores[i][1] += other.y;
        scores[i][2] += other.z, scores[i][3] += other.w;
      }
    }
    const bool more = tile + tile_step <= last_tile;
    const __nv_bfloat16* keys = more ? keys_of(tile + tile_step) : nullptr;
    if (more) load_keys(keys, tile + tile_step);
    // Softmax of this lane's four positions and head.
    float weights[4];
    float most = largest;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 2 * t + i % 2 + i / 2 * 8;
      const float score = scores[i / 2][i % 2] + scores[i / 2][i % 2 + 2];
      const int position = tile * kTile + at;
      weights[i] = position <= run.position && position >= first_position ? score : kLowest;
      most = fmaxf(most, weights[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
    const float keep = Exp2(largest - most);
    largest = most;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = Exp2(weights[i] - most);
      sum += weights[i];
    }
    unsigned operand[4];
    operand[0] = Pack(weights[0], weights[1]);
    operand[1] = PackRest(weights[0], weights[1], operand[0]);
    operand[2] = Pack(weights[2], weights[3]);
    operand[3] = PackRest(weights[2], weights[3], operand[2]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[c][n][i] *= keep;
        // Dimension n of two positions each.
        const unsigned halves = n % 2 == 0 ? 0x5410 : 0x7632;
        Multiply(values[c][n], operand,
                 __byte_perm(Word(v[0][c], n / 2), Word(v[1][c], n / 2), halves),
                 __byte_perm(Word(v[2][c], n / 2), Word(v[3][c], n / 2), halves));
      }
    }
    if (more) load_values(keys + to_values, tile + tile_step);
  }

  sum += __shfl_xor_sync(kAll, sum, 1);
  sum += __shfl_xor_sync(kAll, sum, 2);
  if (kTeam > 1) __syncthreads();  // nobody exchanges scores any more
  if (g < heads) {
    float* result = of_teams + (team * spread.heads + g) * stride;
    if (t == 0 && side == 0) *reinterpret_cast<float2*>(result) = make_float2(largest, sum);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = first_dim + 64 * c + 16 * t + 8 * i;
        if (d >= head_dim) continue;
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          *reinterpret_cast<float2*>(result + 2 + d + n) = make_float2(
              values[c][n][i] + values[c][n][i + 2], values[c][n + 1][i] + values[c][n + 1][i + 2]);
        }
      }
    }
  }
  if (cluster > 1) ClusterWait();
  __syncthreads();

  // Every two elements of every head are merged by one thread, a head by one warp.
  const auto for_each_pair = [&](auto visit) {
#pragma unroll 1
    for (int h = warp; h < heads; h += kWarps) {
#pragma unroll 1
      for (int d = 2 * lane; d < head_dim; d += 64) visit(h, d);
    }
  };
  const int heads_stride = spread.heads * stride;
  const auto put = [&](int h, int d, const Merged& merged) {
    const float scale = __fdividef(1.0f, merged.sum);
    float2 value = make_float2(merged.values.x * scale, merged.values.y * scale);
    if (kNormed && p.output_gate) {
      const int at = (first_head + h) * head_dim + d;
      value.x *= OutputGate(p, run.row, at);
      value.y *= OutputGate(p, run.row, at + 1);
    }
    *reinterpret_cast<float2*>(output + h * head_dim + d) = value;
    if (rounded != nullptr) {
      *reinterpret_cast<__nv_bfloat162*>(rounded + h * head_dim + d) = __float22bfloat162_rn(value);
    }
  };
  // The first unit's result of a head in scratch memory.
  const auto scratch_of = [&](int h) {
    return p.partial + (static_cast<long long>(run.row) * p.heads + first_head + h) *
                           kMaxAttentionParts * stride;
  };
  const auto finish = [&](int h, int d, const Merged& merged) {
    if (units == 1) return put(h, d, merged);
    float* scratch = scratch_of(h) + unit * stride;
    if (d == 0) {
      __stcg(reinterpret_cast<float2*>(scratch), make_float2(merged.largest, merged.sum));
    }
    __stcg(reinterpret_cast<float2*>(scratch + 2 + d), merged.values);
  };
  for_each_pair([&](int h, int d) {
    const Merged merged = Merge<false>(of_teams + h * stride, kTeams, heads_stride, d);
    if (cluster == 1) {
      finish(h, d, merged);
      return;
    }
    float* to = of_blocks + rank * heads_stride + h * stride;
    if (d == 0) {
      StoreInFirst(reinterpret_cast<float2*>(to), make_float2(merged.largest, merged.sum));
    }
    StoreInFirst(reinterpret_cast<float2*>(to + 2 + d), merged.values);
  });
  if (cluster > 1) {
    ClusterArrive();
    ClusterWait();
    if (rank != 0) return;
    for_each_pair([&](int h, int d) {
      finish(h, d, Merge<false>(of_blocks + h * stride, cluster, heads_stride, d));
    });
  }
  if (units == 1) return;
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* arrivals = p.arrivals + static_cast<long long>(run.row) * gridDim.y + blockIdx.y;
    last = atomicAdd(arrivals, 1u) + 1 == static_cast<unsigned>(units);
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for_each_pair([&](int h, int d) { put(h, d, Merge<true>(scratch_of(h), units, stride, d)); });
}

}  // namespace

bool TakesAttentionStep(const AttentionParams& p) {
  const int rotary = p.inverse_frequencies == nullptr ? 0 : p.rotary_dim;
  const bool pages =
      p.page_positions % kTile == 0 && (p.page_positions & (p.page_positions - 1)) == 0;
  return p.kv_bf16 && pages && p.head_dim % 8 == 0 && p.head_dim <= kMaxAttentionHeadDim &&
         rotary % 16 == 0 && !PlacesHeads(p);
}

bool NormsWholeHeads(const AttentionParams& p) {
  const auto whole = [&](const HeadNorm& norm) {
    return norm.weight == nullptr || norm.part == p.head_dim;
  };
  return whole(p.q_norm) && whole(p.k_norm);
}

void LaunchFusedAttentionStep(const AttentionParams& params, cudaStream_t stream) {
  const bool normed = params.q_norm.weight != nullptr || params.k_norm.weight != nullptr ||
                      params.output_gate || params.window > 0;
  Spread spread = {};
  spread.group = params.heads / params.kv_heads;
  spread.owners = (spread.group + kMostHeads - 1) / kMostHeads;
  spread.heads = (spread.group + spread.owners - 1) / spread.owners;
  while (1 << spread.page_shift < params.page_positions) ++spread.page_shift;
  const bool pairs = params.head_dim > 128;
  const auto shared_bytes = [&] {
    return sizeof(float) *
           static_cast<size_t>(SharedFloats(spread.heads, params.head_dim,
                                            1 << spread.cluster_shift, normed, pairs));
  };
  // As many parts as the device has room for; rows before parts.
  const int blocks = params.kv_heads * spread.owners * params.run_count;
  spread.cluster_shift = DeviceHasClusters() ? kMostClusterShift : 0;
  while (spread.cluster_shift > 0 &&
         (blocks << spread.cluster_shift > kEnoughClusterBlocks ||
          shared_bytes() > (pairs ? kMostSharedBytesOfPairs : kMostSharedBytes))) {
    --spread.cluster_shift;
  }
  spread.unit_shift = kBlockShift + spread.cluster_shift;
  const int enough = spread.cluster_shift > 1 ? kEnoughClusterBlocks : kEnoughBlocks;
  const int units = std::clamp(enough / (blocks << spread.cluster_shift), 1, kMaxAttentionParts);
  const auto choose = [&]<bool kNormed>() {
    return params.head_dim <= 64    ? AttentionStepKernel<1, 1, kNormed>
           : params.head_dim <= 128 ? AttentionStepKernel<2, 1, kNormed>
                                    : AttentionStepKernel<2, 2, kNormed>;
  };
  const auto kernel =
      normed ? choose.template operator()<true>() : choose.template operator()<false>();
  if (shared_bytes() > kMostSharedBytes) {
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes())),
          "setting the attention step kernel's shared memory");
  }
  LaunchClusters("the attention step kernel", kernel,
                 dim3(static_cast<unsigned>(units << spread.cluster_shift),
                      static_cast<unsigned>(params.kv_heads * spread.owners),
                      static_cast<unsigned>(params.run_count)),
                 dim3(kTeams * 32 * (pairs ? 2 : 1)), dim3(1u << spread.cluster_shift),
                 shared_bytes(), stream, params, spread);
}

}  // namespace adder::cuda
