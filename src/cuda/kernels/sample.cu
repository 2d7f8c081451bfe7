// Sampling by a cluster of blocks per row.
//
// A block owns a slice of the row. It applies the penalty to it, and each of its warps pushes the
// slice's largest logit into the first block's shared memory. Greedy rows are done then.
//
// Others: as many logits as there are warps whose largest is no lower rank no lower than the n-th
// of the warps' largest, so what reaches that is a short list that holds the n best. It is pushed
// into the first block's shared memory, ranked there and drawn from in that order, as the host's
// sampler does. Where that is not enough (a large top_k, a flat distribution), a threshold is
// selected by passes over bits of the logits' order, from histograms of the slices that every block
// adds up for itself; with a top_k the list is what reaches it, otherwise the draw runs over all of
// it where it lies. Sums that decide are integers (2^-28 of the largest probability for the
// threshold, 2^-40 for the draw) or taken in one order, so a choice is a function of logits and
// seed.
#include <cuda_runtime.h>

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/sample.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;  // blocks of a row
constexpr unsigned kAll = 0xffffffffu;
// Histograms: bits of the order in one pass, and a bin's sum as two words of a number to base 2^14,
// so that a slice of 2^18 logits cannot overflow them.
constexpr int kBinBits = 9;
constexpr int kBins = 1 << kBinBits;
constexpr int kLimbBits = 14;
static_assert(kBins == kThreads, "a thread adds up one bin");
// Of each histogram, so that fewer lanes of a warp meet in one bin; a bin's lie in different banks.
constexpr int kCopies = 4;
constexpr int kCopyStride = kBins + 2;
// Of the warps' largest logits, the one that bounds the short list where there is no top_k.
constexpr int kUsualList = 96;
using Weight = unsigned long long;

// Order of floats as unsigned numbers.
__device__ __forceinline__ unsigned OrderOf(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// Ranks larger logits first and, of equals, lower ids.
__device__ __forceinline__ unsigned long long RankKey(float logit, int id) {
  return static_cast<unsigned long long>(OrderOf(logit)) << 32 | (0xffffffffu - unsigned(id));
}
__device__ __forceinline__ float LogitOf(unsigned long long key) {
  const unsigned order = static_cast<unsigned>(key >> 32);
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}
__device__ __forceinline__ int IdOf(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key));
}

struct Shared {
  uint2 bins[kCopies * kCopyStride];
  unsigned long long ranked[kMaxRankedTopK];   // RankKey; in the first block
  unsigned long long best[kCluster * kWarps];  // RankKey of warps' largest
  unsigned long long chosen;                   // in the first block
  unsigned long long gathered;                 // of `ranked`; in the first block
  unsigned long long bound;                    // RankKey
  Weight warp_sums[kWarps];
  Weight block_sums[kCluster];
  unsigned bin;
  Weight above;  // of what ranks before the bin that was chosen
  Weight of_bin;
};

// A row in the hands of a cluster; this block's slice.
struct Row {
  float* logits;
  int begin;  // of the slice, in float4s
  int end;
  int vocab;
  float largest;
  float inverse_temperature;
  float least;  // smallest weight kept, relative to the largest

  __device__ float WeightOf(float logit) const {
    return expf((logit - largest) * inverse_temperature);
  }
  // 0 for what min-p takes away.
  __device__ Weight KeptWeight(float logit) const {
    const float weight = WeightOf(logit);
    return weight < least ? 0 : static_cast<Weight>(weight * 0x1p40f);
  }
  // visit(id, logit) for the four logits of a float4.
  template <class Visit>
  __device__ void VisitFour(int i, float4 four, Visit visit) const {
    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (4 * i + j < vocab) visit(4 * i + j, each[j]);
    }
  }
  // visit(id, logit) for the slice, spread over the block's threads.
  template <class Visit>
  __device__ void ForEach(Visit visit) const {
    constexpr int kUnroll = 4;
    for (int base = begin + static_cast<int>(threadIdx.x); base < end; base += kUnroll * kThreads) {
      float4 fours[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int i = min(base + u * kThreads, end - 1);
        fours[u] = reinterpret_cast<const float4*>(logits)[i];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (base + u * kThreads < end) VisitFour(base + u * kThreads, fours[u], visit);
      }
    }
  }
  // The same, but each thread visits a contiguous part, in order of ids and threads.
  template <class Visit>
  __device__ void ForEachInOrder(Visit visit) const {
    const int part = (end - begin + kThreads - 1) / kThreads;
    const int first = begin + static_cast<int>(threadIdx.x) * part;
#pragma unroll 2
    for (int i = first; i < min(end, first + part); ++i) {
      VisitFour(i, reinterpret_cast<const float4*>(logits)[i], visit);
    }
  }
};

