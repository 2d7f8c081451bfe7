#include "text/pattern.h"

#include "core/error.h"

namespace adder::text {

Pattern::Pattern(const JsonObject& component) {
  const std::optional<JsonObject> pattern = component.Object({"pattern"});
  if (!pattern) Fail(component.where(), " lacks the field pattern.");
  if (pattern->Has("Regex")) {
    regex_.emplace(pattern->String({"Regex"}), pattern->where());
    return;
  }
  literal_ = pattern->String({"String"});
  if (literal_.empty()) Fail(pattern->where(), ": an empty String is not supported.");
}

std::string Pattern::ReplaceAll(std::string_view text, std::string_view content) const {
  std::string replaced;
  size_t done = 0;
  ForEachMatch(text, [&](Range match) {
    replaced += text.substr(done, match.begin - done);
    replaced += content;
    done = match.end;
  });
  replaced += text.substr(done);
  return replaced;
}

}  // namespace adder::text
