#include "cuda/kernels/token_map.h"

#include "core/error.h"
#include "cuda/cuda_call.h"

namespace adder::cuda {

CUtensorMap MapTokens(const LinearParams& params, int box_tokens) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess) {
      Fail(
          "The CUDA driver lacks cuTensorMapEncodeTiled, which GPUs of compute capability 9.0 "
          "need. Install a driver for CUDA 12 or newer.");
    }
    return reinterpret_cast<Encode>(found);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(params.matrix.cols),
                               static_cast<cuuint64_t>(params.tokens)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(params.rounded_input_stride) * 2};
  const cuuint32_t box[2] = {kChunkCols, static_cast<cuuint32_t>(box_tokens)};
  const cuuint32_t every[2] = {1, 1};
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(params.rounded_input), sizes,
      row_bytes, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    Fail("CUDA failed to describe ", params.tokens, " rows of ", params.matrix.cols,
         " activations to tensor copies (cuTensorMapEncodeTiled returned ",
         static_cast<int>(result), ").");
  }
  return map;
}

}  // namespace adder::cuda
