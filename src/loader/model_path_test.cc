#include "loader/model_path.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "core/error.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

// A temporary folder, and an environment in which nothing of the user's is found.
class ModelPath : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "adder-path-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* name : kVariables) {
      if (const char* value = getenv(name)) saved_[name] = value;
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : kVariables) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
    fs::remove_all(root_);
  }

  void Set(const char* name, const fs::path& value) { setenv(name, value.c_str(), 1); }
  // A cached model whose refs/main holds `revision`, with a snapshot of that name.
  fs::path AddModel(const fs::path& hub, const std::string& entry, const std::string& revision) {
    fs::create_directories(hub / entry / "refs");
    fs::create_directories(hub / entry / "snapshots" / "abc123");
    std::ofstream(hub / entry / "refs" / "main") << revision;
    return hub / entry / "snapshots" / "abc123";
  }
  static std::string ErrorOf(const std::string& name) {
    try {
      ResolveModelPath(name);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                               "XDG_CACHE_HOME", "HOME"};
  fs::path root_;
  std::map<std::string, std::string> saved_;
};

TEST_F(ModelPath, DirectoryIsItself) {
  EXPECT_EQ(ResolveModelPath(root_.string()), root_);
  // Also where the cache could be asked.
  Set("HF_HUB_CACHE", root_ / "hub");
  EXPECT_EQ(ResolveModelPath(root_.string()), root_);
}

TEST_F(ModelPath, CacheFolderByVariable) {
  EXPECT_EQ(HubCacheDirectory(), fs::path());
  Set("HOME", "/home/someone");
  EXPECT_EQ(HubCacheDirectory(), "/home/someone/.cache/huggingface/hub");
  Set("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(HubCacheDirectory(), "/cache/huggingface/hub");
  Set("HF_HOME", "/hf");
  EXPECT_EQ(HubCacheDirectory(), "/hf/hub");
  Set("HF_HUB_CACHE", "/hub");
  EXPECT_EQ(HubCacheDirectory(), "/hub");
}

TEST_F(ModelPath, FindsSnapshotOfMain) {
  Set("HF_HUB_CACHE", root_);
  const fs::path snapshot = AddModel(root_, "models--some.one--model-1", "abc123\n");
  EXPECT_EQ(ResolveModelPath("some.one/model-1"), snapshot);
}

TEST_F(ModelPath, SaysWhereItLooked) {
  Set("HF_HOME", root_);
  const fs::path expected = root_ / "hub" / "models--some--model";
  EXPECT_NE(ErrorOf("some/model").find(expected.string()), std::string::npos)
      << ErrorOf("some/model");
  unsetenv("HF_HOME");
  EXPECT_NE(ErrorOf("some/model").find("HF_HUB_CACHE"), std::string::npos);
}

TEST_F(ModelPath, NamesThatAreNoModel) {
  Set("HF_HUB_CACHE", root_);
  for (const char* name : {"", "model", "a/b/c", "../a", "a/..", "./a", "a/", "/a", "a//b", "a/b/",
                           "a b/c", "a/b\n", "-a/b", "a--b/c"}) {
    EXPECT_FALSE(IsHubName(name)) << name;
    if (!fs::is_directory(name)) {
      EXPECT_THROW(ResolveModelPath(name), Error) << name;
    }
  }
  EXPECT_TRUE(IsHubName("ibm-granite/granite-4.0-h-350m"));
}

TEST_F(ModelPath, RevisionCannotLeaveTheCache) {
  Set("HF_HUB_CACHE", root_);
  for (const char* revision : {"", ".", "..", "../../..", "/etc", "abc123/..", "abc123\nx"}) {
    AddModel(root_, "models--some--model", revision);
    EXPECT_THROW(ResolveModelPath("some/model"), Error) << revision;
  }
  AddModel(root_, "models--some--model", "def456");
  EXPECT_NE(ErrorOf("some/model").find("def456"), std::string::npos);
}

TEST_F(ModelPath, FileIsNoModel) {
  std::ofstream(root_ / "weights") << "x";
  EXPECT_NE(ErrorOf((root_ / "weights").string()).find("is a file"), std::string::npos);
}

}  // namespace
}  // namespace adder
