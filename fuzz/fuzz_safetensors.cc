// Any bytes as a safetensors file: either an Error, or tensors that lie inside the bytes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const adder::TensorView& tensor : adder::ParseSafetensors(bytes, "fuzz.safetensors")) {
      if (tensor.bytes.data() < bytes.data() ||
          tensor.bytes.data() + tensor.bytes.size() > bytes.data() + bytes.size()) {
        __builtin_trap();
      }
      const auto count = adder::ElementCount(tensor.shape);
      if (!count ||
          static_cast<size_t>(*count) * adder::DTypeSize(tensor.dtype) != tensor.bytes.size()) {
        __builtin_trap();
      }
    }
  } catch (const adder::Error&) {
  }
  return 0;
}
