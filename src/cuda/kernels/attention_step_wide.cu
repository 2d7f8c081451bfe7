// Attention of one token per run over bf16 keys and values of wide heads, on tensor cores. Of
// latent attention keys are read once, as keys and as values, and what LatentPlaceKernel does is
// done here.
//
// A block of 8 warps owns one row (token) and one KV head with up to 8 kGroups of its query heads.
// Positions are cut into tiles of 32, which the blocks of a cluster, and of as many clusters
// (units) as a long context asks for, take in turn. Of a tile a warp multiplies every eighth slice
// of 16 dimensions of keys with queries that stay in its registers, as upper and lower bf16 halves
// in rows g and g + 8 of a product; the softmax of a head is one warp's, a lane per position; and
// of the weighted values a warp has every head's kColumns columns, again with weights in two
// halves. Results of a unit meet in the cluster, of whose blocks each owns as many columns: it is
// sent all others' for those. Of more units than one each owner leaves its columns in scratch
// memory, and the last to arrive of those with the same columns adds them up.
//
// Phases: (1) the first tile but for the row's own position is on its way to shared memory, sines
// and cosines are made; (2) PdlWait; (3) queries to registers, and in the block with the last tile
// the own key: of latent attention made here and put into the page, else read from there; (4) per
// tile: scores of warps meet in shared memory, barrier, softmax, barrier, weighted values; the next
// tile is loaded meanwhile where there is room for two; (5) merges. Barriers: one before a tile is
// used, behind which everybody is done with the one before. Preconditions: as Takes...;
// positions behind the own or before a window enter as zeros with weight 0, since pages hold
// anything there.
#include <algorithm>

#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_step_results.cuh"
#include "cuda/kernels/attention_step_wide.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rotation.cuh"
#include "cuda/kernels/sums.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 32;         // positions
constexpr int kScoreStride = 40;  // floats of a head's scores of a warp: rows in other banks
constexpr int kMostClusterShift = 3;
static_assert(1 << kMostClusterShift == kMostAttentionCluster);
constexpr int kEnoughBlocks = 132;  // to keep a device busy
// Tiles of a block up to which further units would cost more than they save.
constexpr int kTilesOfOneUnit = 3;
constexpr int kMostUnits = 16;
constexpr int kMostStages = 2;
constexpr float kLog2E = 1.44269504f;
constexpr int kMostDim = 512;  // of values
constexpr int kMostRope = 64;
constexpr int kLeastDim = 257;  // smaller heads: attention_step.cu, attention.cu

// How a launch is spread over the device.
struct WideSpread {
  int cluster_shift;  // blocks of a unit: logarithm to base 2
  int owners;         // blocks that share a KV head's query heads
  int heads;          // query heads of a block, but for a KV head's last block
  int stages;         // tiles that shared memory has room for
};

// kRope: elements of a key behind its value; 0: values lie apart. kGroups: of eight query heads.
// Sizes are rounded up to those that are compiled.
template <int kValueSize, int kRopeSize, int kGroupCount>
struct WideStep {
  static constexpr int kValueDim = kValueSize;
  static constexpr int kRope = kRopeSize;
  static constexpr int kGroups = kGroupCount;
  static constexpr bool kLatent = kRope > 0;
  static constexpr int kKeyDim = kValueDim + kRope;
  static constexpr int kHeads = 8 * kGroups;
  static constexpr int kKeySlices = kKeyDim / 16;
  static constexpr int kWarpSlices = (kKeySlices + kWarps - 1) / kWarps;
  static constexpr int kValueSlices = kValueDim / 16 / kWarps;  // a warp's slices before the rope
  static constexpr int kColumns = kValueDim / kWarps;           // of values, a warp's
  static constexpr int kKeyBytes = kTile * kKeyDim * 2;
  static constexpr int kStageBytes = kKeyBytes + (kLatent ? 0 : kTile * kValueDim * 2);
  static constexpr int kWeightBytes = 16 * kTile * 2;  // of a group
  static_assert(kValueDim % (16 * kWarps) == 0 && kRope % 16 == 0);

  // Dynamic shared memory, behind the stages.
  struct Shared {
    unsigned char weights[kGroups * kWeightBytes];  // [group][halves of 8 heads][position]
    float scores[kWarps][kHeads][kScoreStride];
    __nv_bfloat16 own_key[kKeyDim];
    float2 rotations[kMostRope / 2];
    float keep[kHeads];
    float of_warps[kWarps];
    float2 sent_scores[1 << kMostClusterShift][kHeads];
    // Of the columns that this block owns: [block of the unit][heads][quads].
    float4 sent_values[kHeads * kValueDim / 4];
    unsigned long long mailbox;
  };
  static size_t Bytes(int stages) {
    return static_cast<size_t>(stages * kStageBytes) + sizeof(Shared);
  }
};

