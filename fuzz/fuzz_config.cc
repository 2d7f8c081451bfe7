// Any bytes as a config.json: either an Error, or a plan that passed validation, from which sizes
// can be derived and printed. Both layouts and the quantisation entry are read.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/planned_tensors.h"
#include "checkpoint/quantization_config.h"
#include "core/error.h"
#include "core/json.h"
#include "model/family.h"
#include "model/state_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const adder::Json json = adder::ParseJson(
        std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
    const adder::JsonObject config(json, "config.json");
    const adder::Family& family = adder::FindFamily(config);
    for (bool mlx : {false, true}) {
      const adder::Plan plan = family.build(config, adder::TensorNames::Planned(mlx));
      if (adder::ParameterCount(plan) <= 0) __builtin_trap();
      adder::MakeStateLayout(plan);
      adder::PlannedModules(plan);
    }
    adder::QuantizationConfig(config).FormatOf("model.layers.0.mamba.in_proj");
  } catch (const adder::Error&) {
  }
  return 0;
}
