// The `quantization` entry of an MLX checkpoint's config.json.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/json.h"
#include "core/weight_matrix.h"

namespace adder {

struct QuantizationFormat {
  int bits = 0;
  int group_size = 0;
  QuantizationMode mode = QuantizationMode::kAffine;
};

// What config.json says about quantised modules: a default and overrides per module. Whether a
// module is quantised is decided by the presence of its .scales, not here.
class QuantizationConfig {
 public:
  // Reads `quantization` (or `quantization_config`). Throws Error naming the field for an unknown
  // mode, affine bits other than 2, 3, 4, 5, 6, 8 or group sizes other than 32, 64, 128, bits or a
  // group size that the mode does not have, or a quantisation method that is not MLX's.
  explicit QuantizationConfig(const JsonObject& config);

  // The format of a module: its own entry, an entry that names it with a longer or shorter prefix,
  // or the default. Nothing when the config states none.
  std::optional<QuantizationFormat> FormatOf(const std::string& module) const;

 private:
  std::optional<QuantizationFormat> default_;
  std::map<std::string, std::optional<QuantizationFormat>> overrides_;
};

}  // namespace adder