// Elements r and r + 1, r even, of the `x` that is rotated.
__device__ __forceinline__ float2 Rotated(const AttentionParams& p, const float2* rotations,
                                          const float* x, int r) {
  const int half = p.inverse_frequencies == nullptr ? 0 : p.rotary_dim / 2;
  float2 pair = make_float2(x[r], x[r + 1]);
  if (r >= 2 * half) return pair;
  if (p.interleaved) {
    return Turned(rotations[r / 2], pair.x, pair.y);
  }
  const auto turn = [&](int i, float value) {
    const float2 by = rotations[i < half ? i : i - half];
    return i < half ? value * by.y - x[i + half] * by.x : value * by.y + x[i - half] * by.x;
  };
  return make_float2(turn(r, pair.x), turn(r + 1, pair.y));
}

template <class W>
__global__ void __launch_bounds__(kThreads, 1)
    WideStepKernel(const __grid_constant__ LatentPlaceParams place, const WideSpread spread) {
  constexpr int kKeyDim = W::kKeyDim;
  constexpr int kValueDim = W::kValueDim;
  constexpr int kGroups = W::kGroups;
  constexpr int kColumns = W::kColumns;
  using Shared = typename W::Shared;
  const AttentionParams& p = place.attention;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int cluster = 1 << spread.cluster_shift;
  const int rank = static_cast<int>(blockIdx.x) & (cluster - 1);
  const int share = static_cast<int>(blockIdx.x) >> spread.cluster_shift;
  const int group = p.heads / p.kv_heads;
  const int kv_head = share / spread.owners;
  const int first_in_group = (share - kv_head * spread.owners) * spread.heads;
  const int heads = min(spread.heads, group - first_in_group);
  const int first_head = kv_head * group + first_in_group;
  const SequenceRun run = p.runs[blockIdx.y];
  const long long row = run.row;
  const int first_position = p.window > 0 ? max(0, run.position + 1 - p.window) : 0;
  const int first_tile = first_position / kTile;
  const int tiles = run.position / kTile - first_tile + 1;
  const int unit = static_cast<int>(blockIdx.z);
  const int units = tiles <= kTilesOfOneUnit << spread.cluster_shift
                        ? 1
                        : min(static_cast<int>(gridDim.z), (tiles + cluster - 1) / cluster);
  if (unit >= units) return;
  const int blocks = units << spread.cluster_shift;
  const int index = (unit << spread.cluster_shift) + rank;
  const int count = index < tiles ? (tiles - 1 - index) / blocks + 1 : 0;  // of this block's tiles
  const int senders = min(cluster, tiles - (unit << spread.cluster_shift));
  const bool has_own = (tiles - 1) % blocks == index;

  extern __shared__ __align__(128) unsigned char stages[];
  Shared& shared = *reinterpret_cast<Shared*>(stages + spread.stages * W::kStageBytes);
  const unsigned base = SharedAddress(stages);
  const int own_quads = (kValueDim / 4) >> spread.cluster_shift;
  if (cluster > 1) {
    if (thread == 0) {
      OpenMailbox(&shared.mailbox, senders * heads *
                                       (own_quads * static_cast<int>(sizeof(float4)) +
                                        static_cast<int>(sizeof(float2))));
    }
    __syncwarp();
    ClusterArriveRelaxed();
  }

  const auto key_at = [&](int position) {
    return reinterpret_cast<__nv_bfloat16*>(run.pages[position / p.page_positions] + p.kv_offset) +
           (static_cast<long long>(kv_head) * p.page_positions + position % p.page_positions) *
               p.head_dim;
  };
  const long long to_values = static_cast<long long>(p.kv_heads) * p.page_positions * p.head_dim;
  // Sixteen bytes of a key of a tile, and of its value; zeros where the model's sizes end.
  const auto copy_unit = [&](int step, const __nv_bfloat16* key, bool inside, int r, int at) {
    const unsigned stage = base + step % spread.stages * W::kStageBytes;
    const int column = at * 8;
    if constexpr (W::kLatent) {
      const bool in_rope = column >= kValueDim;
      const int from = in_rope ? column - kValueDim + p.latent : column;
      const bool valid = inside && from < (in_rope ? p.head_dim : p.latent);
      CopyAsync(stage + UnitOffset<kKeyDim>(r, at), valid ? key + from : key, valid);
    } else {
      const bool valid = inside && column < p.head_dim;
      const __nv_bfloat16* from = valid ? key + column : key;
      CopyAsync(stage + UnitOffset<kKeyDim>(r, at), from, valid);
      CopyAsync(stage + W::kKeyBytes + UnitOffset<kValueDim>(r, at), from + to_values, valid);
    }
  };
  constexpr int kUnits = kKeyDim / 8;
  // This block's tile number `step`, but for the row's own position.
  const auto copy = [&](int step) {
    const int first = (first_tile + index + step * blocks) * kTile;
    const __nv_bfloat16* keys = key_at(first);
#pragma unroll 1
    for (int i = thread; i < kTile * kUnits; i += kThreads) {
      const int r = i / kUnits;
      const int position = first + r;
      if (position == run.position) continue;
      const bool inside = position >= first_position && position < run.position;
      copy_unit(step, inside ? keys + r * p.head_dim : keys, inside, r, i - r * kUnits);
    }
  };
  // The own position, if it is of that tile.
  const auto copy_own = [&](int step) {
    if (!has_own || step != count - 1 || thread >= kUnits) return;
    const int r = run.position % kTile;
    if constexpr (W::kLatent) {
      *reinterpret_cast<uint4*>(stages + step % spread.stages * W::kStageBytes +
                                UnitOffset<kKeyDim>(r, thread)) =
          reinterpret_cast<const uint4*>(shared.own_key)[thread];
    } else {
      copy_unit(step, key_at(run.position), true, r, thread);
    }
  };
  if (count > 0) copy(0);
  if (W::kLatent && p.inverse_frequencies != nullptr && thread < p.rotary_dim / 2) {
    shared.rotations[thread] = Rotation(p, run.position, thread);
  }
  __syncthreads();
  if (cluster > 1) ClusterWait();  // all blocks have begun, and opened their mailboxes

  PdlWait();
  PdlTrigger();
  // Queries: of a head and a slice, elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
  unsigned queries[kGroups][W::kWarpSlices][4];
  const int rope_dim = p.head_dim - p.latent;  // of latent attention
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    const int head = 8 * m + g;
    const float* q;
    const float* rope = nullptr;
    if constexpr (W::kLatent) {
      q = place.absorbed + row * place.absorbed_stride + (first_head + head) * p.latent;
      rope = place.query + row * place.query_stride +
             (first_head + head) * (place.nope_dim + rope_dim) + place.nope_dim;
    } else {
      q = p.qkv + row * p.qkv_stride + (first_head + head) * p.head_dim;
    }
    const int dims = W::kLatent ? p.latent : p.head_dim;
#pragma unroll
    for (int i = 0; i < W::kWarpSlices; ++i) {
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int d = 16 * (warp + kWarps * i) + 8 * high + 2 * t;
        float2 x = make_float2(0, 0);
        if (head < heads && count > 0) {
          if (i < W::kValueSlices) {
            if (d < dims) x = *reinterpret_cast<const float2*>(q + d);
          } else if (d - kValueDim < rope_dim) {
            x = Rotated(p, shared.rotations, rope, d - kValueDim);
          }
        }
        x.x *= p.scale * kLog2E;
        x.y *= p.scale * kLog2E;
        const unsigned upper = Pack(x.x, x.y);
        queries[m][i][2 * high] = upper;
        queries[m][i][2 * high + 1] = PackRest(x.x, x.y, upper);
      }
    }
  }
  if (W::kLatent && has_own) {
    const float* c = place.kv + row * place.kv_stride;
    const int d = 2 * thread;
    static_assert(!W::kLatent || kValueDim == 2 * kThreads);
    const bool inside = d < p.latent;
    const float2 x = inside ? make_float2(c[d], c[d + 1]) : make_float2(0, 0);
    float2 by = make_float2(1, 1);
    if (inside && place.norm_weight != nullptr) {
      by = make_float2(place.norm_weight[d], place.norm_weight[d + 1]);
    }
    const float squares = BlockSum(fmaf(x.x, x.x, x.y * x.y), shared.of_warps);
    const float factor = rsqrtf(squares / static_cast<float>(p.latent) + place.norm_eps);
    const unsigned value = Pack(x.x * factor * by.x, x.y * factor * by.y);
    reinterpret_cast<unsigned*>(shared.own_key)[thread] = value;
    // One of the blocks with this tile has the page.
    __nv_bfloat16* page = first_in_group == 0 ? key_at(run.position) : nullptr;
    if (page != nullptr && inside) *reinterpret_cast<unsigned*>(page + d) = value;
    if (d < W::kRope) {
      const bool in_rope = d < rope_dim;
      const float2 turned =
          in_rope ? Rotated(p, shared.rotations, c + p.latent, d) : make_float2(0, 0);
      const unsigned pair = Pack(turned.x, turned.y);
      reinterpret_cast<unsigned*>(shared.own_key + kValueDim)[thread] = pair;
      if (page != nullptr && in_rope) *reinterpret_cast<unsigned*>(page + p.latent + d) = pair;
    }
    __syncthreads();
  }
  if (count > 0) copy_own(0);
  CopyCommit();

  const unsigned weights = SharedAddress(shared.weights);
  float out[kGroups][kColumns / 8][4] = {};
  float largest[kGroups];  // of head 8 m + warp
  float sums[kGroups];     // and of this lane's positions
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    largest[m] = kLowestScore;
    sums[m] = 0;
  }
