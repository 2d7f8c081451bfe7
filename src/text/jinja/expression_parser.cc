#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <string>

namespace adder::text::jinja {
namespace {

constexpr int kMaxNesting = 200;  // two per bracket in a bracket
constexpr int kMaxDepth = 400;    // of a tree: a + b + ... is as deep as it is long

struct OperatorName {
  std::string_view text;
  BinaryOperator op;
};
constexpr OperatorName kSumOperators[] = {{"+", BinaryOperator::kAdd},
                                          {"-", BinaryOperator::kSubtract}};
constexpr OperatorName kProductOperators[] = {{"*", BinaryOperator::kMultiply},
                                              {"/", BinaryOperator::kDivide},
                                              {"//", BinaryOperator::kFloorDivide},
                                              {"%", BinaryOperator::kModulo}};

constexpr OperatorName kPowerOperators[] = {{"**", BinaryOperator::kPower}};
constexpr OperatorName kAndOperators[] = {{"and", BinaryOperator::kAnd}};
constexpr OperatorName kOrOperators[] = {{"or", BinaryOperator::kOr}};

// The operator among `names`, symbols or words, that the stream is at, which is then skipped.
template <size_t kCount>
std::optional<BinaryOperator> TakeOperator(TokenStream& stream,
                                           const OperatorName (&names)[kCount]) {
  for (const OperatorName& name : names) {
    if (stream.SkipOperator(name.text) || stream.SkipName(name.text)) return name.op;
  }
  return std::nullopt;
}

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.level_ > kMaxNesting) {
    --parser_.level_;
    parser_.stream_.FailAt(parser_.stream_.line(), "Expressions are nested deeper than ",
                           kMaxNesting, " levels of brackets and operators.");
  }
}

ExpressionPtr ExpressionParser::Make(int line, Expression::Node node) const {
  auto expression = std::make_unique<Expression>();
  expression->line = line;
  expression->node = std::move(node);
  ForEachChild(*expression, [&](const ExpressionPtr& child) {
    expression->depth = std::max(expression->depth, child->depth + 1);
  });
  if (expression->depth > kMaxDepth) {
    stream_.FailAt(line, "An expression has more than ", kMaxDepth,
                   " operations that depend on each other.");
  }
  return expression;
}

ExpressionPtr ExpressionParser::ParseExpression(bool conditional) {
  const Level level(*this);
  return conditional ? ParseConditional() : ParseOr();
}

ExpressionPtr ExpressionParser::ParseConditional() {
  const Level level(*this);
  int line = stream_.line();
  ExpressionPtr then = ParseOr();
  while (stream_.SkipName("if")) {
    ExpressionPtr condition = ParseOr();
    ExpressionPtr otherwise = stream_.SkipName("else") ? ParseConditional() : nullptr;
    then = Make(line, Conditional{std::move(condition), std::move(then), std::move(otherwise)});
    line = stream_.line();
  }
  return then;
}

