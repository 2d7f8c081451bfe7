// What the CUDA backend makes of the test models: that it runs all of them, and what it reads of
// weights that it cannot keep as the checkpoint has them.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "cuda/cuda_executor.h"
#include "cuda/supported.h"
#include "tests/support/backends.h"
#include "tests/support/test_models.h"

namespace adder::test {
namespace {

// Tests of a model that the backend cannot run skip, so these are all that may: by model, what has
// no kernel. There are none.
const std::map<std::string, std::string> kWithoutKernels;

// Needs no device.
TEST(CudaSupport, HasKernelsForEveryTestModel) {
  std::map<std::string, std::string> parts;
  for (const TestModel& model : TinyModels()) {
    const std::string part = cuda::UnsupportedPart(LoadProgram(model));
    if (!part.empty()) parts[model.name] = part;
  }
  EXPECT_EQ(parts, kWithoutKernels);
  // The repository's own and synthetic ones are always there.
  EXPECT_GE(TinyModels().size(), std::filesystem::exists(ConformanceKit()) ? 50u : 10u);
}

// Tiles of 16 rows and 64 columns of bf16 where the checkpoint has a byte for each weight.
TEST(CudaSupport, CostsCountSmallFloatsAsTheDeviceReadsThem) {
  if (!CudaAvailable()) GTEST_SKIP() << "there is no CUDA device";
  const TestModel model{"mamba2_mxfp8", RepositoryFolder() / "tests" / "cases" / "mamba2_mxfp8"};
  const auto executor = MakeExecutor(Backend::kCudaFast, LoadProgram(model));
  const Program& program = executor->program();
  const std::vector<WeightMatrix>& matrices = program.weights->matrices;
  ASSERT_EQ(program.matrix_bytes.size(), matrices.size());
  int count = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const WeightMatrix& matrix = matrices[i];
    if (matrix.segments.front().affine()) continue;
    const int64_t rows = (matrix.rows + 15) / 16 * 16;
    const int64_t cols = (matrix.cols + 63) / 64 * 64;
    EXPECT_EQ(program.matrix_bytes[i], rows * cols * 2) << "matrix " << i;
    ++count;
  }
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace adder::test
