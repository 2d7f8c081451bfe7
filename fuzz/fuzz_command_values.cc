// Any bytes as values of the command line: a list of token ids, a model's name, and the numbers of
// sampling with the logits they are applied to. Each is either refused with an Error or safe to
// use.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "engine/sampler.h"
#include "engine/token_lists.h"
#include "loader/model_path.h"

namespace {

// Reads values from the front of the input; zeros when it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <class Value>
  Value Take() {
    Value value{};
    const size_t count = std::min(sizeof value, size_);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }
  size_t size() const { return size_; }

 private:
  const uint8_t* data_;
  size_t size_;
};

void TryTokenList(std::string_view text) {
  try {
    const std::vector<int32_t> ids = adder::ParseTokenList(text, "--tokens");
    const bool negative = std::any_of(ids.begin(), ids.end(), [](int32_t id) { return id < 0; });
    if (ids.empty() || negative) __builtin_trap();
  } catch (const adder::Error&) {
  }
}

// A name that is looked up in the cache must not lead out of it.
void TryModelName(const std::string& name) {
  if (!adder::IsHubName(name)) return;
  if (name.find("..") != std::string::npos || std::count(name.begin(), name.end(), '/') != 1 ||
      name.front() == '/' || name.find('\0') != std::string::npos) {
    __builtin_trap();
  }
}

void TrySampling(Input input) {
  adder::SamplingParameters parameters;
  parameters.temperature = input.Take<float>();
  parameters.top_k = input.Take<int16_t>();
  parameters.top_p = input.Take<float>();
  parameters.min_p = input.Take<float>();
  parameters.repeat_penalty = input.Take<float>();
  parameters.repeat_window = input.Take<int8_t>();
  parameters.seed = input.Take<uint64_t>();
  std::vector<float> logits;
  while (input.size() > 0) logits.push_back(input.Take<float>());
  const std::vector<int32_t> context = {0, 1, 1, 1 << 30};
  try {
    adder::Sampler sampler(parameters);
    for (int i = 0; i < 3; ++i) {
      const int32_t id = sampler.Sample(logits, context);
      if (id < 0 || static_cast<size_t>(id) >= logits.size()) __builtin_trap();
    }
  } catch (const adder::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  TryTokenList(text);
  TryModelName(text);
  TrySampling(Input(data, size));
  return 0;
}
