// A shared library that is loaded while the program runs, so that the program starts without it.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"

namespace adder {

class SharedLibrary {
 public:
  // Loads the first of `names` that can be found. Throws Error that calls it `title`, lists the
  // names and ends with `advice`.
  SharedLibrary(const std::string& title, const std::vector<std::string>& names,
                const std::string& advice);

  // Sets `function` to the function called `name`. Throws Error when the library lacks it.
  template <class Function>
  void Find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(Symbol(name));
  }
  const std::string& path() const { return path_; }

 private:
  void* Symbol(const char* name) const;

  // Never unloaded: these libraries leave threads and callbacks behind.
  void* handle_ = nullptr;
  std::string title_;
  std::string path_;
};

}  // namespace adder