#pragma unroll 1
  for (int step = 0; step < count; ++step) {
    CopyWait<0>();
    __syncthreads();
    const auto copy_next = [&] {
      if (step + 1 >= count) return;
      copy(step + 1);
      copy_own(step + 1);
      CopyCommit();
    };
    if (spread.stages > 1) copy_next();
    const unsigned k_tile = base + step % spread.stages * W::kStageBytes;
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      float scores[kGroups][2][4] = {};
#pragma unroll
      for (int i = 0; i < W::kWarpSlices; ++i) {
        const int slice = warp + kWarps * i;
        if ((i + 1) * kWarps > W::kKeySlices && slice >= W::kKeySlices) break;
        unsigned keys[4];
        LoadB<kKeyDim>(keys, k_tile, 16 * n, 2 * slice, lane);
#pragma unroll
        for (int m = 0; m < kGroups; ++m) {
          MmaPair(scores[m][0], scores[m][1], queries[m][i], keys);
        }
      }
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float(&of)[4] = scores[m][i];
          *reinterpret_cast<float2*>(&shared.scores[warp][8 * m + g][16 * n + 8 * i + 2 * t]) =
              make_float2(of[0] + of[2], of[1] + of[3]);
        }
      }
    }
    __syncthreads();
    const int position = (first_tile + index + step * blocks) * kTile + lane;
    const bool seen = position <= run.position && position >= first_position;
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      const int head = 8 * m + warp;
      float score = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) score += shared.scores[w][head][lane];
      if (!seen) score = kLowestScore;
      float most = fmaxf(largest[m], score);
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
      }
      const float keep = Exp2(largest[m] - most);
      const float weight = Exp2(score - most);
      largest[m] = most;
      sums[m] = fmaf(sums[m], keep, weight);
      if (lane == 0) shared.keep[head] = keep;
      const __nv_bfloat16 upper = __float2bfloat16_rn(weight);
      const auto put = [&](int of_row, __nv_bfloat16 value) {
        *reinterpret_cast<__nv_bfloat16*>(shared.weights + m * W::kWeightBytes +
                                          UnitOffset<kTile>(of_row, lane / 8) + lane % 8 * 2) =
            value;
      };
      put(warp, upper);
      put(8 + warp, __float2bfloat16_rn(weight - __bfloat162float(upper)));
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      const float keep = shared.keep[8 * m + g];
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] *= keep;
      }
    }
    constexpr int kValueStride = W::kLatent ? kKeyDim : kValueDim;
    const unsigned v_tile = W::kLatent ? k_tile : k_tile + W::kKeyBytes;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      unsigned a[kGroups][4];
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        LoadA<kTile>(a[m], weights + m * W::kWeightBytes, 0, 2 * k, lane);
      }
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        unsigned values[4];
        LoadBTransposed<kValueStride>(values, v_tile, 16 * k, warp * (kColumns / 8) + 2 * n, lane);
