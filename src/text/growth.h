// A bound on how much longer the steps of a tokenizer may make a text. Each rewriting step of a
// file is harmless alone; a long list of them could multiply a short text beyond any memory.
#pragma once

#include <cstddef>
#include <string>

#include "core/error.h"

namespace adder::text {

class GrowthBudget {
 public:
  // Notes a step that makes a text at most `factor` times as long. Throws Error, beginning with
  // `where`, when the steps so far could exceed the bound.
  void Spend(size_t factor, const std::string& where) {
    if (factor > left_) Fail(where, ": the steps up to this one could make a text too long.");
    if (factor > 1) left_ /= factor;
  }

 private:
  // Real files need 3 (a space becomes U+2581), and a few more for a regular expression.
  size_t left_ = 1024;
};

}  // namespace adder::text
