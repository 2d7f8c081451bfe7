// Sampling: penalty and maximum by a cluster of blocks per row, the choice by its first block.
//
// A block owns a slice of the row in the first part: it applies the penalty in place, and each of
// its warps pushes the slice's largest logit into the first block's shared memory. The first block
// owns the whole row after that. Greedy rows are done then. Others: with a top_k the candidates are
// selected by four passes over eight bits of their order, ranked in shared memory and drawn in that
// order, as the host's sampler does; otherwise a threshold is selected by the same passes over
// probability, and the draw runs over what is above it in order of id. Sums that decide are
// integers (2^-40 of the largest probability), so a choice is a function of logits and seed.
#include <cuda_runtime.h>

#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/sample.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;  // blocks of a row
constexpr int kBins = 256;
using Weight = unsigned long long;  // of 2^40

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
  unsigned counts[kBins];
  Weight weights[kBins];
  unsigned long long ranked[kMaxRankedTopK];
  Weight sums[kWarps];
  unsigned prefix;
  unsigned taken;  // candidates above the bin that was chosen
  Weight passed;   // their weight
  int chosen;
  unsigned gathered;
  unsigned long long best[kCluster * kWarps];  // RankKey; in the first block
};

__device__ Weight BlockSum(Weight value, Shared& shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int w = 0; w < kWarps; ++w) value += shared.sums[w];
  return value;
}

// One row in the hands of one block.
struct Row {
  const float* logits;
  int vocab;
  float largest;
  float temperature;
  float least;  // smallest weight kept, relative to the largest

  __device__ float WeightOf(float logit) const { return expf((logit - largest) / temperature); }
  // 0 for what min-p takes away.
  __device__ Weight KeptWeight(float logit) const {
    const float weight = WeightOf(logit);
    return weight < least ? 0 : static_cast<Weight>(weight * 0x1p40f);
  }
};

// The order (see OrderOf) of the last candidate kept: the `count`-th, or the one with which the
// weight of all candidates reaches `enough`, whichever comes first. shared.taken and shared.passed
// say what lies above.
__device__ unsigned SelectThreshold(const Row& row, unsigned count, Weight enough, Shared& shared) {
  if (threadIdx.x == 0) {
    shared.prefix = 0;
    shared.taken = 0;
    shared.passed = 0;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      shared.counts[bin] = 0;
      shared.weights[bin] = 0;
    }
    __syncthreads();
    const unsigned prefix = shared.prefix;
    for (int i = threadIdx.x; i < row.vocab; i += kThreads) {
      const float logit = row.logits[i];
      const unsigned order = OrderOf(logit);
      if (shift < 24 && order >> (shift + 8) != prefix) continue;
      const unsigned bin = order >> shift & 255u;
      atomicAdd(&shared.counts[bin], 1u);
      atomicAdd(&shared.weights[bin], static_cast<Weight>(row.WeightOf(logit) * 0x1p40f));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kBins - 1;
      for (; bin > 0; --bin) {
        if (shared.taken + shared.counts[bin] >= count ||
            shared.passed + shared.weights[bin] >= enough) {
          break;
        }
        shared.taken += shared.counts[bin];
        shared.passed += shared.weights[bin];
      }
      shared.prefix = prefix << 8 | static_cast<unsigned>(bin);
    }
    __syncthreads();
  }
  return shared.prefix;
}

