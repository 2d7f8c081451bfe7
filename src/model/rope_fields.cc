#include "model/rope_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

constexpr const char* kTrainedPositions = "original_max_position_embeddings";

// Of rope_parameters and rope_scaling the first counts, so the second may not say anything else.
void RequireOneRope(const JsonObject& config) {
  const std::optional<JsonObject> parameters = config.Object({"rope_parameters"});
  const std::optional<JsonObject> scaling = config.Object({"rope_scaling"});
  if (!parameters || !scaling) return;
  for (const auto& [name, value] : scaling->value().items()) {
    const Json* same = name == "type" || name == "rope_type"
                           ? parameters->Find({"rope_type", "type"})
                           : parameters->Find({name});
    if (value.is_null() || (same != nullptr && *same == value)) continue;
    Fail(config.where(), ": the field rope_scaling has ", name, " ", value.dump(),
         ", but rope_parameters beside it ",
         same == nullptr ? std::string("has none") : Concat("has ", same->dump()),
         "; they should say the same.");
  }
}

// The object that has the scaling's fields; nothing when there is no scaling.
std::optional<JsonObject> ScalingObject(const JsonObject& config) {
  return config.Object({"rope_parameters", "rope_scaling"});
}

int64_t ReadTrainedPositions(const JsonObject& config, const JsonObject& parameters) {
  for (const JsonObject* from : {&config, &parameters}) {
    if (from->Has(kTrainedPositions)) return ReadSize(*from, {kTrainedPositions});
  }
  if (!config.Has("max_position_embeddings")) {
    Fail(parameters.where(), " needs the field ", kTrainedPositions, ".");
  }
  return ReadSize(config, {"max_position_embeddings"});
}

// How much longer texts are than those the model was trained on: factor, or by the positions.
double ReadStretch(const JsonObject& config, const JsonObject& parameters,
                   int64_t trained_positions) {
  if (parameters.Has("factor")) return ReadPositive(parameters, {"factor"});
  if (!config.Has("max_position_embeddings")) {
    Fail(parameters.where(), " needs the field factor.");
  }
  return static_cast<double>(ReadSize(config, {"max_position_embeddings"})) /
         static_cast<double>(trained_positions);
}

// Long wavelengths are stretched by `factor`, short ones kept, and those between interpolated
// linearly in the number of turns within the original context.
std::vector<float> Llama3Frequencies(const Rope& rope, const JsonObject& config,
                                     const JsonObject& parameters) {
  const double factor = ReadPositive(parameters, {"factor"});
  const double low = ReadPositive(parameters, {"low_freq_factor"});
  const double high = ReadPositive(parameters, {"high_freq_factor"});
  const auto trained = static_cast<double>(ReadTrainedPositions(config, parameters));
  if (high <= low) {
    Fail(parameters.where(), ": the field high_freq_factor (", high,
         ") should be larger than low_freq_factor (", low, ").");
  }
  std::vector<float> frequencies;
  for (const double plain : PlainFrequencies(rope.theta, rope.rotary_dim)) {
    const double turns = trained * plain / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequencies.push_back(static_cast<float>((1 - kept) * plain / factor + kept * plain));
  }
  return frequencies;
}

// beta_fast or beta_slow; null and 0 mean the default.
double ReadBeta(const JsonObject& parameters, const char* name, double default_value) {
  const double beta = parameters.Number({name}, 0);
  return beta == 0 ? default_value : ReadPositive(parameters, {name});
}

