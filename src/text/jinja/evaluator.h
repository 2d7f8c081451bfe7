// Runs the syntax tree of a template.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// The variables of one run of a function of the template.
struct Activation : Object {
  std::vector<Value> slots;
  std::shared_ptr<Activation> outer;  // of the function around it
  bool kept = false;                  // the Runtime will clear it
};

class Evaluator {
 public:
  // `context` gives the variables by name.
  Evaluator(Runtime& runtime, const ParsedTemplate& parsed,
            const std::map<std::string, Value, std::less<>>& context);

  std::string Run();

 private:
  friend class MacroObject;
  enum class Flow { kNormal, kBreak, kContinue };

  // Runs code with another activation and another text to print to, for as long as it lives.
  class Frame;

  // --- variables
  std::shared_ptr<Activation> Activate(const Function& function, std::shared_ptr<Activation> outer);
  void Keep(const std::shared_ptr<Activation>& activation);
  Value& SlotOf(const Slot& slot) const;
  void Enter(const Scope& scope);
  void Assign(const Expression& target, const Value& value);

  // --- statements
  Flow Execute(const Body& body);
  Flow Execute(const Statement& statement);
  Flow Run(const Output& output, int line);
  Flow Run(const If& statement, int line);
  Flow Run(const For& statement, int line);
  Flow Run(const Set& statement, int line);
  Flow Run(const SetBlock& statement, int line);
  Flow Run(const With& statement, int line);
  Flow Run(const FilterBlock& statement, int line);
  Flow Run(const Macro& macro, int line);
  Flow Run(const CallBlock& block, int line);
  Flow Run(const Generation& generation, int line);
  Flow Run(const Break&, int) { return Flow::kBreak; }
  Flow Run(const Continue&, int) { return Flow::kContinue; }
  // The elements of a loop, one after the other; prints what the body prints.
  Flow RunLoop(const For& statement, const Value& iterable, int depth0);
  Flow RunLoopBody(const For& statement);
  Value RunRecursively(const For& statement, const Value& iterable, int depth0,
                       const std::shared_ptr<Activation>& outer);
  std::shared_ptr<IteratorObject> Filtered(const For& statement,
                                           std::shared_ptr<IteratorObject> elements);
  Value CallMacro(const MacroDefinition& definition, const std::shared_ptr<Activation>& outer,
                  Arguments arguments);
  // Puts arguments into the slots of parameters.
  void BindParameters(const MacroDefinition& definition, Activation& activation,
                      Arguments arguments) const;
  void PrintTo(std::string& text, const Value& value);
  // Prints what a filter or call block gave. Throws Error when it is no string.
  void PrintBlock(const Value& text, std::string_view block);

  // --- expressions
  Value Evaluate(const Expression& expression);
  Value Eval(const Literal& literal, int) { return literal.value; }
  Value Eval(const Name& name, int line);
  Value Eval(const NamespaceTarget& target, int line);
  Value Eval(const ListLiteral& list, int line);
  Value Eval(const TupleLiteral& tuple, int line);
  Value Eval(const DictLiteral& dict, int line);
  Value Eval(const Attribute& attribute, int line);
  Value Eval(const Subscript& subscript, int line);
  Value Eval(const Slice& slice, int line);
  Value Eval(const Call& call, int line) { return EvalCall(call, line, Value()); }
  Value Eval(const FilterCall& filter, int line);
  Value Eval(const TestCall& test, int line);
  Value Eval(const Unary& unary, int line);
  Value Eval(const Binary& binary, int line);
  Value Eval(const Concatenation& concatenation, int line);
  Value Eval(const CompareChain& chain, int line);
  Value Eval(const Conditional& conditional, int line);
  // `caller` is the block of a call block, or kMissing.
  Value EvalCall(const Call& call, int line, const Value& caller);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions);
  Arguments EvaluateArguments(const CallArguments& arguments, int line);

  Runtime& runtime_;
  const ParsedTemplate& parsed_;
  std::vector<Value> context_;  // by the numbers of ParsedTemplate::context_names
  std::shared_ptr<Activation> activation_;
  std::string* output_ = nullptr;
  Value block_text_;  // what the innermost filter of a block begins with
};

}  // namespace adder::text::jinja
