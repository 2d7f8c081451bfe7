#include "text/jinja/bind_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "text/jinja/filters.h"
#include "text/jinja/value_tests.h"

namespace adder::text::jinja {
namespace {

struct FunctionState {
  int depth = 0;  // functions around it
  int slots = 0;
};

struct VariableRef {
  int function_depth = 0;
  int index = 0;
};

// How a variable is filled when its scope is entered; parameters by whoever enters.
struct Load {
  enum class Source { kParameter, kNothing, kVariable, kContext };
  Source source = Source::kNothing;
  VariableRef variable;
  std::string context_name;
};

// The variables of one scope.
class Symbols {
 public:
  Symbols(FunctionState& function, const Symbols* parent) : function_(&function), parent_(parent) {}

  FunctionState& function() const { return *function_; }
  const std::map<int, Load>& loads() const { return loads_; }

  std::optional<VariableRef> Find(const std::string& name) const {
    const auto it = references_.find(name);
    if (it != references_.end()) return VariableRef{function_->depth, it->second};
    return parent_ != nullptr ? parent_->Find(name) : std::nullopt;
  }

  void Read(const std::string& name) {
    if (!Find(name)) Define(name, {Load::Source::kContext, {}, name});
  }

  void Assign(const std::string& name) {
    stores_.insert(name);
    if (references_.contains(name)) return;
    Define(name, OuterLoad(name).value_or(Load{}));
  }

  int DeclareParameter(const std::string& name) {
    stores_.insert(name);
    return Define(name, {Load::Source::kParameter, {}, {}});
  }

  // Takes over what branches, copies of this scope, have defined. What only a branch assigns has
  // its outer value until then.
  void Merge(const std::vector<Symbols>& branches) {
    std::set<std::string> assigned;
    for (const Symbols& branch : branches) {
      assigned.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : stores_) assigned.erase(name);
    for (const Symbols& branch : branches) {
      for (const auto& [name, index] : branch.references_) references_[name] = index;
      for (const auto& [index, load] : branch.loads_) loads_[index] = load;
      for (const auto& [name, index] : branch.slots_) slots_[name] = index;
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : assigned) {
      loads_[references_.at(name)] =
          OuterLoad(name).value_or(Load{Load::Source::kContext, {}, name});
    }
  }

 private:
  std::optional<Load> OuterLoad(const std::string& name) const {
    const auto outer = parent_ != nullptr ? parent_->Find(name) : std::nullopt;
    if (!outer) return std::nullopt;
    return Load{Load::Source::kVariable, *outer, {}};
  }

  int Define(const std::string& name, Load load) {
    const auto [it, is_new] = slots_.try_emplace(name, function_->slots);
    if (is_new) ++function_->slots;
    references_[name] = it->second;
    loads_[it->second] = std::move(load);
    return it->second;
  }

  FunctionState* function_;
  const Symbols* parent_;
  std::map<std::string, int> references_;
  std::map<int, Load> loads_;
  std::map<std::string, int> slots_;
  std::set<std::string> stores_;
};

// Notes the reads and assignments of a scope's own statements; inner scopes are left out, but for
// what they evaluate in the outer one.
class Analyzer {
 public:
  explicit Analyzer(Symbols& symbols) : symbols_(&symbols) {}

  void Visit(const Body& body) {
    for (const StatementPtr& statement : body) {
      std::visit([this](const auto& node) { Visit(node); }, statement->node);
    }
  }

  void Visit(const ExpressionPtr& expression) {
    if (!expression) return;
    if (const auto* name = std::get_if<Name>(&expression->node)) symbols_->Read(name->name);
    ForEachChild(*expression, [this](const ExpressionPtr& child) { Visit(child); });
  }

  void VisitTarget(const Expression& target, bool as_parameter) {
    if (const auto* tuple = std::get_if<TupleLiteral>(&target.node)) {
      for (const ExpressionPtr& item : tuple->items) VisitTarget(*item, as_parameter);
    } else if (const auto* attribute = std::get_if<NamespaceTarget>(&target.node)) {
      symbols_->Read(attribute->name);
    } else if (as_parameter) {
      symbols_->DeclareParameter(std::get<Name>(target.node).name);
    } else {
      symbols_->Assign(std::get<Name>(target.node).name);
    }
  }

