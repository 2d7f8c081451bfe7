// Tiny random checkpoints, so that every test of behaviour (as against reference values) has models
// to run wherever it is built.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"

namespace adder::test {

struct SyntheticModel {
  std::string name;
  std::string config;  // text of config.json
  bool mlx = false;    // tensor names and quantisation of MLX, else Hugging Face
};

// Every shape of block the families know, with dimensions that differ from each other: Mamba-2 with
// one and several groups, with and without bias; Mamba-1 with and without norms; attention with and
// without rotary embedding; dense MLP, mixture of experts beside a shared MLP; f32, bf16 and
// quantised weights of mixed bits.
const std::vector<SyntheticModel>& SyntheticModels();

// Writes config.json and model.safetensors. A tensor's values depend on its name only, and are
// scaled so that activations and logits stay of order 1.
void WriteSyntheticCheckpoint(const SyntheticModel& model, const std::filesystem::path& directory);

}  // namespace adder::test
