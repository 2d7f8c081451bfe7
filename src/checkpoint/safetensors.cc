#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "core/error.h"
#include "core/json.h"

namespace adder {
namespace {

// Bytes of a tensor, or an Error naming it.
uint64_t TensorBytes(const std::string& name, DType dtype, const Shape& shape,
                     const std::string& file) {
  const std::optional<int64_t> count = ElementCount(shape);
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, static_cast<int64_t>(DTypeSize(dtype)), &bytes)) {
    Fail(file, ": the tensor ", name, " has the absurd shape ", ShapeString(shape), ".");
  }
  return static_cast<uint64_t>(bytes);
}

// Most dimensions of a tensor that are accepted.
constexpr size_t kMaxRank = 8;

// Reads the header event by event. A tree of the whole JSON text would need many times the header's
// size, which a hostile file could make 100 MB; this keeps the tensors alone.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::span<const std::byte> data, const std::string& file)
      : data_(data), file_(file) {}

  std::vector<TensorView> Take() { return std::move(tensors_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Unexpected(Concat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Unexpected(text); }
  bool binary(binary_t&) override { return false; }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape && tensor_.shape.size() < kMaxRank && value <= INT64_MAX) {
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && offset_count_ < 2) {
      offsets_[offset_count_++] = value;
    } else {
      Unexpected(Concat(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected('"' + Start(value) + '"');
    if (!ParseDType(value, tensor_.dtype)) {
      Fail(file_, ": the tensor ", tensor_.name, " has the unknown dtype \"", Start(value), "\".");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader) {
      place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    } else {
      Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kHeader) {
      tensor_ = TensorView();
      tensor_.name = std::move(name);
      tensor_.file = file_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else if (place_ == Place::kTensor) {
      field_ = std::move(name);
      bool* const seen = field_ == "dtype"          ? &has_dtype_
                         : field_ == "shape"        ? &has_shape_
                         : field_ == "data_offsets" ? &has_offsets_
                                                    : nullptr;
      if (seen == nullptr || *seen) {
        Fail(file_, ": the tensor ", tensor_.name, " has the field \"", Start(field_),
             seen == nullptr ? "\", which is unknown." : "\" twice.");
      }
      *seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) AddTensor();
    place_ = Place::kHeader;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
      offset_count_ = 0;
    } else {
      Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    Fail(file_, ": the header is not valid JSON near byte ", position, ": ", Start(error.what()),
         ".");
  }

 private:
  // Where in the header the reader is.
  enum class Place { kStart, kHeader, kMetadata, kTensor, kShape, kOffsets };

  // Enough of a text for a message.
  static std::string Start(const std::string& text) {
    return text.size() <= 200 ? text : text.substr(0, 200) + "...";
  }

  // Throws the Error for a value that cannot be where it stands.
  [[noreturn]] bool Unexpected(const std::string& value) const {
    switch (place_) {
      case Place::kStart:
        Fail(file_, ": the header should hold a JSON object.");
      case Place::kHeader:
        Fail(file_, ": the entry ", tensor_.name, " of the header should be a JSON object, it is ",
             value, ".");
      case Place::kMetadata:
        Fail(file_, ": __metadata__ should hold texts only, it holds ", value, ".");
      case Place::kShape:
        if (tensor_.shape.size() < kMaxRank) {
          Fail(file_, ": the shape of the tensor ", tensor_.name, " has the bad size ", value, ".");
        }
        [[fallthrough]];
      case Place::kTensor:
        if (field_ == "shape") {
          Fail(file_, ": the shape of the tensor ", tensor_.name, " should be an array of at most ",
               kMaxRank, " sizes.");
        }
        Fail(file_, ": the tensor ", tensor_.name, " has the bad ", field_, " ", value, ".");
      case Place::kOffsets:
        break;
    }
    Fail(file_, ": the tensor ", tensor_.name, " has bad data_offsets: ", value,
         " where two offsets should be.");
  }

  void AddTensor() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      Fail(file_, ": the tensor ", tensor_.name, " lacks dtype, shape or data_offsets.");
    }
    const uint64_t needed = TensorBytes(tensor_.name, tensor_.dtype, tensor_.shape, file_);
    const auto [begin, end] = offsets_;
    if (offset_count_ != 2 || begin > end) {
      Fail(file_, ": the tensor ", tensor_.name,
           " has bad data_offsets; they should be its begin and its end.");
    }
    if (end > data_.size()) {
      Fail(file_, ": the tensor ", tensor_.name, " ends at byte ", end,
           " of the data, of which there are ", data_.size(),
           ". The file is truncated or its header is wrong.");
    }
    if (end - begin != needed) {
      Fail(file_, ": the tensor ", tensor_.name, " of dtype ", DTypeName(tensor_.dtype),
           " and shape ", ShapeString(tensor_.shape), " needs ", needed,
           " bytes, its data_offsets hold ", end - begin, ".");
    }
    tensor_.bytes = data_.subspan(begin, end - begin);
    tensors_.push_back(std::move(tensor_));
  }

  std::span<const std::byte> data_;
  const std::string& file_;
  std::vector<TensorView> tensors_;
  Place place_ = Place::kStart;
  TensorView tensor_;  // the one being read
  std::string field_;  // of it
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::array<uint64_t, 2> offsets_{};
  size_t offset_count_ = 0;
};

// Names are unique: compared in sorted order, without a copy of them.
void CheckUnique(const std::vector<TensorView>& tensors, const std::string& file) {
  std::vector<const TensorView*> sorted;
  sorted.reserve(tensors.size());
  for (const TensorView& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorView* a, const TensorView* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(
      sorted.begin(), sorted.end(),
      [](const TensorView* a, const TensorView* b) { return a->name == b->name; });
  if (twice != sorted.end()) {
    Fail(file, ": the header lists the tensor ", (*twice)->name, " twice.");
  }
}

struct Range {
  uint64_t begin;
  uint64_t end;
  const TensorView* tensor;
};

// Every byte of the data section belongs to exactly one tensor.
void CheckCoverage(const std::vector<TensorView>& tensors, std::span<const std::byte> data,
                   const std::string& file) {
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    const uint64_t begin = static_cast<uint64_t>(tensor.bytes.data() - data.data());
    ranges.push_back({begin, begin + tensor.bytes.size(), &tensor});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  const TensorView* previous = nullptr;
  for (const Range& range : ranges) {
    if (range.begin < covered) {
      Fail(file, ": the tensors ", previous->name, " and ", range.tensor->name,
           " overlap in the file.");
    }
    if (range.begin > covered) {
      Fail(file, ": ", range.begin - covered, " bytes before the tensor ", range.tensor->name,
           " belong to no tensor.");
    }
    covered = range.end;
    previous = range.tensor;
  }
  if (covered != data.size()) {
    Fail(file, ": ", data.size() - covered, " bytes at the end belong to no tensor.");
  }
}

}  // namespace

std::vector<TensorView> ParseSafetensors(std::span<const std::byte> bytes,
                                         const std::string& file) {
  if (bytes.size() < 8) {
    Fail(file, " is truncated: a safetensors file has at least 8 bytes, it has ", bytes.size(),
         ".");
  }
  uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) {
    header_size = header_size << 8 | std::to_integer<uint64_t>(bytes[static_cast<size_t>(i)]);
  }
  if (header_size > kMaxSafetensorsHeader) {
    Fail(file, " claims a header of ", header_size, " bytes; the limit is ", kMaxSafetensorsHeader,
         ". It is damaged or not a safetensors file.");
  }
  if (header_size > bytes.size() - 8) {
    Fail(file, " is truncated: its header of ", header_size, " bytes is longer than the file (",
         bytes.size(), " bytes).");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_size);
  const std::span<const std::byte> data = bytes.subspan(8 + header_size);
  HeaderReader reader(data, file);
  Json::sax_parse(text.begin(), text.end(), &reader);
  std::vector<TensorView> tensors = reader.Take();
  CheckUnique(tensors, file);
  CheckCoverage(tensors, data, file);
  return tensors;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      Fail(path_.string(), ": the tensor ", tensor.name, " would be written twice.");
    }
    const uint64_t bytes = TensorBytes(tensor.name, tensor.dtype, tensor.shape, path_.string());
    Json entry = Json::object();
    entry["dtype"] = DTypeName(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {remaining_, remaining_ + bytes};
    header[tensor.name] = std::move(entry);
    remaining_ += bytes;
  }
  std::string text = header.dump();
  // Padding keeps the data 64-byte aligned in the mapped file, so that kernels load aligned
  // vectors.
  text.append((64 - (text.size() + 8) % 64) % 64, ' ');
  out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_) Fail("Cannot write ", path_.string(), ": ", std::strerror(errno), ".");
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  out_.write(length, 8);
  out_.write(text.data(), static_cast<std::streamsize>(text.size()));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

void SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > remaining_) {
    Fail("Cannot write ", path_.string(), ": more bytes than its tensors hold.");
  }
  remaining_ -= bytes.size();
  out_.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!out_) Fail("Cannot write ", path_.string(), ": ", std::strerror(errno), ".");
}

void SafetensorsWriter::Finish() {
  if (remaining_ != 0) {
    Fail("Cannot write ", path_.string(), ": ", remaining_, " bytes of its tensors are missing.");
  }
  out_.close();
  if (!out_) Fail("Cannot write ", path_.string(), ": ", std::strerror(errno), ".");
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) Fail("Cannot write ", path_.string(), ": ", error.message(), ".");
  finished_ = true;
}

}  // namespace adder