 private:
  void Visit(const Output& output) {
    for (const ExpressionPtr& part : output.parts) Visit(part);
  }
  void Visit(const If& statement) {
    Visit(statement.branches[0].condition);
    Symbols& original = *symbols_;
    std::vector<Symbols> branches(3, original);
    symbols_ = &branches[0];
    Visit(statement.branches[0].body);
    // All elifs count as one branch, each inside of it like an if.
    symbols_ = &branches[1];
    for (size_t i = 1; i < statement.branches.size(); ++i) VisitElif(statement.branches[i]);
    symbols_ = &branches[2];
    Visit(statement.otherwise);
    symbols_ = &original;
    original.Merge(branches);
  }
  void VisitElif(const If::Branch& branch) {
    Visit(branch.condition);
    Symbols& outer = *symbols_;
    std::vector<Symbols> branches(1, outer);
    symbols_ = &branches[0];
    Visit(branch.body);
    symbols_ = &outer;
    outer.Merge(branches);
  }
  void Visit(const For& statement) { Visit(statement.iterable); }
  void Visit(const Set& statement) {
    Visit(statement.value);
    VisitTarget(*statement.target, false);
  }
  void Visit(const SetBlock& statement) { VisitTarget(*statement.target, false); }
  void Visit(const With& statement) {
    for (const auto& [target, value] : statement.assignments) Visit(value);
  }
  void Visit(const FilterBlock& statement) { Visit(statement.filter); }
  void Visit(const Macro& macro) { symbols_->Assign(macro.definition.name); }
  void Visit(const CallBlock& block) { Visit(block.call); }
  void Visit(const Generation&) {}
  void Visit(const Break&) {}
  void Visit(const Continue&) {}

  Symbols* symbols_;
};

// Which of `names` are read in a part of a template before they are assigned there, inner scopes
// included.
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string> names) : names_(std::move(names)) {}

  bool Contains(const std::string& name) const { return found_.contains(name); }

  void Visit(const Body& body) {
    for (const StatementPtr& statement : body) {
      std::visit([this](const auto& node) { Visit(node); }, statement->node);
    }
  }

 private:
  void Visit(const ExpressionPtr& expression) {
    if (!expression) return;
    if (const auto* name = std::get_if<Name>(&expression->node)) {
      if (names_.contains(name->name)) found_.insert(name->name);
    }
    ForEachChild(*expression, [this](const ExpressionPtr& child) { Visit(child); });
  }
  void VisitTarget(const Expression& target) {
    if (const auto* name = std::get_if<Name>(&target.node)) names_.erase(name->name);
    ForEachChild(target, [this](const ExpressionPtr& child) { VisitTarget(*child); });
  }
  void Visit(const Output& output) {
    for (const ExpressionPtr& part : output.parts) Visit(part);
  }
  void Visit(const If& statement) {
    for (const If::Branch& branch : statement.branches) {
      Visit(branch.condition);
      Visit(branch.body);
    }
    Visit(statement.otherwise);
  }
  void Visit(const For& statement) {
    VisitTarget(*statement.target);
    Visit(statement.iterable);
    Visit(statement.body);
    Visit(statement.otherwise);
    Visit(statement.condition);
  }
  void Visit(const Set& statement) {
    VisitTarget(*statement.target);
    Visit(statement.value);
  }
  void Visit(const SetBlock& statement) {
    VisitTarget(*statement.target);
    Visit(statement.filter);
    Visit(statement.body);
  }
  void Visit(const With& statement) {
    for (const auto& [target, value] : statement.assignments) VisitTarget(*target);
    for (const auto& [target, value] : statement.assignments) Visit(value);
    Visit(statement.body);
  }
  void Visit(const FilterBlock& statement) {
    Visit(statement.body);
    Visit(statement.filter);
  }
  void Visit(const MacroDefinition& definition) {
    for (const ExpressionPtr& parameter : definition.parameters) VisitTarget(*parameter);
    for (const ExpressionPtr& value : definition.defaults) Visit(value);
    Visit(definition.body);
  }
  void Visit(const Macro& macro) { Visit(macro.definition); }
  void Visit(const CallBlock& block) {
    Visit(block.call);
    Visit(block.caller);
  }
  void Visit(const Generation& generation) { Visit(generation.body); }
  void Visit(const Break&) {}
  void Visit(const Continue&) {}

  std::set<std::string> names_;
  std::set<std::string> found_;
};

class Binder {
 public:
  explicit Binder(ParsedTemplate& parsed) : parsed_(parsed) {}

  void Run() {
    FunctionState function;
    Symbols symbols(function, nullptr);
    Analyzer(symbols).Visit(parsed_.body);
    BindBody(parsed_.body, symbols, {});
    parsed_.scope = MakeScope(symbols);
    parsed_.function.slots = function.slots;
  }

 private:
  struct Place {
    bool soft = false;     // filters may be missing, since a condition is around
    bool in_loop = false;  // break has a loop to leave
  };

  template <class... Parts>
  [[noreturn]] void FailAt(int line, const Parts&... parts) const {
    Fail(parsed_.name, ", line ", line, ": ", parts...);
  }

  int ContextIndex(const std::string& name) {
    const auto [it, is_new] =
        context_indices_.try_emplace(name, static_cast<int>(parsed_.context_names.size()));
    if (is_new) parsed_.context_names.push_back(name);
    return it->second;
  }

