// Any bytes as a prompts file: either an Error, or prompts that a model of that vocabulary can run.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "engine/token_lists.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kVocab = 1000;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const auto prompts = adder::ParsePrompts(json, "prompts.json", kVocab);
    if (prompts.empty()) __builtin_trap();
    for (const auto& prompt : prompts) {
      if (prompt.empty()) __builtin_trap();
      for (int32_t id : prompt) {
        if (id < 0 || id >= kVocab) __builtin_trap();
      }
    }
  } catch (const adder::Error&) {
  }
  return 0;
}
