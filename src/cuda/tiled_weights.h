// Matrices of a program unpacked to bf16 tiles, for steps of many sequences: see
// kernels/unpacked_linear.h.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/packed_matrix.h"
#include "program/program.h"

namespace adder::cuda {

class TiledWeights {
 public:
  // The program and weights must outlive it. It takes at most `most_bytes`; -1: half of the memory
  // that is free when they are made.
  TiledWeights(const Program& program, const DeviceWeights& weights, int64_t most_bytes)
      : program_(program), weights_(weights), most_bytes_(most_bytes) {}

  // Unpacks every matrix that projections of the program use, the first time, if the device has a
  // kernel for them and all of them fit; none otherwise. Throws Error as DeviceMemory does.
  void Make(const Stream& stream);
  // The tiles of a matrix times the weights of the norm before it (null: none); null without.
  const uint16_t* Find(const PackedMatrix& matrix, const float* norm_weight) const;

 private:
  using Key = std::pair<const void*, const float*>;

  const Program& program_;
  const DeviceWeights& weights_;
  const int64_t most_bytes_;
  bool made_ = false;
  DeviceMemory memory_;
  std::map<Key, size_t> offsets_;
};

}  // namespace adder::cuda
