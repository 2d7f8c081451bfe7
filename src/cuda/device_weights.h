// A program's weights in device memory: matrices packed for the kernels, vectors as f32.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/kernels/packed_matrix.h"
#include "program/program.h"

namespace adder::cuda {

class DeviceWeights {
 public:
  // Copies and packs everything the program's ops use. `progress` (may be empty) is told the part
  // that is done, in [0, 1]. Throws Error when the device has not enough memory.
  DeviceWeights(const Program& program, const Stream& stream,
                const std::function<void(double fraction)>& progress);

  // A matrix used by itself.
  const PackedMatrix& matrix(MatrixId id) const { return matrices_.at({id}).view; }
  // The stack of an op's experts.
  const PackedMatrix& stack(const std::vector<MatrixId>& ids) const {
    return matrices_.at(ids).view;
  }
  // [size] f32 on a 256-byte boundary; null for kNoId.
  const float* vector(VectorId id) const;
  // Of an op that NeedsRule: output = factors * (W x) + bias, per row. Null: factors are all 1,
  // there is no bias.
  struct RowVectors {
    const float* factors = nullptr;
    const float* bias = nullptr;
  };
  RowVectors row_vectors(const Linear& linear) const;
  // [rows, cols] f32 of a selection's dt_proj, if it is small; else null.
  const float* dense_rows(MatrixId id) const;
  // The weight of a Mamba-1 mixer's norm of dt that has none; null where no mixer has such a norm.
  const float* ones() const;
  // A rope's inverse frequencies; null when there is no rope.
  const float* inverse_frequencies(const std::optional<Rope>& rope) const;
  // Per head, of a LightningOp.
  const float* slopes(const LightningAttention& mixer) const;

  int64_t bytes() const { return bytes_; }
  // As Program::matrix_bytes has them: what the kernels read of each matrix.
  const std::vector<int64_t>& matrix_bytes() const { return matrix_bytes_; }

 private:
  struct Matrix {
    PackedMatrix view;
    DeviceMemory memory;
    std::vector<WeightMatrix> copied;  // see AsCopied; until they are on the device
  };

  void Collect(const std::vector<MatrixId>& ids, bool interleaved);
  void Plan(Matrix& matrix);
  void Upload(const WeightMatrix& source, bool mapped, const Matrix& matrix, int index,
              const Stream& stream);
  void UploadVectors(const Program& program, const Stream& stream);
  const float* Constants(const std::vector<float>& values) const;

  std::map<std::vector<MatrixId>, Matrix> matrices_;
  DeviceMemory vectors_;
  std::vector<size_t> vector_offsets_;                     // in floats
  std::map<std::vector<float>, size_t> constant_offsets_;  // of numbers that the plan itself has
  struct RowOffsets {
    size_t factors = 0;
    size_t bias = 0;
  };
  std::map<MatrixId, RowOffsets> row_offsets_;
  std::map<MatrixId, size_t> dense_offsets_;
  size_t ones_offset_ = 0;
  size_t ones_ = 0;
  DeviceMemory raw_;  // a matrix as the checkpoint has it, before packing
  int64_t bytes_ = 0;
  std::vector<int64_t> matrix_bytes_;
};

}  // namespace adder::cuda