// SplitMix64's output number `index` of a seed, as engine/sampler.h has it, in [0, 1).
__device__ double Uniform(unsigned long long seed, unsigned long long index) {
  unsigned long long z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// Draws from the top_k candidates in order of rank.
__device__ int DrawRanked(const Row& row, const SamplingRow& sampling, double uniform,
                          Shared& shared) {
  const unsigned count = static_cast<unsigned>(min(sampling.top_k, row.vocab));
  const unsigned threshold = SelectThreshold(row, count, ~Weight{0}, shared);
  for (int i = threadIdx.x; i < kMaxRankedTopK; i += kThreads) shared.ranked[i] = 0;
  if (threadIdx.x == 0) shared.gathered = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.vocab; i += kThreads) {
    const float logit = row.logits[i];
    if (OrderOf(logit) > threshold) {
      shared.ranked[atomicAdd(&shared.gathered, 1u)] = RankKey(logit, i);
    }
  }
  __syncthreads();
  // Of those equal to the threshold the lowest ids, found in order by one warp.
  if (threadIdx.x < 32) {
    unsigned have = shared.gathered;
    for (int base = 0; base < row.vocab && have < count; base += 32) {
      const int i = base + static_cast<int>(threadIdx.x);
      const float logit = i < row.vocab ? row.logits[i] : 0.0f;
      const bool equal = i < row.vocab && OrderOf(logit) == threshold;
      const unsigned mask = __ballot_sync(0xffffffffu, equal);
      const unsigned before = __popc(mask & ((1u << threadIdx.x) - 1));
      if (equal && have + before < count) shared.ranked[have + before] = RankKey(logit, i);
      have = min(count, have + static_cast<unsigned>(__popc(mask)));
    }
  }
  __syncthreads();
  // Bitonic sort, the largest first.
  for (int size = 2; size <= kMaxRankedTopK; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < kMaxRankedTopK; i += kThreads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const bool falling = (i & size) == 0;
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
  if (threadIdx.x == 0) {
    // As the host's sampler: top-p is a share of all the probability, before min-p takes tokens.
    double all = 0;
    for (unsigned i = 0; i < count; ++i) all += row.WeightOf(LogitOf(shared.ranked[i]));
    const double enough = sampling.top_p < 1 ? sampling.top_p * all : INFINITY;
    double kept = 0;
    unsigned kept_count = 0;
    while (kept_count < count && kept < enough) {
      const float weight = row.WeightOf(LogitOf(shared.ranked[kept_count]));
      if (weight == 0 || weight < sampling.min_p) break;
      kept += weight;
      ++kept_count;
    }
    const double limit = uniform * kept;
    double sum = 0;
    for (unsigned rank = 0; rank < kept_count; ++rank) {
      sum += row.WeightOf(LogitOf(shared.ranked[rank]));
      shared.chosen = IdOf(shared.ranked[rank]);
      if (sum > limit) break;
    }
  }
  __syncthreads();
  return shared.chosen;
}

// Draws from all candidates of at least the threshold, in order of id.
__device__ int DrawByThreshold(const Row& row, const SamplingRow& sampling, double uniform,
                               Shared& shared) {
  unsigned threshold = 0;
  if (sampling.top_p < 1) {
    Weight mine = 0;
    for (int i = threadIdx.x; i < row.vocab; i += kThreads) {
      mine += static_cast<Weight>(row.WeightOf(row.logits[i]) * 0x1p40f);
    }
    const Weight all = BlockSum(mine, shared);
    const auto enough = static_cast<Weight>(sampling.top_p * static_cast<double>(all));
    threshold = SelectThreshold(row, ~0u, enough, shared);
  }
  // Contiguous parts per thread, so that sums run in order of id.
  const int part = (row.vocab + kThreads - 1) / kThreads;
  const int begin = min(row.vocab, static_cast<int>(threadIdx.x) * part);
  const int end = min(row.vocab, begin + part);
  Weight mine = 0;
  for (int i = begin; i < end; ++i) {
    if (OrderOf(row.logits[i]) >= threshold) mine += row.KeptWeight(row.logits[i]);
  }
  const Weight all = BlockSum(mine, shared);
  // This thread's share begins where those before it end.
  Weight inclusive = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Weight other = __shfl_up_sync(0xffffffffu, inclusive, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) inclusive += other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 31) shared.sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  Weight before = inclusive - mine;
  for (int w = 0; w < static_cast<int>(threadIdx.x / 32); ++w) before += shared.sums[w];
  const Weight limit = min(static_cast<Weight>(uniform * static_cast<double>(all)), all - 1);
  if (mine > 0 && limit >= before && limit - before < mine) {
    Weight sum = before;
    for (int i = begin; i < end; ++i) {
      if (OrderOf(row.logits[i]) < threshold) continue;
      sum += row.KeptWeight(row.logits[i]);
      if (sum > limit) {
        shared.chosen = i;
        break;
      }
    }
  }
  __syncthreads();
  return shared.chosen;
}