  Scope MakeScope(const Symbols& symbols) {
    Scope scope;
    for (const auto& [index, load] : symbols.loads()) {
      ScopeEntry entry;
      entry.index = index;
      switch (load.source) {
        case Load::Source::kParameter:
          continue;
        case Load::Source::kNothing:
          break;
        case Load::Source::kVariable:
          entry.source = ScopeEntry::Source::kVariable;
          entry.variable = MakeSlot(load.variable, symbols);
          break;
        case Load::Source::kContext:
          entry.source = ScopeEntry::Source::kContext;
          entry.context = ContextIndex(load.context_name);
          break;
      }
      scope.entries.push_back(entry);
    }
    return scope;
  }

  static Slot MakeSlot(const VariableRef& variable, const Symbols& symbols) {
    return {symbols.function().depth - variable.function_depth, variable.index};
  }
  // The analysis has seen every name before it is bound.
  static Slot Lookup(const std::string& name, const Symbols& symbols) {
    return MakeSlot(symbols.Find(name).value(), symbols);
  }

  void BindExpression(const ExpressionPtr& expression, const Symbols& symbols, bool soft) {
    if (!expression) return;
    if (auto* name = std::get_if<Name>(&expression->node)) {
      name->slot = Lookup(name->name, symbols);
    } else if (auto* target = std::get_if<NamespaceTarget>(&expression->node)) {
      target->slot = Lookup(target->name, symbols);
    } else if (const auto* filter = std::get_if<FilterCall>(&expression->node)) {
      if (!soft && !HasFilter(filter->name)) {
        FailAt(expression->line, MissingFilter(filter->name));
      }
    } else if (const auto* test = std::get_if<TestCall>(&expression->node)) {
      if (!soft && !HasTest(test->name)) {
        FailAt(expression->line, "There is no test ", test->name, ".");
      }
    }
    const bool is_conditional = std::holds_alternative<Conditional>(expression->node);
    ForEachChild(*expression, [&](const ExpressionPtr& child) {
      BindExpression(child, symbols, soft || is_conditional);
    });
  }

  void BindBody(Body& body, const Symbols& symbols, Place place) {
    for (StatementPtr& statement : body) {
      line_ = statement->line;
      std::visit([&](auto& node) { Bind(node, symbols, place); }, statement->node);
    }
  }

  void Bind(Output& output, const Symbols& symbols, Place place) {
    for (ExpressionPtr& part : output.parts) BindExpression(part, symbols, place.soft);
  }

  void Bind(If& statement, const Symbols& symbols, Place place) {
    place.soft = true;
    for (If::Branch& branch : statement.branches) {
      BindExpression(branch.condition, symbols, true);
      BindBody(branch.body, symbols, place);
    }
    BindBody(statement.otherwise, symbols, place);
  }

  void Bind(For& statement, const Symbols& outer, Place place) {
    BindExpression(statement.iterable, outer, place.soft);
    ++loops_;
    CheckAssigned(*statement.target);
    UndeclaredNames undeclared({"loop"});
    undeclared.Visit(statement.body);
    statement.uses_loop = statement.recursive || undeclared.Contains("loop");

    FunctionState own{outer.function().depth + 1, 0};
    FunctionState& function = statement.recursive ? own : outer.function();
    Symbols body(function, &outer);
    if (statement.uses_loop) statement.loop_index = body.DeclareParameter("loop");
    Analyzer body_analyzer(body);
    body_analyzer.VisitTarget(*statement.target, true);
    body_analyzer.Visit(statement.body);
    BindExpression(statement.target, body, false);
    BindBody(statement.body, body, {false, true});
    statement.body_scope = MakeScope(body);

    if (statement.condition) {
      Symbols condition(function, &outer);
      Analyzer analyzer(condition);
      analyzer.VisitTarget(*statement.condition_target, true);
      analyzer.Visit(statement.condition);
      BindExpression(statement.condition_target, condition, false);
      BindExpression(statement.condition, condition, false);
      statement.condition_scope = MakeScope(condition);
    }

    Symbols otherwise(function, &outer);
    Analyzer(otherwise).Visit(statement.otherwise);
    BindBody(statement.otherwise, otherwise, {false, place.in_loop && !statement.recursive});
    statement.otherwise_scope = MakeScope(otherwise);
    statement.function.slots = own.slots;
    --loops_;
  }

  // Inside of loops, nothing but the loop gives "loop" a value.
  void CheckAssigned(const Expression& target) const {
    const auto* name = std::get_if<Name>(&target.node);
    if (loops_ > 0 && name != nullptr && name->name == "loop") {
      FailAt(target.line, "The variable \"loop\" of a loop cannot be assigned to.");
    }
    ForEachChild(target, [this](const ExpressionPtr& child) { CheckAssigned(*child); });
  }

