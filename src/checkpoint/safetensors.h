// The safetensors container (https://github.com/huggingface/safetensors#format): 8 bytes of
// little-endian header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace adder {

// A tensor of a mapped file. `file` is for error messages.
struct TensorView {
  std::string name;
  std::string file;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

// Longest header accepted, in bytes; the format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// Parses and validates the whole header of a file's bytes; `file` names it in errors. The views
// point into `bytes`. Throws Error naming the file and the tensor for: a truncated file, a header
// that is longer than the file or than kMaxSafetensorsHeader, bad JSON, duplicate names, an unknown
// dtype, a shape whose size overflows, offsets that are out of range, disagree with the shape,
// overlap, or leave bytes that no tensor covers.
std::vector<TensorView> ParseSafetensors(std::span<const std::byte> bytes, const std::string& file);

// A tensor to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Writes a safetensors file front to back: every tensor is declared first, then its bytes are
// appended in the declared order. The file appears under its name only when Finish succeeds.
class SafetensorsWriter {
 public:
  // Throws Error for a duplicate name, an absurd shape, or when the file cannot be created.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Appends bytes of the current tensor; a tensor may be written in pieces.
  void Append(std::span<const std::byte> bytes);
  // Throws Error when bytes are missing or the disk refused them.
  void Finish();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream out_;
  uint64_t remaining_ = 0;
  bool finished_ = false;
};

}  // namespace adder