template <class Operators, class ParseOperand>
ExpressionPtr ExpressionParser::ParseLeftToRight(const Operators& operators,
                                                 ParseOperand parse_operand) {
  int line = stream_.line();
  ExpressionPtr left = parse_operand();
  while (const auto op = TakeOperator(stream_, operators)) {
    ExpressionPtr right = parse_operand();
    left = Make(line, Binary{*op, std::move(left), std::move(right)});
    line = stream_.line();
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseOr() {
  return ParseLeftToRight(kOrOperators, [this] { return ParseAnd(); });
}

ExpressionPtr ExpressionParser::ParseAnd() {
  return ParseLeftToRight(kAndOperators, [this] { return ParseNot(); });
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!stream_.IsName("not")) return ParseComparison();
  const Level level(*this);
  const int line = stream_.Take().line;
  return Make(line, Unary{UnaryOperator::kNot, ParseNot()});
}

std::optional<Comparison> ExpressionParser::TakeComparison() {
  struct ComparisonName {
    std::string_view text;
    Comparison comparison;
  };
  constexpr ComparisonName kComparisons[] = {
      {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual},
      {"<", Comparison::kLess},    {"<=", Comparison::kLessEqual},
      {">", Comparison::kGreater}, {">=", Comparison::kGreaterEqual},
  };
  for (const auto& [text, comparison] : kComparisons) {
    if (stream_.SkipOperator(text)) return comparison;
  }
  if (stream_.SkipName("in")) return Comparison::kIn;
  const bool is_not_in = stream_.IsName("not") && stream_.next().kind == TokenKind::kName &&
                         stream_.next().text == "in";
  if (!is_not_in) return std::nullopt;
  stream_.Take();
  stream_.Take();
  return Comparison::kNotIn;
}

ExpressionPtr ExpressionParser::ParseComparison() {
  const int line = stream_.line();
  CompareChain chain;
  chain.first = ParseSum();
  while (const auto comparison = TakeComparison()) {
    chain.rest.emplace_back(*comparison, ParseSum());
  }
  if (chain.rest.empty()) return std::move(chain.first);
  return Make(line, std::move(chain));
}

ExpressionPtr ExpressionParser::ParseSum() {
  return ParseLeftToRight(kSumOperators, [this] { return ParseConcatenation(); });
}

ExpressionPtr ExpressionParser::ParseConcatenation() {
  const int line = stream_.line();
  Concatenation concatenation;
  concatenation.parts.push_back(ParseProduct());
  while (stream_.SkipOperator("~")) concatenation.parts.push_back(ParseProduct());
  if (concatenation.parts.size() == 1) return std::move(concatenation.parts[0]);
  return Make(line, std::move(concatenation));
}

ExpressionPtr ExpressionParser::ParseProduct() {
  return ParseLeftToRight(kProductOperators, [this] { return ParsePower(); });
}

// Other than in Python: to the left, and a sign binds more tightly.
ExpressionPtr ExpressionParser::ParsePower() {
  return ParseLeftToRight(kPowerOperators, [this] { return ParseUnary(true); });
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  const int line = stream_.line();
  ExpressionPtr expression;
  if (stream_.IsOperator("-") || stream_.IsOperator("+")) {
    const Level level(*this);
    const auto op =
        stream_.Take().text == "-" ? UnaryOperator::kNegative : UnaryOperator::kPositive;
    expression = Make(line, Unary{op, ParseUnary(false)});
  } else {
    expression = ParsePrimary(false);
  }
  expression = ParsePostfix(std::move(expression));
  return with_filters ? ParseFiltersAndTests(std::move(expression)) : std::move(expression);
}

ExpressionPtr ExpressionParser::ParsePrimary(bool namespaces) {
  const Token& token = stream_.current();
  switch (token.kind) {
    case TokenKind::kName:
      return ParseNamed(namespaces);
    case TokenKind::kString: {
      std::string text;
      while (stream_.Is(TokenKind::kString)) text += stream_.Take().text;
      return Make(token.line, Literal{Value::StringLiteral(std::move(text))});
    }
    case TokenKind::kInteger:
      stream_.Take();
      return Make(token.line, Literal{Value::Int(token.integer)});
    case TokenKind::kFloat:
      stream_.Take();
      return Make(token.line, Literal{Value::Float(token.number)});
    default:
      break;
  }
  if (stream_.SkipOperator("(")) {
    TupleOptions options;
    options.in_brackets = true;
    ExpressionPtr expression = ParseTuple(options);
    stream_.ExpectOperator(")");
    return expression;
  }
  if (stream_.IsOperator("[")) return ParseList();
  if (stream_.IsOperator("{")) return ParseDict();
  stream_.FailExpected("an expression");
}

ExpressionPtr ExpressionParser::ParseNamed(bool namespaces) {
  const Token& token = stream_.Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Make(token.line, Literal{Value::Bool(true)});
  if (name == "false" || name == "False") return Make(token.line, Literal{Value::Bool(false)});
  if (name == "none" || name == "None") return Make(token.line, Literal{Value::None()});
  if (namespaces && stream_.SkipOperator(".")) {
    const Token& attribute = stream_.Expect(TokenKind::kName, "the name of an attribute");
    return Make(token.line, NamespaceTarget{name, attribute.text, {}});
  }
  return Make(token.line, Name{name, {}});
}

ExpressionPtr ExpressionParser::ParseTuple(const TupleOptions& options) {
  const int line = stream_.line();
  const auto at_end = [&] {
    return stream_.Is(TokenKind::kVariableEnd) || stream_.Is(TokenKind::kBlockEnd) ||
           stream_.IsOperator(")") ||
           (!options.end_name.empty() && stream_.IsName(options.end_name));
  };
  TupleLiteral tuple;
  bool is_tuple = false;
  while (!at_end()) {
    tuple.items.push_back(options.simple ? ParsePrimary(options.namespaces)
                                         : ParseExpression(options.conditional));
    if (!stream_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple.items.empty()) return std::move(tuple.items[0]);
  if (!is_tuple && !options.in_brackets) stream_.FailExpected("an expression");
  return Make(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::ParseList() {
  const int line = stream_.Take().line;
  ListLiteral list;
  while (!stream_.IsOperator("]")) {
    list.items.push_back(ParseExpression());
    if (!stream_.SkipOperator(",")) break;
  }
  stream_.ExpectOperator("]");
  return Make(line, std::move(list));
}

ExpressionPtr ExpressionParser::ParseDict() {
  const int line = stream_.Take().line;
  DictLiteral dict;
  while (!stream_.IsOperator("}")) {
    ExpressionPtr key = ParseExpression();
    stream_.ExpectOperator(":");
    dict.items.emplace_back(std::move(key), ParseExpression());
    if (!stream_.SkipOperator(",")) break;
  }
  stream_.ExpectOperator("}");
  return Make(line, std::move(dict));
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (stream_.IsOperator(".")) {
      expression = ParseDot(std::move(expression));
    } else if (stream_.IsOperator("[")) {
      expression = ParseSubscript(std::move(expression));
    } else if (stream_.IsOperator("(")) {
      expression = ParseCall(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr ExpressionParser::ParseDot(ExpressionPtr object) {
  const int line = stream_.Take().line;
  const Token& token = stream_.Take();
  if (token.kind == TokenKind::kName) {
    return Make(line, Attribute{std::move(object), token.text});
  }
  if (token.kind != TokenKind::kInteger) {
    stream_.FailAt(token.line, "Expected a name or a number behind \".\", found ",
                   TokenStream::Describe(token), ".");
  }
  ExpressionPtr index = Make(token.line, Literal{Value::Int(token.integer)});
  return Make(line, Subscript{std::move(object), std::move(index)});
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr object) {
  const int line = stream_.Take().line;
  TupleLiteral indices;
  while (!stream_.IsOperator("]")) {
    if (!indices.items.empty()) stream_.ExpectOperator(",");
    indices.items.push_back(ParseIndex());
  }
  stream_.ExpectOperator("]");
  ExpressionPtr index =
      indices.items.size() == 1 ? std::move(indices.items[0]) : Make(line, std::move(indices));
  return Make(line, Subscript{std::move(object), std::move(index)});
}

ExpressionPtr ExpressionParser::ParseIndex() {
  const int line = stream_.line();
  Slice slice;
  if (!stream_.IsOperator(":")) {
    slice.start = ParseExpression();
    if (!stream_.IsOperator(":")) return std::move(slice.start);
  }
  const auto parse_part = [this]() -> ExpressionPtr {
    if (stream_.IsOperator(":") || stream_.IsOperator("]") || stream_.IsOperator(",")) {
      return nullptr;
    }
    return ParseExpression();
  };
  stream_.ExpectOperator(":");
  slice.stop = parse_part();
  if (stream_.SkipOperator(":")) slice.step = parse_part();
  return Make(line, std::move(slice));
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr function) {
  const int line = stream_.line();
  CallArguments arguments = ParseArguments();
  return Make(line, Call{std::move(function), std::move(arguments)});
}

CallArguments ExpressionParser::ParseArguments() {
  const int line = stream_.line();
  const auto require = [&](bool fine) {
    if (!fine)
      stream_.FailAt(line, "The arguments of this call are in an order that is not valid.");
  };
  CallArguments arguments;
  stream_.ExpectOperator("(");
  while (!stream_.IsOperator(")")) {
    if (stream_.SkipOperator("*")) {
      require(!arguments.more_positional && !arguments.more_named);
      arguments.more_positional = ParseExpression();
    } else if (stream_.SkipOperator("**")) {
      require(!arguments.more_named);
      arguments.more_named = ParseExpression();
    } else if (stream_.Is(TokenKind::kName) && stream_.next().kind == TokenKind::kOperator &&
               stream_.next().text == "=") {
      require(!arguments.more_named);
      std::string name = stream_.Take().text;
      stream_.Take();
      for (const auto& other : arguments.named) {
        if (other.first == name) stream_.FailAt(line, "The argument ", name, " is given twice.");
      }
      arguments.named.emplace_back(std::move(name), ParseExpression());
    } else {
      require(!arguments.more_positional && !arguments.more_named && arguments.named.empty());
      arguments.positional.push_back(ParseExpression());
    }
    if (!stream_.SkipOperator(",")) break;
  }
  stream_.ExpectOperator(")");
  return arguments;
}

std::string ExpressionParser::ParseDottedName() {
  std::string name = stream_.Expect(TokenKind::kName, "a name").text;
  while (stream_.SkipOperator(".")) {
    name += '.';
    name += stream_.Expect(TokenKind::kName, "a name").text;
  }
  return name;
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr input, bool starts_at_name) {
  while (starts_at_name || stream_.SkipOperator("|")) {
    starts_at_name = false;
    const int line = stream_.line();
    FilterCall filter;
    filter.input = std::move(input);
    filter.name = ParseDottedName();
    if (stream_.IsOperator("(")) filter.arguments = ParseArguments();
    input = Make(line, std::move(filter));
  }
  return input;
}

ExpressionPtr ExpressionParser::ParseFiltersAndTests(ExpressionPtr expression) {
  while (true) {
    if (stream_.IsOperator("|")) {
      expression = ParseFilters(std::move(expression));
    } else if (stream_.IsName("is")) {
      expression = ParseTest(std::move(expression));
    } else if (stream_.IsOperator("(")) {
      expression = ParseCall(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = stream_.Take().line;
  const bool negated = stream_.SkipName("not");
  TestCall test;
  test.input = std::move(input);
  test.name = ParseDottedName();
  const bool starts_operand = stream_.Is(TokenKind::kString) || stream_.Is(TokenKind::kInteger) ||
                              stream_.Is(TokenKind::kFloat) || stream_.IsOperator("[") ||
                              stream_.IsOperator("{") ||
                              (stream_.Is(TokenKind::kName) && !stream_.IsName("else") &&
                               !stream_.IsName("or") && !stream_.IsName("and"));
  if (stream_.IsOperator("(")) {
    test.arguments = ParseArguments();
  } else if (starts_operand) {
    if (stream_.IsName("is")) {
      stream_.FailAt(line, "Tests cannot be chained: write \"a is b and a is c\".");
    }
    const Level level(*this);
    test.arguments.positional.push_back(ParsePostfix(ParsePrimary(false)));
  }
  ExpressionPtr expression = Make(line, std::move(test));
  if (negated) expression = Make(line, Unary{UnaryOperator::kNot, std::move(expression)});
  return expression;
}

void ExpressionParser::CheckTarget(const Expression& target) const {
  if (const auto* tuple = std::get_if<TupleLiteral>(&target.node)) {
    for (const ExpressionPtr& item : tuple->items) CheckTarget(*item);
    return;
  }
  if (!std::holds_alternative<Name>(target.node) &&
      !std::holds_alternative<NamespaceTarget>(target.node)) {
    stream_.FailAt(target.line, "Only names can be assigned to.");
  }
}

ExpressionPtr ExpressionParser::ParseTarget(const TupleOptions& options) {
  TupleOptions simple = options;
  simple.simple = true;
  ExpressionPtr target = ParseTuple(simple);
  CheckTarget(*target);
  return target;
}

ExpressionPtr ExpressionParser::ParseNameTarget() {
  const Token& token = stream_.Expect(TokenKind::kName, "a name");
  for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
    if (token.text == reserved) stream_.FailAt(token.line, "Only names can be assigned to.");
  }
  return Make(token.line, Name{token.text, {}});
}

}  // namespace adder::text::jinja
