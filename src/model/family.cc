#include "model/family.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace adder {
namespace {

const Family* FindByModelType(std::string_view model_type) {
  for (const Family* family : AllFamilies()) {
    const auto& aliases = family->aliases;
    if (family->model_type == model_type ||
        std::find(aliases.begin(), aliases.end(), model_type) != aliases.end()) {
      return family;
    }
  }
  return nullptr;
}

std::string SupportedFamilies() {
  std::string text;
  for (const Family* family : AllFamilies()) {
    if (!text.empty()) text += ", ";
    text += family->model_type;
  }
  return text;
}

}  // namespace

const Family& FindFamily(const JsonObject& config) {
  if (config.Has("model_type")) {
    const std::string model_type = config.String({"model_type"});
    const Family* family = FindByModelType(model_type);
    if (family != nullptr) return *family;
    Fail(config.where(), ": the model_type \"", model_type,
         "\" is not supported. Supported are: ", SupportedFamilies(), ".");
  }
  const std::vector<std::string> architectures = config.Strings({"architectures"});
  for (const std::string& architecture : architectures) {
    for (const Family* family : AllFamilies()) {
      const auto& known = family->architectures;
      if (std::find(known.begin(), known.end(), architecture) != known.end()) return *family;
    }
  }
  // The original state-space configs name no model; their layer class, in lower case, is the
  // model_type of the converted files, but for the first version, which has no number there.
  if (const std::optional<JsonObject> ssm = config.Object({"ssm_cfg"})) {
    std::string layer = ssm->String({"layer"}, "Mamba1");
    std::transform(layer.begin(), layer.end(), layer.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const Family* family = FindByModelType(layer == "mamba1" ? "mamba" : layer);
    if (family != nullptr) return *family;
    Fail(ssm->where(), ": the layer \"", layer,
         "\" is not supported. Supported families are: ", SupportedFamilies(), ".");
  }
  if (!architectures.empty()) {
    Fail(config.where(), ": the architecture \"", architectures[0],
         "\" is not supported. Supported families are: ", SupportedFamilies(), ".");
  }
  Fail(config.where(), " names no model_type. Supported are: ", SupportedFamilies(), ".");
}

}  // namespace adder
