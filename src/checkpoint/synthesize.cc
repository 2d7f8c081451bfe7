#include "checkpoint/synthesize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <unordered_map>

#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/planned_tensors.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "model/family.h"

namespace adder {
namespace {

constexpr char kNotice[] =
    "random weights of this geometry, made by adder synthesize for speed tests only";

// Bytes generated between writes; large enough to keep the disk busy, small against memory.
constexpr int64_t kPieceBytes = int64_t{64} << 20;

// Counter-based generator (the finaliser of SplitMix64): value i of a stream depends on i alone, so
// threads can fill any range.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in [-1, 1).
float Uniform(uint64_t stream, uint64_t index) {
  return static_cast<float>(static_cast<int32_t>(Mix(stream ^ Mix(index)) >> 32)) * 0x1p-31f;
}

// What a vector is for decides its range.
enum class Role { kNorm, kTimeStepBias, kSkip, kDecay, kConv, kBias };

class VectorRoles {
 public:
  explicit VectorRoles(const Plan& plan) {
    Norm(plan.final_norm);
    Norm(plan.embedding_norm);
    Set(plan.embedding_factor, Role::kNorm);
    if (plan.layer_inputs) Norm(plan.layer_inputs->norm);
    for (const Block& block : plan.blocks) {
      Norm(block.pre_norm);
      Norm(block.post_norm);
      for (const BranchNorms& norms : block.branch_norms) {
        Norm(norms.pre);
        Norm(norms.post);
      }
      for (const VectorId id : {block.rule.keep_scale, block.rule.add_scale, block.rule.total}) {
        Set(id, Role::kNorm);
      }
      for (const Mixer& mixer : block.mixers) {
        std::visit([this](const auto& typed) { Add(typed); }, mixer);
      }
    }
  }

  Role Of(VectorId id) const {
    const auto found = roles_.find(id);
    return found == roles_.end() ? Role::kBias : found->second;
  }

 private:
  void Set(VectorId id, Role role) {
    if (id != kNoId) roles_[id] = role;
  }
  void Norm(const std::optional<RmsNorm>& norm) {
    if (norm) Set(norm->weight, Role::kNorm);
  }

  void Add(const Attention& mixer) {
    Norm(mixer.q_norm);
    Norm(mixer.k_norm);
    if (mixer.mixing) Set(mixer.mixing->conv_weight, Role::kConv);
  }
  void Add(const LatentAttention& mixer) {
    Norm(mixer.q_norm);
    Norm(mixer.kv_norm);
  }
  void Add(const LightningAttention& mixer) { Norm(mixer.norm); }
  void Add(const Mamba2& mixer) {
    Set(mixer.dt_bias, Role::kTimeStepBias);
    Set(mixer.a, Role::kDecay);
    Set(mixer.d, Role::kSkip);
    Set(mixer.conv_weight, Role::kConv);
    Norm(mixer.gated_norm);
    if (!mixer.selection) return;
    Norm(mixer.selection->b_norm);
    Norm(mixer.selection->c_norm);
    Norm(mixer.selection->dt_norm);
  }
  void Add(const Mamba1& mixer) {
    Set(mixer.dt_proj.bias, Role::kTimeStepBias);
    Set(mixer.a, Role::kDecay);
    Set(mixer.d, Role::kSkip);
    Set(mixer.conv_weight, Role::kConv);
    Norm(mixer.dt_norm);
    Norm(mixer.b_norm);
    Norm(mixer.c_norm);
  }
  void Add(const ShortConv& mixer) { Set(mixer.conv_weight, Role::kConv); }
  void Add(const GatedDelta& mixer) {
    Set(mixer.dt_bias, Role::kTimeStepBias);
    Set(mixer.a, Role::kDecay);
    Set(mixer.conv_weight, Role::kConv);
    Norm(mixer.norm);
  }
  void Add(const RgLru& mixer) { Set(mixer.conv_weight, Role::kConv); }
  void Add(const Rwkv7& mixer) {
    Set(mixer.key_scale, Role::kNorm);
    Norm(mixer.norm);
  }
  void Add(const DenseMlp&) {}
  void Add(const MoeMlp& mixer) {
    Norm(mixer.router_norm);
    Set(mixer.routing.expert_scale, Role::kNorm);
    if (mixer.router_mlp) Norm(mixer.router_mlp->norm);
  }

