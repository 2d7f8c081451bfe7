#include "text/jinja/parser.h"

#include <initializer_list>
#include <utility>

#include "core/error.h"
#include "text/jinja/bind_names.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/token_stream.h"

namespace adder::text::jinja {
namespace {

constexpr int kMaxBlockNesting = 60;

// The copy of a target for the condition of a loop.
ExpressionPtr CopyTarget(const Expression& target) {
  auto copy = std::make_unique<Expression>();
  copy->line = target.line;
  copy->depth = target.depth;
  if (const auto* tuple = std::get_if<TupleLiteral>(&target.node)) {
    TupleLiteral items;
    for (const ExpressionPtr& item : tuple->items) items.items.push_back(CopyTarget(*item));
    copy->node = std::move(items);
  } else {
    copy->node = std::get<Name>(target.node);
  }
  return copy;
}

class Parser {
 public:
  Parser(std::string_view source, const std::string& name)
      : name_(name), stream_(Tokenize(source, name), name), expressions_(stream_) {}

  ParsedTemplate Run() {
    ParsedTemplate parsed;
    parsed.name = name_;
    parsed.body = ParseBody({});
    return parsed;
  }

 private:
  using EndNames = std::initializer_list<std::string_view>;

  static StatementPtr Make(int line, Statement::Node node) {
    auto statement = std::make_unique<Statement>();
    statement->line = line;
    statement->node = std::move(node);
    return statement;
  }

  // Statements up to a block tag that begins with one of `ends`; the stream is then at that name.
  // Without `ends`, up to the end of the template.
  Body ParseBody(EndNames ends) {
    if (++nesting_ > kMaxBlockNesting) {
      stream_.FailAt(stream_.line(), "Blocks are nested deeper than ", kMaxBlockNesting,
                     " levels.");
    }
    Body body;
    Output output;
    int output_line = 0;
    const auto add_output = [&](ExpressionPtr part) {
      if (output.parts.empty()) output_line = part->line;
      output.parts.push_back(std::move(part));
    };
    const auto flush = [&] {
      if (!output.parts.empty()) body.push_back(Make(output_line, std::exchange(output, {})));
    };
    while (!stream_.Is(TokenKind::kEnd)) {
      const Token& token = stream_.Take();
      if (token.kind == TokenKind::kData) {
        auto data = std::make_unique<Expression>();
        data->line = token.line;
        data->node = Literal{Value::StringLiteral(token.text)};
        add_output(std::move(data));
      } else if (token.kind == TokenKind::kVariableBegin) {
        add_output(expressions_.ParseTuple({}));
        stream_.Expect(TokenKind::kVariableEnd, "\"}}\"");
      } else {
        flush();
        for (std::string_view end : ends) {
          if (stream_.IsName(end)) {
            --nesting_;
            return body;
          }
        }
        body.push_back(ParseStatement(ends));
        stream_.Expect(TokenKind::kBlockEnd, "\"%}\"");
      }
    }
    if (ends.size() > 0) {
      stream_.FailAt(open_line_, "The block {% ", open_name_, " %} is not closed; expected {% ",
                     *(ends.end() - 1), " %}.");
    }
    flush();
    --nesting_;
    return body;
  }

  // The body of a block, from the end of its first tag.
  Body ParseBlock(EndNames ends, std::string_view block, int line) {
    stream_.SkipOperator(":");
    stream_.Expect(TokenKind::kBlockEnd, "\"%}\"");
    const auto outer = std::make_pair(open_name_, open_line_);
    open_name_ = block;
    open_line_ = line;
    Body body = ParseBody(ends);
    std::tie(open_name_, open_line_) = outer;
    return body;
  }
  // The same for a block with one end, which is skipped.
  Body ParseWholeBlock(std::string_view end, std::string_view block, int line) {
    Body body = ParseBlock({end}, block, line);
    stream_.Take();
    return body;
  }

  StatementPtr ParseStatement(EndNames ends) {
    const Token& token = stream_.Expect(TokenKind::kName, "the name of a block");
    const std::string& name = token.text;
    const int line = token.line;
    if (name == "if") return ParseIf(line);
    if (name == "for") return ParseFor(line);
    if (name == "set") return ParseSet(line);
    if (name == "with") return ParseWith(line);
    if (name == "macro") return ParseMacro(line);
    if (name == "call") return ParseCallBlock(line);
    if (name == "filter") return ParseFilterBlock(line);
    if (name == "print") return ParsePrint(line);
    if (name == "generation") {
      Generation generation;
      generation.body.body = ParseWholeBlock("endgeneration", name, line);
      return Make(line, std::move(generation));
    }
    if (name == "break") return Make(line, Break{});
    if (name == "continue") return Make(line, Continue{});
    for (std::string_view other : {"extends", "include", "import", "from", "block"}) {
      if (name == other) {
        stream_.FailAt(line, "The block {% ", name,
                       " %} is not supported: a chat template is a single file.");
      }
    }
    if (ends.size() > 0) {
      stream_.FailAt(line, "Unknown block {% ", name, " %}; {% ", open_name_, " %} of line ",
                     open_line_, " is still open.");
    }
    stream_.FailAt(line, "Unknown block {% ", name, " %}.");
  }

