// What the LFM2 families share: layers of a gated short convolution or attention, their config
// fields and their tensor names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/family.h"
#include "model/plan.h"

namespace adder {

// The token mixers and norms of a model, read from its config.
struct Lfm2Layers {
  std::vector<bool> is_attention;  // one per layer
  float eps = 1e-5f;
  Attention attention;  // sizes, scale and rope
  int64_t d_conv = 0;
  bool conv_bias = false;
};

// Reads vocab, hidden and max_positions of `plan`, and the layers; adds embedding, final norm and
// head.
Lfm2Layers StartLfm2(const JsonObject& config, const TensorNames& names, Plan& plan);

// The block of the layer's token mixer.
void AddLfm2Mixer(Plan& plan, const Lfm2Layers& layers, int64_t layer);

// w1 (gate), w3 (up) and w2 (down) below `prefix`, or with `gate_names` gate_proj, up_proj and
// down_proj, as MLX files of models with experts have it.
DenseMlp AddLfm2Mlp(Plan& plan, bool gate_names, const std::string& prefix, int64_t intermediate);

}  // namespace adder
