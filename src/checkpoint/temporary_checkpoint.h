// For tests: a checkpoint directory that lives as long as the object, and safetensors files made
// from raw headers, so that a lying header can be written too.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/file.h"

namespace adder::testing {

// The message of the Error that `action` throws; "no error" when it throws none.
template <class Action>
std::string ErrorOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A safetensors file: header length, header text, data.
inline std::string RawSafetensors(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i)
    out[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = ::testing::TempDir() + "/adder_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) Fail("Cannot create a temporary directory.");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& contents) const {
    WriteFile(path_ / name, contents);
  }

 private:
  std::filesystem::path path_;
};

// A tensor with its bytes, for WriteTensors.
struct TestTensor {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;

  static TestTensor Float(const std::string& name, const Shape& shape, float first, float step) {
    TestTensor tensor{name, DType::kF32, shape, {}};
    const size_t count = static_cast<size_t>(*ElementCount(shape));
    tensor.bytes.resize(count * 4);
    for (size_t i = 0; i < count; ++i) {
      const float value = first + step * static_cast<float>(i);
      std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
    }
    return tensor;
  }
};

inline void WriteTensors(const std::filesystem::path& path,
                         const std::vector<TestTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const TestTensor& tensor : tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs);
  for (const TestTensor& tensor : tensors) writer.Append(tensor.bytes);
  writer.Finish();
}

}  // namespace adder::testing
