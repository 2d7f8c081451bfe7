// A folder for files that a test writes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/error.h"

namespace adder::test {

// A folder that is removed with everything in it. Mapped files stay readable after that.
class TemporaryFolder {
 public:
  // Its path is new for every process and name; nothing is created there.
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / Concat("adder_", getpid(), "_", name)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace adder::test
