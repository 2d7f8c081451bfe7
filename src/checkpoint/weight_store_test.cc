#include "checkpoint/weight_store.h"

#include <gtest/gtest.h>

#include "checkpoint/temporary_checkpoint.h"

namespace adder {
namespace {

using testing::ErrorOf;
using testing::TemporaryDirectory;
using testing::TestTensor;
using testing::WriteTensors;

std::string OpenError(const TemporaryDirectory& directory) {
  return ErrorOf([&] { WeightStore::Open(directory.path()); });
}

TEST(WeightStore, OpensASingleFileAndIgnoresOthers) {
  const TemporaryDirectory directory;
  directory.Write("config.json", R"({"x": 1})");
  WriteTensors(directory.path() / "model.safetensors", {TestTensor::Float("a", {2}, 3, 1)});
  WriteTensors(directory.path() / "expected.safetensors", {TestTensor::Float("b", {2}, 3, 1)});
  const auto store = WeightStore::Open(directory.path());
  EXPECT_EQ(store->Tensors().size(), 1u);
  EXPECT_EQ(store->bytes(), 8);
  EXPECT_EQ(store->Find("b"), nullptr);
  EXPECT_TRUE(store->names().HasOptional("a"));
  EXPECT_EQ(store->config_object().Int({"x"}, 0, 9), 1);
}

TEST(WeightStore, MissingFilesAreNamed) {
  const TemporaryDirectory directory;
  EXPECT_NE(ErrorOf([] { WeightStore::Open("/nonexistent/model"); }).find("is not a directory"),
            std::string::npos);
  EXPECT_NE(OpenError(directory).find("config.json"), std::string::npos);
  directory.Write("config.json", "[1]");
  EXPECT_NE(OpenError(directory).find("should hold a JSON object"), std::string::npos);
  directory.Write("config.json", "{}");
  EXPECT_NE(OpenError(directory).find("holds neither model.safetensors nor"), std::string::npos);
}

class ShardedStore : public ::testing::Test {
 protected:
  ShardedStore() {
    directory_.Write("config.json", "{}");
    WriteTensors(directory_.path() / "one.safetensors", {TestTensor::Float("a", {2}, 3, 1)});
    WriteTensors(directory_.path() / "two.safetensors", {TestTensor::Float("b", {2}, 5, 1)});
  }
  std::string ErrorWithIndex(const std::string& map) {
    directory_.Write("model.safetensors.index.json", R"({"weight_map": )" + map + "}");
    return OpenError(directory_);
  }
  TemporaryDirectory directory_;
};

TEST_F(ShardedStore, OpensWhatTheIndexNames) {
  EXPECT_EQ(ErrorWithIndex(R"({"a": "one.safetensors", "b": "two.safetensors"})"), "no error");
  EXPECT_EQ(
      LoadFloat(WeightStore::Open(directory_.path())->Find("b")->bytes.data(), DType::kF32, 1),
      6.0f);
}

TEST_F(ShardedStore, DisagreementsNameFileAndTensor) {
  EXPECT_NE(
      ErrorWithIndex(R"({"a": "one.safetensors", "b": "three.safetensors"})")
          .find("three.safetensors is missing; model.safetensors.index.json places the tensor b"),
      std::string::npos);
  EXPECT_NE(ErrorWithIndex(R"({"a": "one.safetensors", "c": "one.safetensors"})")
                .find("one.safetensors lacks the tensor c"),
            std::string::npos);
  EXPECT_NE(ErrorWithIndex(R"({"b": "two.safetensors", "c": "one.safetensors"})")
                .find("one.safetensors: the tensor a is not listed"),
            std::string::npos);
  EXPECT_NE(ErrorWithIndex(R"({"a": "two.safetensors", "b": "one.safetensors"})")
                .find("one.safetensors: the tensor a should be in two.safetensors"),
            std::string::npos);
}

TEST_F(ShardedStore, IndexCannotLeaveTheDirectory) {
  for (const std::string name : {"../x", "/etc/passwd", "", "..", "a/b"}) {
    EXPECT_NE(ErrorWithIndex(R"({"a": ")" + name + "\"}").find("must be a plain file name"),
              std::string::npos)
        << name;
  }
  EXPECT_NE(ErrorWithIndex(R"({"a": 3})").find("no file name for the tensor a"), std::string::npos);
  EXPECT_NE(ErrorWithIndex("[]").find("lacks the object weight_map"), std::string::npos);
}

}  // namespace
}  // namespace adder