// Penalises what the history's last tokens have in the slice, each once. seen: a bit per logit.
__device__ void ApplyPenalty(const SamplingRow& sampling, const int* history, float* logits,
                             int begin, int end, unsigned* seen) {
  for (int i = threadIdx.x; i < (end - begin + 31) / 32; i += kThreads) seen[i] = 0;
  __syncthreads();
  const auto window =
      min(static_cast<unsigned long long>(sampling.repeat_window), sampling.history_count);
  for (unsigned long long i = threadIdx.x; i < window; i += kThreads) {
    const int token = history[(sampling.history_count - 1 - i) % kHistoryTokens];
    if (token < begin || token >= end) continue;
    const unsigned bit = 1u << ((token - begin) % 32);
    if (atomicOr(&seen[(token - begin) / 32], bit) & bit) continue;
    const float logit = logits[token];
    logits[token] = logit > 0 ? logit / sampling.repeat_penalty : logit * sampling.repeat_penalty;
  }
  // The first block reads them all.
  __threadfence();
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleParams p) {
  __shared__ Shared shared;
  extern __shared__ unsigned seen[];
  ClusterArrive();
  const int row_index = static_cast<int>(blockIdx.y);
  const SamplingRow sampling = p.sampling[row_index];
  const int position = p.runs[row_index].position;
  float* logits = p.logits + static_cast<long long>(row_index) * p.stride;
  const int quarter = (p.vocab + 3) / 4;  // float4s of a row
  const int slice = (quarter + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int begin = static_cast<int>(blockIdx.x) * slice;
  const int end = min(quarter, begin + slice);
  PdlWait();
  PdlTrigger();
  if (sampling.active != 0 && sampling.repeat_penalty != 1.0f) {
    ApplyPenalty(sampling, p.history + static_cast<long long>(row_index) * kHistoryTokens, logits,
                 4 * begin, min(p.vocab, 4 * end), seen);
  }
  // Largest logit and its lowest index. What is not a number ranks above everything.
  float best = -INFINITY;
  int best_index = p.vocab;
  bool broken = false;
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const float4 four = reinterpret_cast<const float4*>(logits)[i];
    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (4 * i + j >= p.vocab) break;
      broken = broken || isnan(each[j]);
      if (each[j] > best) {
        best = each[j];
        best_index = 4 * i + j;
      }
    }
  }
  const unsigned order = broken ? ~0u : OrderOf(best);
  const unsigned largest = __reduce_max_sync(0xffffffffu, order);
  const unsigned lowest = __reduce_min_sync(0xffffffffu, order == largest ? best_index : ~0u);
  ClusterWait();
  if (threadIdx.x % 32 == 0) {
    StoreInFirst(&shared.best[blockIdx.x * kWarps + threadIdx.x / 32],
                 static_cast<unsigned long long>(largest) << 32 | (0xffffffffu - lowest));
  }
  ClusterArrive();
  ClusterWait();
  if (blockIdx.x != 0 || sampling.active == 0) return;
  unsigned long long key = 0;
  for (unsigned i = threadIdx.x % 32; i < gridDim.x * kWarps; i += 32) {
    key = max(key, shared.best[i]);
  }
  const unsigned top = __reduce_max_sync(0xffffffffu, static_cast<unsigned>(key >> 32));
  const unsigned rest = __reduce_max_sync(
      0xffffffffu, static_cast<unsigned>(key >> 32) == top ? static_cast<unsigned>(key) : 0u);
  key = static_cast<unsigned long long>(top) << 32 | rest;
  const float chosen_logit = LogitOf(key);
  broken = isnan(chosen_logit) || isinf(chosen_logit);
  int chosen = IdOf(key);
  if (!broken && sampling.temperature > 0) {
    const Row row = {logits, p.vocab, chosen_logit, sampling.temperature, sampling.min_p};
    const double uniform = Uniform(sampling.seed, sampling.draws);
    chosen = sampling.top_k > 0 ? DrawRanked(row, sampling, uniform, shared)
                                : DrawByThreshold(row, sampling, uniform, shared);
  }
  if (threadIdx.x != 0) return;
  p.output[static_cast<long long>(sampling.steps % kOutputSteps) * p.output_stride + row_index] =
      broken ? -1 : chosen;
  p.tokens[row_index] = broken ? 0 : chosen;
  p.history[static_cast<long long>(row_index) * kHistoryTokens +
            sampling.history_count % kHistoryTokens] = broken ? 0 : chosen;
  p.runs[row_index].position = position + 1;
  SamplingRow& progress = p.sampling[row_index];
  progress.history_count = sampling.history_count + 1;
  progress.steps = sampling.steps + 1;
  if (sampling.temperature > 0) progress.draws = sampling.draws + 1;
}

}  // namespace

void LaunchSample(const SampleParams& params, cudaStream_t stream) {
  const int cluster = DeviceHasClusters() ? kCluster : 1;
  const int slice = 4 * (((params.vocab + 3) / 4 + cluster - 1) / cluster);
  LaunchClusters("the sampling kernel", SampleKernel,
                 dim3(static_cast<unsigned>(cluster), static_cast<unsigned>(params.rows)),
                 dim3(kThreads), dim3(static_cast<unsigned>(cluster)),
                 static_cast<size_t>((slice + 31) / 32) * sizeof(unsigned), stream, params);
}

}  // namespace adder::cuda
