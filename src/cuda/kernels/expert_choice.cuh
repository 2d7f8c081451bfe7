// A block's choice of experts from their scores.
#pragma once

#include <cuda_runtime.h>

namespace adder::cuda {

// In shared memory: scores [experts], the chosen ones' scores and numbers, best first. Every thread
// of the block calls Rank and Write. Of equal scores the first is better; what is not a number is
// worst.
struct ExpertChoice {
  float* scores;
  float* best;
  int* experts;
  int count;

  __device__ __forceinline__ ExpertChoice(float* shared, int expert_count)
      : scores(shared),
        best(shared + expert_count),
        experts(reinterpret_cast<int*>(shared + 2 * expert_count)),
        count(expert_count) {}
  static constexpr int Bytes(int expert_count) { return 3 * 4 * expert_count; }

  __device__ __forceinline__ void SetScore(int expert, float score) const {
    scores[expert] = score == score ? score : -INFINITY;
  }

  // A barrier must lie between the scores and this; ends with one. Four threads compare an expert
  // with all others.
  __device__ __forceinline__ void Rank(int top_k) const {
    const int part = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
    for (int first = 0; first < count; first += static_cast<int>(blockDim.x) / 4) {
      const int e = first + static_cast<int>(threadIdx.x) / 4;
      const float own = scores[min(e, count - 1)];
      int rank = 0;
#pragma unroll 4
      for (int other = part; other < count; other += 4) {
        const float score = scores[other];
        rank += score > own || (score == own && other < e);
      }
      rank += __shfl_xor_sync(0xffffffffu, rank, 1);
      rank += __shfl_xor_sync(0xffffffffu, rank, 2);
      if (part == 0 && e < count && rank < top_k) {
        best[rank] = own;
        experts[rank] = e;
      }
    }
    __syncthreads();
  }

  // out [2 * top_k]: softmax over the chosen scores, then the experts' numbers as f32.
  __device__ __forceinline__ void Write(int top_k, float* out) const {
    Weigh(top_k, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), out);
  }
  // The same by threads first, first + step, ... alone.
  __device__ __forceinline__ void Weigh(int top_k, int first, int step, float* out) const {
    for (int i = first; i < top_k; i += step) {
      float sum = 0;
#pragma unroll 1
      for (int other = 0; other < top_k; ++other) sum += expf(best[other] - best[0]);
      out[i] = expf(best[i] - best[0]) / sum;
      out[top_k + i] = static_cast<float>(experts[i]);
    }
  }
};

}  // namespace adder::cuda
