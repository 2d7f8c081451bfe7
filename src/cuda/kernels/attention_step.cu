// Attention of one token per run over bf16 keys and values: norms of heads, rotation, append,
// attention and the merge of its parts in one kernel, on tensor cores.
//
// A block owns one row (token) and one KV head with up to kMostHeads of its query heads. A team of
// it is a warp, or, where heads are wider than a warp's registers can hold, two: each multiplies
// one half of the dimensions, and they add up their scores in shared memory. The positions up to
// the row's own are cut into tiles of 16; of all teams of all blocks that share row and heads,
// every one takes every so-manieth tile and keeps an online softmax. Teams merge through shared
// memory. The blocks of a cluster divide the quads of the output among them, and each is sent the
// others' results for its own. For long contexts there are several such units of one cluster each,
// which leave their results in scratch memory, and the last block to arrive adds them up.
//
// Phases: (1) the first tile's keys and values are loaded, sines and cosines put into shared
// memory, and what norm and rotation multiply by into registers; (2) PdlWait; (3) every warp
// prepares a query head, the key or the value for all, and a barrier; (4) tiles: the team that
// takes the last one reads the own key and value from shared memory, and nobody from the page, to
// which the first block has appended them; (5) merges. Preconditions: as TakesStep. Most of a small
// model's time here is latency, of memory, barriers and instructions: what can be is done before
// the wait, and the code behind it is kept short.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_step.h"
#include "cuda/kernels/attention_step_heads.cuh"
#include "cuda/kernels/attention_step_math.cuh"
#include "cuda/kernels/attention_step_results.cuh"
#include "cuda/kernels/attention_step_tiles.cuh"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kPlaces = 8;  // of a block's query heads, key and value
constexpr int kMostHeads = kPlaces - 2;
constexpr int kMostWideHeads = 5;  // of pairs of warps: so much fits into 48 KB of shared memory
constexpr int kMostClusterShift = 3;
constexpr int kBlockShift = 8;  // logarithm of a block's positions before there are more units
// To keep a device busy, of eight warps; of blocks in clusters fewer are resident at once.
constexpr int kEnoughBlocks = 264;
constexpr int kEnoughClusterBlocks = 132;

// How a launch is spread over the device.
struct Spread {
  int cluster_shift;  // blocks of a unit, as all shifts: its logarithm to base 2
  int unit_shift;     // positions, before there are more units than one
  int page_shift;     // page_positions
  int group;          // query heads of a KV head
  int owners;         // blocks that share a KV head's query heads
  int heads;          // query heads of a block, but for a KV head's last block
};

// Dynamic shared memory. kWidth: dimensions that it has room for, of each head.
template <int kWidth, int kTeam, int kTeams>
struct Layout {
  static constexpr int kHeadQuads = kWidth / 4;
  float2 rotations[kWidth / 2];
  float queries[kPlaces][kWidth + 4];  // see HeadOfWarp::Prepare; the next lies in other banks
  __nv_bfloat16 key[kWidth];           // the row's own
  __nv_bfloat16 value[kWidth];
  float2 scores[kTeams][kPlaces];
  float4 exchange[kTeam > 1 ? 2 * kTeams * 2 * 32 : 1];  // see TilesOfWarp::Add
  unsigned long long mailbox;
  unsigned long long unused;  // to 16 bytes
  // Then values of teams [kTeams][heads][kHeadQuads] and, sent by the cluster's blocks, for the
  // quads of this one, values [cluster][quads] and scores [cluster][quads].
  static size_t Bytes(int heads, int cluster, int quads) {
    return sizeof(Layout) + sizeof(float4) * static_cast<size_t>(kTeams * heads * kHeadQuads) +
           (sizeof(float4) + sizeof(float2)) * static_cast<size_t>(cluster * quads);
  }
};

