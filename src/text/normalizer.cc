#include "text/normalizer.h"

#include "core/error.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/precompiled.h"
#include "text/sequence_parts.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

class NormalFormStep : public NormalizerStep {
 public:
  explicit NormalFormStep(NormalForm form) : form_(form) {}
  void Run(std::string& text) const override { text = Normalize(text, form_); }

 private:
  NormalForm form_;
};

class LowercaseStep : public NormalizerStep {
 public:
  void Run(std::string& text) const override {
    std::string lower;
    lower.reserve(text.size());
    for (size_t position = 0; position < text.size();) {
      AppendLowercase(DecodeUtf8(text, position), lower);
    }
    text = std::move(lower);
  }
};

class StripStep : public NormalizerStep {
 public:
  explicit StripStep(const JsonObject& object)
      : left_(object.Bool({"strip_left"})), right_(object.Bool({"strip_right"})) {}

  void Run(std::string& text) const override {
    size_t first_kept = text.size();
    size_t last_kept = 0;
    for (size_t position = 0; position < text.size();) {
      const size_t begin = position;
      if (IsWhitespace(DecodeUtf8(text, position))) continue;
      first_kept = std::min(first_kept, begin);
      last_kept = position;
    }
    const size_t begin = left_ ? first_kept : 0;
    const size_t end = right_ ? std::max(last_kept, begin) : text.size();
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccentsStep : public NormalizerStep {
 public:
  void Run(std::string& text) const override {
    std::string kept;
    kept.reserve(text.size());
    for (size_t position = 0; position < text.size();) {
      const char32_t c = DecodeUtf8(text, position);
      if (!IsMark(c)) AppendUtf8(c, kept);
    }
    text = std::move(kept);
  }
};

class ReplaceStep : public NormalizerStep {
 public:
  explicit ReplaceStep(const JsonObject& object)
      : pattern_(object), content_(object.String({"content"})) {}
  void Run(std::string& text) const override { text = pattern_.ReplaceAll(text, content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependStep : public NormalizerStep {
 public:
  explicit PrependStep(const JsonObject& object) : prefix_(object.String({"prepend"})) {}
  void Run(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class PrecompiledStep : public NormalizerStep {
 public:
  explicit PrecompiledStep(const JsonObject& object)
      : map_(object.String({"precompiled_charsmap"}), object.where()) {}
  void Run(std::string& text) const override { text = map_.Apply(text); }
  size_t growth() const { return map_.longest_replacement(); }

 private:
  PrecompiledMap map_;
};

class ByteLevelStep : public NormalizerStep {
 public:
  void Run(std::string& text) const override {
    std::string characters;
    AppendByteCharacters(text, characters);
    text = std::move(characters);
  }
};

}  // namespace

Normalizer::Normalizer(const Json& value, const std::string& where) {
  if (!value.is_null()) AddStep(value, where);
}

void Normalizer::AddStep(const Json& value, const std::string& where) {
  const JsonObject object(value, where);
  const std::string type = object.String({"type"});
  if (type == "Sequence") {
    ForEachOfSequence(object, "normalizers",
                      [this](const Json& step, const std::string& place) { AddStep(step, place); });
  } else if (type == "NFC") {
    steps_.push_back(std::make_unique<NormalFormStep>(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps_.push_back(std::make_unique<NormalFormStep>(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps_.push_back(std::make_unique<NormalFormStep>(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps_.push_back(std::make_unique<NormalFormStep>(NormalForm::kNfkd));
  } else if (type == "Lowercase") {
    steps_.push_back(std::make_unique<LowercaseStep>());
  } else if (type == "Strip") {
    steps_.push_back(std::make_unique<StripStep>(object));
  } else if (type == "StripAccents") {
    steps_.push_back(std::make_unique<StripAccentsStep>());
  } else if (type == "Replace") {
    growth_.Spend(Pattern(object).Growth(object.String({"content"})), where);
    steps_.push_back(std::make_unique<ReplaceStep>(object));
  } else if (type == "Prepend") {
    steps_.push_back(std::make_unique<PrependStep>(object));
  } else if (type == "Precompiled") {
    auto step = std::make_unique<PrecompiledStep>(object);
    growth_.Spend(step->growth(), where);
    steps_.push_back(std::move(step));
  } else if (type == "ByteLevel") {
    growth_.Spend(2, where);
    steps_.push_back(std::make_unique<ByteLevelStep>());
  } else {
    Fail(where, ": the normalizer type ", type, " is not supported.");
  }
}

}  // namespace adder::text
