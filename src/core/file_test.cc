#include "core/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "core/error.h"
#include "core/shape.h"

namespace adder {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    directory_ =
        std::filesystem::path(testing::TempDir()) /
        ("adder_file_test_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(directory_);
  }
  ~FileTest() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST_F(FileTest, WritesReadsAndMaps) {
  const std::string contents("a\0b\xff", 4);
  WriteFile(directory_ / "x", contents);
  EXPECT_EQ(ReadFile(directory_ / "x"), contents);
  MappedFile map(directory_ / "x");
  ASSERT_EQ(map.bytes().size(), 4u);
  EXPECT_EQ(map.bytes()[3], std::byte{0xff});
  MappedFile moved(std::move(map));
  EXPECT_EQ(moved.bytes()[2], std::byte{'b'});
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x.partial"));
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  WriteFile(directory_ / "empty", "");
  EXPECT_TRUE(MappedFile(directory_ / "empty").bytes().empty());
  EXPECT_EQ(ReadFile(directory_ / "empty"), "");
}

TEST_F(FileTest, ErrorsNameThePath) {
  for (const auto& action : std::vector<std::function<void()>>{
           [&] { ReadFile(directory_ / "missing"); }, [&] { MappedFile(directory_ / "missing"); },
           [&] { WriteFile(directory_ / "missing" / "x", "y"); }}) {
    try {
      action();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(ReadFile(directory_), Error);
  EXPECT_THROW(MappedFile{directory_}, Error);
  WriteFile(directory_ / "long", "12345");
  EXPECT_THROW(ReadFile(directory_ / "long", 4), Error);
}

TEST_F(FileTest, WhatIsNoRegularFileIsNotReplaced) {
  const std::filesystem::path pipe = directory_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  WriteFile(pipe, "abc");
  char text[8];
  EXPECT_EQ(read(reader, text, sizeof text), 3);
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  std::filesystem::create_directories(directory_ / "folder");
  EXPECT_THROW(WriteFile(directory_ / "folder", "abc"), Error);
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "folder"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "folder.partial"));
}

TEST_F(FileTest, ReleasedPagesKeepTheirContents) {
  std::string contents(1 << 16, 'x');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 7);
  WriteFile(directory_ / "big", contents);
  MappedFile map(directory_ / "big");
  MappedFile::Release(map.bytes().subspan(100, 50000));
  EXPECT_EQ(std::memcmp(map.bytes().data(), contents.data(), contents.size()), 0);
}

TEST(Shape, CountsWithOverflowChecks) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0);
  EXPECT_EQ(ElementCount({2, 3}), 6);
  EXPECT_EQ(ElementCount({-1, 3}), std::nullopt);
  EXPECT_EQ(ElementCount({int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(ShapeString({2, 3}), "[2, 3]");
}

}  // namespace
}  // namespace adder
