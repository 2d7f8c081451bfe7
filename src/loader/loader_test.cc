#include "loader/loader.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

class LoaderFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "adder-loader-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const char* name, const std::string& contents) {
    std::ofstream(root_ / name, std::ios::trunc) << contents;
  }
  std::string SamplingError(const std::string& json) {
    Write("generation_config.json", json);
    try {
      ReadSamplingDefaults(root_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(LoaderFiles, SamplingIsGreedyUnlessToldToSample) {
  EXPECT_EQ(ReadSamplingDefaults(root_).temperature, 0);
  Write("generation_config.json", R"({"temperature": 0.7, "top_k": 5})");
  EXPECT_EQ(ReadSamplingDefaults(root_).temperature, 0);
  Write("generation_config.json",
        R"({"do_sample": true, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05})");
  const SamplingParameters sampling = ReadSamplingDefaults(root_);
  EXPECT_EQ(sampling.temperature, 0.7f);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.min_p, 0.05f);
  Write("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(ReadSamplingDefaults(root_).temperature, 1);
  EXPECT_EQ(ReadSamplingDefaults(root_).top_k, 0);
}

TEST_F(LoaderFiles, SamplingErrorsNameFileAndField) {
  for (const char* json :
       {R"({"do_sample": 1})", R"({"do_sample": true, "temperature": -0.5})",
        R"({"do_sample": true, "temperature": "hot"})",
        R"({"do_sample": true, "temperature": NaN})", R"({"do_sample": true, "top_p": 2})",
        R"({"do_sample": true, "top_p": 0})", R"({"do_sample": true, "top_k": 1e30})", "[]", "{",
        ""}) {
    EXPECT_NE(SamplingError(json).find("generation_config.json"), std::string::npos) << json;
  }
  EXPECT_NE(SamplingError(R"({"do_sample": true, "top_k": 2.5})").find("top_k"), std::string::npos);
}

TEST_F(LoaderFiles, BeginId) {
  EXPECT_EQ(ReadBeginId(root_), -1);
  Write("config.json", R"({"bos_token_id": 7})");
  EXPECT_EQ(ReadBeginId(root_), 7);
  Write("generation_config.json", R"({"bos_token_id": null})");
  EXPECT_EQ(ReadBeginId(root_), 7);
  Write("generation_config.json", R"({"bos_token_id": 3})");
  EXPECT_EQ(ReadBeginId(root_), 3);
}

TEST_F(LoaderFiles, TokenizerIsOptional) {
  EXPECT_EQ(LoadTokenizer(root_), nullptr);
  Write("tokenizer.json", "{}");
  EXPECT_THROW(LoadTokenizer(root_), Error);
}

TEST_F(LoaderFiles, DevicesThatAreNotThere) {
#ifdef ADDER_HAS_CUDA
  if (DefaultDevice() == Device::kCuda) GTEST_SKIP() << "there is a CUDA device";
  constexpr char kReason[] = "there is no CUDA device";
#else
  constexpr char kReason[] = "no CUDA backend";
#endif
  LoadOptions options;
  options.device = Device::kCuda;
  try {
    LoadModel(root_.string(), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(kReason), std::string::npos) << error.what();
  }
}

// The demo model, loaded by each way there is; skipped where it is missing.
class DemoModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(fs::path(kDirectory) / "model.safetensors")) {
      GTEST_SKIP() << "no demo model at " << kDirectory;
    }
  }
  static constexpr const char* kDirectory = ADDER_SOURCE_DIR "/models/demo";
};

TEST_F(DemoModel, LoadsWithRisingProgress) {
  std::vector<double> seen;
  LoadOptions options;
  options.threads = 1;
  options.progress = [&](double fraction) { seen.push_back(fraction); };
  const LoadedModel model = LoadModel(kDirectory, options);
  ASSERT_GT(seen.size(), 4u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_GE(seen.front(), 0);
  EXPECT_EQ(seen.back(), 1);
  ASSERT_NE(model.tokenizer, nullptr);
  EXPECT_EQ(model.plan->family, "granitemoehybrid");
  EXPECT_EQ(model.end_ids, std::vector<int32_t>{0});
}

TEST_F(DemoModel, NarrowStatesNeedAGpu) {
  LoadOptions options;
  options.state_dtype = DType::kF16;
  for (const Device device : {Device::kCpu, Device::kReference}) {
    options.device = device;
    try {
      LoadModel(kDirectory, options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--state-dtype f16"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace adder
