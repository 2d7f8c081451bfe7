// A block owns a query head or a KV head of one row. Phases: (1) PdlWait; (2) of a KV head, v is
// normed and stored, from k itself where values are keys; (3) the head goes to shared memory, is
// normed, rotated, normed, in the order that the model has; (4) it goes back to q, or to the page.
// Nobody else reads or writes that head of the row, and sums are taken in an order that depends on
// sizes alone.
#include <cuda_bf16.h>

#include "cuda/kernels/attention_place.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rotation.cuh"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ void StoreElement(float* to, float x) { *to = x; }
__device__ __forceinline__ void StoreElement(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

// What the norm multiplies a head by, its weights aside; x[0 .. count) is in any memory.
__device__ __forceinline__ float NormFactor(const HeadNorm& norm, const float* x, int count,
                                            float* of_warps) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    squares = fmaf(x[i], x[i], squares);
  }
  return rsqrtf(BlockSum(squares, of_warps) / static_cast<float>(count) + norm.eps);
}
// Of an element, counted from the first head on.
__device__ __forceinline__ float WeightOf(const HeadNorm& norm, int i) {
  return norm.weight == nullptr ? 1.0f : norm.weight[i % norm.size];
}

// Rotates the first rotary_dim elements of a head in shared memory; barriers are the caller's.
__device__ __forceinline__ void Rotate(const AttentionParams& p, int position, float* head) {
  if (p.inverse_frequencies == nullptr) return;
  const int half = p.rotary_dim / 2;
  for (int pair = static_cast<int>(threadIdx.x); pair < half; pair += kThreads) {
    float& a = head[p.interleaved ? 2 * pair : pair];
    float& b = head[p.interleaved ? 2 * pair + 1 : pair + half];
    const float2 turned = Turned(Rotation(p, position, pair), a, b);
    a = turned.x;
    b = turned.y;
  }
}

// The place of a position's keys of a KV head.
template <class T>
__device__ __forceinline__ T* KeysAt(const AttentionParams& p, const SequenceRun& run, int position,
                                     int kv_head) {
  return reinterpret_cast<T*>(run.pages[position / p.page_positions] + p.kv_offset) +
         (static_cast<long long>(kv_head) * p.page_positions + position % p.page_positions) *
             p.head_dim;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    PlaceHeadsKernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ float head[];
  // A barrier lies between two uses of the same one.
  __shared__ float of_warps[3][kThreads / 32];
  PdlWait();
  PdlTrigger();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const SequenceRun run = p.runs[p.row_runs[row]];
  const int position = run.position + row - run.row;
  const bool is_key = static_cast<int>(blockIdx.x) >= p.heads;
  const int kv_head = static_cast<int>(blockIdx.x) - p.heads;
  float* x = p.qkv + static_cast<long long>(row) * p.qkv_stride +
             static_cast<long long>(blockIdx.x) * p.head_dim;
  const int own = (is_key ? kv_head : static_cast<int>(blockIdx.x)) * p.head_dim;
  T* keys = is_key ? KeysAt<T>(p, run, position, kv_head) : nullptr;
  if (is_key) {
    const float* v = p.values_from_keys ? x : x + static_cast<long long>(p.kv_heads) * p.head_dim;
    const bool norms = p.v_norm.part > 0;
    const float factor = norms ? NormFactor(p.v_norm, v, p.head_dim, of_warps[0]) : 1.0f;
    T* values = keys + static_cast<long long>(p.kv_heads) * p.page_positions * p.head_dim;
    for (int i = thread; i < p.head_dim; i += kThreads) {
      StoreElement(values + i, norms ? v[i] * factor * WeightOf(p.v_norm, own + i) : v[i]);
    }
  }
  const HeadNorm norm = is_key ? p.k_norm : p.q_norm;
  const bool norms_before = norm.part > 0 && !p.norm_after_rotation;
  const bool norms_after = norm.part > 0 && p.norm_after_rotation;
  const float before = norms_before ? NormFactor(norm, x, p.head_dim, of_warps[1]) : 1.0f;
  for (int i = thread; i < p.head_dim; i += kThreads) {
    head[i] = norms_before ? x[i] * before * WeightOf(norm, own + i) : x[i];
  }
  __syncthreads();
  Rotate(p, position, head);
  __syncthreads();
  const float after = norms_after ? NormFactor(norm, head, p.head_dim, of_warps[2]) : 1.0f;
  for (int i = thread; i < p.head_dim; i += kThreads) {
    const float y = norms_after ? head[i] * after * WeightOf(norm, own + i) : head[i];
    if (is_key) {
      StoreElement(keys + i, y);
    } else {
      x[i] = y;
    }
  }
}