// kChunks: what a warp has of head_dim, in units of 64, rounded up. kTeam: warps of a team, of
// which there are kTeams.
template <int kChunks, int kTeam, int kTeams>
__global__ void __launch_bounds__(kTeam* kTeams * 32, kChunks == 1 ? 16 / kTeams : 1)
    AttentionStepKernel(const __grid_constant__ AttentionParams p, const Spread spread) {
  constexpr int kWarps = kTeam * kTeams;
  constexpr int kThreads = kWarps * 32;
  constexpr int kWidth = 64 * kChunks * kTeam;
  using Shared = Layout<kWidth, kTeam, kTeams>;
  constexpr int kHeadQuads = Shared::kHeadQuads;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int team = warp % kTeams;
  const int side = warp / kTeams;
  const int head_dim = p.head_dim;
  const int cluster = 1 << spread.cluster_shift;
  const int rank = static_cast<int>(blockIdx.x) & (cluster - 1);
  const int share = static_cast<int>(blockIdx.x) >> spread.cluster_shift;
  const int kv_head = share / spread.owners;
  const int first_in_group = (share - kv_head * spread.owners) * spread.heads;
  const int heads = min(spread.heads, spread.group - first_in_group);
  const int first_head = kv_head * spread.group + first_in_group;
  const SequenceRun run = p.runs[blockIdx.y];
  const int first_position = p.window > 0 ? max(0, run.position + 1 - p.window) : 0;
  const int unit = static_cast<int>(blockIdx.z);
  const int units =
      min(static_cast<int>(gridDim.z), 1 + ((run.position - first_position) >> spread.unit_shift));
  if (unit >= units) return;

  extern __shared__ float4 shared_memory[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  float4* of_teams = reinterpret_cast<float4*>(&shared + 1);
  float4* sent_values = of_teams + kTeams * spread.heads * kHeadQuads;
  const int quads = heads * head_dim / 4;
  const int most_quads = (quads + cluster - 1) >> spread.cluster_shift;  // of a block
  float2* sent_scores = reinterpret_cast<float2*>(sent_values + cluster * most_quads);
  if (cluster > 1) {
    if (thread == 0) {
      const int own_quads = (quads - rank + cluster - 1) >> spread.cluster_shift;
      OpenMailbox(&shared.mailbox,
                  own_quads * cluster * static_cast<int>(sizeof(float4) + sizeof(float2)));
    }
    __syncwarp();
    ClusterArriveRelaxed();
  }

  const PagedHead cache = {run.pages,
                           p.kv_offset + static_cast<long long>(kv_head) * p.page_positions *
                                             head_dim * static_cast<int>(sizeof(__nv_bfloat16)),
                           static_cast<long long>(p.kv_heads) * p.page_positions * head_dim,
                           spread.page_shift,
                           p.page_positions - 1,
                           head_dim};
  const int last_tile = run.position / kTile;
  const int tile_step = (units << spread.cluster_shift) * kTeams;
  // Neighbouring tiles are different blocks'.
  const int first_tile = first_position / kTile + (unit << spread.cluster_shift) + rank +
                         (team * units << spread.cluster_shift);
  TilesOfWarp<kChunks, kTeam, kTeams> tiles(cache, run.position, first_position, team, side,
                                            tile_step);
  if (first_tile <= last_tile) tiles.Load(first_tile);
  if (p.inverse_frequencies != nullptr) {
    for (int pair = thread; pair < p.rotary_dim / 2; pair += kThreads) {
      shared.rotations[pair] = Rotation(p, run.position, pair);
    }
    __syncthreads();
  }
  HeadOfWarp<kWidth> prepared[kPlaces / kWarps];
#pragma unroll
  for (int i = 0; i < kPlaces / kWarps; ++i) {
    prepared[i].Begin(p, run.row, warp + i * kWarps, heads, first_head, kv_head, shared.rotations);
  }
  __nv_bfloat16* page = nullptr;
  if (unit == 0 && rank == 0 && first_in_group == 0) page = cache.KeyAt(run.position);
  const long long row = run.row;
  float* output = p.output + row * p.output_stride + first_head * head_dim;
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + row * p.rounded_output_stride + first_head * head_dim;
  ReadyBeforeWait(output);
  ReadyBeforeWait(rounded);
  ReadyBeforeWait(page);
  if (cluster > 1) {
    __syncwarp();
    ClusterWait();  // all blocks have begun, and opened their mailboxes
  }

  PdlWait();
  PdlTrigger();
  // What the end needs: on its way to the first cache meanwhile.
  if (p.output_gate && thread < most_quads) {
    const int quad = min(thread << spread.cluster_shift | rank, quads - 1);
    const float* gates =
        p.qkv + row * p.qkv_stride + (p.heads + 2 * p.kv_heads + first_head) * head_dim + 4 * quad;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(gates));
  }
#pragma unroll
  for (int i = 0; i < kPlaces / kWarps; ++i) {
    const int place = warp + i * kWarps;
    const bool is_key = place == heads;
    prepared[i].Prepare(shared.queries[place], is_key ? shared.key : shared.value,
                        page == nullptr || is_key ? page : page + cache.to_values);
  }
  __syncthreads();

  const int g = lane / 4;
  if (first_tile <= last_tile) {
    if (first_tile == last_tile) tiles.UseOwn(shared.key, shared.value);
    tiles.template Add<true>(first_tile, shared.queries[g], shared.exchange);
#pragma unroll 1
    for (int tile = first_tile + tile_step; tile <= last_tile; tile += tile_step) {
      tiles.Load(tile);
      if (tile == last_tile) tiles.UseOwn(shared.key, shared.value);
      tiles.template Add<false>(tile, shared.queries[g], shared.exchange);
    }
  } else {
    tiles.Clear();
  }
  tiles.Store(g < heads, &shared.scores[team][g],
              of_teams + (team * spread.heads + g) * kHeadQuads);
  __syncthreads();

  // The quads of this warp's heads; those of all heads are counted in one.
  const auto for_each_quad = [&](auto visit) {
#pragma unroll 1
    for (int h = warp; h < heads; h += kWarps) {
#pragma unroll 1
      for (int i = lane; i < head_dim / 4; i += 32) visit(h, i, h * head_dim / 4 + i);
    }
  };
  for_each_quad([&](int h, int quad_of_head, int quad) {
    const float4* from = of_teams + h * kHeadQuads + PlaceOfQuad(h, quad_of_head);
    const MergedQuad merged = MergeQuads<kTeams>(
        kTeams, [&](int i) { return shared.scores[i][h]; },
        [&](int i) { return from[i * spread.heads * kHeadQuads]; });
    const int to = rank * most_quads + (quad >> spread.cluster_shift);
    if (cluster == 1) {
      sent_values[to] = merged.values;
      sent_scores[to] = merged.scores;
      return;
    }
    const auto owner = static_cast<unsigned>(quad & (cluster - 1));
    Send(sent_values + to, merged.values, &shared.mailbox, owner);
    Send(sent_scores + to, merged.scores, &shared.mailbox, owner);
  });
  if (cluster == 1) {
    __syncthreads();
  } else {
    WaitForMail(&shared.mailbox);
  }
  const auto put = [&](int quad, const MergedQuad& merged) {
    const float scale = __fdividef(1.0f, merged.scores.y);
    float4 x = Times(merged.values, make_float4(scale, scale, scale, scale));
    if (p.output_gate) {
      const int at = first_head * head_dim + 4 * quad;
      x.x *= OutputGate(p, row, at), x.y *= OutputGate(p, row, at + 1);
      x.z *= OutputGate(p, row, at + 2), x.w *= OutputGate(p, row, at + 3);
    }
    reinterpret_cast<float4*>(output)[quad] = x;
    if (rounded != nullptr) {
      reinterpret_cast<uint2*>(rounded)[quad] = {Pack(x.x, x.y), Pack(x.z, x.w)};
    }
  };
  // The block's part of scratch memory: values [units][quads], scores [units][heads].
  float* scratch = p.partial + (row * p.heads + first_head) * kMaxAttentionParts * (head_dim + 2);
  float4* unit_values = reinterpret_cast<float4*>(scratch);
  float2* unit_scores = reinterpret_cast<float2*>(scratch + heads * kMaxAttentionParts * head_dim);
#pragma unroll 1
  for (int i = thread; i < most_quads; i += kThreads) {
    const int quad = i << spread.cluster_shift | rank;
    if (quad >= quads) break;
    const MergedQuad merged = MergeQuads<1 << kMostClusterShift>(
        cluster, [&](int from) { return sent_scores[from * most_quads + i]; },
        [&](int from) { return sent_values[from * most_quads + i]; });
    if (units == 1) {
      put(quad, merged);
      continue;
    }
    __stcg(unit_values + unit * quads + quad, merged.values);
    if (4 * quad % head_dim == 0) {
      __stcg(unit_scores + unit * heads + 4 * quad / head_dim, merged.scores);
    }
  }
  if (units == 1) return;
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (thread == 0) {
    const int shares = static_cast<int>(gridDim.x) >> spread.cluster_shift;
    unsigned* arrivals = p.arrivals + row * shares + share;
    last = atomicAdd(arrivals, 1u) + 1 == static_cast<unsigned>(units << spread.cluster_shift);
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for_each_quad([&](int h, int, int quad) {
    put(quad, MergeMany(
                  units, [&](int i) { return __ldcg(unit_scores + i * heads + h); },
                  [&](int i) { return __ldcg(unit_values + i * quads + quad); }));
  });
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
  Spread spread = {};
  spread.group = params.heads / params.kv_heads;
  const int most_heads = params.head_dim > 128 ? kMostWideHeads : kMostHeads;
  spread.owners = (spread.group + most_heads - 1) / most_heads;
  spread.heads = (spread.group + spread.owners - 1) / spread.owners;
  while (1 << spread.page_shift < params.page_positions) ++spread.page_shift;
  // As many parts as the device has room for; rows before parts.
  const int shares = params.kv_heads * spread.owners;
  const int blocks = shares * params.run_count;
  spread.cluster_shift = DeviceHasClusters() ? kMostClusterShift : 0;
  while (spread.cluster_shift > 0 && blocks << spread.cluster_shift > kEnoughClusterBlocks) {
    --spread.cluster_shift;
  }
  spread.unit_shift = kBlockShift + spread.cluster_shift;
  const int enough = spread.cluster_shift > 1 ? kEnoughClusterBlocks : kEnoughBlocks;
  const int units = std::clamp(enough / (blocks << spread.cluster_shift), 1, kMaxAttentionParts);
  const auto launch = [&]<int kChunks, int kTeam, int kTeams>() {
    const int cluster = 1 << spread.cluster_shift;
    const int quads = (spread.heads * params.head_dim / 4 + cluster - 1) / cluster;
    using Shared = Layout<64 * kChunks * kTeam, kTeam, kTeams>;
    // Units that a short context does not need come last.
    LaunchClusters("the attention step kernel", AttentionStepKernel<kChunks, kTeam, kTeams>,
                   dim3(static_cast<unsigned>(shares << spread.cluster_shift),
                        static_cast<unsigned>(params.run_count), static_cast<unsigned>(units)),
                   dim3(kTeam * kTeams * 32), dim3(static_cast<unsigned>(cluster)),
                   Shared::Bytes(spread.heads, cluster, quads), stream, params, spread);
  };
  // Of so many rows twice as many smaller blocks are resident at once.
  if (params.head_dim <= 64 && blocks > kEnoughBlocks) return launch.template operator()<1, 1, 4>();
  if (params.head_dim <= 64) return launch.template operator()<1, 1, 8>();
  if (params.head_dim <= 128) return launch.template operator()<2, 1, 8>();
  launch.template operator()<2, 2, 4>();
}

}  // namespace adder::cuda