  StatementPtr ParseIf(int line) {
    If statement;
    ExpressionParser::TupleOptions options;
    options.conditional = false;
    while (true) {
      If::Branch branch;
      branch.condition = expressions_.ParseTuple(options);
      branch.body = ParseBlock({"elif", "else", "endif"}, "if", line);
      statement.branches.push_back(std::move(branch));
      const Token& end = stream_.Take();
      if (end.text == "elif") continue;
      if (end.text == "else") statement.otherwise = ParseWholeBlock("endif", "if", line);
      return Make(line, std::move(statement));
    }
  }

  StatementPtr ParseFor(int line) {
    For statement;
    ExpressionParser::TupleOptions target;
    target.end_name = "in";
    statement.target = expressions_.ParseTarget(target);
    stream_.ExpectName("in");
    ExpressionParser::TupleOptions iterable;
    iterable.conditional = false;
    iterable.end_name = "recursive";
    statement.iterable = expressions_.ParseTuple(iterable);
    if (stream_.SkipName("if")) {
      statement.condition = expressions_.ParseExpression();
      statement.condition_target = CopyTarget(*statement.target);
    }
    statement.recursive = stream_.SkipName("recursive");
    statement.body = ParseBlock({"else", "endfor"}, "for", line);
    if (stream_.Take().text == "else") statement.otherwise = ParseWholeBlock("endfor", "for", line);
    return Make(line, std::move(statement));
  }

  StatementPtr ParseSet(int line) {
    ExpressionParser::TupleOptions options;
    options.namespaces = true;
    ExpressionPtr target = expressions_.ParseTarget(options);
    if (stream_.SkipOperator("=")) {
      return Make(line, Set{std::move(target), expressions_.ParseTuple({})});
    }
    SetBlock block;
    block.target = std::move(target);
    block.filter = expressions_.ParseFilters(nullptr);
    block.body = ParseWholeBlock("endset", "set", line);
    return Make(line, std::move(block));
  }

  StatementPtr ParseWith(int line) {
    With statement;
    while (!stream_.Is(TokenKind::kBlockEnd)) {
      if (!statement.assignments.empty()) stream_.ExpectOperator(",");
      ExpressionPtr target = expressions_.ParseTarget({});
      stream_.ExpectOperator("=");
      statement.assignments.emplace_back(std::move(target), expressions_.ParseExpression());
    }
    statement.body = ParseWholeBlock("endwith", "with", line);
    return Make(line, std::move(statement));
  }

  void ParseParameters(MacroDefinition& definition) {
    stream_.ExpectOperator("(");
    while (!stream_.IsOperator(")")) {
      if (!definition.parameters.empty()) stream_.ExpectOperator(",");
      definition.parameters.push_back(expressions_.ParseNameTarget());
      if (stream_.SkipOperator("=")) {
        definition.defaults.push_back(expressions_.ParseExpression());
      } else if (!definition.defaults.empty()) {
        stream_.FailAt(stream_.line(),
                       "A parameter without a default follows one that has a default.");
      }
    }
    stream_.ExpectOperator(")");
  }

  StatementPtr ParseMacro(int line) {
    Macro macro;
    macro.definition.name = std::get<Name>(expressions_.ParseNameTarget()->node).name;
    ParseParameters(macro.definition);
    macro.definition.body = ParseWholeBlock("endmacro", "macro", line);
    return Make(line, std::move(macro));
  }

  StatementPtr ParseCallBlock(int line) {
    CallBlock block;
    if (stream_.IsOperator("(")) ParseParameters(block.caller);
    block.call = expressions_.ParseExpression();
    if (!std::holds_alternative<Call>(block.call->node)) {
      stream_.FailAt(line, "{% call %} needs a call, such as {% call name() %}.");
    }
    block.caller.body = ParseWholeBlock("endcall", "call", line);
    return Make(line, std::move(block));
  }

  StatementPtr ParseFilterBlock(int line) {
    FilterBlock block;
    block.filter = expressions_.ParseFilters(nullptr, true);
    block.body = ParseWholeBlock("endfilter", "filter", line);
    return Make(line, std::move(block));
  }

  StatementPtr ParsePrint(int line) {
    Output output;
    while (!stream_.Is(TokenKind::kBlockEnd)) {
      if (!output.parts.empty()) stream_.ExpectOperator(",");
      output.parts.push_back(expressions_.ParseExpression());
    }
    return Make(line, std::move(output));
  }

  const std::string& name_;
  TokenStream stream_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  // The innermost block that is open, for errors.
  std::string_view open_name_;
  int open_line_ = 0;
};

}  // namespace

ParsedTemplate ParseTemplate(std::string_view source, const std::string& name) {
  ParsedTemplate parsed = Parser(source, name).Run();
  BindNames(parsed);
  return parsed;
}

}  // namespace adder::text::jinja
