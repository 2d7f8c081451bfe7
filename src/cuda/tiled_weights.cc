#include "cuda/tiled_weights.h"

#include "cuda/cuda_call.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/supported.h"

namespace adder::cuda {

void TiledWeights::Make(const Stream& stream) {
  if (made_) return;
  made_ = true;
  if (!DeviceHasWgmma()) return;
  struct Part {
    const PackedMatrix& matrix;
    const float* norm_weight;
    size_t offset;
  };
  std::vector<Part> parts;
  size_t bytes = 0;
  for (const Op& op : program_.ops) {
    const auto* linear = std::get_if<LinearOp>(&op.body);
    if (linear == nullptr) continue;
    const PackedMatrix& matrix = weights_.matrix(linear->linear.weight);
    const bool folds = linear->norm && !NormsApart(*linear->norm);
    const float* norm_weight = folds ? weights_.vector(linear->norm->weight) : nullptr;
    if (!CanUnpack(matrix) || !offsets_.emplace(Key(matrix.data, norm_weight), bytes).second) {
      continue;
    }
    parts.push_back({matrix, norm_weight, bytes});
    bytes += UnpackedBytes(matrix);
  }
  size_t most = static_cast<size_t>(most_bytes_);
  if (most_bytes_ < 0) {
    size_t total = 0;
    Check(cudaMemGetInfo(&most, &total), "cudaMemGetInfo");
    most /= 2;
  }
  if (bytes > most) return offsets_.clear();
  memory_ = DeviceMemory(bytes);
  for (const Part& part : parts) {
    LaunchUnpackTiles(part.matrix, part.norm_weight,
                      reinterpret_cast<uint16_t*>(memory_.as<char>() + part.offset), stream.get());
  }
}

const uint16_t* TiledWeights::Find(const PackedMatrix& matrix, const float* norm_weight) const {
  const auto found = offsets_.find(Key(matrix.data, norm_weight));
  if (found == offsets_.end()) return nullptr;
  return reinterpret_cast<const uint16_t*>(memory_.as<const char>() + found->second);
}

}  // namespace adder::cuda
