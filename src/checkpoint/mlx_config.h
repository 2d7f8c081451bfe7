// The config.json of a checkpoint that mlx-lm is to load.
#pragma once

#include "core/json.h"
#include "model/plan.h"

namespace adder {

// Completes a Hugging Face config of `plan` so that mlx-lm's model classes, which have fewer
// defaults and know fewer spellings, read the same model from it: tie_word_embeddings,
// intermediate_size and rope_theta are stated, and layers of Mamba hybrids are called "mamba" and
// "attention". Fields that say the right thing already are kept.
void CompleteMlxConfig(const Plan& plan, Json& config);

}  // namespace adder
