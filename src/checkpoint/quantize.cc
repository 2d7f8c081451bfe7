#include "checkpoint/quantize.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "checkpoint/affine_quantization.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/float_quantization.h"
#include "checkpoint/folded_scales.h"
#include "checkpoint/mlx_config.h"
#include "checkpoint/planned_tensors.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/weight_store.h"
#include "core/error.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultBits = 4;
constexpr int kDefaultGroupSize = 64;

// The format of the weights that have no other. Throws Error for bad options.
QuantizationFormat DefaultFormat(const QuantizeOptions& options) {
  const auto supported = [](int bits) {
    return bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
  };
  if (options.keep_head_bits != 0 && !supported(options.keep_head_bits)) {
    Fail("Cannot keep the head at ", options.keep_head_bits,
         " bits; 2, 3, 4, 5, 6 and 8 are supported.");
  }
  QuantizationFormat format{options.bits, options.group_size, options.mode};
  const bool affine = options.mode == QuantizationMode::kAffine;
  const int bits = affine ? kDefaultBits : ModeBits(options.mode);
  const int group_size = affine ? kDefaultGroupSize : ModeGroupSize(options.mode);
  if (format.bits == 0) format.bits = bits;
  if (format.group_size == 0) format.group_size = group_size;
  if (!affine && (format.bits != bits || format.group_size != group_size)) {
    Fail("The mode ", QuantizationModeName(options.mode), " has ", bits, " bits in groups of ",
         group_size, "; it cannot have ", format.bits, " bits in groups of ", format.group_size,
         ".");
  }
  if (affine && !supported(format.bits)) {
    Fail("Cannot quantise to ", format.bits, " bits; 2, 3, 4, 5, 6 and 8 are supported.");
  }
  if (affine && format.group_size != 32 && format.group_size != 64 && format.group_size != 128) {
    Fail("Cannot quantise in groups of ", format.group_size, "; 32, 64 and 128 are supported.");
  }
  return format;
}

// Runs fn(begin, end) over [0, count) on all cores.
template <class Fn>
void ParallelRows(int64_t count, const Fn& fn) {
  const int64_t threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(count, 1));
  std::vector<std::thread> workers;
  for (int64_t t = 0; t < threads; ++t) {
    workers.emplace_back(
        [&fn, t, threads, count] { fn(count * t / threads, count * (t + 1) / threads); });
  }
  for (std::thread& worker : workers) worker.join();
}

// What a plan computes, as text.
std::string Computation(const Plan& plan) {
  const std::string text = PlanString(plan);
  return text.substr(0, text.find("\n  ignored: "));
}

// The segment and row inside it that hold row `row` of a matrix.
std::pair<const MatrixSegment*, int64_t> SegmentOf(const WeightMatrix& matrix, int64_t row) {
  for (const MatrixSegment& segment : matrix.segments) {
    if (row < segment.rows) return {&segment, row};
    row -= segment.rows;
  }
  Fail("Row ", row, " is beyond the end of a matrix of ", matrix.rows, " rows.");
}

class Quantizer {
 public:
  explicit Quantizer(const QuantizeOptions& options)
      : options_(options),
        default_(DefaultFormat(options)),
        store_(WeightStore::Open(options.model)) {
    const JsonObject config = store_->config_object();
    const Family& family = FindFamily(config);
    source_ = family.build(config, store_->names());
    weights_ = BindWeights(store_, source_);
    for (size_t i = 0; i < weights_->matrices.size(); ++i) {
      for (const MatrixSegment& segment : weights_->matrices[i].segments) {
        if (segment.quantized()) {
          Fail(options.model.string(), " is already quantised (", source_.matrices[i].label, " is ",
               segment.FormatName(), "); quantise the original checkpoint instead.");
        }
      }
    }
    output_config_ = store_->config();
    // Planned checkpoints have no optional tensors to tell a tied head from; this states it too.
    CompleteMlxConfig(source_, output_config_);
    target_ = family.build(JsonObject(output_config_, config.where()), TensorNames::Planned(true));
    CheckSizesCorrespond();
    folded_ = FoldScales(source_, target_);
    if (Computation(folded_.plan) != Computation(target_)) {
      Fail(options.model.string(), ": MLX files of ", source_.family,
           " models hold multipliers of config.json inside their weights in a way that is not "
           "implemented.");
    }
    for (const Block& block : target_.blocks) {
      for (const Mixer& mixer : block.mixers) {
        if (const MoeMlp* moe = std::get_if<MoeMlp>(&mixer)) routers_.insert(moe->router.weight);
      }
    }
  }