// Pairs that turn more than beta_fast times within the trained positions keep their frequency,
// those that turn less than beta_slow times are stretched, and those between interpolated linearly
// in their number.
void SetYarn(const JsonObject& config, const JsonObject& parameters, Rope& rope) {
  const int64_t trained = ReadTrainedPositions(config, parameters);
  const double stretch = ReadStretch(config, parameters, trained);
  const auto dim = static_cast<double>(rope.rotary_dim);
  if (rope.theta == 1) {
    Fail(parameters.where(),
         ": with a rope_theta of 1 all pairs turn alike, so the rope_type \"yarn\" has none to "
         "stretch.");
  }
  // The number of the pair that turns `turns` times, as a real number.
  const auto pair_of = [&](double turns) {
    return dim * std::log(static_cast<double>(trained) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double first = pair_of(ReadBeta(parameters, "beta_fast", 32));
  double last = pair_of(ReadBeta(parameters, "beta_slow", 1));
  if (parameters.Bool({"truncate"}, true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1);
  if (first == last) last += 0.001;
  const std::vector<float> plain = PlainFrequencies(rope.theta, rope.rotary_dim);
  rope.inverse_frequencies.clear();
  for (size_t i = 0; i < plain.size(); ++i) {
    const double stretched =
        std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    const double frequency = plain[i];
    rope.inverse_frequencies.push_back(
        static_cast<float>(frequency / stretch * stretched + frequency * (1 - stretched)));
  }

  const double mscale = parameters.Number({"mscale"}, 0);
  const double mscale_all_dim = parameters.Number({"mscale_all_dim"}, 0);
  const bool both = mscale != 0 && mscale_all_dim != 0;
  const double inferred =
      both ? YarnMagnitude(stretch, mscale) / YarnMagnitude(stretch, mscale_all_dim)
           : YarnMagnitude(stretch, 1);
  rope.factor = ReadScale(parameters, {"attention_factor"}, inferred);
}

std::vector<float> DividedFrequencies(const Rope& rope, const JsonObject& parameters,
                                      const char* name) {
  const std::vector<double> divisors = parameters.Numbers({name});
  std::vector<float> frequencies = PlainFrequencies(rope.theta, rope.rotary_dim);
  if (divisors.size() != frequencies.size()) {
    Fail(parameters.where(), ": the field ", name, " has ", divisors.size(),
         " numbers, but the rotary embedding turns ", frequencies.size(), " pairs of elements.");
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    // Written so that NaN fails.
    if (!(divisors[i] > 0)) {
      Fail(parameters.where(), ": the field ", name, " has the number ", divisors[i],
           "; they should be positive.");
    }
    frequencies[i] = static_cast<float>(frequencies[i] / divisors[i]);
  }
  return frequencies;
}

void SetLongRope(const JsonObject& config, const JsonObject& parameters, Rope& rope) {
  rope.trained_positions = ReadTrainedPositions(config, parameters);
  rope.short_inverse_frequencies = DividedFrequencies(rope, parameters, "short_factor");
  rope.long_inverse_frequencies = DividedFrequencies(rope, parameters, "long_factor");
  const double stretch = ReadStretch(config, parameters, rope.trained_positions);
  const double inferred =
      stretch <= 1 ? 1
                   : std::sqrt(1 + std::log(stretch) /
                                       std::log(static_cast<double>(rope.trained_positions)));
  rope.factor = ReadScale(parameters, {"attention_factor"}, inferred);
  FitRope(rope, ReadSize(config, {"max_position_embeddings"}, rope.trained_positions));
}

void SetDynamic(const JsonObject& config, const JsonObject& parameters, bool knows_alpha,
                Rope& rope) {
  if (parameters.Has("alpha")) {
    const double alpha = ReadPositive(parameters, {"alpha"});
    if (!knows_alpha) {
      Fail(parameters.where(), ": the rope_type \"dynamic\" has the field alpha (", alpha,
           "), which is not implemented for this family.");
    }
    const auto dim = static_cast<double>(rope.rotary_dim);
    rope.theta *= std::pow(alpha, dim / (dim - 2));
    rope.scaling = "alpha";
    rope.inverse_frequencies = PlainFrequencies(rope.theta, rope.rotary_dim);
    return;
  }
  rope.dynamic_factor = ReadPositive(parameters, {"factor"});
  rope.trained_positions = ReadSize(config, {"max_position_embeddings"});
  FitRope(rope, rope.trained_positions);
}

}  // namespace

double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

Rope ReadRope(const JsonObject& config, int64_t head_dim,
              std::optional<double> default_partial_factor, double default_theta,
              bool knows_alpha) {
  RequireOneRope(config);
  // Newer files put everything into rope_parameters, older ones split it.
  const std::optional<JsonObject> nested = ScalingObject(config);
  const JsonObject& parameters = nested ? *nested : config;
  const JsonObject& theta_source = parameters.Has("rope_theta") ? parameters : config;
  const JsonObject& partial_source = parameters.Has("partial_rotary_factor") ? parameters : config;

  Rope rope;
  rope.theta = ReadPositive(theta_source, {"rope_theta"}, default_theta);
  const double partial =
      ReadPositive(partial_source, {"partial_rotary_factor"}, default_partial_factor.value_or(1));
  if (!default_partial_factor && partial != 1) {
    Fail(partial_source.where(), ": the field partial_rotary_factor is ", partial,
         "; only 1 is implemented for this family.");
  }
  if (partial > 1) {
    Fail(partial_source.where(), ": the field partial_rotary_factor is ", partial, ", above 1.");
  }
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    Fail(config.where(), ": the rotary embedding would turn ", rope.rotary_dim,
         " elements of each head (head_dim ", head_dim, " x partial_rotary_factor ", partial,
         "); that has to be an even number of at least 2.");
  }
  if (nested) rope.scaling = parameters.String({"rope_type", "type"}, "default");
  for (const char* field : {"factor", "alpha"}) {
    if (!nested || !parameters.Has(field) || parameters.Find({"rope_type", "type"})) continue;
    Fail(parameters.where(), " has the field ", field, ", but no rope_type that says its use.");
  }

  rope.inverse_frequencies = PlainFrequencies(rope.theta, rope.rotary_dim);
  if (rope.scaling == "linear") {
    const double factor = ReadPositive(parameters, {"factor"});
    for (float& frequency : rope.inverse_frequencies) {
      frequency = static_cast<float>(frequency / factor);
    }
  } else if (rope.scaling == "llama3") {
    rope.inverse_frequencies = Llama3Frequencies(rope, config, parameters);
  } else if (rope.scaling == "yarn") {
    SetYarn(config, parameters, rope);
  } else if (rope.scaling == "longrope") {
    SetLongRope(config, parameters, rope);
  } else if (rope.scaling == "dynamic") {
    SetDynamic(config, parameters, knows_alpha, rope);
  } else if (rope.scaling != "default") {
    Fail(parameters.where(), ": the rope_type \"", rope.scaling,
         "\" is not implemented; \"default\", \"linear\", \"llama3\", \"yarn\", \"longrope\" and "
         "\"dynamic\" are.");
  }
  for (const float frequency : rope.inverse_frequencies) {
    if (std::isfinite(frequency)) continue;
    Fail(parameters.where(), ": rope_theta ", rope.theta, " with the rope_type \"", rope.scaling,
         "\" gives a rotary frequency that is not finite.");
  }
  return rope;
}

void RequireRopesOfLayerTypes(const JsonObject& config,
                              std::initializer_list<std::string_view> layer_types) {
  const std::optional<JsonObject> all = config.Object({"rope_parameters"});
  std::string known;
  std::vector<JsonObject> stated;
  for (const std::string_view type : layer_types) {
    known += Concat(known.empty() ? "" : ", ", "\"", type, "\"");
    const std::optional<JsonObject> own = all ? all->Object({type}) : std::nullopt;
    if (own) stated.push_back(*own);
  }
  const auto refuse = [&](const JsonObject& from, std::string_view name, const Json& value) {
    Fail(from.where(), ": the field ", name, " is ", value.dump(),
         "; this family has a rotary embedding for each type of layer, in rope_parameters: ", known,
         ".");
  };
  const Json* scaling = config.Find({"rope_scaling"});
  // Some writers say false where others say null.
  if (scaling != nullptr && *scaling != false) refuse(config, "rope_scaling", *scaling);
  for (const char* name : {"rope_theta", "partial_rotary_factor"}) {
    const Json* value = config.Find({name});
    const bool unused =
        !stated.empty() && std::all_of(stated.begin(), stated.end(),
                                       [&](const JsonObject& own) { return own.Has(name); });
    if (value != nullptr && !unused) refuse(config, name, *value);
  }
  if (!all) return;
  for (const auto& [name, value] : all->value().items()) {
    const bool of_type =
        std::find(layer_types.begin(), layer_types.end(), name) != layer_types.end();
    const bool plain = (name == "rope_type" || name == "type") && value == "default";
    if (!of_type && !plain && !value.is_null()) refuse(*all, name, value);
  }
}

int64_t ReadMaxPositions(const JsonObject& config, int64_t default_positions) {
  const int64_t positions = ReadSize(config, {"max_position_embeddings"}, default_positions);
  const std::optional<JsonObject> parameters = ScalingObject(config);
  const Json* type = parameters ? parameters->Find({"rope_type", "type"}) : nullptr;
  if (type == nullptr || *type != "yarn" || !parameters->Has("factor")) return positions;
  const double stretched = ReadPositive(*parameters, {"factor"}) *
                           static_cast<double>(ReadTrainedPositions(config, *parameters));
  if (stretched > static_cast<double>(kMaxSize)) {
    Fail(parameters->where(), ": the field factor stretches the positions to ", stretched,
         ", more than ", kMaxSize, ".");
  }
  return std::max(positions, static_cast<int64_t>(stretched));
}

}  // namespace adder