  std::unordered_map<VectorId, Role> roles_;
};

float VectorValue(Role role, float uniform) {
  switch (role) {
    case Role::kNorm:
    case Role::kSkip:
      return 1.0f + 0.1f * uniform;
    case Role::kTimeStepBias: {
      // softplus(bias) log-uniform in [0.001, 0.1].
      const float step = std::pow(10.0f, -2.0f + uniform);
      return std::log(std::expm1(step));
    }
    case Role::kDecay:
      return std::log(8.5f + 7.5f * uniform);
    case Role::kConv:
      return 0.5f * uniform;
    case Role::kBias:
      return 0.02f * uniform;
  }
  return 0.0f;
}

class Synthesizer {
 public:
  explicit Synthesizer(const SynthesizeOptions& options) : options_(options) {
    if (options.bits != 0 && options.bits != 2 && options.bits != 3 && options.bits != 4 &&
        options.bits != 5 && options.bits != 6 && options.bits != 8) {
      Fail("Cannot synthesise ", options.bits,
           "-bit weights; 2, 3, 4, 5, 6, 8 and none (bf16) are ", "supported.");
    }
    if (options.group_size != 32 && options.group_size != 64 && options.group_size != 128) {
      Fail("Cannot synthesise groups of ", options.group_size, "; 32, 64 and 128 are supported.");
    }
    const Json geometry = ReadJsonFile(options.geometry.string());
    const JsonObject object(geometry, options.geometry.string());
    config_ = Json::object();
    for (const auto& [key, value] : geometry.items()) {
      if (!key.starts_with('_')) config_[key] = value;
    }
    config_.erase("quantization");
    config_.erase("quantization_config");
    const JsonObject config(config_, options.geometry.string());
    plan_ = FindFamily(config).build(config, TensorNames::Planned(options.bits != 0));
    modules_ = PlannedModules(plan_);
  }

  void Write() {
    std::vector<TensorSpec> tensors;
    Json quantization = Json::object();
    quantization["group_size"] = options_.group_size;
    quantization["bits"] = options_.bits;
    for (const PlannedModule& module : modules_) {
      if (!Quantized(module)) {
        if (options_.bits != 0) quantization[module.module] = false;
        tensors.push_back({module.tensor_name(), DType::kBF16, module.shape(module.cols)});
        continue;
      }
      const Shape groups = module.shape(module.cols / options_.group_size);
      tensors.push_back(
          {module.tensor_name(), DType::kU32, module.shape(module.cols * options_.bits / 32)});
      tensors.push_back({module.module + ".scales", DType::kBF16, groups});
      tensors.push_back({module.module + ".biases", DType::kBF16, groups});
    }
    for (const VectorRef& vector : plan_.vectors) {
      for (const VectorPart& part : vector.parts) {
        tensors.push_back({part.tensor, DType::kBF16, VectorShape(vector, part)});
      }
    }
    for (const TensorSpec& tensor : tensors) {
      total_bytes_ += *ElementCount(tensor.shape) * static_cast<int64_t>(DTypeSize(tensor.dtype));
    }

    NewCheckpointDirectory directory(options_.output, tensors);
    config_["adder_synthetic"] = kNotice;
    if (options_.bits != 0) {
      config_["quantization"] = quantization;
      config_["quantization_config"] = quantization;
    }
    WriteFile(options_.output / "config.json", PrintJson(config_));
    CheckpointWriter writer(
        options_.output, std::move(tensors),
        {{"format", options_.bits != 0 ? "mlx" : "pt"}, {"adder_synthetic", kNotice}});
    for (const PlannedModule& module : modules_) WriteModule(module, writer);
    const VectorRoles roles(plan_);
    for (size_t i = 0; i < plan_.vectors.size(); ++i) {
      WriteVector(plan_.vectors[i], roles.Of(static_cast<VectorId>(i)), writer);
    }
    writer.Finish();
    directory.Keep();
  }

 private:
  bool Quantized(const PlannedModule& module) const {
    return options_.bits != 0 && module.cols % options_.group_size == 0;
  }