#pragma unroll
        for (int m = 0; m < kGroups; ++m) MmaPair(out[m][2 * n], out[m][2 * n + 1], a[m], values);
      }
    }
    if (spread.stages == 1) {
      __syncthreads();
      copy_next();
    }
  }

  // Every block with tiles sends a warp's columns to the one that owns them.
  const int warps_of_owner = kWarps >> spread.cluster_shift;
  const auto send = [&](auto* to, auto value, int owner) {
    if (cluster == 1) {
      *to = value;
    } else {
      Send(to, value, &shared.mailbox, static_cast<unsigned>(owner));
    }
  };
  if (count > 0) {
    const int owner = warp / warps_of_owner;
    const int first_quad = warp % warps_of_owner * (kColumns / 4);
    const bool odd = t % 2 != 0;
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      const int head = 8 * m + g;
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        // Two lanes with two columns of two products each make a quad of either.
        const auto of = [&](int i, int e) { return out[m][n + i][e] + out[m][n + i][e + 2]; };
        const float2 kept = odd ? make_float2(of(1, 0), of(1, 1)) : make_float2(of(0, 0), of(0, 1));
        float2 other = odd ? make_float2(of(0, 0), of(0, 1)) : make_float2(of(1, 0), of(1, 1));
        other.x = __shfl_xor_sync(~0u, other.x, 1);
        other.y = __shfl_xor_sync(~0u, other.y, 1);
        if (head >= heads) continue;
        const float4 quad = odd ? make_float4(other.x, other.y, kept.x, kept.y)
                                : make_float4(kept.x, kept.y, other.x, other.y);
        const int at = first_quad + 2 * (n + (odd ? 1 : 0)) + t / 2;
        send(&shared.sent_values[(rank * heads + head) * own_quads + at], quad, owner);
      }
      const float sum = WarpSum(sums[m]);
      if (8 * m + warp < heads && lane < cluster) {
        send(&shared.sent_scores[rank][8 * m + warp], make_float2(largest[m], sum), lane);
      }
    }
  }
  if (cluster == 1) {
    __syncthreads();
  } else {
    WaitForMail(&shared.mailbox);
  }

  const int value_dim = W::kLatent ? p.latent : p.head_dim;
  const int value_quads = value_dim / 4;
  // Of the columns owned: visit(head, quad of the head, quad of those owned).
  const auto for_each_quad = [&](auto visit) {
#pragma unroll 1
    for (int i = thread; i < heads * own_quads; i += kThreads) {
      const int head = i / own_quads;
      const int own = i - head * own_quads;
      if (rank * own_quads + own < value_quads) visit(head, rank * own_quads + own, own);
    }
  };
  const auto put = [&](int head, int quad, const MergedQuad& merged) {
    const float factor = __fdividef(1.0f, merged.scores.y);
    const int at = (first_head + head) * value_dim + 4 * quad;
    float4 x = make_float4(merged.values.x * factor, merged.values.y * factor,
                           merged.values.z * factor, merged.values.w * factor);
    if (!W::kLatent && p.output_gate) {
      x.x *= OutputGate(p, row, at), x.y *= OutputGate(p, row, at + 1);
      x.z *= OutputGate(p, row, at + 2), x.w *= OutputGate(p, row, at + 3);
    }
    *reinterpret_cast<float4*>(p.output + row * p.output_stride + at) = x;
    if (p.rounded_output != nullptr) {
      *reinterpret_cast<uint2*>(p.rounded_output + row * p.rounded_output_stride + at) = {
          Pack(x.x, x.y), Pack(x.z, x.w)};
    }
  };
  // The block's part of scratch memory: values [units][heads][value_quads], scores [units][heads],
  // of which every owner of columns writes the same.
  float* scratch = p.partial + (row * p.heads + first_head) * kMaxAttentionParts * (value_dim + 2);
  float4* unit_values = reinterpret_cast<float4*>(scratch);
  float2* unit_scores = reinterpret_cast<float2*>(scratch + heads * kMaxAttentionParts * value_dim);
  for_each_quad([&](int head, int quad, int own) {
    const MergedQuad merged = MergeQuads<1 << kMostClusterShift>(
        senders, [&](int from) { return shared.sent_scores[from][head]; },
        [&](int from) { return shared.sent_values[(from * heads + head) * own_quads + own]; });
    if (units == 1) return put(head, quad, merged);
    __stcg(unit_values + (unit * heads + head) * value_quads + quad, merged.values);
    if (own == 0) __stcg(unit_scores + unit * heads + head, merged.scores);
  });
  if (units == 1) return;
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (thread == 0) {
    const int shares = static_cast<int>(gridDim.x) >> spread.cluster_shift;
    unsigned* arrivals = p.arrivals + ((row * shares + share) << kMostClusterShift) + rank;
    last = atomicAdd(arrivals, 1u) + 1 == static_cast<unsigned>(units);
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  static_assert(kMostUnits <= kMaxAttentionParts && kMostUnits <= kWarps * kScoreStride / 2);
  float2* all_scores = reinterpret_cast<float2*>(shared.scores);
  for (int i = thread; i < units * heads; i += kThreads) all_scores[i] = __ldcg(unit_scores + i);
  __syncthreads();
  const auto merge = [&]<int kMost>() {
    for_each_quad([&](int head, int quad, int) {
      put(head, quad,
          MergeQuads<kMost>(
              units, [&](int i) { return all_scores[i * heads + head]; },
              [&](int i) {
                return __ldcg(unit_values + (i * heads + head) * value_quads + quad);
              }));
    });
  };
  if (units <= 4) return merge.template operator()<4>();
  merge.template operator()<kMostUnits>();
}

