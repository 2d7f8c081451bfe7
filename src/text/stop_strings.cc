#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace adder::text {
namespace {

// Extends a match of the first `matched` bytes of `stop` by one byte of text.
size_t Advance(const std::string& stop, const std::vector<size_t>& failure, size_t matched,
               char byte) {
  while (matched > 0 && stop[matched] != byte) matched = failure[matched - 1];
  return stop[matched] == byte ? matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stop_strings) {
  for (std::string& text : stop_strings) {
    if (text.empty()) Fail("A stop string is empty.");
    std::vector<size_t> failure(text.size());
    for (size_t i = 1; i < text.size(); ++i) {
      failure[i] = Advance(text, failure, failure[i - 1], text[i]);
    }
    stops_.push_back({std::move(text), std::move(failure), 0});
  }
}

std::string StopMatcher::Push(std::string_view text) {
  if (found_) return {};
  for (char byte : text) {
    held_.push_back(byte);
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      stop.matched = Advance(stop.text, stop.failure, stop.matched, byte);
      const bool complete = stop.matched == stop.text.size();
      if (complete && (!found_ || stop.text.size() > stops_[*found_].text.size())) found_ = i;
    }
    if (found_) {
      held_.resize(held_.size() - stops_[*found_].text.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace adder::text
