// A block per token: (1) PdlWait; (2) its logits to shared memory; (3) the choice (route.cuh).
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/route.cuh"
#include "cuda/kernels/route.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) RouteKernel(const __grid_constant__ RouteParams p) {
  extern __shared__ float shared[];
  const auto token = static_cast<long long>(blockIdx.x);
  const float* logits = p.logits + token * p.logits_stride;
  PdlWait();
  PdlTrigger();
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += kThreads) shared[e] = logits[e];
  __syncthreads();
  float* out = p.output + token * p.output_stride;
  ChooseByRule(p, shared, out);
  if (p.chosen == nullptr) return;
  const int* numbers = ChosenByRule(p, shared);
  for (int j = static_cast<int>(threadIdx.x); j < p.top_k; j += kThreads) {
    p.chosen[token * p.top_k + j] = numbers[j] < p.experts - p.idle ? numbers[j] : -1;
  }
}

}  // namespace

void LaunchRoute(const RouteParams& params, cudaStream_t stream) {
  if (params.tokens == 0) return;
  const int bytes = ChoiceByRuleBytes(params.experts, params.groups);
  if (bytes > 48 * 1024) {
    Check(cudaFuncSetAttribute(RouteKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "setting the shared memory of the kernel that chooses experts");
  }
  Launch("the kernel that chooses experts", RouteKernel, dim3(static_cast<unsigned>(params.tokens)),
         dim3(kThreads), static_cast<size_t>(bytes), stream, params);
}

}  // namespace adder::cuda
