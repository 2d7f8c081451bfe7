// The rotary embedding as config.json describes it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "core/json.h"
#include "model/rope.h"

namespace adder {

// The rotary embedding of heads of `head_dim` elements: rope_theta with rope_scaling, or the newer
// rope_parameters; partial_rotary_factor. Scalings:
// - default, linear;
// - llama3 (with the formula of Llama 3.1);
// - yarn (Peng et al., arXiv:2309.00071): factor, beta_fast, beta_slow, truncate, and
//   attention_factor or mscale with mscale_all_dim;
// - longrope: short_factor, long_factor, factor, attention_factor;
// - dynamic: factor. With `knows_alpha` also dynamic with a field alpha, which stretches the base:
//   rope_theta * alpha ^ (head_dim / (head_dim - 2)), whatever the position.
// The positions a model was trained on are original_max_position_embeddings, without it
// max_position_embeddings; the frequencies are those for max_position_embeddings (FitRope).
//
// Without `default_partial_factor` the family turns its heads whole: its reference ignores
// partial_rotary_factor, or fails where a scaling reads it, so one other than 1 is refused. What
// the writer of such a file meant is not known.
//
// Throws Error naming file and field, for any other scaling too.
Rope ReadRope(const JsonObject& config, int64_t head_dim,
              std::optional<double> default_partial_factor = std::nullopt,
              double default_theta = 10000.0, bool knows_alpha = false);

// Of a family with a rotary embedding for each of `layer_types`, which rope_parameters has by these
// names: throws Error naming a field that would be for all layers, which its reference ignores.
// Those are rope_scaling, and rope_theta and partial_rotary_factor where not every layer type there
// states its own; in rope_parameters all but the layer types and a rope_type of "default".
void RequireRopesOfLayerTypes(const JsonObject& config,
                              std::initializer_list<std::string_view> layer_types);

// Positions of a text: max_position_embeddings, or where yarn stretches the positions that the
// model was trained on to more, those.
int64_t ReadMaxPositions(const JsonObject& config, int64_t default_positions);

// 0.1 * mscale * ln(factor) + 1, what yarn multiplies with; 1 for a factor of at most 1.
double YarnMagnitude(double factor, double mscale);

}  // namespace adder
