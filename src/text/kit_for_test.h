// What tests that use the conformance kit share.
#pragma once

#include <cstdlib>
#include <ctime>
#include <filesystem>

namespace adder::text {

// The folder of the kit: ADDER_SHARED, else "shared" beside the repository at `source_directory`.
inline std::filesystem::path SharedFolder(const std::filesystem::path& source_directory) {
  const char* shared = std::getenv("ADDER_SHARED");
  return shared != nullptr ? std::filesystem::path(shared) : source_directory / ".." / "shared";
}

// The time of the kit's chat templates: Sunday, 15 June 2025, 12:34:56.
inline std::tm KitClock() {
  std::tm time = {};
  time.tm_year = 125;
  time.tm_mon = 5;
  time.tm_mday = 15;
  time.tm_hour = 12;
  time.tm_min = 34;
  time.tm_sec = 56;
  time.tm_yday = 165;
  return time;
}

}  // namespace adder::text