// Block 0 of a row owns what goes to the page, the others a head each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    LatentPlaceKernel(const __grid_constant__ LatentPlaceParams params) {
  extern __shared__ float turned[];  // [rope_dim]
  __shared__ float of_warps[kThreads / 32];
  PdlWait();
  PdlTrigger();
  const AttentionParams& p = params.attention;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const SequenceRun run = p.runs[p.row_runs[row]];
  const int position = run.position + row - run.row;
  const int rope_dim = p.head_dim - p.latent;
  const int head = static_cast<int>(blockIdx.x) - 1;
  const float* c = head < 0
                       ? params.kv + static_cast<long long>(row) * params.kv_stride
                       : params.absorbed + static_cast<long long>(row) * params.absorbed_stride +
                             head * p.latent;
  const float* r = head < 0 ? c + p.latent
                            : params.query + static_cast<long long>(row) * params.query_stride +
                                  head * (params.nope_dim + rope_dim) + params.nope_dim;
  for (int i = thread; i < rope_dim; i += kThreads) turned[i] = r[i];
  __syncthreads();
  Rotate(p, position, turned);
  __syncthreads();
  if (head >= 0) {
    float* q = p.qkv + static_cast<long long>(row) * p.qkv_stride + head * p.head_dim;
    for (int i = thread; i < p.head_dim; i += kThreads) {
      q[i] = i < p.latent ? c[i] : turned[i - p.latent];
    }
    return;
  }
  const HeadNorm norm = {params.norm_weight, p.latent, p.latent, params.norm_eps};
  const float factor = NormFactor(norm, c, p.latent, of_warps);
  T* keys = KeysAt<T>(p, run, position, 0);
  for (int i = thread; i < p.head_dim; i += kThreads) {
    StoreElement(keys + i, i < p.latent ? c[i] * factor * WeightOf(norm, i) : turned[i - p.latent]);
  }
}

}  // namespace

bool PlacesHeads(const AttentionParams& p) {
  const auto unweighted = [](const HeadNorm& norm) {
    return norm.part > 0 && norm.weight == nullptr;
  };
  return p.v_norm.part > 0 || unweighted(p.q_norm) || unweighted(p.k_norm) || p.values_from_keys ||
         !p.owns_kv || (p.interleaved && p.inverse_frequencies != nullptr);
}

void LaunchPlaceHeads(const AttentionParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  const int heads = params.heads + (params.owns_kv ? params.kv_heads : 0);
  Launch("the kernel of q, k and v before attention",
         params.kv_bf16 ? PlaceHeadsKernel<__nv_bfloat16> : PlaceHeadsKernel<float>,
         dim3(static_cast<unsigned>(heads), static_cast<unsigned>(params.rows)), dim3(kThreads),
         static_cast<size_t>(params.head_dim) * sizeof(float), stream, params);
}

void LaunchLatentPlace(const LatentPlaceParams& params, cudaStream_t stream) {
  const AttentionParams& p = params.attention;
  if (p.rows == 0) return;
  Launch("the kernel of queries and keys before latent attention",
         p.kv_bf16 ? LatentPlaceKernel<__nv_bfloat16> : LatentPlaceKernel<float>,
         dim3(static_cast<unsigned>(p.heads + 1), static_cast<unsigned>(p.rows)), dim3(kThreads),
         static_cast<size_t>(p.head_dim - p.latent + 1) * sizeof(float), stream, params);
}

}  // namespace adder::cuda
