// Errors: one exception type whose message is a sentence for the person who ran adder.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace adder {

// Thrown by everything that reads outside data or was asked for something impossible. The message
// says what failed, where (file, tensor, field) and, when it helps, what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Streams all parts into one string.
template <class... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error with the parts streamed into one message.
template <class... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  throw Error(Concat(parts...));
}

}  // namespace adder
