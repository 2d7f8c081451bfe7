// Stop strings: the end of generation at given texts, wherever the borders of tokens lie.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adder::text {

// Finds the first stop string in text that arrives in pieces: the one that is complete first, and
// of those that end at the same place the longest. The result does not depend on where the pieces
// are cut. Takes time proportional to text length times number of stop strings.
class StopMatcher {
 public:
  // Throws Error for an empty stop string.
  explicit StopMatcher(std::vector<std::string> stop_strings);

  // Takes more text and returns what may be shown now: everything before what could still become a
  // stop string, or before the stop string that was found. After that, nothing.
  std::string Push(std::string_view text);

  // Ends the text and returns what was held back.
  std::string Flush();

  // Index of the stop string that was found.
  std::optional<size_t> found() const { return found_; }

 private:
  struct Stop {
    std::string text;
    // failure[n]: length of the longest proper prefix of the stop string that ends its first n + 1
    // bytes.
    std::vector<size_t> failure;
    size_t matched = 0;  // length of its longest prefix that ends the text so far
  };

  std::vector<Stop> stops_;
  std::string held_;  // the end of the text that has not been returned
  std::optional<size_t> found_;
};

}  // namespace adder::text
