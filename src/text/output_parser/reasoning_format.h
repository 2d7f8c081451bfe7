// The marks around what a model thinks before it answers: one table.
#pragma once

#include <string_view>
#include <vector>

namespace adder::text {

struct ReasoningFormat {
  std::vector<std::string_view> names;
  std::vector<std::string_view> opens;
  std::vector<std::string_view> closes;
  // Marks around the answer, which are dropped.
  std::vector<std::string_view> answer_marks;
  // The model is taken to think from its first word, as R1's templates have it.
  bool always_starts = false;
  // A tool call ends reasoning that was not closed.
  bool ends_at_tool_call = false;
  // Texts of a chat template that tell of the format: all of one group are needed.
  std::vector<std::vector<std::string_view>> signs;
};

// In the order in which a template is searched for their signs. The first is "none".
const std::vector<ReasoningFormat>& ReasoningFormats();

}  // namespace adder::text
