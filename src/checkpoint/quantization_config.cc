#include "checkpoint/quantization_config.h"

#include <limits>
#include <utility>

#include "core/error.h"

namespace adder {
namespace {

QuantizationFormat ReadFormat(const JsonObject& object,
                              const std::optional<QuantizationFormat>& base) {
  const std::string mode = object.String({"mode"}, "affine");
  if (mode != "affine") {
    Fail(object.where(), ": the quantisation mode \"", mode,
         "\" is not supported; affine quantisation is.");
  }
  QuantizationFormat format;
  format.bits = static_cast<int>(
      object.Int({"bits"}, 1, 64, base ? std::optional<int64_t>(base->bits) : std::nullopt));
  format.group_size = static_cast<int>(object.Int(
      {"group_size"}, 1, 4096, base ? std::optional<int64_t>(base->group_size) : std::nullopt));
  const int b = format.bits;
  if (b != 2 && b != 3 && b != 4 && b != 5 && b != 6 && b != 8) {
    Fail(object.where(), ": bits is ", b, "; 2, 3, 4, 5, 6 and 8 are supported.");
  }
  if (format.group_size != 32 && format.group_size != 64 && format.group_size != 128) {
    Fail(object.where(), ": group_size is ", format.group_size, "; 32, 64 and 128 are supported.");
  }
  return format;
}

// Whether `longer` is `shorter` behind a dotted prefix.
bool IsSuffix(const std::string& longer, const std::string& shorter) {
  return longer.size() > shorter.size() && longer.ends_with(shorter) &&
         longer[longer.size() - shorter.size() - 1] == '.';
}

}  // namespace

QuantizationConfig::QuantizationConfig(const JsonObject& config) {
  const std::optional<JsonObject> quantization =
      config.Object({"quantization", "quantization_config"});
  if (!quantization) return;
  if (quantization->Has("quant_method")) {
    Fail(quantization->where(), ": the quantisation method ",
         quantization->Find({"quant_method"})->dump(),
         " is not supported; MLX affine quantisation is.");
  }
  default_ = ReadFormat(*quantization, std::nullopt);
  for (const auto& [key, value] : quantization->value().items()) {
    if (value.is_object()) {
      overrides_[key] = ReadFormat(JsonObject(value, quantization->where() + ": " + key), default_);
    } else if (value.is_boolean()) {
      overrides_[key] = value.get<bool>() ? default_ : std::nullopt;
    }
  }
}

std::optional<QuantizationFormat> QuantizationConfig::FormatOf(const std::string& module) const {
  const auto exact = overrides_.find(module);
  if (exact != overrides_.end()) return exact->second;
  // A name with the whole module in it says more than a part of the module's name; of either kind
  // the one nearest in length counts.
  const std::optional<QuantizationFormat>* nearest = &default_;
  std::pair<bool, size_t> nearest_distance{true, std::numeric_limits<size_t>::max()};
  for (const auto& [name, format] : overrides_) {
    std::pair<bool, size_t> distance;
    if (IsSuffix(name, module)) {
      distance = {false, name.size() - module.size()};
    } else if (IsSuffix(module, name)) {
      distance = {true, module.size() - name.size()};
    } else {
      continue;
    }
    if (distance < nearest_distance) {
      nearest = &format;
      nearest_distance = distance;
    }
  }
  return *nearest;
}

}  // namespace adder
