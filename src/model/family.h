// The registry of model families. Each file of families/ defines one `Family` named after its file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/shape.h"
#include "model/plan.h"

namespace adder {

// The tensor names of a checkpoint, which tell its layout (Hugging Face or MLX naming).
class TensorNames {
 public:
  // Of a checkpoint on disk: `has` answers whether a full tensor name exists.
  // `shape` gives the shape of one that does.
  explicit TensorNames(std::function<bool(const std::string&)> has,
                       std::function<Shape(const std::string&)> shape = nullptr)
      : has_(std::move(has)), shape_(std::move(shape)) {}
  // Of a checkpoint yet to be written, in MLX or Hugging Face naming.
  static TensorNames Planned(bool mlx) {
    TensorNames names(nullptr);
    names.planned_mlx_ = mlx;
    return names;
  }

  // Whether the checkpoint uses the layout that `probe` (a full tensor name which only one of the
  // two layouts has) belongs to. `probe_is_mlx` says which layout that is.
  bool Uses(const std::string& probe, bool probe_is_mlx) const {
    return has_ ? has_(probe) : planned_mlx_ == probe_is_mlx;
  }
  // Whether an optional tensor exists. Planned checkpoints have no optional tensors.
  bool HasOptional(const std::string& name) const { return has_ && has_(name); }
  // The shape of a tensor; empty when it is not known or there is none.
  Shape ShapeOf(const std::string& name) const {
    return shape_ && has_ && has_(name) ? shape_(name) : Shape{};
  }
  // For families whose layouts have the same names: whether the convolution weight `name` is MLX's
  // [channels, taps, 1] and not Hugging Face's [channels, 1, taps].
  bool HasMlxConvolution(const std::string& name) const {
    if (!has_) return planned_mlx_;
    if (!shape_ || !has_(name)) return false;
    const Shape shape = shape_(name);
    return shape.size() == 3 && shape[1] != 1 && shape[2] == 1;
  }

 private:
  std::function<bool(const std::string&)> has_;
  std::function<Shape(const std::string&)> shape_;
  bool planned_mlx_ = false;
};

struct Family {
  std::string_view model_type;
  // One line for `adder families`.
  std::string_view description;
  // Values of the config's `architectures` that mean this family, for files without model_type.
  std::vector<std::string_view> architectures;
  // Builds the plan. Throws Error naming the config field when a value is missing, absurd or not
  // implemented. The result has passed ValidatePlan.
  Plan (*build)(const JsonObject& config, const TensorNames& names);
  // Other names of model_type in files of this family.
  std::vector<std::string_view> aliases = {};
};

// All families, sorted by model_type. Generated from the files in families/.
const std::vector<const Family*>& AllFamilies();

// The family of a config.json: by model_type, else by architectures, else (original Mamba-2 files)
// by ssm_cfg. Throws Error listing the supported families when there is none.
const Family& FindFamily(const JsonObject& config);

}  // namespace adder
