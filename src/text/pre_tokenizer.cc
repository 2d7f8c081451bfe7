#include "text/pre_tokenizer.h"

#include <optional>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/growth.h"
#include "text/pattern.h"
#include "text/sequence_parts.h"
#include "text/split_regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// What happens to the matches (delimiters) of a split.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior ParseBehavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  Fail(where, ": the behavior ", name, " is not supported.");
}

// Collects the pieces of one piece from its stretches: each match, and what lies between. An empty
// match is a stretch as any other: what is left and right of it stays apart.
class PieceCollector {
 public:
  PieceCollector(Behavior behavior, std::vector<Range>& pieces)
      : behavior_(behavior), pieces_(pieces), first_(pieces.size()) {}

  void Add(Range stretch, bool is_match) {
    switch (behavior_) {
      case Behavior::kIsolated:
        pieces_.push_back(stretch);
        break;
      case Behavior::kRemoved:
        if (!is_match) pieces_.push_back(stretch);
        break;
      case Behavior::kContiguous:
        Join(stretch, is_match == previous_is_match_);
        break;
      case Behavior::kMergedWithPrevious:
        Join(stretch, is_match && !previous_is_match_);
        break;
      case Behavior::kMergedWithNext:
        Join(stretch, !is_match && previous_is_match_);
        break;
    }
    previous_is_match_ = is_match;
  }

 private:
  // Lengthens the last piece or begins a new one.
  void Join(Range stretch, bool lengthen) {
    if (lengthen && pieces_.size() > first_) {
      pieces_.back().end = stretch.end;
    } else {
      pieces_.push_back(stretch);
    }
  }

  Behavior behavior_;
  std::vector<Range>& pieces_;
  size_t first_;
  bool previous_is_match_ = false;
};

// Splits every piece of `text`; find(piece, visit) calls visit(Range) for each match in a piece.
template <class Find>
void SplitPieces(SplitText& text, Behavior behavior, bool invert, Find find) {
  std::vector<Range> pieces;
  pieces.reserve(text.text().size() / 4);
  bool any_empty = false;
  for (const Range& piece : text.pieces()) {
    PieceCollector collector(behavior, pieces);
    size_t done = piece.begin;
    find(text.text().substr(piece.begin, piece.end - piece.begin), [&](Range match) {
      const Range found = {piece.begin + match.begin, piece.begin + match.end};
      if (done < found.begin) collector.Add({done, found.begin}, invert);
      collector.Add(found, !invert);
      any_empty = any_empty || found.begin == found.end;
      done = found.end;
    });
    if (done < piece.end) collector.Add({done, piece.end}, invert);
  }
  if (any_empty) std::erase_if(pieces, [](Range piece) { return piece.begin == piece.end; });
  text.SwapPieces(pieces);
}

// Each character with the property is a match.
template <class Property>
void SplitAtCharacters(SplitText& text, Behavior behavior, Property property) {
  SplitPieces(text, behavior, false, [&](std::string_view piece, auto visit) {
    for (size_t position = 0; position < piece.size();) {
      const size_t begin = position;
      if (property(DecodeUtf8(piece, position))) visit(Range{begin, position});
    }
  });
}

class SplitStep : public PreTokenizerStep {
 public:
  explicit SplitStep(const JsonObject& object)
      : pattern_(object),
        behavior_(ParseBehavior(object.String({"behavior"}), object.where())),
        invert_(object.Bool({"invert"}, false)) {}