  void Write() {
    modules_ = PlannedModules(target_);
    std::vector<TensorSpec> tensors;
    Json quantization = Json::object();
    quantization["group_size"] = default_.group_size;
    quantization["bits"] = default_.bits;
    quantization["mode"] = QuantizationModeName(default_.mode);
    for (const PlannedModule& module : modules_) {
      const DType dtype = ModuleDType(module);
      const std::optional<QuantizationFormat> format = FormatOf(module);
      if (!format) {
        quantization[module.module] = false;
        tensors.push_back({module.tensor_name(), dtype, module.shape(module.cols)});
        continue;
      }
      const bool affine = format->mode == QuantizationMode::kAffine;
      if (format->bits != default_.bits || format->mode != default_.mode) {
        Json& entry = quantization[module.module];
        entry = {{"group_size", format->group_size}, {"bits", format->bits}};
        if (format->mode != default_.mode) entry["mode"] = QuantizationModeName(format->mode);
      }
      const Shape groups = module.shape(module.cols / format->group_size);
      const DType scale_dtype = affine ? dtype : DType::kU8;
      tensors.push_back(
          {module.tensor_name(), DType::kU32, module.shape(module.cols * format->bits / 32)});
      tensors.push_back({module.module + ".scales", scale_dtype, groups});
      if (affine) tensors.push_back({module.module + ".biases", dtype, groups});
    }
    for (size_t i = 0; i < target_.vectors.size(); ++i) AddVectorSpecs(i, tensors);

    NewCheckpointDirectory directory(options_.output, tensors);
    CopyTextFiles();
    output_config_["quantization"] = quantization;
    output_config_["quantization_config"] = quantization;
    WriteFile(options_.output / "config.json", PrintJson(output_config_));
    CheckpointWriter writer(options_.output, std::move(tensors), {{"format", "mlx"}});
    for (size_t i = 0; i < modules_.size(); ++i) {
      WriteModule(modules_[i], writer);
      if (options_.progress) {
        options_.progress(static_cast<double>(i + 1) / static_cast<double>(modules_.size()));
      }
    }
    for (size_t i = 0; i < target_.vectors.size(); ++i) WriteVector(i, writer);
    writer.Finish();
    directory.Keep();
  }

 private:
  // Both plans are built by the same code, so matrices and vectors correspond by index; a config
  // that the two layouts read differently shows here.
  void CheckSizesCorrespond() const {
    bool same = source_.matrices.size() == target_.matrices.size() &&
                source_.vectors.size() == target_.vectors.size();
    for (size_t i = 0; same && i < source_.matrices.size(); ++i) {
      same = source_.matrices[i].rows == target_.matrices[i].rows &&
             source_.matrices[i].cols == target_.matrices[i].cols;
    }
    for (size_t i = 0; same && i < source_.vectors.size(); ++i) {
      same = VectorSize(source_.vectors[i]) == VectorSize(target_.vectors[i]);
    }
    if (!same) {
      Fail(options_.model.string(),
           "/config.json means different sizes in the Hugging Face and in the MLX layout of a ",
           source_.family, " model, so the checkpoint cannot be converted.");
    }
  }

  // How a module is quantised; nothing: it stays as it is.
  std::optional<QuantizationFormat> FormatOf(const PlannedModule& module) const {
    const MatrixId matrix = module.parts.front().matrix;
    if (target_.matrices[static_cast<size_t>(matrix)].always_float) return std::nullopt;
    QuantizationFormat format = default_;
    if (matrix == target_.head.weight && options_.keep_head_bits != 0) {
      format = Affine(options_.keep_head_bits, module.cols);
    } else if (routers_.contains(matrix)) {
      // A router is small, and an error in it picks other experts: mlx-lm keeps 8 bits too.
      format = Affine(8, module.cols);
    }
    if (module.cols % format.group_size != 0) return std::nullopt;
    // Kernels of small numbers read rows in spans of 32.
    if (format.mode != QuantizationMode::kAffine && module.cols % 32 != 0) return std::nullopt;
    return format;
  }

  QuantizationFormat Affine(int bits, int64_t cols) const {
    if (default_.mode == QuantizationMode::kAffine) return {bits, default_.group_size};
    return {bits, cols % kDefaultGroupSize == 0 ? kDefaultGroupSize : 32};
  }

