#include "text/jinja/evaluator.h"

#include <utility>

#include "text/jinja/filters.h"
#include "text/jinja/globals.h"
#include "text/jinja/iteration.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/value_tests.h"

namespace adder::text::jinja {

// A macro, or the block of a call: a function of the template with the variables around it.
class MacroObject : public CallableObject {
 public:
  MacroObject(Evaluator& evaluator, const MacroDefinition& definition,
              std::shared_ptr<Activation> outer)
      : evaluator_(evaluator), definition_(definition), outer_(std::move(outer)) {}

  Value Call(Runtime&, Arguments arguments) override {
    return evaluator_.CallMacro(definition_, outer_, std::move(arguments));
  }
  std::string Describe() const override {
    return definition_.name.empty() ? "Macro anonymous" : Concat("Macro '", definition_.name, "'");
  }
  Value Attribute(Runtime& runtime, std::string_view name) const override {
    if (name == "name") {
      return definition_.name.empty() ? Value::None() : runtime.String(definition_.name);
    }
    if (name == "arguments") {
      std::vector<Value> names;
      for (const ExpressionPtr& parameter : definition_.parameters) {
        names.push_back(runtime.String(std::get<Name>(parameter->node).name));
      }
      return runtime.Tuple(std::move(names));
    }
    if (name == "catch_kwargs") return Value::Bool(definition_.kwargs_index >= 0);
    if (name == "catch_varargs") return Value::Bool(definition_.varargs_index >= 0);
    if (name == "caller") return Value::Bool(definition_.caller_index >= 0);
    return {};
  }