  void Run(SplitText& text) const override {
    SplitPieces(text, behavior_, invert_,
                [&](std::string_view piece, auto visit) { pattern_.ForEachMatch(piece, visit); });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevelStep : public PreTokenizerStep {
 public:
  ByteLevelStep(const JsonObject& object, bool is_last)
      : prefix_space_(object.Bool({"add_prefix_space"}, true)), map_(!is_last) {
    if (object.Bool({"use_regex"}, true)) {
      words_.emplace(kGpt2Pattern, object.where());
    }
  }

  void Run(SplitText& text) const override {
    if (prefix_space_) {
      text.Rewrite([&](size_t i, std::string& out) {
        if (!text.Piece(i).starts_with(' ')) out += ' ';
        out += text.Piece(i);
      });
    }
    if (words_) {
      SplitPieces(text, Behavior::kIsolated, false,
                  [&](std::string_view piece, auto visit) { words_->ForEachMatch(piece, visit); });
    }
    if (map_) {
      text.Rewrite([&](size_t i, std::string& out) { AppendByteCharacters(text.Piece(i), out); });
    }
  }

 private:
  bool prefix_space_;
  bool map_;
  std::optional<SplitRegex> words_;
};

class DigitsStep : public PreTokenizerStep {
 public:
  explicit DigitsStep(const JsonObject& object)
      : behavior_(object.Bool({"individual_digits"}, false) ? Behavior::kIsolated
                                                            : Behavior::kContiguous) {}
  void Run(SplitText& text) const override { SplitAtCharacters(text, behavior_, IsNumeric); }

 private:
  Behavior behavior_;
};

class PunctuationStep : public PreTokenizerStep {
 public:
  explicit PunctuationStep(const JsonObject& object)
      : behavior_(ParseBehavior(object.String({"behavior"}, "Isolated"), object.where())) {}
  void Run(SplitText& text) const override { SplitAtCharacters(text, behavior_, IsPunctuation); }

 private:
  Behavior behavior_;
};

class WhitespaceSplitStep : public PreTokenizerStep {
 public:
  void Run(SplitText& text) const override {
    SplitAtCharacters(text, Behavior::kRemoved, IsWhitespace);
  }
};

// Keeps runs of word characters and runs of what is neither word nor whitespace.
class WhitespaceStep : public PreTokenizerStep {
 public:
  void Run(SplitText& text) const override {
    SplitPieces(text, Behavior::kRemoved, true, [](std::string_view piece, auto visit) {
      const auto kind = [](char32_t c) { return IsWord(c) ? 2 : IsWhitespace(c) ? 0 : 1; };
      for (size_t position = 0; position < piece.size();) {
        const size_t begin = position;
        const int run = kind(DecodeUtf8(piece, position));
        for (size_t next = position; next < piece.size() && kind(DecodeUtf8(piece, next)) == run;) {
          position = next;
        }
        if (run != 0) visit(Range{begin, position});
      }
    });
  }
};

class MetaspaceStep : public PreTokenizerStep {
 public:
  explicit MetaspaceStep(const JsonObject& object)
      : replacement_(object.String({"replacement"}, "\xE2\x96\x81")),
        split_(object.Bool({"split"}, true)) {
    // Files of old versions say add_prefix_space.
    const bool add_prefix = object.Bool({"add_prefix_space"}, true);
    const std::string scheme = object.String({"prepend_scheme"}, add_prefix ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      Fail(object.where(), ": the prepend_scheme ", scheme, " is not supported.");
    }
    size_t position = 0;
    if (!replacement_.empty()) DecodeUtf8(replacement_, position);
    if (replacement_.empty() || position != replacement_.size()) {
      Fail(object.where(), ": the replacement should be one character.");
    }
    prepend_ = add_prefix && scheme != "never";
    first_only_ = scheme == "first";
  }

  void Run(SplitText& text) const override {
    text.Rewrite([&](size_t i, std::string& out) {
      const std::string_view piece = text.Piece(i);
      if (prepend_ && (!first_only_ || text.IsFirst(i)) && !piece.starts_with(' ') &&
          !piece.starts_with(replacement_)) {
        out += replacement_;
      }
      for (char c : piece) {
        if (c == ' ') {
          out += replacement_;
        } else {
          out += c;
        }
      }
    });
    if (!split_) return;
    SplitPieces(text, Behavior::kMergedWithNext, false, [&](std::string_view piece, auto visit) {
      for (size_t at = 0; (at = piece.find(replacement_, at)) != std::string_view::npos;) {
        visit(Range{at, at + replacement_.size()});
        at += replacement_.size();
      }
    });
  }

 private:
  std::string replacement_;
  bool split_;
  bool prepend_;
  bool first_only_;
};

// Flattens nested sequences into `leaves`.
void CollectLeaves(const Json& value, const std::string& where, std::vector<JsonObject>& leaves) {
  const JsonObject object(value, where);
  if (object.String({"type"}) != "Sequence") {
    leaves.push_back(object);
    return;
  }
  ForEachOfSequence(object, "pretokenizers", [&leaves](const Json& step, const std::string& place) {
    CollectLeaves(step, place, leaves);
  });
}

std::unique_ptr<PreTokenizerStep> MakeStep(const JsonObject& object, bool is_last) {
  const std::string type = object.String({"type"});
  if (type == "ByteLevel") return std::make_unique<ByteLevelStep>(object, is_last);
  if (type == "Split") return std::make_unique<SplitStep>(object);
  if (type == "Digits") return std::make_unique<DigitsStep>(object);
  if (type == "Punctuation") return std::make_unique<PunctuationStep>(object);
  if (type == "Metaspace") return std::make_unique<MetaspaceStep>(object);
  if (type == "Whitespace") return std::make_unique<WhitespaceStep>();
  if (type == "WhitespaceSplit") return std::make_unique<WhitespaceSplitStep>();
  Fail(object.where(), ": the pre-tokenizer type ", type, " is not supported.");
}

}  // namespace

void SplitText::Reset(std::string_view text, bool at_start) {
  text_ = text;
  at_start_ = at_start;
  pieces_.clear();
  if (!text.empty()) pieces_.push_back({0, text.size()});
}

PreTokenizer::PreTokenizer(const Json& value, const std::string& where) {
  if (value.is_null()) return;
  std::vector<JsonObject> leaves;
  CollectLeaves(value, where, leaves);
  GrowthBudget growth;
  for (size_t i = 0; i < leaves.size(); ++i) {
    // ByteLevel writes a byte as up to two, Metaspace a space as one character of up to four, and
    // both may put one in front of every piece.
    const std::string type = leaves[i].String({"type"});
    if (type == "ByteLevel" || type == "Metaspace") growth.Spend(4, leaves[i].where());
    const bool is_last = i + 1 == leaves.size();
    steps_.push_back(MakeStep(leaves[i], is_last));
    if (is_last) raw_bytes_ = type == "ByteLevel";
  }
}

}  // namespace adder::text
