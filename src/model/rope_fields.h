// The rotary embedding as config.json describes it.
#pragma once

#include <cstdint>

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
// max_position_embeddings; the frequencies are those for max_position_embeddings (FitRope). Throws
// Error naming file and field, for any other scaling too.
Rope ReadRope(const JsonObject& config, int64_t head_dim, double default_partial_factor = 1.0,
              double default_theta = 10000.0, bool knows_alpha = false);

// Positions of a text: max_position_embeddings, or where yarn stretches the positions that the
// model was trained on to more, those.
int64_t ReadMaxPositions(const JsonObject& config, int64_t default_positions);

// 0.1 * mscale * ln(factor) + 1, what yarn multiplies with; 1 for a factor of at most 1.
double YarnMagnitude(double factor, double mscale);

}  // namespace adder
