#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "core/error.h"
#include "core/json.h"

namespace adder {
namespace {

// Reads a non-negative integer; JSON numbers such as 1e3 or -1 are refused.
bool ReadSize(const Json& value, uint64_t& size) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) {
    size = value.get<uint64_t>();
    return true;
  }
  const int64_t number = value.get<int64_t>();
  if (number < 0) return false;
  size = static_cast<uint64_t>(number);
  return true;
}

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
  const Json header = ParseJson(text, file + " (header)", 4);
  if (!header.is_object()) Fail(file, ": the header should hold a JSON object.");

  std::vector<TensorView> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) Fail(file, ": __metadata__ should hold a JSON object.");
      continue;
    }
    TensorView tensor;
    tensor.name = name;
    tensor.file = file;
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      Fail(file, ": the tensor ", name, " lacks dtype, shape or data_offsets.");
    }
    const Json& dtype = entry["dtype"];
    if (!dtype.is_string() || !ParseDType(dtype.get_ref<const std::string&>(), tensor.dtype)) {
      Fail(file, ": the tensor ", name, " has the unknown dtype ", dtype.dump(), ".");
    }
    const Json& shape = entry["shape"];
    if (!shape.is_array() || shape.size() > 8) {
      Fail(file, ": the shape of the tensor ", name, " should be an array of at most 8 sizes.");
    }
    for (const Json& dim : shape) {
      uint64_t size = 0;
      if (!ReadSize(dim, size) || size > static_cast<uint64_t>(INT64_MAX)) {
        Fail(file, ": the shape of the tensor ", name, " has the bad size ", dim.dump(), ".");
      }
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    const uint64_t needed = TensorBytes(name, tensor.dtype, tensor.shape, file);
    const Json& offsets = entry["data_offsets"];
    uint64_t begin = 0, end = 0;
    if (!offsets.is_array() || offsets.size() != 2 || !ReadSize(offsets[0], begin) ||
        !ReadSize(offsets[1], end) || begin > end) {
      Fail(file, ": the tensor ", name, " has bad data_offsets ", offsets.dump(), ".");
    }
    if (end > data.size()) {
      Fail(file, ": the tensor ", name, " ends at byte ", end, " of the data, of which there are ",
           data.size(), ". The file is truncated or its header is wrong.");
    }
    if (end - begin != needed) {
      Fail(file, ": the tensor ", name, " of dtype ", DTypeName(tensor.dtype), " and shape ",
           ShapeString(tensor.shape), " needs ", needed, " bytes, its data_offsets hold ",
           end - begin, ".");
    }
    tensor.bytes = data.subspan(begin, end - begin);
    tensors.push_back(std::move(tensor));
  }
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
