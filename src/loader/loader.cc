#include "loader/loader.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#ifdef ADDER_HAS_CUDA
#include "cuda/cuda_executor.h"
#endif
#include "loader/model_path.h"
#include "model/family.h"
#include "program/interpreter.h"
#include "text/end_of_sequence.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

constexpr char kGenerationConfig[] = "generation_config.json";

std::unique_ptr<Executor> MakeExecutor(Program program, const LoadOptions& options) {
  if (options.device == Device::kReference) return MakeInterpreter(std::move(program));
#ifdef ADDER_HAS_CUDA
  if (options.device == Device::kCuda) {
    CudaOptions cuda;
    cuda.f32 = options.compute == Compute::kF32;
    cuda.progress = options.progress;
    return MakeCudaExecutor(std::move(program), cuda);
  }
#endif
  CpuOptions cpu;
  cpu.threads = options.threads;
  cpu.compute = options.compute;
  cpu.progress = options.progress;
  return MakeCpuExecutor(std::move(program), cpu);
}

// Before anything is read: a device this build or machine lacks.
void RequireDevice(Device device) {
  if (device != Device::kCuda) return;
#ifdef ADDER_HAS_CUDA
  std::string reason;
  if (!CudaAvailable(&reason)) Fail("Cannot use --device cuda: ", reason, ". Use --device cpu.");
#else
  Fail("This build of adder has no CUDA backend; use --device cpu.");
#endif
}

// The plan's program, with Mamba-2 states as `dtype`.
Program Lower(const OpenedModel& opened, DType dtype) {
  Program program = LowerPlan(opened.plan, opened.weights);
  if (dtype == DType::kF32) return program;
  program.layout = MakeStateLayout(*opened.plan, dtype);
  const auto& states = program.layout.recurrent;
  if (std::none_of(states.begin(), states.end(),
                   [=](const RecurrentState& state) { return state.dtype == dtype; })) {
    Fail(opened.directory.string(), " (", opened.plan->family,
         ") has no Mamba-2 states that --state-dtype ", StateDTypeName(dtype),
         " could apply to; leave it out.");
  }
  return program;
}

}  // namespace

Device DefaultDevice() {
#ifdef ADDER_HAS_CUDA
  if (CudaAvailable()) return Device::kCuda;
#endif
  return Device::kCpu;
}

OpenedModel OpenModel(const std::string& name, int64_t context) {
  OpenedModel model;
  model.directory = ResolveModelPath(name);
  model.store = WeightStore::Open(model.directory);
  const JsonObject config = model.store->config_object();
  Plan plan = FindFamily(config).build(config, model.store->names());
  if (context != 0) OpenForPositions(plan, context);
  model.plan = std::make_shared<const Plan>(std::move(plan));
  model.weights = BindWeights(model.store, *model.plan);
  return model;
}

LoadedModel LoadModel(const std::string& name, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  RequireDevice(options.device);
  OpenedModel opened = OpenModel(name, options.context);
  LoadedModel model;
  model.directory = opened.directory;
  model.plan = opened.plan;
  model.tokenizer = LoadTokenizer(opened.directory);
  model.end_ids = text::EndOfSequenceIds(opened.directory, model.tokenizer.get());
  model.begin_id = ReadBeginId(opened.directory);
  model.sampling = ReadSamplingDefaults(opened.directory);
  model.executor = MakeExecutor(Lower(opened, options.state_dtype), options);
  model.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

std::unique_ptr<text::Tokenizer> LoadTokenizer(const fs::path& directory) {
  if (!text::Tokenizer::ExistsIn(directory)) return nullptr;
  return std::make_unique<text::Tokenizer>(text::Tokenizer::Load(directory));
}

SamplingParameters ReadSamplingDefaults(const fs::path& directory) {
  SamplingParameters sampling;
  const fs::path path = directory / kGenerationConfig;
  std::error_code error;
  if (!fs::exists(path, error)) return sampling;
  const Json file = ReadJsonFile(path.string());
  const JsonObject config(file, path.string());
  sampling.repeat_penalty = static_cast<float>(config.Number({"repetition_penalty"}, 1));
  if (config.Bool({"do_sample"}, false)) {
    sampling.temperature = static_cast<float>(config.Number({"temperature"}, 1));
    // Some files write -1 for "all tokens".
    sampling.top_k = std::max<int64_t>(
        0, config.Int({"top_k"}, -1, std::numeric_limits<int32_t>::max(), int64_t{0}));
    sampling.top_p = static_cast<float>(config.Number({"top_p"}, 1));
    sampling.min_p = static_cast<float>(config.Number({"min_p"}, 0));
  }
  try {
    ValidateSampling(sampling);
  } catch (const Error& invalid) {
    Fail(path.string(), ": ", invalid.what());
  }
  return sampling;
}

int32_t ReadBeginId(const fs::path& directory) {
  for (const char* name : {kGenerationConfig, "config.json"}) {
    const fs::path path = directory / name;
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    const Json file = ReadJsonFile(path.string());
    const JsonObject config(file, path.string());
    const int64_t id =
        config.Int({"bos_token_id"}, -1, std::numeric_limits<int32_t>::max(), int64_t{-1});
    if (id >= 0) return static_cast<int32_t>(id);
  }
  return -1;
}

}  // namespace adder