  DType ModuleDType(const PlannedModule& module) const {
    return weights_->matrices[static_cast<size_t>(module.parts.front().matrix)]
        .segments.front()
        .dtype;
  }

  const WeightMatrix& SourceOf(const ModuleRows& rows) const {
    return weights_->matrices[static_cast<size_t>(rows.matrix)];
  }

  void WriteModule(const PlannedModule& module, CheckpointWriter& writer) {
    const DType dtype = ModuleDType(module);
    const size_t rows = static_cast<size_t>(module.total_rows());
    const std::optional<QuantizationFormat> format = FormatOf(module);
    if (!format) {
      const size_t row_bytes = static_cast<size_t>(module.cols) * DTypeSize(dtype);
      std::vector<std::byte> data(rows * row_bytes);
      for (const ModuleRows& part : module.parts) {
        for (int64_t r = 0; r < part.count; ++r) {
          const auto [segment, row] = SegmentOf(SourceOf(part), part.matrix_row + r);
          CheckDType(*segment, dtype, module);
          std::byte* const to = data.data() + static_cast<size_t>(part.tensor_row + r) * row_bytes;
          std::memcpy(to, segment->data + row * segment->row_bytes(), row_bytes);
          const float factor = FactorOf(part, r);
          if (factor != 1) {
            Transform(dtype, {to, row_bytes}, [&](size_t, float value) { return value * factor; });
          }
        }
      }
      writer.Append(data);
      return;
    }
    const bool affine = format->mode == QuantizationMode::kAffine;
    const size_t row_bytes = static_cast<size_t>(module.cols * format->bits / 8);
    const size_t group_bytes = static_cast<size_t>(module.cols / format->group_size) *
                               DTypeSize(affine ? dtype : DType::kU8);
    std::vector<std::byte> packed(rows * row_bytes);
    std::vector<std::byte> scales(rows * group_bytes);
    std::vector<std::byte> biases(affine ? rows * group_bytes : 0);
    for (const ModuleRows& part : module.parts) {
      std::atomic<int64_t> bad_row{-1};  // threads must not throw
      ParallelRows(part.count, [&](int64_t begin, int64_t end) {
        std::vector<float> weights(static_cast<size_t>(module.cols));
        for (int64_t r = begin; r < end; ++r) {
          DequantizeRow(SourceOf(part), part.matrix_row + r, weights.data());
          const float factor = FactorOf(part, r);
          if (factor != 1) {
            for (float& weight : weights) weight *= factor;
          }
          const size_t row = static_cast<size_t>(part.tensor_row + r);
          std::byte* const row_packed = packed.data() + row * row_bytes;
          std::byte* const row_scales = scales.data() + row * group_bytes;
          const bool good =
              affine ? QuantizeRow(weights, format->bits, format->group_size, dtype, row_packed,
                                   row_scales, biases.data() + row * group_bytes)
                     : QuantizeFloatRow(weights, format->mode, row_packed, row_scales);
          if (!good) {
            bad_row = part.matrix_row + r;
          }
        }
      });
      if (bad_row >= 0) {
        Fail(options_.model.string(), ": the tensor ", SourceTensor(part.matrix, bad_row),
             " holds a value that is not finite or too large to be quantised.");
      }
    }
    writer.Append(packed);
    writer.Append(scales);
    if (affine) writer.Append(biases);
  }

  // What the layout holds inside row `row` of a part.
  float FactorOf(const ModuleRows& part, int64_t row) const {
    const std::vector<float>* factors = folded_.OfMatrix(part.matrix);
    return factors == nullptr ? 1.0f : (*factors)[static_cast<size_t>(part.matrix_row + row)];
  }

  // The name of the source tensor that holds a row of a matrix.
  std::string SourceTensor(MatrixId matrix, int64_t row) const {
    for (const MatrixPart& part : source_.matrices[static_cast<size_t>(matrix)].parts) {
      if (row < part.row_count) return part.bare_name ? part.module : part.module + ".weight";
      row -= part.row_count;
    }
    return source_.matrices[static_cast<size_t>(matrix)].label;
  }

  void CheckDType(const MatrixSegment& segment, DType dtype, const PlannedModule& module) const {
    if (segment.dtype != dtype) {
      Fail(options_.model.string(), ": the tensors that make up ", module.tensor_name(),
           " have different dtypes, ", DTypeName(dtype), " and ", DTypeName(segment.dtype), ".");
    }
  }

