// The syntax tree of a template. It is made once by the parser, its names are bound to slots by
// BindNames, and it does not change afterwards.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/value.h"

namespace adder::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

// Where a variable lies: in the activation `hops` functions further out, at `index` of its slots.
struct Slot {
  int hops = 0;
  int index = -1;
};

// --- expressions

struct Literal {
  Value value;
};
struct Name {
  std::string name;
  Slot slot;
};
// `name.attribute` as the target of an assignment.
struct NamespaceTarget {
  std::string name;
  std::string attribute;
  Slot slot;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
};
struct TupleLiteral {
  std::vector<ExpressionPtr> items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Subscript {
  ExpressionPtr object;
  ExpressionPtr index;
};
// Only as the index of a Subscript. Absent parts are null.
struct Slice {
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *expression, or null
  ExpressionPtr more_named;       // **expression, or null
};
struct Call {
  ExpressionPtr function;
  CallArguments arguments;
};
struct FilterCall {
  ExpressionPtr input;  // null in filter blocks and set blocks: the text of the block
  std::string name;
  CallArguments arguments;
};
struct TestCall {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
enum class UnaryOperator { kNot, kNegative, kPositive };
struct Unary {
  UnaryOperator op;
  ExpressionPtr operand;
};
enum class BinaryOperator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kAnd,
  kOr
};
struct Binary {
  BinaryOperator op;
  ExpressionPtr left;
  ExpressionPtr right;
};
// a ~ b ~ c
struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};
// a < b < c means a < b and b < c, with b evaluated once.
struct CompareChain {
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};
// `then if condition else otherwise`; `otherwise` may be null.
struct Conditional {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;
};

struct Expression {
  using Node = std::variant<Literal, Name, NamespaceTarget, ListLiteral, TupleLiteral, DictLiteral,
                            Attribute, Subscript, Slice, Call, FilterCall, TestCall, Unary, Binary,
                            Concatenation, CompareChain, Conditional>;
  int line = 0;
  int depth = 1;  // levels of the tree below and including this node; bounded by the parser
  Node node;
};

// Calls `visit` with each direct child (an ExpressionPtr that is not null), in the order of
// evaluation.
template <class Visit>
void ForEachChild(const CallArguments& arguments, Visit visit) {
  for (const ExpressionPtr& argument : arguments.positional) visit(argument);
  for (const auto& [name, argument] : arguments.named) visit(argument);
  if (arguments.more_positional) visit(arguments.more_positional);
  if (arguments.more_named) visit(arguments.more_named);
}
template <class Visit>
void ForEachChild(const Expression& expression, Visit visit) {
  struct Visitor {
    Visit& visit;
    void One(const ExpressionPtr& child) const {
      if (child) visit(child);
    }
    void All(const std::vector<ExpressionPtr>& children) const {
      for (const ExpressionPtr& child : children) One(child);
    }
    void operator()(const Literal&) const {}
    void operator()(const Name&) const {}
    void operator()(const NamespaceTarget&) const {}
    void operator()(const ListLiteral& list) const { All(list.items); }
    void operator()(const TupleLiteral& tuple) const { All(tuple.items); }
    void operator()(const DictLiteral& dict) const {
      for (const auto& [key, value] : dict.items) {
        One(key);
        One(value);
      }
    }
    void operator()(const Attribute& attribute) const { One(attribute.object); }
    void operator()(const Subscript& subscript) const {
      One(subscript.object);
      One(subscript.index);
    }
    void operator()(const Slice& slice) const {
      One(slice.start);
      One(slice.stop);
      One(slice.step);
    }
    void operator()(const Call& call) const {
      One(call.function);
      ForEachChild(call.arguments, visit);
    }
    void operator()(const FilterCall& filter) const {
      One(filter.input);
      ForEachChild(filter.arguments, visit);
    }
    void operator()(const TestCall& test) const {
      One(test.input);
      ForEachChild(test.arguments, visit);
    }
    void operator()(const Unary& unary) const { One(unary.operand); }
    void operator()(const Binary& binary) const {
      One(binary.left);
      One(binary.right);
    }
    void operator()(const Concatenation& concatenation) const { All(concatenation.parts); }
    void operator()(const CompareChain& chain) const {
      One(chain.first);
      for (const auto& [comparison, operand] : chain.rest) One(operand);
    }
    void operator()(const Conditional& conditional) const {
      One(conditional.condition);
      One(conditional.then);
      One(conditional.otherwise);
    }
  };
  std::visit(Visitor{visit}, expression.node);
}

// --- scopes

// How a variable of a scope gets its value when the scope is entered.
struct ScopeEntry {
  enum class Source {
    kNothing,   // it has none until it is assigned
    kVariable,  // a variable of an outer scope, which the scope assigns to without changing it
    kContext,   // what the template was given, or a global function
  };
  int index = 0;  // slot in the running activation
  Source source = Source::kNothing;
  Slot variable;     // kVariable
  int context = -1;  // kContext: number of the name in ParsedTemplate::context_names
};

// What is set when the statements of one scope begin to run.
struct Scope {
  std::vector<ScopeEntry> entries;
};

// A part of a template with slots of its own: the template itself, a macro, the block of a call, a
// recursive loop.
struct Function {
  int slots = 0;
};

// --- statements

// Text and expressions to print.
struct Output {
  std::vector<ExpressionPtr> parts;
};
struct If {
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };
  std::vector<Branch> branches;  // if, elif, ...
  Body otherwise;
};
struct For {
  ExpressionPtr target;
  ExpressionPtr iterable;
  ExpressionPtr condition;  // `if` behind the iterable, or null
  // A copy of `target` with variables of its own: the condition looks at the next element while the
  // body still works on this one (loop.last).
  ExpressionPtr condition_target;
  bool recursive = false;
  Body body;
  Body otherwise;
  // Filled in by BindNames.
  bool uses_loop = false;
  int loop_index = -1;
  Scope body_scope;
  Scope condition_scope;
  Scope otherwise_scope;
  Function function;  // of a recursive loop
};
struct Set {
  ExpressionPtr target;
  ExpressionPtr value;
};
struct SetBlock {
  ExpressionPtr target;
  ExpressionPtr filter;  // a chain of FilterCall that begins with the text, or null
  Body body;
  Scope scope;
};
struct With {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Body body;
  Scope scope;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
  Scope scope;
};
// What a macro and the block of a call have in common.
struct MacroDefinition {
  std::string name;  // empty for the block of a call
  std::vector<ExpressionPtr> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  // Filled in by BindNames. -1 where the body does not use the name.
  int caller_index = -1;
  int kwargs_index = -1;
  int varargs_index = -1;
  Scope scope;
  Function function;
};
struct Macro {
  MacroDefinition definition;
  Slot slot;
};
struct CallBlock {
  MacroDefinition caller;
  ExpressionPtr call;
};
// transformers' block `generation`: prints its body, which is a scope like a macro's.
struct Generation {
  MacroDefinition body;
};
struct Break {};
struct Continue {};

struct Statement {
  using Node = std::variant<Output, If, For, Set, SetBlock, With, FilterBlock, Macro, CallBlock,
                            Generation, Break, Continue>;
  int line = 0;
  Node node;
};

struct ParsedTemplate {
  std::string name;
  Body body;
  Scope scope;
  Function function;
  // The variables that the template may ask its context for.
  std::vector<std::string> context_names;
};

}  // namespace adder::text::jinja