 private:
  Evaluator& evaluator_;
  const MacroDefinition& definition_;
  const std::shared_ptr<Activation> outer_;
};

class Evaluator::Frame {
 public:
  Frame(Evaluator& evaluator, std::shared_ptr<Activation> activation, std::string* output)
      : evaluator_(evaluator), activation_(std::move(activation)), output_(output) {
    std::swap(evaluator_.activation_, activation_);
    std::swap(evaluator_.output_, output_);
  }
  ~Frame() {
    std::swap(evaluator_.activation_, activation_);
    std::swap(evaluator_.output_, output_);
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Activation> activation_;
  std::string* output_;
};

Evaluator::Evaluator(Runtime& runtime, const ParsedTemplate& parsed,
                     const std::map<std::string, Value, std::less<>>& context)
    : runtime_(runtime), parsed_(parsed) {
  context_.reserve(parsed.context_names.size());
  for (const std::string& name : parsed.context_names) {
    const auto found = context.find(name);
    context_.push_back(found != context.end() ? found->second : MakeGlobal(runtime, name));
  }
}

std::string Evaluator::Run() {
  std::string text;
  const auto activation = Activate(parsed_.function, nullptr);
  const Frame frame(*this, activation, &text);
  Enter(parsed_.scope);
  Execute(parsed_.body);
  return text;
}

// --- variables

std::shared_ptr<Activation> Evaluator::Activate(const Function& function,
                                                std::shared_ptr<Activation> outer) {
  auto activation = std::make_shared<Activation>();
  activation->slots.resize(static_cast<size_t>(function.slots));
  activation->outer = std::move(outer);
  runtime_.Register(*activation, activation->slots.size() * sizeof(Value));
  return activation;
}

void Evaluator::Keep(const std::shared_ptr<Activation>& activation) {
  if (std::exchange(activation->kept, true)) return;
  runtime_.KeepUntilEnd(activation, [object = activation.get()] {
    object->slots.clear();
    object->outer.reset();
  });
}

Value& Evaluator::SlotOf(const Slot& slot) const {
  Activation* activation = activation_.get();
  for (int i = 0; i < slot.hops; ++i) activation = activation->outer.get();
  return activation->slots[static_cast<size_t>(slot.index)];
}

void Evaluator::Enter(const Scope& scope) {
  for (const ScopeEntry& entry : scope.entries) {
    Value& variable = activation_->slots[static_cast<size_t>(entry.index)];
    switch (entry.source) {
      case ScopeEntry::Source::kNothing:
        variable = Value();
        break;
      case ScopeEntry::Source::kVariable:
        variable = SlotOf(entry.variable);
        break;
      case ScopeEntry::Source::kContext:
        variable = context_[static_cast<size_t>(entry.context)];
        break;
    }
  }
}

void Evaluator::Assign(const Expression& target, const Value& value) {
  if (const auto* name = std::get_if<Name>(&target.node)) {
    SlotOf(name->slot) = value;
    return;
  }
  if (const auto* attribute = std::get_if<NamespaceTarget>(&target.node)) {
    const Value object = Eval(*attribute, target.line);
    if (!object.Is(Kind::kNamespace)) {
      runtime_.Fail("Only attributes of a namespace can be assigned to, and ", attribute->name,
                    " is of type ", TypeName(object), ".");
    }
    object.name_space().Set(attribute->attribute, value);
    return;
  }
  const auto& targets = std::get<TupleLiteral>(target.node).items;
  if (!IsIterable(value)) {
    runtime_.Fail("A value of type ", TypeName(value), " cannot be taken apart.");
  }
  const std::vector<Value> parts = ToVector(runtime_, value);
  if (parts.size() != targets.size()) {
    runtime_.Fail("There are ", parts.size(), " values for ", targets.size(), " variables.");
  }
  for (size_t i = 0; i < parts.size(); ++i) Assign(*targets[i], parts[i]);
}

// --- statements

Evaluator::Flow Evaluator::Execute(const Body& body) {
  const Runtime::Level level(runtime_);
  for (const StatementPtr& statement : body) {
    const Flow flow = Execute(*statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Execute(const Statement& statement) {
  runtime_.Step();
  runtime_.line = statement.line;
  return std::visit([&](const auto& node) { return Run(node, statement.line); }, statement.node);
}

void Evaluator::PrintTo(std::string& text, const Value& value) {
  AppendString(runtime_, value, text);
  runtime_.CheckText(text.size());
}

void Evaluator::PrintBlock(const Value& text, std::string_view block) {
  if (!text.Is(Kind::kString)) {
    runtime_.Fail("The block {% ", block, " %} should give a string, not ", TypeName(text), ".");
  }
  PrintTo(*output_, text);
}

Evaluator::Flow Evaluator::Run(const Output& output, int) {
  for (const ExpressionPtr& part : output.parts) {
    if (const auto* literal = std::get_if<Literal>(&part->node)) {
      PrintTo(*output_, literal->value);
    } else {
      const Value value = Evaluate(*part);
      runtime_.line = part->line;
      PrintTo(*output_, value);
    }
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const If& statement, int) {
  for (const If::Branch& branch : statement.branches) {
    if (IsTrue(Evaluate(*branch.condition))) return Execute(branch.body);
  }
  return Execute(statement.otherwise);
}

Evaluator::Flow Evaluator::Run(const For& statement, int line) {
  const Value iterable = Evaluate(*statement.iterable);
  runtime_.line = line;
  if (!statement.recursive) return RunLoop(statement, iterable, 0);
  PrintTo(*output_, RunRecursively(statement, iterable, 0, activation_));
  return Flow::kNormal;
}

Value Evaluator::RunRecursively(const For& statement, const Value& iterable, int depth0,
                                const std::shared_ptr<Activation>& outer) {
  const Runtime::Level level(runtime_);
  std::string text;
  const Frame frame(*this, Activate(statement.function, outer), &text);
  RunLoop(statement, iterable, depth0);
  return runtime_.String(std::move(text));
}

std::shared_ptr<IteratorObject> Evaluator::Filtered(const For& statement,
                                                    std::shared_ptr<IteratorObject> elements) {
  Enter(statement.condition_scope);
  // The loop is over before its activation is: no more elements are asked for then.
  return MakeIterator([this, &statement, elements = std::move(elements),
                       activation = activation_.get()](Runtime& runtime, Value& element) {
    const std::shared_ptr<Activation> alive(std::shared_ptr<Activation>(), activation);
    const Frame frame(*this, alive, output_);
    const int line = runtime.line;
    while (elements->Next(runtime, element)) {
      Assign(*statement.condition_target, element);
      const bool wanted = IsTrue(Evaluate(*statement.condition));
      runtime.line = line;
      if (wanted) return true;
    }
    return false;
  });
}

Evaluator::Flow Evaluator::RunLoop(const For& statement, const Value& iterable, int depth0) {
  std::shared_ptr<IteratorObject> elements = Iterate(runtime_, iterable);
  std::optional<int64_t> length = Length(iterable);
  if (statement.condition) {
    elements = Filtered(statement, std::move(elements));
    length.reset();
  }
  bool any = false;
  Flow flow = Flow::kNormal;
  // Whether to go on with the next element.
  const auto run_body = [&](const Value& element) {
    runtime_.Step();
    Assign(*statement.target, element);
    Enter(statement.body_scope);
    flow = Execute(statement.body);
    // jinja2 takes a loop for one without elements, and runs its `else`, unless the body got to its
    // end once.
    any = any || flow == Flow::kNormal;
    return flow != Flow::kBreak;
  };
  Value element;
  if (!statement.uses_loop) {
    while (elements->Next(runtime_, element) && run_body(element)) {
    }
  } else {
    LoopObject::Recurse recurse;
    if (statement.recursive) {
      recurse = [this, &statement, outer = activation_->outer](const Value& more, int depth) {
        return RunRecursively(statement, more, depth, outer);
      };
    }
    auto loop =
        std::make_shared<LoopObject>(std::move(elements), length, std::move(recurse), depth0);
    loop->depth = iterable.depth() + 1;
    runtime_.Register(*loop, sizeof(LoopObject));
    // However the loop ends, what it refers to is dropped: it could be a part of itself.
    struct Release {
      LoopObject& loop;
      ~Release() { loop.Release(); }
    } const release{*loop};
    const Value variable = Value::Of(Kind::kLoop, loop);
    do {
      activation_->slots[static_cast<size_t>(statement.loop_index)] = variable;
    } while (loop->Next(runtime_, element) && run_body(element));
    activation_->slots[static_cast<size_t>(statement.loop_index)] = Value();
  }
  if (any || statement.otherwise.empty()) return Flow::kNormal;
  Enter(statement.otherwise_scope);
  return Execute(statement.otherwise);
}

Evaluator::Flow Evaluator::Run(const Set& statement, int line) {
  const Value value = Evaluate(*statement.value);
  runtime_.line = line;
  Assign(*statement.target, value);
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const SetBlock& statement, int line) {
  std::string text;
  {
    const Frame frame(*this, activation_, &text);
    Enter(statement.scope);
    const Flow flow = Execute(statement.body);
    if (flow != Flow::kNormal) return flow;
  }
  Value value = runtime_.String(std::move(text));
  if (statement.filter) {
    std::swap(block_text_, value);
    Value filtered = Evaluate(*statement.filter);
    block_text_ = std::exchange(value, std::move(filtered));
  }
  runtime_.line = line;
  Assign(*statement.target, value);
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const With& statement, int) {
  std::vector<Value> values;
  for (const auto& [target, value] : statement.assignments) values.push_back(Evaluate(*value));
  Enter(statement.scope);
  for (size_t i = 0; i < values.size(); ++i) Assign(*statement.assignments[i].first, values[i]);
  return Execute(statement.body);
}

Evaluator::Flow Evaluator::Run(const FilterBlock& statement, int) {
  std::string text;
  {
    const Frame frame(*this, activation_, &text);
    Enter(statement.scope);
    const Flow flow = Execute(statement.body);
    if (flow != Flow::kNormal) return flow;
  }
  Value outer = std::exchange(block_text_, runtime_.String(std::move(text)));
  const Value filtered = Evaluate(*statement.filter);
  block_text_ = std::move(outer);
  PrintBlock(filtered, "filter");
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const Macro& macro, int) {
  // The variable refers to the macro, and the macro to the variables around it.
  Keep(activation_);
  SlotOf(macro.slot) =
      runtime_.Callable(std::make_shared<MacroObject>(*this, macro.definition, activation_));
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const CallBlock& block, int line) {
  const Value caller =
      runtime_.Callable(std::make_shared<MacroObject>(*this, block.caller, activation_));
  PrintBlock(EvalCall(std::get<Call>(block.call->node), line, caller), "call");
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::Run(const Generation& generation, int) {
  PrintTo(*output_, CallMacro(generation.body, activation_, {}));
  return Flow::kNormal;
}

void Evaluator::BindParameters(const MacroDefinition& definition, Activation& activation,
                               Arguments arguments) const {
  const auto slot = [&activation](int index) -> Value& {
    return activation.slots[static_cast<size_t>(index)];
  };
  const auto take = [&arguments](const std::string& name) {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      arguments.named.erase(it);
      return value;
    }
    return Value();
  };
  const std::string name =
      definition.name.empty() ? "The block of a call" : Concat("The macro ", definition.name);
  const size_t count = definition.parameters.size();
  for (size_t i = 0; i < count; ++i) {
    const auto& parameter = std::get<jinja::Name>(definition.parameters[i]->node);
    slot(parameter.slot.index) =
        i < arguments.positional.size() ? arguments.positional[i] : take(parameter.name);
  }
  if (definition.caller_index >= 0) {
    Value caller = take("caller");
    const bool given = !caller.Is(Kind::kMissing) && !caller.Is(Kind::kNone);
    slot(definition.caller_index) =
        given ? std::move(caller) : runtime_.Undefined("No caller defined");
  }
  if (definition.kwargs_index >= 0) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [key, value] : arguments.named) dict->Set(runtime_.String(key), std::move(value));
    slot(definition.kwargs_index) = runtime_.Dict(std::move(dict));
  } else if (!arguments.named.empty()) {
    runtime_.Fail(name, " takes no argument named ", arguments.named[0].first, ".");
  }
  if (definition.varargs_index >= 0) {
    const size_t used = std::min(count, arguments.positional.size());
    arguments.positional.erase(arguments.positional.begin(),
                               arguments.positional.begin() + static_cast<ptrdiff_t>(used));
    slot(definition.varargs_index) = runtime_.Tuple(std::move(arguments.positional));
  } else if (arguments.positional.size() > count) {
    runtime_.Fail(name, " takes at most ", count, " arguments, not ", arguments.positional.size(),
                  ".");
  }
}

Value Evaluator::CallMacro(const MacroDefinition& definition,
                           const std::shared_ptr<Activation>& outer, Arguments arguments) {
  const Runtime::Level level(runtime_);
  const int line = runtime_.line;
  const auto activation = Activate(definition.function, outer);
  BindParameters(definition, *activation, std::move(arguments));
  std::string text;
  {
    const Frame frame(*this, activation, &text);
    Enter(definition.scope);
    const size_t without_default = definition.parameters.size() - definition.defaults.size();
    for (size_t i = 0; i < definition.parameters.size(); ++i) {
      const auto& parameter = std::get<Name>(definition.parameters[i]->node);
      if (!SlotOf(parameter.slot).Is(Kind::kMissing)) continue;
      Value value =
          i < without_default
              ? runtime_.Undefined(Concat("parameter '", parameter.name, "' was not provided"))
              : Evaluate(*definition.defaults[i - without_default]);
      SlotOf(parameter.slot) = std::move(value);
    }
    Execute(definition.body);
  }
  runtime_.line = line;
  return runtime_.String(std::move(text));
}

// --- expressions

Value Evaluator::Evaluate(const Expression& expression) {
  const Runtime::Level level(runtime_);
  runtime_.Step();
  runtime_.line = expression.line;
  return std::visit([&](const auto& node) { return Eval(node, expression.line); }, expression.node);
}

std::vector<Value> Evaluator::EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression));
  return values;
}

Value Evaluator::Eval(const Name& name, int) {
  const Value& value = SlotOf(name.slot);
  if (!value.Is(Kind::kMissing)) return value;
  return runtime_.Undefined(Concat("'", name.name, "' is undefined"));
}

Value Evaluator::Eval(const NamespaceTarget& target, int) {
  const Value& value = SlotOf(target.slot);
  if (value.Is(Kind::kMissing)) runtime_.Fail("'", target.name, "' is undefined.");
  return value;
}

Value Evaluator::Eval(const ListLiteral& list, int) {
  return runtime_.List(EvaluateAll(list.items));
}

Value Evaluator::Eval(const TupleLiteral& tuple, int) {
  return runtime_.Tuple(EvaluateAll(tuple.items));
}

Value Evaluator::Eval(const DictLiteral& dict, int line) {
  auto object = std::make_shared<DictObject>();
  for (const auto& [key_expression, value_expression] : dict.items) {
    Value key = Evaluate(*key_expression);
    Value value = Evaluate(*value_expression);
    runtime_.line = line;
    if (!IsHashable(key)) {
      runtime_.Fail("A value of type ", TypeName(key), " cannot be a key of a dict.");
    }
    object->Set(std::move(key), std::move(value));
  }
  return runtime_.Dict(std::move(object));
}

Value Evaluator::Eval(const Attribute& attribute, int line) {
  const Value object = Evaluate(*attribute.object);
  runtime_.line = line;
  return GetAttribute(runtime_, object, attribute.name);
}

Value Evaluator::Eval(const Subscript& subscript, int line) {
  const Value object = Evaluate(*subscript.object);
  if (const auto* slice = std::get_if<Slice>(&subscript.index->node)) {
    const auto part = [this](const ExpressionPtr& expression) {
      return expression ? Evaluate(*expression) : Value::None();
    };
    const Value start = part(slice->start);
    const Value stop = part(slice->stop);
    const Value step = part(slice->step);
    runtime_.line = line;
    return GetSlice(runtime_, object, start, stop, step);
  }
  const Value index = Evaluate(*subscript.index);
  runtime_.line = line;
  return GetElement(runtime_, object, index);
}

Value Evaluator::Eval(const Slice&, int) {
  runtime_.Fail("A slice cannot be one of several indices.");
}

Arguments Evaluator::EvaluateArguments(const CallArguments& arguments, int line) {
  Arguments evaluated;
  evaluated.positional = EvaluateAll(arguments.positional);
  for (const auto& [name, expression] : arguments.named) {
    evaluated.named.emplace_back(name, Evaluate(*expression));
  }
  if (arguments.more_positional) {
    const Value more = Evaluate(*arguments.more_positional);
    runtime_.line = line;
    for (Value& value : ToVector(runtime_, more)) evaluated.positional.push_back(std::move(value));
  }
  if (arguments.more_named) {
    const Value more = Evaluate(*arguments.more_named);
    runtime_.line = line;
    if (!more.Is(Kind::kDict)) runtime_.Fail("** takes a dict, not ", TypeName(more), ".");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.Is(Kind::kString)) runtime_.Fail("** takes a dict whose keys are strings.");
      for (const auto& [name, expression] : arguments.named) {
        if (name == key.text()) runtime_.Fail("The argument ", name, " is given twice.");
      }
      evaluated.named.emplace_back(key.text(), value);
    }
  }
  return evaluated;
}