template <class W>
void LaunchSized(const LatentPlaceParams& params, WideSpread spread, cudaStream_t stream) {
  static_assert(W::kGroups > 1 || W::kStageBytes + sizeof(typename W::Shared) <= 98 * 1024,
                "the smallest devices have no more");
  const AttentionParams& p = params.attention;
  const auto room = static_cast<size_t>(DeviceSharedBytes());
  spread.stages = W::Bytes(kMostStages) <= room ? kMostStages : 1;
  // As many parts as the device has room for; rows before parts.
  const int shares = p.kv_heads * spread.owners;
  const int blocks = shares * p.run_count;
  spread.cluster_shift = DeviceHasClusters() ? kMostClusterShift : 0;
  while (spread.cluster_shift > 0 && blocks << spread.cluster_shift > kEnoughBlocks) {
    --spread.cluster_shift;
  }
  const int units = std::clamp(kEnoughBlocks / (blocks << spread.cluster_shift), 1, kMostUnits);
  const size_t bytes = W::Bytes(spread.stages);
  AllowSharedMemory(WideStepKernel<W>, bytes);
  LaunchClusters("the attention step kernel of wide heads", WideStepKernel<W>,
                 dim3(static_cast<unsigned>(shares << spread.cluster_shift),
                      static_cast<unsigned>(p.run_count), static_cast<unsigned>(units)),
                 dim3(kThreads), dim3(1u << spread.cluster_shift), bytes, stream, params, spread);
}

