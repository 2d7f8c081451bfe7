#include "measure/cuda/shared_library.h"

#include <dlfcn.h>

#include "measure/text_table.h"

namespace adder {

SharedLibrary::SharedLibrary(const std::string& title, const std::vector<std::string>& names,
                             const std::string& advice)
    : title_(title) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = name;
      return;
    }
  }
  Fail(title_, " cannot be loaded (looked for ", Joined(names, ", "), "). ", advice);
}

void* SharedLibrary::Symbol(const char* name) const {
  void* symbol = dlsym(handle_, name);
  if (symbol == nullptr) Fail(title_, " in ", path_, " has no function ", name, "; it is too old.");
  return symbol;
}

}  // namespace adder