  void Bind(Set& statement, const Symbols& symbols, Place place) {
    CheckAssigned(*statement.target);
    BindExpression(statement.value, symbols, place.soft);
    BindExpression(statement.target, symbols, place.soft);
  }

  void Bind(SetBlock& statement, const Symbols& outer, Place place) {
    CheckAssigned(*statement.target);
    BindFiltered(statement, outer, place);
    BindExpression(statement.target, outer, false);
  }

  void Bind(With& statement, const Symbols& outer, Place place) {
    Symbols symbols(outer.function(), &outer);
    Analyzer analyzer(symbols);
    for (const auto& [target, value] : statement.assignments) {
      BindExpression(value, outer, place.soft);
      analyzer.VisitTarget(*target, true);
    }
    analyzer.Visit(statement.body);
    for (const auto& [target, value] : statement.assignments) {
      BindExpression(target, symbols, false);
    }
    BindBody(statement.body, symbols, {false, place.in_loop});
    statement.scope = MakeScope(symbols);
  }

  void Bind(FilterBlock& statement, const Symbols& outer, Place place) {
    BindFiltered(statement, outer, place);
  }

  // What a set block and a filter block have in common.
  template <class FilteredBlock>
  void BindFiltered(FilteredBlock& statement, const Symbols& outer, Place place) {
    Symbols symbols(outer.function(), &outer);
    Analyzer analyzer(symbols);
    analyzer.Visit(statement.body);
    analyzer.Visit(statement.filter);
    BindBody(statement.body, symbols, {false, place.in_loop});
    BindExpression(statement.filter, symbols, false);
    statement.scope = MakeScope(symbols);
  }

  void Bind(MacroDefinition& definition, const Symbols& outer) {
    const int line = line_;
    FunctionState function{outer.function().depth + 1, 0};
    Symbols symbols(function, &outer);
    std::set<std::string> parameters;
    for (const ExpressionPtr& parameter : definition.parameters) {
      const auto& name = std::get<Name>(parameter->node).name;
      if (!parameters.insert(name).second) {
        FailAt(line, "The parameter ", name, " is there twice.");
      }
      symbols.DeclareParameter(name);
    }
    UndeclaredNames undeclared({"caller", "kwargs", "varargs"});
    undeclared.Visit(definition.body);
    if (parameters.contains("caller") && undeclared.Contains("caller"))
      CheckCaller(definition, line);
    const auto declare = [&](const std::string& name) {
      const bool is_special = undeclared.Contains(name) && !parameters.contains(name);
      return is_special ? symbols.DeclareParameter(name) : -1;
    };
    definition.caller_index = declare("caller");
    definition.kwargs_index = declare("kwargs");
    definition.varargs_index = declare("varargs");
    Analyzer analyzer(symbols);
    for (const ExpressionPtr& value : definition.defaults) analyzer.Visit(value);
    analyzer.Visit(definition.body);
    for (const ExpressionPtr& parameter : definition.parameters) {
      BindExpression(parameter, symbols, false);
    }
    for (const ExpressionPtr& value : definition.defaults) BindExpression(value, symbols, false);
    BindBody(definition.body, symbols, {});
    definition.scope = MakeScope(symbols);
    definition.function.slots = function.slots;
  }

  void CheckCaller(const MacroDefinition& definition, int line) const {
    const size_t first_default = definition.parameters.size() - definition.defaults.size();
    for (size_t i = 0; i < first_default; ++i) {
      if (std::get<Name>(definition.parameters[i]->node).name == "caller") {
        FailAt(line, "The parameter caller needs a default.");
      }
    }
  }

  void Bind(Macro& macro, const Symbols& outer, Place) {
    Bind(macro.definition, outer);
    macro.slot = Lookup(macro.definition.name, outer);
  }

  void Bind(CallBlock& block, const Symbols& outer, Place place) {
    Bind(block.caller, outer);
    BindExpression(block.call, outer, place.soft);
  }

  void Bind(Generation& generation, const Symbols& outer, Place) { Bind(generation.body, outer); }

  void Bind(Break&, const Symbols&, Place place) { RequireLoop(place, "break"); }
  void Bind(Continue&, const Symbols&, Place place) { RequireLoop(place, "continue"); }
  void RequireLoop(Place place, std::string_view block) const {
    if (!place.in_loop) FailAt(line_, "{% ", block, " %} stands outside of a loop.");
  }

  ParsedTemplate& parsed_;
  std::map<std::string, int> context_indices_;
  int line_ = 1;
  int loops_ = 0;  // around the place that is looked at, macros in between or not
};

}  // namespace

void BindNames(ParsedTemplate& parsed) { Binder(parsed).Run(); }

}  // namespace adder::text::jinja
