#include "cuda/blas.h"

#include <cublasLt.h>

#include "core/error.h"
#include "cuda/cuda_call.h"

namespace adder::cuda {
namespace {

// What NVIDIA recommends for Hopper; the heuristic takes no more than this.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Shapes that are remembered; a service whose batches never repeat must not grow without end.
constexpr size_t kMostPlans = 1024;

void CheckBlas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Fail("cuBLASLt could not run ", call, ": ", cublasLtGetStatusString(status), ".");
}

cublasLtHandle_t Handle(void* handle) { return static_cast<cublasLtHandle_t>(handle); }

}  // namespace

// Descriptors and the algorithm of a shape. cuBLASLt counts columns first, so a row-major matrix is
// its transpose: D^T [rows, tokens] = W [rows, cols] x X^T [cols, tokens].
struct DenseProducts::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {weights, activations, output}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weights = nullptr;
  cublasLtMatrixLayout_t activations = nullptr;
  cublasLtMatrixLayout_t output = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
};

DenseProducts::DenseProducts() {
  cublasLtHandle_t handle = nullptr;
  CheckBlas(cublasLtCreate(&handle), "cublasLtCreate");
  handle_ = handle;
  workspace_ = DeviceMemory(kWorkspaceBytes);
}

DenseProducts::~DenseProducts() { cublasLtDestroy(Handle(handle_)); }

const DenseProducts::Plan& DenseProducts::PlanOf(const Shape& shape) {
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return *found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  auto plan = std::make_unique<Plan>();
  CheckBlas(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CheckBlas(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                           &transposed, sizeof(transposed)),
            "cublasLtMatmulDescSetAttribute");
  const auto layout = [](cublasLtMatrixLayout_t& out, cudaDataType type, int rows, int cols,
                         int stride) {
    CheckBlas(cublasLtMatrixLayoutCreate(&out, type, static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(cols), stride),
              "cublasLtMatrixLayoutCreate");
  };
  layout(plan->weights, CUDA_R_16BF, shape.cols, shape.rows, shape.weights_stride);
  layout(plan->activations, CUDA_R_16BF, shape.cols, shape.tokens, shape.activations_stride);
  layout(plan->output, shape.output_bf16 ? CUDA_R_16BF : CUDA_R_32F, shape.rows, shape.tokens,
         shape.output_stride);
  cublasLtMatmulPreference_t preference = nullptr;
  CheckBlas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t most = workspace_.bytes();
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                       sizeof(most));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      Handle(handle_), plan->operation, plan->weights, plan->activations, plan->output,
      plan->output, preference, 1, &result, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    Fail("cuBLASLt has no algorithm for a product of [", shape.tokens, ", ", shape.cols, "] with [",
         shape.rows, ", ", shape.cols, "]^T in bf16: ", cublasLtGetStatusString(status), ".");
  }
  plan->algorithm = result.algo;
  plan->workspace = result.workspaceSize;
  return *plans_.emplace(shape, std::move(plan)).first->second;
}

void DenseProducts::Launch(const DenseProduct& p, const Stream& stream) {
  const Plan& plan = PlanOf({p.tokens, p.rows, p.cols, p.activations_stride, p.weights_stride,
                             p.output_stride, p.add, p.output_bf16});
  const float beta = p.add ? 1.0f : 0.0f;
  CheckBlas(cublasLtMatmul(Handle(handle_), plan.operation, &p.scale, p.weights, plan.weights,
                           p.activations, plan.activations, &beta, p.output, plan.output, p.output,
                           plan.output, &plan.algorithm, workspace_.data(), plan.workspace,
                           stream.get()),
            "a matrix product");
}

}  // namespace adder::cuda
