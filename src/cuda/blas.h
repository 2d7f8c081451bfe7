// Dense bf16 products through cuBLASLt.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "cuda/device_memory.h"

namespace adder::cuda {

// output [tokens, rows] = scale * activations [tokens, cols] weights^T + (add ? output : 0), with
// f32 sums. Distances between rows are in elements; those of activations and weights are multiples
// of eight.
struct DenseProduct {
  int tokens = 0;
  int rows = 0;
  int cols = 0;
  const __nv_bfloat16* activations = nullptr;
  int activations_stride = 0;
  const __nv_bfloat16* weights = nullptr;  // [rows, cols]
  int weights_stride = 0;
  float scale = 1;
  bool add = false;
  void* output = nullptr;
  int output_stride = 0;
  bool output_bf16 = false;  // else f32
  // So many products at once; each one's matrices lie so many elements behind those of the one
  // before, those of activations and weights a multiple of eight.
  int count = 1;
  int64_t activations_step = 0;
  int64_t weights_step = 0;
  int64_t output_step = 0;
};

// Which algorithm serves a shape is asked once; afterwards a product costs one launch and no
// allocation. One stream at a time.
class DenseProducts {
 public:
  // Whether cuBLASLt could be loaded. The first call loads it.
  static bool Available();

  DenseProducts();
  ~DenseProducts();

  // Throws Error when the library has no way to compute the product.
  void Launch(const DenseProduct& product, const Stream& stream);

 private:
  struct Shape {
    int tokens;
    int rows;
    int cols;
    int activations_stride;
    int weights_stride;
    int output_stride;
    bool add;
    bool output_bf16;
    int count;
    int64_t activations_step;
    int64_t weights_step;
    int64_t output_step;
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  const Plan& PlanOf(const Shape& shape);

  void* handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace adder::cuda
