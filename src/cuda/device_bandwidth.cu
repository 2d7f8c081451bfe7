// Every thread sums 16-byte words a grid apart, several in flight; the sum is stored so that the
// reads cannot be left out.
#include <algorithm>
#include <vector>

#include "cuda/cuda_call.h"
#include "cuda/device_bandwidth.h"
#include "cuda/device_memory.h"

namespace adder {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;

__global__ void ReadKernel(const uint4* data, long long count, unsigned* sums) {
  const long long stride = static_cast<long long>(gridDim.x) * kThreads;
  unsigned sum = 0;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += kInFlight * stride) {
    uint4 words[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      words[k] = i + k * stride < count ? __ldcs(data + i + k * stride) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) sum += words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
  }
  sums[static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x] = sum;
}

}  // namespace

DeviceBandwidth ProbeDeviceBandwidth() {
  using cuda::Check;
  constexpr size_t kBytes = size_t{2} << 30;
  constexpr int kRepeats = 20;
  int device = 0;
  int multiprocessors = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  const int blocks = multiprocessors * 4;
  const cuda::Stream stream;
  const cuda::DeviceMemory buffer(kBytes);
  const cuda::DeviceMemory sums(static_cast<size_t>(blocks) * kThreads * sizeof(unsigned));
  Check(cudaMemsetAsync(buffer.data(), 0x5a, kBytes, stream.get()), "cudaMemset");
  const cuda::Event begin(/*timing=*/true);
  const cuda::Event end(/*timing=*/true);
  std::vector<float> milliseconds;
  for (int i = 0; i < kRepeats + 2; ++i) {
    begin.Record(stream);
    ReadKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream.get()>>>(
        buffer.as<const uint4>(), static_cast<long long>(kBytes / sizeof(uint4)),
        sums.as<unsigned>());
    Check(cudaGetLastError(), "the bandwidth probe");
    end.Record(stream);
    end.Synchronize();
    float time = 0;
    Check(cudaEventElapsedTime(&time, begin.get(), end.get()), "cudaEventElapsedTime");
    if (i >= 2) milliseconds.push_back(time);
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double seconds = milliseconds[milliseconds.size() / 2] * 1e-3;
  return {static_cast<double>(kBytes) / seconds, static_cast<int64_t>(kBytes)};
}

}  // namespace adder
