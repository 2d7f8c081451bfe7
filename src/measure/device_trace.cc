#include "measure/device_trace.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace adder {
namespace {

std::string Demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

}  // namespace

std::string PlainKernelName(const std::string& name) {
  std::string text = Demangled(name);
  // What stands in parentheses is a list of parameters or "(anonymous namespace)", in angles a list
  // of template arguments; either may nest.
  std::string plain;
  int depth = 0;
  for (char c : text) {
    if (c == '(' || c == '<') {
      ++depth;
    } else if (c == ')' || c == '>') {
      --depth;
    } else if (depth == 0) {
      plain += c;
    }
  }
  plain.erase(plain.find_last_not_of(' ') + 1);
  const size_t begin = plain.find_last_of(": ");
  if (begin != std::string::npos) plain.erase(0, begin + 1);
  return plain.empty() ? name : plain;
}

}  // namespace adder
