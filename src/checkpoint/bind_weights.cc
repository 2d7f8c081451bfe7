#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/quantization_config.h"
#include "checkpoint/weight_store.h"
#include "core/error.h"
#include "core/small_float.h"

namespace adder {
namespace {

// Keeps the store's maps and the tables that were converted alive behind the matrix views.
struct Storage {
  std::shared_ptr<const WeightStore> store;
  std::vector<std::vector<float>> converted;
};

class Binder {
 public:
  Binder(std::shared_ptr<const WeightStore> store, const Plan& plan)
      : store_(std::move(store)),
        plan_(plan),
        quantization_(store_->config_object()),
        storage_(std::make_shared<Storage>()) {
    storage_->store = store_;
  }

  std::shared_ptr<const BoundWeights> Bind() {
    auto bound = std::make_shared<BoundWeights>();
    for (const MatrixRef& matrix : plan_.matrices) bound->matrices.push_back(BindMatrix(matrix));
    for (const VectorRef& vector : plan_.vectors) bound->vectors.push_back(BindVector(vector));
    CheckAllUsed();
    CheckAllRowsUsed();
    bound->storage = storage_;
    // Pages of converted tables must not be given back as if a file stood behind them.
    bound->mapped = storage_->converted.empty();
    return bound;
  }

 private:
  // Rows of a tensor claimed by matrix parts; a vector counts as one row.
  struct Claim {
    int64_t begin;
    int64_t end;
  };
  struct Claims {
    int64_t rows = 0;
    std::vector<Claim> ranges;
  };

  const TensorView& Get(const std::string& name, const std::string& expected) const {
    const TensorView* tensor = store_->Find(name);
    if (tensor == nullptr) {
      Fail(store_->directory().string(), ": the tensor ", name, " ", expected, " is missing.");
    }
    return *tensor;
  }

  void CheckShape(const TensorView& tensor, const Shape& expected) const {
    if (tensor.shape != expected) {
      Fail(tensor.file, ": the tensor ", tensor.name, " should have shape ", ShapeString(expected),
           ", it has ", ShapeString(tensor.shape), ".");
    }
  }

  void CheckFloat(const TensorView& tensor) const {
    if (!IsFloat(tensor.dtype)) {
      Fail(tensor.file, ": the tensor ", tensor.name,
           " should hold floating-point numbers, it holds ", DTypeName(tensor.dtype), ".");
    }
  }

  void CheckFinite(const TensorView& tensor, const std::byte* data, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(LoadFloat(data, tensor.dtype, static_cast<size_t>(i)))) {
        Fail(tensor.file, ": the tensor ", tensor.name, " holds a value that is not finite.");
      }
    }
  }

  // rows: how many the tensor has in all.
  void ClaimRows(const TensorView& tensor, int64_t begin, int64_t end, int64_t rows) {
    Claims& claims = claims_[tensor.name];
    claims.rows = rows;
    for (const Claim& claim : claims.ranges) {
      if (begin < claim.end && claim.begin < end) {
        Fail(tensor.file, ": the tensor ", tensor.name, " would be used twice.");
      }
    }
    claims.ranges.push_back({begin, end});
  }

  WeightMatrix BindMatrix(const MatrixRef& ref) {
    WeightMatrix matrix;
    matrix.rows = ref.rows;
    matrix.cols = ref.cols;
    for (const MatrixPart& part : ref.parts) {
      const int64_t cols = part.transposed ? ref.rows : ref.cols;
      MatrixSegment segment = store_->Find(part.module + ".scales") != nullptr
                                  ? BindQuantized(part, cols)
                                  : BindDense(part, cols);
      matrix.segments.push_back(part.transposed ? TransposedSegment(segment) : segment);
    }
    return matrix;
  }

  // In memory of its own: values as they are, or as f32 when they are packed.
  MatrixSegment TransposedSegment(const MatrixSegment& source) {
    MatrixSegment segment;
    segment.rows = source.cols;
    segment.cols = source.rows;
    segment.dtype = source.quantized() ? DType::kF32 : source.dtype;
    const size_t size = DTypeSize(segment.dtype);
    const auto count = static_cast<size_t>(source.rows * source.cols);
    std::vector<float> memory((count * size + sizeof(float) - 1) / sizeof(float));
    std::byte* to = reinterpret_cast<std::byte*>(memory.data());
    std::vector<float> unpacked(static_cast<size_t>(source.cols));
    for (int64_t r = 0; r < source.rows; ++r) {
      const std::byte* from = source.data + r * source.row_bytes();
      if (source.quantized()) {
        DequantizeRow(source, r, unpacked.data());
        from = reinterpret_cast<const std::byte*>(unpacked.data());
      }
      for (int64_t c = 0; c < source.cols; ++c) {
        std::memcpy(to + static_cast<size_t>(c * source.rows + r) * size,
                    from + static_cast<size_t>(c) * size, size);
      }
    }
    storage_->converted.push_back(std::move(memory));
    segment.data = reinterpret_cast<const std::byte*>(storage_->converted.back().data());
    return segment;
  }