Value Evaluator::EvalCall(const Call& call, int line, const Value& caller) {
  const Value function = Evaluate(*call.function);
  Arguments arguments = EvaluateArguments(call.arguments, line);
  if (!caller.Is(Kind::kMissing)) arguments.named.emplace_back("caller", caller);
  runtime_.line = line;
  if (function.Is(Kind::kCallable)) {
    return function.callable().Call(runtime_, std::move(arguments));
  }
  if (function.Is(Kind::kLoop)) return function.loop().CallRecursively(runtime_, arguments);
  RequireDefined(runtime_, function);
  runtime_.Fail("A value of type ", TypeName(function), " cannot be called.");
}

Value Evaluator::Eval(const FilterCall& filter, int line) {
  const Value input = filter.input ? Evaluate(*filter.input) : block_text_;
  const Arguments arguments = EvaluateArguments(filter.arguments, line);
  runtime_.line = line;
  return ApplyFilter(runtime_, filter.name, input, arguments);
}

Value Evaluator::Eval(const TestCall& test, int line) {
  const Value input = Evaluate(*test.input);
  const Arguments arguments = EvaluateArguments(test.arguments, line);
  runtime_.line = line;
  return Value::Bool(ApplyTest(runtime_, test.name, input, arguments));
}

Value Evaluator::Eval(const Unary& unary, int line) {
  const Value operand = Evaluate(*unary.operand);
  runtime_.line = line;
  return ApplyUnary(runtime_, unary.op, operand);
}

