#include "text/detokenizer.h"

namespace adder::text {

std::string StreamingDetokenizer::Push(int32_t id) {
  if (!tokenizer_->HasToken(id)) return {};
  if (skip_special_ && tokenizer_->IsSpecial(id) && shown_.count(id) == 0) return {};
  return stream_.Push(tokenizer_->IdToToken(id));
}

std::string StreamingDetokenizer::Flush() {
  std::string text = stream_.Flush();
  stream_ = tokenizer_->StartDecode();
  return text;
}

}  // namespace adder::text