  static Shape PartShape(const MatrixPart& part, int64_t cols) {
    return part.experts > 0 ? Shape{part.experts, part.rows, cols} : Shape{part.rows, cols};
  }
  // Rows of the tensor seen as one matrix [experts * rows, cols], and the part's first among them.
  static int64_t TotalRows(const MatrixPart& part) {
    return part.experts > 0 ? part.experts * part.rows : part.rows;
  }
  static int64_t FirstRow(const MatrixPart& part) {
    return (part.experts > 0 ? part.expert * part.rows : 0) + part.row_begin;
  }

  MatrixSegment BindDense(const MatrixPart& part, int64_t cols) {
    const std::string name = part.bare_name ? part.module : part.module + ".weight";
    const Shape shape = PartShape(part, cols);
    const TensorView& tensor = Get(name, "of shape " + ShapeString(shape));
    if (tensor.dtype == DType::kU32) {
      Fail(tensor.file, ": the tensor ", name, " is packed (U32) but ", part.module,
           ".scales is missing.");
    }
    CheckFloat(tensor);
    CheckShape(tensor, shape);
    ClaimRows(tensor, FirstRow(part), FirstRow(part) + part.row_count, TotalRows(part));
    MatrixSegment segment;
    segment.rows = part.row_count;
    segment.cols = cols;
    segment.dtype = tensor.dtype;
    segment.data = tensor.bytes.data() + FirstRow(part) * segment.row_bytes();
    if (tensor.dtype == DType::kF64) {
      std::vector<float> values(static_cast<size_t>(segment.rows * cols));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = LoadFloat(segment.data, DType::kF64, i);
      }
      storage_->converted.push_back(std::move(values));
      segment.dtype = DType::kF32;
      segment.data = reinterpret_cast<const std::byte*>(storage_->converted.back().data());
    }
    return segment;
  }

  MatrixSegment BindQuantized(const MatrixPart& part, int64_t cols) {
    const std::optional<QuantizationFormat> format = quantization_.FormatOf(part.module);
    if (!format) {
      Fail(store_->directory().string(), "/config.json: the module ", part.module,
           " has .scales, so it is quantised, but `quantization` gives no bits and group_size for "
           "it.");
    }
    if (cols % format->group_size != 0) {
      Fail(store_->directory().string(), "/config.json: the module ", part.module, " has ", cols,
           " inputs, which the group_size ", format->group_size, " does not divide.");
    }
    const Shape packed_shape = PartShape(part, cols * format->bits / 32);
    const Shape group_shape = PartShape(part, cols / format->group_size);
    const std::string name = part.bare_name ? part.module : part.module + ".weight";
    const TensorView& packed = Get(name, "of shape " + ShapeString(packed_shape));
    const TensorView& scales = Get(part.module + ".scales", "of shape " + ShapeString(group_shape));
    if (packed.dtype != DType::kU32) {
      Fail(packed.file, ": the tensor ", name, " should be U32 (packed), it is ",
           DTypeName(packed.dtype), ".");
    }
    CheckShape(packed, packed_shape);
    CheckShape(scales, group_shape);
    MatrixSegment segment;
    segment.rows = part.row_count;
    segment.cols = cols;
    segment.dtype = scales.dtype;
    segment.bits = format->bits;
    segment.group_size = format->group_size;
    segment.mode = format->mode;
    const int64_t first = FirstRow(part);
    segment.data = packed.bytes.data() + first * segment.row_bytes();
    segment.scales = scales.bytes.data() + first * segment.scale_row_bytes();
    ClaimPart(packed, part);
    ClaimPart(scales, part);
    if (segment.affine()) {
      BindBiases(part, scales, group_shape, segment);
    } else {
      CheckSmallFloats(part, packed, scales, segment);
    }
    return segment;
  }

  void ClaimPart(const TensorView& tensor, const MatrixPart& part) {
    ClaimRows(tensor, FirstRow(part), FirstRow(part) + part.row_count, TotalRows(part));
  }

  void BindBiases(const MatrixPart& part, const TensorView& scales, const Shape& group_shape,
                  MatrixSegment& segment) {
    const TensorView& biases = Get(part.module + ".biases", "of shape " + ShapeString(group_shape));
    for (const TensorView* tensor : {&scales, &biases}) {
      if (tensor->dtype != DType::kBF16 && tensor->dtype != DType::kF16 &&
          tensor->dtype != DType::kF32) {
        Fail(tensor->file, ": the tensor ", tensor->name, " should be BF16, F16 or F32, it is ",
             DTypeName(tensor->dtype), ".");
      }
    }
    CheckShape(biases, group_shape);
    if (scales.dtype != biases.dtype) {
      Fail(biases.file, ": the tensor ", biases.name, " should have the dtype of ", scales.name,
           ", ", DTypeName(scales.dtype), ", it has ", DTypeName(biases.dtype), ".");
    }
    segment.biases = biases.bytes.data() + FirstRow(part) * segment.scale_row_bytes();
    ClaimPart(biases, part);
    CheckFinite(scales, segment.scales, segment.rows * segment.groups());
    CheckFinite(biases, segment.biases, segment.rows * segment.groups());
  }

  // The scale of a module's tensor (one for each expert of a stacked one), which nvfp4 weights may
  // have beside those of groups: they are then relative to the largest number that a group holds.
  float GlobalScale(const MatrixPart& part) {
    const TensorView* tensor = store_->Find(part.module + ".global_scale");
    if (tensor == nullptr) return 1;
    if (tensor->dtype != DType::kF32) {
      Fail(tensor->file, ": the tensor ", tensor->name, " should be F32, it is ",
           DTypeName(tensor->dtype), ".");
    }
    CheckShape(*tensor, part.experts > 0 ? Shape{part.experts} : Shape{});
    ClaimPart(*tensor, part);
    const auto index = static_cast<size_t>(part.experts > 0 ? part.expert : 0);
    CheckFinite(*tensor, tensor->bytes.data() + index * sizeof(float), 1);
    return LoadFloat(tensor->bytes.data(), DType::kF32, index) / (kLargestE2M1 * kLargestE4M3);
  }

  // Modes whose codes and scales are small floating-point numbers.
  void CheckSmallFloats(const MatrixPart& part, const TensorView& packed, const TensorView& scales,
                        MatrixSegment& segment) {
    if (scales.dtype != DType::kU8) {
      Fail(scales.file, ": the tensor ", scales.name, " should be U8 for the mode ",
           QuantizationModeName(segment.mode), ", it is ", DTypeName(scales.dtype), ".");
    }
    if (segment.mode == QuantizationMode::kNvfp4) segment.global_scale = GlobalScale(part);
    const float largest = segment.bits == 4 ? kLargestE2M1 : kLargestE4M3;
    for (int64_t g = 0; g < segment.rows * segment.groups(); ++g) {
      if (!std::isfinite(segment.ScaleOf(g) * largest)) {
        Fail(scales.file, ": the tensor ", scales.name,
             " holds a scale that is not finite or too large.");
      }
    }
    if (segment.bits != 8) return;
    for (int64_t i = 0; i < segment.rows * segment.row_bytes(); ++i) {
      if ((segment.data[i] & std::byte{0x7f}) == std::byte{0x7f}) {
        Fail(packed.file, ": the tensor ", packed.name, " holds a value that is not finite.");
      }
    }
  }

  std::vector<float> BindVector(const VectorRef& ref) {
    std::vector<float> values;
    int64_t channels = 0;
    for (const VectorPart& part : ref.parts) {
      const TensorView& tensor = Get(part.tensor, "of shape " + ShapeString(part.shapes.front()));
      CheckFloat(tensor);
      if (std::find(part.shapes.begin(), part.shapes.end(), tensor.shape) == part.shapes.end()) {
        CheckShape(tensor, part.shapes.front());
      }
      ClaimRows(tensor, 0, 1, 1);
      const int64_t count = *ElementCount(tensor.shape);
      CheckFinite(tensor, tensor.bytes.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(LoadFloat(tensor.bytes.data(), tensor.dtype, static_cast<size_t>(i)));
      }
      if (!tensor.shape.empty()) channels += tensor.shape.front();
      if (ref.transform == VectorTransform::kNegativeExpTransposed) {
        values = Transposed(values, tensor.shape.front());
      }
      if (ref.transform == VectorTransform::kGroupedConvTimeMajor) {
        // [channels, inputs, taps] -> [inputs, taps, channels] -> [taps, inputs, channels].
        values = SwappedBlocks(Transposed(values, tensor.shape[0]), tensor.shape[1],
                               tensor.shape[2], tensor.shape[0]);
      }
    }
    if (ref.transform == VectorTransform::kConvTimeMajor) {
      // [channels, 1, taps] and [channels, taps, 1] are the same bytes, and below each other the
      // parts are one such tensor.
      values = Transposed(values, channels);
    }
    if (ref.last) values.back() = *ref.last;
    for (float& value : values) {
      if (ref.transform == VectorTransform::kNegativeExp ||
          ref.transform == VectorTransform::kNegativeExpTransposed) {
        value = -std::exp(value);
      }
      if (ref.transform == VectorTransform::kPlusOne) value += 1.0f;
      value += ref.offset;
      if (!std::isfinite(value)) {
        Fail(store_->directory().string(), ": the tensor ", ref.parts.front().tensor,
             " holds a value that is too large.");
      }
    }
    return Repeated(values, ref.repeat);
  }

  static std::vector<float> Repeated(const std::vector<float>& values, int64_t repeat) {
    std::vector<float> out;
    out.reserve(values.size() * static_cast<size_t>(repeat));
    for (const float value : values) out.insert(out.end(), static_cast<size_t>(repeat), value);
    return out;
  }

  // [a, b, size] -> [b, a, size].
  static std::vector<float> SwappedBlocks(const std::vector<float>& values, int64_t a, int64_t b,
                                          int64_t size) {
    std::vector<float> out(values.size());
    for (int64_t i = 0; i < a; ++i) {
      for (int64_t j = 0; j < b; ++j) {
        std::copy_n(values.begin() + (i * b + j) * size, size, out.begin() + (j * a + i) * size);
      }
    }
    return out;
  }

  // [rows, columns] -> [columns, rows].
  static std::vector<float> Transposed(const std::vector<float>& values, int64_t rows) {
    const size_t count = static_cast<size_t>(rows);
    const size_t columns = values.size() / count;
    std::vector<float> out(values.size());
    for (size_t r = 0; r < count; ++r) {
      for (size_t c = 0; c < columns; ++c) out[c * count + r] = values[r * columns + c];
    }
    return out;
  }

  bool Ignored(const std::string& name) const {
    return std::any_of(plan_.ignored_tensors.begin(), plan_.ignored_tensors.end(),
                       [&](const std::string& pattern) {
                         return pattern.ends_with('*')
                                    ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                    : name == pattern;
                       });
  }

  // Rows of a tensor that a plan leaves unused would be silently lost.
  void CheckAllRowsUsed() const {
    for (const auto& [name, claims] : claims_) {
      int64_t used = 0;
      for (const Claim& claim : claims.ranges) used += claim.end - claim.begin;
      if (used != claims.rows) {
        Fail(store_->Find(name)->file, ": of the ", claims.rows, " rows of the tensor ", name,
             " only ", used, " would be used.");
      }
    }
  }

  void CheckAllUsed() const {
    std::string left_over;
    int count = 0;
    for (const TensorView* tensor : store_->Tensors()) {
      if (claims_.contains(tensor->name) || Ignored(tensor->name)) continue;
      if (++count <= 5) {
        left_over += (count > 1 ? ", " : "") + tensor->name + " " + ShapeString(tensor->shape);
      }
    }
    if (count > 0) {
      Fail(store_->directory().string(), " holds ", count, count == 1 ? " tensor" : " tensors",
           " that a ", plan_.family, " model with this config.json does not have: ", left_over,
           count > 5 ? ", ..." : "", ".");
    }
  }

  std::shared_ptr<const WeightStore> store_;
  const Plan& plan_;
  QuantizationConfig quantization_;
  std::shared_ptr<Storage> storage_;
  std::map<std::string, Claims> claims_;
};

}  // namespace

std::shared_ptr<const BoundWeights> BindWeights(std::shared_ptr<const WeightStore> store,
                                                const Plan& plan) {
  return Binder(std::move(store), plan).Bind();
}

}  // namespace adder
