#include "program/program.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace adder {
namespace {

// Levenshtein distance: the fewest insertions, deletions and replacements between two names.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

int Program::FindOp(const std::string& name) const {
  constexpr size_t kSuggestions = 3;
  // A longer name is a mistake of another kind; comparing it would only take time.
  constexpr size_t kLongestName = 200;
  std::vector<std::pair<size_t, size_t>> ranked;  // distance, index
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == name) return static_cast<int>(i);
    if (name.size() > kLongestName) continue;
    // Part of a name ("gate_up") is closer than any misspelling.
    const bool contains = !name.empty() && ops[i].name.find(name) != std::string::npos;
    ranked.emplace_back(contains ? 0 : EditDistance(name, ops[i].name), i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::string message = "There is no op '" + name.substr(0, kLongestName) + "' in this program.";
  for (size_t i = 0; i < std::min(kSuggestions, ranked.size()); ++i) {
    message += (i == 0 ? " Close names: " : ", ") + ops[ranked[i].second].name;
  }
  if (!ranked.empty()) message += ".";
  Fail(message);
}

BufferId OutputOf(const Op& op) {
  return std::visit([](const auto& body) { return body.output; }, op.body);
}

}  // namespace adder