  // Published layouts: [channels, taps, 1] in MLX, [channels, 1, taps] in Hugging Face checkpoints.
  Shape VectorShape(const VectorRef& vector, const VectorPart& part) const {
    const Shape& shape = part.shapes.front();
    if (vector.transform != VectorTransform::kConvTimeMajor) return shape;
    const int64_t taps = *ElementCount(shape) / shape.front();
    return options_.bits != 0 ? Shape{shape.front(), taps, 1} : Shape{shape.front(), 1, taps};
  }

  // Appends `count` values of T, value(i) each, generated on all cores piece by piece.
  template <class T, class Value>
  void Generate(int64_t count, CheckpointWriter& writer, const Value& value) {
    std::vector<T> piece;
    const int64_t piece_count = kPieceBytes / static_cast<int64_t>(sizeof(T));
    for (int64_t done = 0; done < count; done += piece_count) {
      const int64_t size = std::min(piece_count, count - done);
      piece.resize(static_cast<size_t>(size));
      const int64_t threads = size < 65536 ? 1 : std::max(1u, std::thread::hardware_concurrency());
      std::vector<std::thread> workers;
      const auto fill = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          piece[static_cast<size_t>(i)] = value(static_cast<uint64_t>(done + i));
        }
      };
      for (int64_t t = 1; t < threads; ++t) {
        workers.emplace_back(fill, size * t / threads, size * (t + 1) / threads);
      }
      fill(0, size / threads);
      for (std::thread& worker : workers) worker.join();
      writer.Append(std::as_bytes(std::span(piece)));
      written_bytes_ += size * static_cast<int64_t>(sizeof(T));
      if (options_.progress) {
        options_.progress(static_cast<double>(written_bytes_) / static_cast<double>(total_bytes_));
      }
    }
  }

  void WriteModule(const PlannedModule& module, CheckpointWriter& writer) {
    const uint64_t stream = NextStream();
    const int64_t rows = module.total_rows();
    const float deviation = 1.0f / std::sqrt(static_cast<float>(module.cols));
    if (!Quantized(module)) {
      const float reach =
          std::sqrt(3.0f) * deviation;  // a uniform range's deviation is reach/sqrt(3)
      Generate<uint16_t>(rows * module.cols, writer,
                         [&](uint64_t i) { return FloatToBF16(reach * Uniform(stream, i)); });
      return;
    }
    // Codes are uniform over n = 2^bits values, whose deviation is scale * sqrt((n^2 - 1) / 12).
    const float codes = static_cast<float>(1 << options_.bits);
    const float mean_scale = deviation / std::sqrt((codes * codes - 1.0f) / 12.0f);
    const auto scale = [&](uint64_t i) {
      return BF16ToFloat(FloatToBF16(mean_scale * (1.0f + 0.25f * Uniform(~stream, i))));
    };
    Generate<uint32_t>(rows * module.cols * options_.bits / 32, writer, [&](uint64_t i) {
      return static_cast<uint32_t>(Mix(stream ^ Mix(i)) >> 16);
    });
    const int64_t groups = rows * module.cols / options_.group_size;
    Generate<uint16_t>(groups, writer, [&](uint64_t i) { return FloatToBF16(scale(i)); });
    Generate<uint16_t>(groups, writer,
                       [&](uint64_t i) { return FloatToBF16(-0.5f * (codes - 1.0f) * scale(i)); });
  }

  void WriteVector(const VectorRef& vector, Role role, CheckpointWriter& writer) {
    for (const VectorPart& part : vector.parts) {
      const uint64_t stream = NextStream();
      Generate<uint16_t>(*ElementCount(part.shapes.front()), writer, [&](uint64_t i) {
        float value = VectorValue(role, Uniform(stream, i));
        if (vector.transform == VectorTransform::kPlusOne) value -= 1.0f;
        return FloatToBF16(value - vector.offset);
      });
    }
  }

  uint64_t NextStream() { return Mix(options_.seed * 0x100000001b3u + ++streams_); }

  const SynthesizeOptions& options_;
  Json config_;
  Plan plan_;
  std::vector<PlannedModule> modules_;
  int64_t total_bytes_ = 0;
  int64_t written_bytes_ = 0;
  uint64_t streams_ = 0;
};

}  // namespace

void SynthesizeCheckpoint(const SynthesizeOptions& options) { Synthesizer(options).Write(); }

}  // namespace adder