// Blocks of at most so many groups of a KV head's query heads.
WideSpread SpreadOf(const AttentionParams& p, int most_groups) {
  const int group = p.heads / p.kv_heads;
  WideSpread spread = {};
  spread.owners = (group + 8 * most_groups - 1) / (8 * most_groups);
  spread.heads = (group + spread.owners - 1) / spread.owners;
  return spread;
}

bool TakesPages(const AttentionParams& p) { return p.kv_bf16 && p.page_positions % kTile == 0; }

}  // namespace

bool TakesWideAttentionStep(const AttentionParams& p) {
  return TakesPages(p) && p.latent == 0 && p.head_dim % 8 == 0 && p.head_dim >= kLeastDim &&
         p.head_dim <= kMostDim;
}

void LaunchWideAttentionStep(const AttentionParams& params, cudaStream_t stream) {
  if (params.run_count == 0) return;
  const WideSpread spread = SpreadOf(params, 1);
  LatentPlaceParams place;
  place.attention = params;
  LaunchSized<WideStep<kMostDim, 0, 1>>(place, spread, stream);
}

bool TakesLatentStep(const AttentionParams& p) {
  const int rope = p.head_dim - p.latent;
  return TakesPages(p) && p.latent > 0 && p.latent % 8 == 0 && p.latent <= kMostDim &&
         rope % 8 == 0 && rope <= kMostRope;
}

void LaunchLatentStep(const LatentPlaceParams& params, cudaStream_t stream) {
  if (params.attention.run_count == 0) return;
  constexpr int kMostGroups = 3;
  using Largest = WideStep<kMostDim, kMostRope, kMostGroups>;
  const bool fits = Largest::Bytes(1) <= static_cast<size_t>(DeviceSharedBytes());
  const WideSpread spread = SpreadOf(params.attention, fits ? kMostGroups : 1);
  if (spread.heads <= 8) {
    return LaunchSized<WideStep<kMostDim, kMostRope, 1>>(params, spread, stream);
  }
  if (spread.heads <= 16) {
    return LaunchSized<WideStep<kMostDim, kMostRope, 2>>(params, spread, stream);
  }
  LaunchSized<Largest>(params, spread, stream);
}

}  // namespace adder::cuda
