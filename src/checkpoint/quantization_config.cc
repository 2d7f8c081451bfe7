#include "checkpoint/quantization_config.h"

#include <limits>
#include <utility>

#include "core/error.h"

namespace adder {
namespace {

// What mlx has where a module says "affine" and no more.
constexpr int kAffineBits = 4;
constexpr int kAffineGroupSize = 64;

QuantizationFormat ReadFormat(const JsonObject& object,
                              const std::optional<QuantizationFormat>& base) {
  QuantizationFormat format;
  const std::string mode = object.String({"mode"}, "affine");
  if (!ParseQuantizationMode(mode, format.mode)) {
    Fail(object.where(), ": the quantisation mode \"", mode,
         "\" is not supported; affine, mxfp4, mxfp8 and nvfp4 are.");
  }
  // What is not stated: as in the default, or what the mode asks for.
  const bool affine = format.mode == QuantizationMode::kAffine;
  std::optional<int64_t> bits, group_size;
  if (!affine) {
    bits = ModeBits(format.mode);
    group_size = ModeGroupSize(format.mode);
  } else if (base && base->mode == QuantizationMode::kAffine) {
    bits = base->bits;
    group_size = base->group_size;
  } else if (base) {
    bits = kAffineBits;
    group_size = kAffineGroupSize;
  }
  format.bits = static_cast<int>(object.Int({"bits"}, 1, 64, bits));
  format.group_size = static_cast<int>(object.Int({"group_size"}, 1, 4096, group_size));
  if (!affine) {
    if (format.bits != *bits || format.group_size != *group_size) {
      Fail(object.where(), ": the mode ", mode, " has ", *bits, " bits in groups of ", *group_size,
           "; bits is ", format.bits, " and group_size ", format.group_size, ".");
    }
    return format;
  }
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
         " is not supported; the quantisation of MLX checkpoints is.");
  }
  default_ = ReadFormat(*quantization, std::nullopt);
  for (const auto& [key, value] : quantization->value().items()) {
    if (value.is_object()) {
      overrides_[key] = ReadFormat(JsonObject(value, quantization->where() + ": " + key), default_);
    } else if (value.is_boolean()) {
      overrides_[key] = value.get<bool>() ? default_ : std::nullopt;
    } else if (key.find('.') != std::string::npos) {
      // Modules have dots in their names, fields have not.
      Fail(quantization->where(), ": the entry of the module ", key, " is ", value.dump(),
           "; it should be an object with bits and group_size, or true or false.");
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
