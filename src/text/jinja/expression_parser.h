// The grammar of expressions.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace adder::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  // What may end a tuple without brackets besides the end of the tag and ")".
  struct TupleOptions {
    bool conditional = true;         // `a if b else c` is allowed
    bool simple = false;             // only names and literals, for targets
    bool in_brackets = false;        // "()" is the empty tuple
    std::string_view end_name = {};  // a name that ends it too
    bool namespaces = false;         // `name.attribute` is a target
  };

  ExpressionPtr ParseExpression(bool conditional = true);
  ExpressionPtr ParseTuple(const TupleOptions& options);
  // `| name(...) | ...` on `input`, which may be null. With `starts_at_name`, the first "|" is left
  // out, as in a filter block.
  ExpressionPtr ParseFilters(ExpressionPtr input, bool starts_at_name = false);
  // What a value is assigned to: names, tuples of them, namespace attributes.
  ExpressionPtr ParseTarget(const TupleOptions& options);
  ExpressionPtr ParseNameTarget();

 private:
  // Counts a level of recursion for as long as it lives.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.level_; }

   private:
    ExpressionParser& parser_;
  };

  ExpressionPtr Make(int line, Expression::Node node) const;
  ExpressionPtr ParseConditional();
  // Operands with operators of one precedence between them.
  template <class Operators, class ParseOperand>
  ExpressionPtr ParseLeftToRight(const Operators& operators, ParseOperand parse_operand);
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseComparison();
  std::optional<Comparison> TakeComparison();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcatenation();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary(bool namespaces);
  ExpressionPtr ParseNamed(bool namespaces);
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr expression);
  ExpressionPtr ParseFiltersAndTests(ExpressionPtr expression);
  ExpressionPtr ParseTest(ExpressionPtr input);
  ExpressionPtr ParseDot(ExpressionPtr object);
  ExpressionPtr ParseSubscript(ExpressionPtr object);
  ExpressionPtr ParseIndex();
  ExpressionPtr ParseCall(ExpressionPtr function);
  CallArguments ParseArguments();
  std::string ParseDottedName();
  void CheckTarget(const Expression& target) const;

  TokenStream& stream_;
  int level_ = 0;
};

}  // namespace adder::text::jinja
