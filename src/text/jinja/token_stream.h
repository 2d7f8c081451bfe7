// A cursor over tokens, with the errors a parser needs.
#pragma once

#include <algorithm>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/jinja/lexer.h"

namespace adder::text::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  const Token& current() const { return tokens_[position_]; }
  const Token& next() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }

  const Token& Take() {
    const Token& token = current();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }

  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsOperator(std::string_view op) const {
    return Is(TokenKind::kOperator) && current().text == op;
  }
  bool IsName(std::string_view name) const {
    return Is(TokenKind::kName) && current().text == name;
  }

  bool SkipOperator(std::string_view op) { return IsOperator(op) && Skip(); }
  bool SkipName(std::string_view name) { return IsName(name) && Skip(); }

  void ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) FailExpected(Concat("\"", op, "\""));
  }
  void ExpectName(std::string_view name) {
    if (!SkipName(name)) FailExpected(Concat("\"", name, "\""));
  }
  const Token& Expect(TokenKind kind, std::string_view description) {
    if (!Is(kind)) FailExpected(description);
    return Take();
  }

  template <class... Parts>
  [[noreturn]] void FailAt(int line, const Parts&... parts) const {
    Fail(name_, ", line ", line, ": ", parts...);
  }
  [[noreturn]] void FailExpected(std::string_view description) const {
    FailAt(line(), "Expected ", description, ", found ", Describe(current()), ".");
  }

  static std::string Describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kData:
        return "text";
      case TokenKind::kVariableBegin:
        return "\"{{\"";
      case TokenKind::kVariableEnd:
        return "\"}}\"";
      case TokenKind::kBlockBegin:
        return "\"{%\"";
      case TokenKind::kBlockEnd:
        return "\"%}\"";
      case TokenKind::kString:
        return "a string";
      case TokenKind::kEnd:
        return "the end of the template";
      default:
        return Concat("\"", token.text, "\"");
    }
  }

 private:
  bool Skip() {
    Take();
    return true;
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
  const std::string& name_;
};

}  // namespace adder::text::jinja
