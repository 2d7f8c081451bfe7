// Post-processors: the special tokens put around an encoded text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace adder::text {

// The "post_processor" of a tokenizer.json, as it applies to a single text: TemplateProcessing,
// ByteLevel (which concerns offsets alone), or a Sequence of them.
class PostProcessor {
 public:
  // Null gives the post-processor that adds nothing. Throws Error for other types.
  PostProcessor(const Json& value, const std::string& where);
  PostProcessor(std::vector<int32_t> prefix, std::vector<int32_t> suffix)
      : prefix_(std::move(prefix)), suffix_(std::move(suffix)) {}

  // Ids to put before and behind those of the text.
  const std::vector<int32_t>& prefix() const { return prefix_; }
  const std::vector<int32_t>& suffix() const { return suffix_; }

 private:
  void Add(const Json& value, const std::string& where);
  void AddTemplate(const JsonObject& object);

  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
};

}  // namespace adder::text
