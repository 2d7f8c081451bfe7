// A checkpoint directory: safetensors files, validated and mapped, with tensors by name.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/json.h"
#include "core/shape.h"
#include "model/bound_weights.h"
#include "model/family.h"

namespace adder {

class WeightStore {
 public:
  // Opens DIR/config.json and the weights: the files named by model.safetensors.index.json when
  // that exists, else model.safetensors. Every header is validated whole. Throws Error naming file
  // and tensor.
  static std::shared_ptr<const WeightStore> Open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  // config.json.
  const Json& config() const { return config_; }
  JsonObject config_object() const;
  const TensorView* Find(const std::string& name) const;
  // All tensors in name order.
  std::vector<const TensorView*> Tensors() const;
  TensorNames names() const;
  // Bytes of all tensors.
  int64_t bytes() const;

 private:
  std::filesystem::path directory_;
  Json config_;
  std::vector<MappedFile> files_;
  std::unordered_map<std::string, TensorView> tensors_;
};

// Finds every matrix and vector of `plan` in the checkpoint, checks dtype and shape, applies vector
// transforms. Every tensor must be used or match plan.ignored_tensors; a missing, misshapen, doubly
// used or left-over tensor is an Error naming it, the expected and the found shape. Quantisation
// (bits, group size) is taken from `quantization` / `quantization_config` with per-module overrides
// and checked against the tensors' shapes.
std::shared_ptr<const BoundWeights> BindWeights(std::shared_ptr<const WeightStore> store,
                                                const Plan& plan);

}  // namespace adder