// The sum of `mine` over all threads before this one, in order of threads.
struct Prefix {
  Weight before;
  Weight all;
};
__device__ Prefix BlockPrefix(Weight mine, Shared& shared) {
  const unsigned lane = threadIdx.x % 32;
  Weight inclusive = mine;
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const Weight other = __shfl_up_sync(kAll, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) shared.warp_sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  Prefix prefix = {inclusive - mine, 0};
  for (unsigned w = 0; w < kWarps; ++w) {
    const Weight sum = shared.warp_sums[w];
    if (w < threadIdx.x / 32) prefix.before += sum;
    prefix.all += sum;
  }
  return prefix;
}
// The same over all blocks.
__device__ Prefix ClusterPrefix(Weight mine, Shared& shared) {
  const Prefix of_block = BlockPrefix(mine, shared);
  if (threadIdx.x < gridDim.x) StoreIn(&shared.block_sums[blockIdx.x], of_block.all, threadIdx.x);
  ClusterArrive();
  ClusterWait();
  Prefix prefix = {of_block.before, 0};
  for (unsigned rank = 0; rank < gridDim.x; ++rank) {
    const Weight sum = shared.block_sums[rank];
    if (rank < blockIdx.x) prefix.before += sum;
    prefix.all += sum;
  }
  return prefix;
}

struct Threshold {
  unsigned order = 0;  // of the last candidate kept
  Weight above = 0;    // amount of those that rank before it
  Weight equal = 0;    // amount of those of the same order
};
// The candidate with which the amount of all that rank no lower reaches `enough`; the last one when
// nothing does. amount(logit) is below 2^(2 kLimbBits).
template <class Amount>
__device__ Threshold SelectThreshold(const Row& row, Weight enough, Amount amount, Shared& shared) {
  Threshold threshold;
#pragma unroll 1
  for (int bits_left = 32; bits_left > 0;) {
    const int shift = max(0, bits_left - kBinBits);
    for (int copy = 0; copy < kCopies; ++copy) {
      shared.bins[copy * kCopyStride + threadIdx.x] = make_uint2(0, 0);
    }
    __syncthreads();
    uint2* bins = shared.bins + threadIdx.x % kCopies * kCopyStride;
    row.ForEach([&](int, float logit) {
      const unsigned order = OrderOf(logit);
      // Shifts by 32 are not defined.
      if (bits_left < 32 && order >> bits_left != threshold.order) return;
      const unsigned value = amount(logit);
      const unsigned bin = order >> shift & (kBins - 1);
      const unsigned low = value & ((1u << kLimbBits) - 1);
      if (low != 0) atomicAdd(&bins[bin].x, low);
      if (low != value) atomicAdd(&bins[bin].y, value >> kLimbBits);
    });
    __syncthreads();
    for (int copy = 1; copy < kCopies; ++copy) {
      const uint2 other = shared.bins[copy * kCopyStride + threadIdx.x];
      shared.bins[threadIdx.x].x += other.x;
      shared.bins[threadIdx.x].y += other.y;
    }
    ClusterArrive();
    ClusterWait();
    // A bin of all blocks, asked for together; the highest belongs to the first thread.
    const int bin = kBins - 1 - static_cast<int>(threadIdx.x);
    unsigned long long limbs[kCluster];
#pragma unroll
    for (unsigned rank = 0; rank < kCluster; ++rank) {
      limbs[rank] = LoadFrom(reinterpret_cast<const unsigned long long*>(&shared.bins[bin]),
                             min(rank, gridDim.x - 1));
    }
    Weight sum = 0;
#pragma unroll
    for (unsigned rank = 0; rank < kCluster; ++rank) {
      if (rank < gridDim.x) sum += (limbs[rank] & kAll) + (limbs[rank] >> 32 << kLimbBits);
    }
    const Weight above = threshold.above + BlockPrefix(sum, shared).before;
    if (above < enough && (above + sum >= enough || bin == 0)) {
      shared.bin = static_cast<unsigned>(bin);
      shared.above = above;
      shared.of_bin = sum;
    }
    // Also: nobody clears a histogram that others read.
    ClusterArrive();
    ClusterWait();
    threshold.order = threshold.order << (bits_left - shift) | shared.bin;
    threshold.above = shared.above;
    threshold.equal = shared.of_bin;
    bits_left = shift;
  }
  return threshold;
}