Value Evaluator::Eval(const Binary& binary, int line) {
  Value left = Evaluate(*binary.left);
  if (binary.op == BinaryOperator::kAnd) return IsTrue(left) ? Evaluate(*binary.right) : left;
  if (binary.op == BinaryOperator::kOr) return IsTrue(left) ? left : Evaluate(*binary.right);
  const Value right = Evaluate(*binary.right);
  runtime_.line = line;
  return ApplyBinary(runtime_, binary.op, left, right);
}

Value Evaluator::Eval(const Concatenation& concatenation, int line) {
  const std::vector<Value> parts = EvaluateAll(concatenation.parts);
  runtime_.line = line;
  std::string text;
  for (const Value& part : parts) PrintTo(text, part);
  return runtime_.String(std::move(text));
}

Value Evaluator::Eval(const CompareChain& chain, int line) {
  Value left = Evaluate(*chain.first);
  for (const auto& [comparison, operand] : chain.rest) {
    Value right = Evaluate(*operand);
    runtime_.line = line;
    if (!Compare(runtime_, comparison, left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Evaluator::Eval(const Conditional& conditional, int line) {
  if (IsTrue(Evaluate(*conditional.condition))) return Evaluate(*conditional.then);
  if (conditional.otherwise) return Evaluate(*conditional.otherwise);
  return runtime_.Undefined(Concat("the inline if-expression on line ", line,
                                   " evaluated to false and no else section was defined"));
}

}  // namespace adder::text::jinja
