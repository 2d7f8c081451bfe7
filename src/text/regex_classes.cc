#include "text/regex_classes.h"

#include <mutex>
#include <string>
#include <utility>

#include "text/regex.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

struct ClassRegex {
  CharacterClass name;
  Regex runs;
};

}  // namespace

constinit CharacterClassTable character_class_table;

void CharacterClassTable::Fill(char32_t block) {
  static const std::string where = "Unicode classes";
  static const ClassRegex regexes[] = {
      {kLetter, Regex("\\p{L}+", where)},
      {kNumber, Regex("\\p{N}+", where)},
      {kWhitespace, Regex("\\s+", where)},
      {kMark, Regex("\\p{M}+", where)},
      {kUpperSide, Regex("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+", where)},
      {kLowerSide, Regex("[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+", where)},
  };
  static std::mutex mutex;  // guards classes_ of blocks that are not ready
  const std::lock_guard lock(mutex);
  std::string characters;
  for (char32_t c = block * kBlock; c < (block + 1) * kBlock; ++c) {
    // Surrogates have no UTF-8.
    if (c < 0xD800 || c > 0xDFFF) AppendUtf8(c, characters);
  }
  for (const ClassRegex& regex : regexes) {
    regex.runs.ForEachMatch(characters, [&](Range run) {
      while (run.begin < run.end) classes_[DecodeUtf8(characters, run.begin)] |= regex.name;
    });
  }
  for (char32_t c : {U'\r', U'\n'}) {
    if (c / kBlock == block) classes_[c] |= kNewline;
  }
  ready_[block].store(true, std::memory_order_release);
}

}  // namespace adder::text
