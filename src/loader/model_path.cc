#include "loader/model_path.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/file.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// One part of a hub name, or a revision: nothing that could lead to another folder.
bool IsPlainName(std::string_view name) {
  if (name.empty() || name.size() > 96) return false;
  if (!std::all_of(name.begin(), name.end(), IsNameByte)) return false;
  const auto is_edge = [](char c) { return c == '.' || c == '-'; };
  if (is_edge(name.front()) || is_edge(name.back())) return false;
  return name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos;
}

fs::path Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

// The directory of the revision that refs/main names.
fs::path FindSnapshot(const fs::path& repository, const std::string& name) {
  const fs::path reference = repository / "refs" / "main";
  constexpr uint64_t kMaxReferenceBytes = 1024;
  std::string revision = ReadFile(reference, kMaxReferenceBytes);
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == '\r')) {
    revision.pop_back();
  }
  if (!IsPlainName(revision)) {
    Fail(reference.string(), " does not hold the name of a revision; remove ", repository.string(),
         " and download ", name, " again.");
  }
  const fs::path snapshot = repository / "snapshots" / revision;
  std::error_code error;
  if (!fs::is_directory(snapshot, error)) {
    Fail("The Hugging Face cache has ", name, " at revision ", revision, ", but the directory ",
         snapshot.string(), " is missing; download the model again.");
  }
  return snapshot;
}

}  // namespace

bool IsHubName(const std::string& name) {
  const size_t slash = name.find('/');
  return slash != std::string::npos && IsPlainName(std::string_view(name).substr(0, slash)) &&
         IsPlainName(std::string_view(name).substr(slash + 1));
}

fs::path HubCacheDirectory() {
  // HUGGINGFACE_HUB_CACHE is an older name that the hub's tools still read.
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path cache = Environment(name); !cache.empty()) return cache;
  }
  if (const fs::path home = Environment("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "huggingface" / "hub";
  }
  const fs::path home = Environment("HOME");
  return home.empty() ? home : home / ".cache" / "huggingface" / "hub";
}

fs::path ResolveModelPath(const std::string& name) {
  if (name.empty()) Fail("The name of the model is empty; give a directory or owner/name.");
  std::error_code error;
  if (fs::is_directory(name, error)) return name;
  if (fs::exists(name, error)) {
    Fail(name, " is a file; a model is the directory that holds its config.json and weights.");
  }
  if (!IsHubName(name)) {
    Fail("There is no directory ", name, ", and a model of the Hugging Face cache is named ",
         "owner/name.");
  }
  const fs::path cache = HubCacheDirectory();
  if (cache.empty()) {
    Fail("There is no directory ", name, ", and none of HF_HUB_CACHE, HF_HOME and HOME says where ",
         "the Hugging Face cache is.");
  }
  const size_t slash = name.find('/');
  const fs::path repository =
      cache / ("models--" + name.substr(0, slash) + "--" + name.substr(slash + 1));
  if (!fs::is_directory(repository, error)) {
    Fail("Found no model ", name, ": there is no directory of this name here, and no ",
         repository.string(), " in the Hugging Face cache. adder downloads nothing; fetch it with ",
         "\"hf download ", name, "\", or set HF_HUB_CACHE or HF_HOME to where it is.");
  }
  return FindSnapshot(repository, name);
}

}  // namespace adder