// SplitMix64's output number `index` of a seed, as engine/sampler.h has it, in [0, 1).
__device__ double Uniform(unsigned long long seed, unsigned long long index) {
  unsigned long long z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// One warp draws from the first `count` of shared.ranked. `all` is the weight of all candidates,
// and negative if these are all. Returns -1 if others may have to be drawn too.
__device__ int DrawInOrder(const Row& row, const SamplingRow& sampling, int count, double all,
                           double uniform, const Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  const int part = (count + 31) / 32;
  const int begin = min(count, lane * part);
  const int end = min(count, begin + part);
  const auto weight = [&](int rank) { return row.WeightOf(LogitOf(shared.ranked[rank])); };
  // The sum of `mine` over the lanes up to this one; all of it in the last.
  const auto inclusive = [&](double mine) {
    for (int offset = 1; offset < 32; offset *= 2) {
      const double other = __shfl_up_sync(kAll, mine, offset);
      if (lane >= offset) mine += other;
    }
    return mine;
  };
  double mine = 0;
  for (int rank = begin; rank < end; ++rank) mine += weight(rank);
  double sum = inclusive(mine);
  // As the host's sampler: top-p is a share of all the probability, before min-p takes tokens.
  const double of_these = __shfl_sync(kAll, sum, 31);
  const double enough = sampling.top_p < 1 ? sampling.top_p * (all < 0 ? of_these : all) : INFINITY;
  if (all >= 0 && of_these < enough && weight(count - 1) >= sampling.min_p) return -1;
  sum -= mine;
  mine = 0;
  int kept = 0;
  for (int rank = begin; rank < end; ++rank) {
    const float of_rank = weight(rank);
    if (sum + mine >= enough || of_rank == 0 || of_rank < sampling.min_p) break;
    mine += of_rank;
    ++kept;
  }
  sum = inclusive(mine);
  const double limit = uniform * __shfl_sync(kAll, sum, 31);
  sum -= mine;
  int chosen = -1;
  for (int rank = begin; rank < begin + kept && sum <= limit; ++rank) {
    sum += weight(rank);
    chosen = rank;
  }
  // The first lane whose sum passes the limit, or else the last that has any.
  const unsigned passing = __ballot_sync(kAll, chosen >= 0 && sum > limit);
  const unsigned having = __ballot_sync(kAll, kept > 0);
  const int from = passing != 0 ? __ffs(passing) - 1 : 31 - __clz(having);
  return IdOf(shared.ranked[__shfl_sync(kAll, chosen, from)]);
}

// Ranks shared.ranked[0, count), the first block's. count <= kMaxRankedTopK.
__device__ void Rank(int count, Shared& shared) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    shared.ranked[i] = 0;
  }
  __syncthreads();
  // Bitonic sort, the largest first.
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const bool falling = (i & run) == 0;
        const unsigned long long a = shared.ranked[i];
        const unsigned long long b = shared.ranked[other];
        if ((a < b) == falling) {
          shared.ranked[i] = b;
          shared.ranked[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The choice from what reaches the `count`-th of the warps' largest logits, or -1 if it may lie
// elsewhere. `all` as for DrawInOrder.
__device__ int DrawFromShortList(const Row& row, const SamplingRow& sampling, int count, double all,
                                 double uniform, Shared& shared) {
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  if (count > warps) return -1;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < warps) {
    const unsigned long long mine = shared.best[thread];
    int rank = 0;
    for (int i = 0; i < warps; ++i) {
      const unsigned long long other = shared.best[i];
      rank += other > mine || (other == mine && i < thread);
    }
    if (rank == count - 1) shared.bound = mine;
  }
  __syncthreads();
  const unsigned long long bound = shared.bound;
  row.ForEach([&](int id, float logit) {
    const unsigned long long key = RankKey(logit, id);
    if (key < bound) return;
    const unsigned long long at = AddInFirst(&shared.gathered, 1);
    if (at < kMaxRankedTopK) StoreInFirst(&shared.ranked[at], key);
  });
  ClusterArrive();
  ClusterWait();
  int chosen = -1;
  if (blockIdx.x == 0 && shared.gathered <= kMaxRankedTopK) {
    const auto gathered = static_cast<int>(shared.gathered);
    Rank(gathered, shared);
    const int candidates = sampling.top_k > 0 ? count : gathered;
    if (thread < 32) chosen = DrawInOrder(row, sampling, candidates, all, uniform, shared);
  }
  if (blockIdx.x == 0 && thread < static_cast<int>(gridDim.x)) {
    StoreIn(&shared.chosen, static_cast<unsigned long long>(chosen), threadIdx.x);
  }
  __syncthreads();
  if (thread == 0) shared.gathered = 0;
  ClusterArrive();
  ClusterWait();
  return static_cast<int>(shared.chosen);
}

// Draws from the top_k candidates in order of rank. The result is the first block's.
__device__ int DrawRanked(const Row& row, const SamplingRow& sampling, int count, double uniform,
                          Shared& shared) {
  const Threshold threshold = SelectThreshold(
      row, static_cast<Weight>(count), [](float) { return 1u; }, shared);
  const auto gather = [&](int id, float logit) {
    StoreInFirst(&shared.ranked[AddInFirst(&shared.gathered, 1)], RankKey(logit, id));
  };
  if (threshold.above + threshold.equal <= static_cast<Weight>(count)) {
    row.ForEach([&](int id, float logit) {
      if (OrderOf(logit) >= threshold.order) gather(id, logit);
    });
  } else {
    // Of those equal to the threshold the lowest ids.
    Weight equal = 0;
    row.ForEachInOrder([&](int, float logit) { equal += OrderOf(logit) == threshold.order; });
    int rank =
        static_cast<int>(ClusterPrefix(equal, shared).before) + static_cast<int>(threshold.above);
    row.ForEachInOrder([&](int id, float logit) {
      const unsigned order = OrderOf(logit);
      if (order > threshold.order) {
        gather(id, logit);
      } else if (order == threshold.order) {
        if (rank < count) StoreInFirst(&shared.ranked[rank], RankKey(logit, id));
        ++rank;
      }
    });
  }
  ClusterArrive();
  ClusterWait();
  if (blockIdx.x != 0) return 0;
  Rank(count, shared);
  return threadIdx.x < 32 ? DrawInOrder(row, sampling, count, -1, uniform, shared) : 0;
}

// A weight in units of 2^-28 of the largest. Rounded, not cut: the many that are small must not all
// lose.
__device__ unsigned ShortWeight(const Row& row, float logit) {
  return __float2uint_rn(fminf(row.WeightOf(logit) * 0x1p28f, 0x1.fffffep27f));
}

// Draws from all candidates of at least the threshold, in the order in which threads visit them.
// The result is the first block's. all: the sum of ShortWeight.
__device__ int DrawByThreshold(const Row& row, const SamplingRow& sampling, Weight all,
                               double uniform, Shared& shared) {
  unsigned threshold = 0;
  if (sampling.top_p < 1) {
    const auto enough = static_cast<Weight>(ceil(sampling.top_p * static_cast<double>(all)));
    threshold = SelectThreshold(
                    row, max(enough, Weight{1}),
                    [&](float logit) { return ShortWeight(row, logit); }, shared)
                    .order;
  }
  const auto amount = [&](float logit) {
    return OrderOf(logit) < threshold ? 0 : row.KeptWeight(logit);
  };
  Weight mine = 0;
  row.ForEach([&](int, float logit) { mine += amount(logit); });
  const Prefix prefix = ClusterPrefix(mine, shared);
  const Weight limit =
      min(static_cast<Weight>(uniform * static_cast<double>(prefix.all)), prefix.all - 1);
  if (mine > 0 && limit >= prefix.before && limit - prefix.before < mine) {
    Weight sum = prefix.before;
    int chosen = -1;
    row.ForEach([&](int id, float logit) {
      if (chosen >= 0) return;
      sum += amount(logit);
      if (sum > limit) chosen = id;
    });
    StoreInFirst(&shared.chosen, static_cast<unsigned long long>(chosen));
  }
  ClusterArrive();
  ClusterWait();
  return static_cast<int>(shared.chosen);
}

// The choice of a row that draws, in the first block. shared.best is the first block's.
__device__ int Draw(const Row& row, const SamplingRow& sampling, Shared& shared) {
  const double uniform = Uniform(sampling.seed, sampling.draws);
  const int count = min(sampling.top_k, row.vocab);
  if (sampling.top_k > 0) {
    const int chosen = DrawFromShortList(row, sampling, count, -1, uniform, shared);
    return chosen >= 0 ? chosen : DrawRanked(row, sampling, count, uniform, shared);
  }
  Weight all = 0;
  if (sampling.top_p < 1 || sampling.min_p > 0) {
    Weight mine = 0;
    row.ForEach([&](int, float logit) { mine += ShortWeight(row, logit); });
    all = ClusterPrefix(mine, shared).all;
    const int chosen = DrawFromShortList(row, sampling, kUsualList,
                                         static_cast<double>(all) * 0x1p-28, uniform, shared);
    if (chosen >= 0) return chosen;
  }
  return DrawByThreshold(row, sampling, all, uniform, shared);
}

// Penalises what the history's last tokens have in the slice, each once.
__device__ void ApplyPenalty(const Row& row, const SamplingRow& sampling, const int* history,
                             Shared& shared) {
  static_assert(kHistoryTokens * sizeof(unsigned) <= sizeof(shared.bins));
  unsigned* tokens = &shared.bins[0].x;  // the newest first
  const int window = static_cast<int>(
      min(static_cast<unsigned long long>(sampling.repeat_window), sampling.history_count));
  for (int i = threadIdx.x; i < window; i += kThreads) {
    tokens[i] = static_cast<unsigned>(history[(sampling.history_count - 1 - i) % kHistoryTokens]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < window; i += kThreads) {
    const unsigned token = tokens[i];
    if (token < 4u * row.begin || token >= 4u * row.end) continue;
    int newer = 0;
    while (newer < i && tokens[newer] != token) ++newer;
    if (newer < i) continue;
    float& logit = row.logits[token];
    logit = logit > 0 ? logit / sampling.repeat_penalty : logit * sampling.repeat_penalty;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 2)
    SampleKernel(const __grid_constant__ SampleParams p) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) shared.gathered = 0;
  ClusterArrive();
  const int row_index = static_cast<int>(blockIdx.y);
  const SamplingRow sampling = p.sampling[row_index];
  const int position = p.runs[row_index].position;
  const int quarter = (p.vocab + 3) / 4;  // float4s of a row
  const int slice = (quarter + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  Row row;
  row.logits = p.logits + static_cast<long long>(row_index) * p.stride;
  row.begin = min(quarter, static_cast<int>(blockIdx.x) * slice);
  row.end = min(quarter, row.begin + slice);
  row.vocab = p.vocab;
  // Finite, so that the largest logit has weight 1 at any temperature.
  row.inverse_temperature = fminf(__fdividef(1.0f, sampling.temperature), 1e30f);
  row.least = sampling.min_p;
  const bool active = sampling.active != 0;
  int* history = p.history + static_cast<long long>(row_index) * kHistoryTokens;
  int* newest = history + sampling.history_count % kHistoryTokens;
  int* output = p.output + static_cast<long long>(sampling.steps % kOutputSteps) * p.output_stride +
                row_index;
  int* token = p.tokens + row_index;
  SamplingRow* progress = p.sampling + row_index;
  int* next_position = &p.runs[row_index].position;
  ReadyBeforeWait(newest);
  ReadyBeforeWait(output);
  ReadyBeforeWait(token);
  ReadyBeforeWait(progress);
  ReadyBeforeWait(next_position);
  PdlWait();
  PdlTrigger();
  if (active && sampling.repeat_penalty != 1.0f) {
    ApplyPenalty(row, sampling, history, shared);
  }
  // Largest logit and its lowest index. What is not a number ranks above everything.
  float best = -INFINITY;
  int best_index = row.vocab;
  bool broken = false;
  row.ForEach([&](int id, float logit) {
    broken = broken || isnan(logit);
    if (logit > best) {
      best = logit;
      best_index = id;
    }
  });
  const unsigned order = broken ? ~0u : OrderOf(best);
  const unsigned largest = __reduce_max_sync(kAll, order);
  const unsigned lowest = __reduce_min_sync(kAll, order == largest ? best_index : ~0u);
  ClusterWait();
  if (threadIdx.x % 32 == 0) {
    StoreInFirst(&shared.best[blockIdx.x * kWarps + threadIdx.x / 32],
                 static_cast<unsigned long long>(largest) << 32 | (0xffffffffu - lowest));
  }
  ClusterArrive();
  ClusterWait();
  const bool draws = sampling.temperature > 0;
  if (!active || (blockIdx.x != 0 && !draws)) return;
  if (draws && blockIdx.x != 0) {
    // Every block has the warps' largest for itself.
    if (threadIdx.x < gridDim.x * kWarps) {
      shared.best[threadIdx.x] = LoadFrom(&shared.best[threadIdx.x], 0);
    }
    __syncthreads();
  }
  unsigned long long key = 0;
  for (unsigned i = threadIdx.x % 32; i < gridDim.x * kWarps; i += 32) {
    key = max(key, shared.best[i]);
  }
  const auto upper = static_cast<unsigned>(key >> 32);
  const unsigned top = __reduce_max_sync(kAll, upper);
  const unsigned rest = __reduce_max_sync(kAll, upper == top ? static_cast<unsigned>(key) : 0u);
  key = static_cast<unsigned long long>(top) << 32 | rest;
  row.largest = LogitOf(key);
  broken = isnan(row.largest) || isinf(row.largest);
  int chosen = IdOf(key);
  if (draws && !broken) {
    chosen = Draw(row, sampling, shared);
  } else if (draws) {
    // No block ends while others read its memory.
    ClusterArrive();
    ClusterWait();
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  *output = broken ? -1 : chosen;
  *token = broken ? 0 : chosen;
  *newest = broken ? 0 : chosen;
  *next_position = position + 1;
  progress->history_count = sampling.history_count + 1;
  progress->steps = sampling.steps + 1;
  if (draws) progress->draws = sampling.draws + 1;
}

}  // namespace

void LaunchSample(const SampleParams& params, cudaStream_t stream) {
  const unsigned cluster = DeviceHasClusters() ? kCluster : 1;
  LaunchClusters("the sampling kernel", SampleKernel,
                 dim3(cluster, static_cast<unsigned>(params.rows)), dim3(kThreads), dim3(cluster),
                 0, stream, params);
}

}  // namespace adder::cuda
