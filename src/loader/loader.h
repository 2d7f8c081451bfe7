// Opens a model: the one place that knows families, checkpoints, tokenizers and backends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weight_store.h"
#include "cpu/cpu_executor.h"
#include "engine/sampler.h"
#include "program/executor.h"
#include "text/tokenizer.h"

namespace adder {

// A checkpoint that is opened and checked whole, its weights mapped but not yet read.
struct OpenedModel {
  std::filesystem::path directory;
  std::shared_ptr<const WeightStore> store;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const BoundWeights> weights;
};

// `name` is a directory or owner/name (see model_path.h). `context`: tokens of the longest text, as
// OpenForPositions takes it; 0: max_positions of the model. Throws Error.
OpenedModel OpenModel(const std::string& name, int64_t context = 0);

enum class Device {
  kCpu,
  kCuda,
  kReference,  // the interpreter: slow and exact
};

// A CUDA device when this build can use one and there is one, else the CPU.
Device DefaultDevice();

struct LoadOptions {
  Device device = Device::kCpu;
  Compute compute = Compute::kFast;
  // Of Mamba-2 states: f16 and bf16 halve them, which rounds them at every step. They need
  // Device::kCuda and Compute::kFast.
  DType state_dtype = DType::kF32;
  int threads = 0;      // 0: one per core
  int64_t context = 0;  // as OpenModel takes it
  // Called as weights are loaded, which takes nearly all the time, with the part that is done, in
  // [0, 1]. May be empty.
  std::function<void(double fraction)> progress;
};

struct LoadedModel {
  std::filesystem::path directory;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null when there is none
  std::vector<int32_t> end_ids;                // tokens that end a text, ascending
  int32_t begin_id = -1;                       // bos_token_id; -1: none
  SamplingParameters sampling;                 // what generation_config.json asks for
  double load_seconds = 0;
};

// Throws Error for a bad model, a device this build lacks, a bad number of threads, or a
// `state_dtype` that the model or its backend has no use for.
LoadedModel LoadModel(const std::string& name, const LoadOptions& options = {});

// The tokenizer in a model's directory; null when there is none.
std::unique_ptr<text::Tokenizer> LoadTokenizer(const std::filesystem::path& directory);

// Sampling as generation_config.json asks for: without the file, or where do_sample is not true,
// greedy (with its repetition_penalty). Throws Error naming file and field.
SamplingParameters ReadSamplingDefaults(const std::filesystem::path& directory);

// bos_token_id of generation_config.json, else of config.json; -1 when neither has one.
int32_t ReadBeginId(const std::filesystem::path& directory);

}  // namespace adder