  // The source tensors of a vector, before any transform.
  std::vector<const TensorView*> SourceTensors(size_t vector) const {
    std::vector<const TensorView*> tensors;
    for (const VectorPart& part : source_.vectors[vector].parts) {
      tensors.push_back(store_->Find(part.tensor));
    }
    return tensors;
  }

  void AddVectorSpecs(size_t vector, std::vector<TensorSpec>& tensors) const {
    const DType dtype = SourceTensors(vector).front()->dtype;
    for (const VectorPart& part : target_.vectors[vector].parts) {
      Shape shape = part.shapes.front();
      if (target_.vectors[vector].transform == VectorTransform::kConvTimeMajor) {
        // MLX keeps depthwise convolution weights as [channels, taps, 1].
        shape = {shape.front(), *ElementCount(shape) / shape.front(), 1};
      }
      tensors.push_back({part.tensor, dtype, shape});
    }
  }

  void WriteVector(size_t vector, CheckpointWriter& writer) const {
    std::vector<std::byte> data;
    const std::vector<const TensorView*> sources = SourceTensors(vector);
    for (const TensorView* tensor : sources) {
      if (tensor->dtype != sources.front()->dtype) {
        Fail(tensor->file, ": the tensors ", sources.front()->name, " and ", tensor->name,
             " have different dtypes.");
      }
      data.insert(data.end(), tensor->bytes.begin(), tensor->bytes.end());
    }
    // Norms that MLX files store as 1 + w.
    if (source_.vectors[vector].transform == VectorTransform::kPlusOne &&
        target_.vectors[vector].transform != VectorTransform::kPlusOne) {
      Transform(sources.front()->dtype, data, [](size_t, float value) { return value + 1.0f; });
    }
    if (const std::vector<float>* factors = folded_.OfVector(static_cast<VectorId>(vector))) {
      Transform(sources.front()->dtype, data,
                [&](size_t i, float value) { return value * (*factors)[i]; });
    }
    size_t offset = 0;
    for (const VectorPart& part : target_.vectors[vector].parts) {
      const size_t bytes = static_cast<size_t>(*ElementCount(part.shapes.front())) *
                           DTypeSize(sources.front()->dtype);
      writer.Append(std::span(data).subspan(offset, bytes));
      offset += bytes;
    }
  }

  // Replaces element i by fn(i, element).
  template <class Fn>
  static void Transform(DType dtype, std::span<std::byte> data, const Fn& fn) {
    const size_t size = DTypeSize(dtype);
    for (size_t i = 0; i < data.size() / size; ++i) {
      const float value = fn(i, LoadFloat(data.data(), dtype, i));
      const double wide = value;
      const uint16_t half = dtype == DType::kF16 ? FloatToF16(value) : FloatToBF16(value);
      const void* const stored = dtype == DType::kF64   ? static_cast<const void*>(&wide)
                                 : dtype == DType::kF32 ? static_cast<const void*>(&value)
                                                        : static_cast<const void*>(&half);
      std::memcpy(data.data() + i * size, stored, size);
    }
  }

  // Tokenizer, chat template and generation settings; weights and config are written anew.
  void CopyTextFiles() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.model)) {
      const std::string name = entry.path().filename().string();
      const std::string extension = entry.path().extension().string();
      const bool text = extension == ".json" || extension == ".jsonl" || extension == ".jinja" ||
                        extension == ".txt" || extension == ".model";
      if (!entry.is_regular_file() || !text || name == "config.json" ||
          name.ends_with(".safetensors.index.json")) {
        continue;
      }
      std::error_code error;
      fs::copy_file(entry.path(), options_.output / name, error);
      if (error) Fail("Cannot copy ", entry.path().string(), ": ", error.message(), ".");
    }
  }

  const QuantizeOptions& options_;
  const QuantizationFormat default_;
  std::shared_ptr<const WeightStore> store_;
  Plan source_;
  Plan target_;
  FoldedScales folded_;
  std::shared_ptr<const BoundWeights> weights_;
  Json output_config_;
  std::vector<PlannedModule> modules_;
  std::set<MatrixId> routers_;
};

}  // namespace

void QuantizeCheckpoint(const QuantizeOptions& options) { Quantizer(options).Write(); }

}  // namespace adder
