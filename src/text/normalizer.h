// Normalizers: rewrites of the text before it is split.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/growth.h"

namespace adder::text {

// One rewrite. `text` is valid UTF-8 before and after.
class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual void Run(std::string& text) const = 0;
};

// The "normalizer" of a tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents,
// Replace, Prepend, Precompiled, ByteLevel, or a Sequence of them.
class Normalizer {
 public:
  // Null gives the normalizer that changes nothing. Throws Error for other types.
  Normalizer(const Json& value, const std::string& where);

  bool empty() const { return steps_.empty(); }
  void Run(std::string& text) const {
    for (const auto& step : steps_) step->Run(text);
  }

 private:
  void AddStep(const Json& value, const std::string& where);

  std::vector<std::unique_ptr<NormalizerStep>> steps_;
  GrowthBudget growth_;
};

}  // namespace adder::text
