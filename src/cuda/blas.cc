#include "cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <array>
#include <string>

#include "core/error.h"
#include "cuda/cuda_call.h"

namespace adder::cuda {
namespace {

// What NVIDIA recommends for Hopper; the heuristic takes no more than this.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Shapes that are remembered; a service whose batches never repeat must not grow without end.
constexpr size_t kMostPlans = 1024;

// The library, loaded at the first long prompt: it is large, and commands that run none should
// neither wait for it nor need it.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = nullptr;
  decltype(&cublasLtGetStatusString) describe = nullptr;
  bool loaded = false;
};

Library Load() {
  Library library;
  const std::string name = Concat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* file = nullptr;
  for (const std::string& path : {name, Concat("/usr/local/cuda/lib64/", name)}) {
    if (file == nullptr) file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (file == nullptr) return library;
  library.loaded = true;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, symbol));
    library.loaded = library.loaded && function != nullptr;
  };
  find(library.create, "cublasLtCreate");
  find(library.destroy, "cublasLtDestroy");
  find(library.multiply, "cublasLtMatmul");
  find(library.create_operation, "cublasLtMatmulDescCreate");
  find(library.destroy_operation, "cublasLtMatmulDescDestroy");
  find(library.set_operation, "cublasLtMatmulDescSetAttribute");
  find(library.create_layout, "cublasLtMatrixLayoutCreate");
  find(library.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(library.set_layout, "cublasLtMatrixLayoutSetAttribute");
  find(library.create_preference, "cublasLtMatmulPreferenceCreate");
  find(library.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(library.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(library.find_algorithm, "cublasLtMatmulAlgoGetHeuristic");
  find(library.describe, "cublasLtGetStatusString");
  return library;
}

const Library& Lt() {
  static const Library library = Load();
  return library;
}

void CheckBlas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Fail("cuBLASLt could not run ", call, ": ", Lt().describe(status), ".");
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
    if (operation != nullptr) Lt().destroy_operation(operation);
    for (cublasLtMatrixLayout_t layout : {weights, activations, output}) {
      if (layout != nullptr) Lt().destroy_layout(layout);
    }
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weights = nullptr;
  cublasLtMatrixLayout_t activations = nullptr;
  cublasLtMatrixLayout_t output = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
};

bool DenseProducts::Available() { return Lt().loaded; }

DenseProducts::DenseProducts() {
  cublasLtHandle_t handle = nullptr;
  CheckBlas(Lt().create(&handle), "cublasLtCreate");
  handle_ = handle;
  workspace_ = DeviceMemory(kWorkspaceBytes);
}

DenseProducts::~DenseProducts() { Lt().destroy(Handle(handle_)); }

const DenseProducts::Plan& DenseProducts::PlanOf(const Shape& shape) {
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return *found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  auto plan = std::make_unique<Plan>();
  CheckBlas(Lt().create_operation(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CheckBlas(Lt().set_operation(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                               sizeof(transposed)),
            "cublasLtMatmulDescSetAttribute");
  const auto layout = [&](cublasLtMatrixLayout_t& out, cudaDataType type, int rows, int cols,
                          int stride, int64_t step) {
    CheckBlas(Lt().create_layout(&out, type, static_cast<uint64_t>(rows),
                                 static_cast<uint64_t>(cols), stride),
              "cublasLtMatrixLayoutCreate");
    if (shape.count == 1) return;
    const int32_t count = shape.count;
    CheckBlas(Lt().set_layout(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
              "cublasLtMatrixLayoutSetAttribute");
    CheckBlas(
        Lt().set_layout(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)),
        "cublasLtMatrixLayoutSetAttribute");
  };
  layout(plan->weights, CUDA_R_16BF, shape.cols, shape.rows, shape.weights_stride,
         shape.weights_step);
  layout(plan->activations, CUDA_R_16BF, shape.cols, shape.tokens, shape.activations_stride,
         shape.activations_step);
  layout(plan->output, shape.output_bf16 ? CUDA_R_16BF : CUDA_R_32F, shape.rows, shape.tokens,
         shape.output_stride, shape.output_step);
  cublasLtMatmulPreference_t preference = nullptr;
  CheckBlas(Lt().create_preference(&preference), "cublasLtMatmulPreferenceCreate");
  const size_t most = workspace_.bytes();
  Lt().set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      Lt().find_algorithm(Handle(handle_), plan->operation, plan->weights, plan->activations,
                          plan->output, plan->output, preference, 1, &result, &count);
  Lt().destroy_preference(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    Fail("cuBLASLt has no algorithm for a product of [", shape.tokens, ", ", shape.cols, "] with [",
         shape.rows, ", ", shape.cols, "]^T in bf16: ", Lt().describe(status), ".");
  }
  plan->algorithm = result.algo;
  plan->workspace = result.workspaceSize;
  return *plans_.emplace(shape, std::move(plan)).first->second;
}

void DenseProducts::Launch(const DenseProduct& p, const Stream& stream) {
  const Plan& plan =
      PlanOf({p.tokens, p.rows, p.cols, p.activations_stride, p.weights_stride, p.output_stride,
              p.add, p.output_bf16, p.count, p.activations_step, p.weights_step, p.output_step});
  const float beta = p.add ? 1.0f : 0.0f;
  CheckBlas(
      Lt().multiply(Handle(handle_), plan.operation, &p.scale, p.weights, plan.weights,
                    p.activations, plan.activations, &beta, p.output, plan.output, p.output,
                    plan.output, &plan.algorithm, workspace_.data(), plan.workspace, stream.get()),
      "a matrix product");
}

}  // namespace adder::cuda
