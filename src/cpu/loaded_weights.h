// A model's matrices in the form the kernels read: quantised segments repacked, dense ones in
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/thread_pool.h"
#include "core/weight_matrix.h"
#include "cpu/packed_matrix.h"
#include "model/bound_weights.h"

namespace adder {

// A segment of a matrix: `packed` when quantised, else `dense`. Work is divided in blocks of
// kBlockRows rows, the last of which may be smaller.
struct LoadedSegment {
  bool quantized = false;
  PackedMatrix packed;
  MatrixSegment dense;
  int64_t first_row = 0;
  int64_t rows = 0;

  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
};

struct LoadedMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<LoadedSegment> segments;

  int64_t blocks() const;
  // Bytes of weights: what one full read costs.
  int64_t bytes() const;
};

class LoadedWeights {
 public:
  // Repacks in slabs and gives the mapped source pages back after each, so that a model is never in
  // memory twice. `weights` must outlive this object. `progress` (may be empty) is told the part of
  // the repacking that is done, in [0, 1].
  LoadedWeights(const BoundWeights& weights, ThreadPool& pool,
                const std::function<void(double fraction)>& progress = {});
  ~LoadedWeights();
  LoadedWeights(const LoadedWeights&) = delete;
  LoadedWeights& operator=(const LoadedWeights&) = delete;

  const LoadedMatrix& matrix(int32_t id) const { return matrices_[static_cast<size_t>(id)]; }
  // Bytes of all matrices, packed or in place.
  int64_t bytes() const;

 private:
  void Load(const WeightMatrix& source, bool mapped, ThreadPool& pool, LoadedMatrix& matrix);

  std::vector<LoadedMatrix> matrices_;
  std::vector<std::vector<float>> converted_;  // f64 segments as f32
  // All packed matrices, one anonymous mapping.
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
};

// Row `row` of the matrix as f32.
void DequantizeLoadedRow(const LoadedMatrix& matrix, int64_t row, float* out);

}  // namespace adder
