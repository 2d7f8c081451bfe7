#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint/temporary_checkpoint.h"

namespace adder {
namespace {

using testing::ErrorOf;
using testing::RawSafetensors;

std::vector<TensorView> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "x.safetensors");
}

std::string ParseError(const std::string& header, const std::string& data) {
  const std::string file = RawSafetensors(header, data);
  return ErrorOf([&] { Parse(file); });
}

TEST(ParseSafetensors, ReadsNamesTypesShapesAndBytes) {
  const std::string file = RawSafetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
      R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[6,6]}})",
      "\x01\x02\x03\x04\x05\x06");
  const std::vector<TensorView> tensors = Parse(file);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].dtype, DType::kU8);
  EXPECT_EQ(tensors[0].bytes[1], std::byte{6});
  EXPECT_EQ(tensors[1].shape, (Shape{1, 2}));
  EXPECT_EQ(tensors[1].bytes.size(), 4u);
  EXPECT_TRUE(tensors[2].bytes.empty());
}

TEST(ParseSafetensors, RefusesDamagedFilesNamingFileAndTensor) {
  EXPECT_EQ(ErrorOf([] { Parse("1234567"); }),
            "x.safetensors is truncated: a safetensors file has at least 8 bytes, it has 7.");
  EXPECT_NE(ErrorOf([] { Parse(std::string(8, '\xff')); }).find("claims a header of"),
            std::string::npos);
  std::string long_header = RawSafetensors("{}", "");
  long_header[0] = 100;
  EXPECT_NE(ErrorOf([&] { Parse(long_header); }).find("is longer than the file (10 bytes)"),
            std::string::npos);
  EXPECT_NE(ParseError("{\"a\":", "").find("x.safetensors: the header is not valid JSON near byte"),
            std::string::npos);
  EXPECT_EQ(ParseError("[]", ""), "x.safetensors: the header should hold a JSON object.");
  EXPECT_NE(ParseError("{\"a\":" + std::string(1000, '['), "").find("it is an array"),
            std::string::npos);
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                       "x"),
            "x.safetensors: the header lists the tensor a twice.");
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"U8","dtype":"U8"}})", "x"),
            "x.safetensors: the tensor a has the field \"dtype\" twice.");
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"U8","strides":[1]}})", "x"),
            "x.safetensors: the tensor a has the field \"strides\", which is unknown.");
  EXPECT_EQ(ParseError(R"({"a":{"dtype":{}}})", "x"),
            "x.safetensors: the tensor a has the bad dtype an object.");
  EXPECT_EQ(ParseError(R"({"a":7})", "x"),
            "x.safetensors: the entry a of the header should be a JSON object, it is 7.");
  EXPECT_EQ(ParseError(R"({"__metadata__":{"n":7}})", ""),
            "x.safetensors: __metadata__ should hold texts only, it holds 7.");
  EXPECT_EQ(ParseError(R"({"__metadata__":{"n":{}}})", ""),
            "x.safetensors: __metadata__ should hold texts only, it holds an object.");
  EXPECT_NE(ParseError("{} {}", "").find("is not valid JSON near byte 4"), std::string::npos);
  EXPECT_NE(ParseError("{\"\xff\":{}}", "").find("is not valid JSON"), std::string::npos);
  EXPECT_LT(ParseError("[\"" + std::string(100000, 'x'), "").size(), 500u);
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"U8","shape":[1]}})", "x"),
            "x.safetensors: the tensor a lacks dtype, shape or data_offsets.");
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"F17","shape":[1],"data_offsets":[0,1]}})", "x"),
            "x.safetensors: the tensor a has the unknown dtype \"F17\".");
}

TEST(ParseSafetensors, RefusesLyingSizes) {
  const auto with = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string data(8, 'x');
  EXPECT_EQ(ParseError(with("[2]", "[0,8]"), data), "no error");
  EXPECT_NE(ParseError(with("[3]", "[0,8]"), data).find("needs 12 bytes, its data_offsets hold 8"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[-1]", "[0,8]"), data).find("the bad size -1"), std::string::npos);
  EXPECT_NE(ParseError(with("[1.5]", "[0,8]"), data).find("the bad size 1.5"), std::string::npos);
  EXPECT_NE(ParseError(with("2", "[0,8]"), data).find("should be an array"), std::string::npos);
  EXPECT_NE(ParseError(with("[1152921504606846976,16]", "[0,8]"), data).find("absurd shape"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[18446744073709551615]", "[0,8]"), data).find("the bad size"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[2]", "[8,0]"), data).find("bad data_offsets"), std::string::npos);
  EXPECT_NE(ParseError(with("[2]", "[0]"), data).find("bad data_offsets"), std::string::npos);
  EXPECT_NE(ParseError(with("[2]", "[0,8,9]"), data).find("bad data_offsets: 9"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[2]", "[0,\"8\"]"), data).find("bad data_offsets: \"8\""),
            std::string::npos);
  EXPECT_NE(ParseError(with("[1,1,1,1,1,1,1,1,2]", "[0,8]"), data).find("at most 8 sizes"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[[2]]", "[0,8]"), data).find("the bad size an array"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[2]", "[4,12]"), data).find("ends at byte 12 of the data"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[1]", "[0,4]"), data).find("4 bytes at the end belong to no tensor"),
            std::string::npos);
  EXPECT_NE(ParseError(with("[1]", "[4,8]"), data).find("4 bytes before the tensor a"),
            std::string::npos);
  EXPECT_EQ(ParseError(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                       R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                       data),
            "x.safetensors: the tensors a and b overlap in the file.");
}

TEST(SafetensorsWriter, WritesWhatTheParserReads) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "out.safetensors";
  const auto a = testing::TestTensor::Float("a", {2, 3}, 1.5f, -0.25f);
  testing::TestTensor b{"b", DType::kU8, {3}, {std::byte{7}, std::byte{8}, std::byte{9}}};
  testing::WriteTensors(path, {a, b});
  const MappedFile file(path);
  const std::vector<TensorView> tensors = ParseSafetensors(file.bytes(), "out");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(LoadFloat(tensors[0].bytes.data(), DType::kF32, 5), 0.25f);
  EXPECT_EQ(tensors[1].bytes[2], std::byte{9});
  EXPECT_EQ((tensors[0].bytes.data() - file.bytes().data()) % 64, 0);
}

TEST(SafetensorsWriter, LeavesNoFileBehindWhenUnfinished) {
  const testing::TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "out.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", DType::kU8, {4}}});
    writer.Append(std::vector<std::byte>(3));
    EXPECT_NE(ErrorOf([&] { writer.Append(std::vector<std::byte>(2)); }).find("more bytes"),
              std::string::npos);
    EXPECT_NE(ErrorOf([&] { writer.Finish(); }).find("1 bytes of its tensors are missing"),
              std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_NE(ErrorOf([&] {
              SafetensorsWriter(path, {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}});
            }).find("the tensor a would be written twice"),
            std::string::npos);
  EXPECT_NE(
      ErrorOf([&] { SafetensorsWriter(directory.path() / "no" / "x", {}); }).find("Cannot write"),
      std::string::npos);
}

}  // namespace
}  // namespace adder
