// Splits a template into tokens, with jinja2's settings trim_blocks and lstrip_blocks: the line
// break behind a block tag goes, and so does white space between the start of a line and a block.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adder::text::jinja {

enum class TokenKind {
  kData,  // text to print as it is
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;     // of a string: its value, escapes replaced
  int64_t integer = 0;  // kInteger
  double number = 0;    // kFloat
};

// The last token is kEnd. Bytes that are not UTF-8 count as U+FFFD, one line break at the end of
// the source is dropped. Throws Error naming the template and the line.
std::vector<Token> Tokenize(std::string_view source, const std::string& name);

}  // namespace adder::text::jinja
