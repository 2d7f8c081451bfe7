#include "measure/cuda/cudnn_conv.h"

#include "core/error.h"

#if __has_include(<cudnn.h>)

#include <cudnn.h>

#include "measure/cuda/shared_library.h"

namespace adder {

class CudnnLibrary {
 public:
  CudnnLibrary()
      : library_("cuDNN", {"libcudnn.so.9", "libcudnn.so", "/usr/local/cuda/lib64/libcudnn.so.9"},
                 "Install cuDNN 9, or name its folder in LD_LIBRARY_PATH.") {
    library_.Find("cudnnGetErrorString", error_string);
    library_.Find("cudnnCreate", create);
    library_.Find("cudnnDestroy", destroy);
    library_.Find("cudnnSetStream", set_stream);
    library_.Find("cudnnCreateTensorDescriptor", create_tensor);
    library_.Find("cudnnDestroyTensorDescriptor", destroy_tensor);
    library_.Find("cudnnSetTensor4dDescriptor", set_tensor);
    library_.Find("cudnnCreateFilterDescriptor", create_filter);
    library_.Find("cudnnDestroyFilterDescriptor", destroy_filter);
    library_.Find("cudnnSetFilter4dDescriptor", set_filter);
    library_.Find("cudnnCreateConvolutionDescriptor", create_convolution);
    library_.Find("cudnnDestroyConvolutionDescriptor", destroy_convolution);
    library_.Find("cudnnSetConvolution2dDescriptor", set_convolution);
    library_.Find("cudnnSetConvolutionGroupCount", set_groups);
    library_.Find("cudnnSetConvolutionMathType", set_math);
    library_.Find("cudnnGetConvolutionForwardAlgorithm_v7", choose);
    library_.Find("cudnnConvolutionForward", forward);
  }

  void Check(cudnnStatus_t status, const char* call) const {
    if (status == CUDNN_STATUS_SUCCESS) return;
    Fail("cuDNN failed in ", call, ": ", error_string(status), ".");
  }

  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnCreateTensorDescriptor) create_tensor = nullptr;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor = nullptr;
  decltype(&cudnnSetTensor4dDescriptor) set_tensor = nullptr;
  decltype(&cudnnCreateFilterDescriptor) create_filter = nullptr;
  decltype(&cudnnDestroyFilterDescriptor) destroy_filter = nullptr;
  decltype(&cudnnSetFilter4dDescriptor) set_filter = nullptr;
  decltype(&cudnnCreateConvolutionDescriptor) create_convolution = nullptr;
  decltype(&cudnnDestroyConvolutionDescriptor) destroy_convolution = nullptr;
  decltype(&cudnnSetConvolution2dDescriptor) set_convolution = nullptr;
  decltype(&cudnnSetConvolutionGroupCount) set_groups = nullptr;
  decltype(&cudnnSetConvolutionMathType) set_math = nullptr;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) choose = nullptr;
  decltype(&cudnnConvolutionForward) forward = nullptr;

 private:
  SharedLibrary library_;
};

struct CudnnConv::Parts {
  explicit Parts(const CudnnLibrary& from) : cudnn(from) {}
  ~Parts() {
    if (convolution != nullptr) cudnn.destroy_convolution(convolution);
    if (filter != nullptr) cudnn.destroy_filter(filter);
    if (output != nullptr) cudnn.destroy_tensor(output);
    if (input != nullptr) cudnn.destroy_tensor(input);
    if (handle != nullptr) cudnn.destroy(handle);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const CudnnLibrary& cudnn;
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t input = nullptr;
  cudnnTensorDescriptor_t output = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  cudnnConvolutionFwdAlgo_t algorithm{};
  cuda::DeviceMemory workspace;
};

namespace {

cudnnDataType_t DataType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDNN_DATA_FLOAT;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    default:
      Fail("The comparison with cuDNN has no form for ", DTypeName(dtype), ".");
  }
}

}  // namespace

CudnnConv::CudnnConv(const CudnnLibrary& library, int64_t channels, int64_t taps, DType dtype,
                     const cuda::Stream& stream)
    : parts_(std::make_unique<Parts>(library)) {
  Parts& p = *parts_;
  const auto type = DataType(dtype);
  const auto c = static_cast<int>(channels);
  const auto k = static_cast<int>(taps);
  library.Check(library.create(&p.handle), "cudnnCreate");
  library.Check(library.set_stream(p.handle, stream.get()), "cudnnSetStream");
  library.Check(library.create_tensor(&p.input), "cudnnCreateTensorDescriptor");
  library.Check(library.set_tensor(p.input, CUDNN_TENSOR_NCHW, type, 1, c, 1, k),
                "cudnnSetTensor4dDescriptor");
  library.Check(library.create_tensor(&p.output), "cudnnCreateTensorDescriptor");
  library.Check(library.set_tensor(p.output, CUDNN_TENSOR_NCHW, type, 1, c, 1, 1),
                "cudnnSetTensor4dDescriptor");
  library.Check(library.create_filter(&p.filter), "cudnnCreateFilterDescriptor");
  library.Check(library.set_filter(p.filter, type, CUDNN_TENSOR_NCHW, c, 1, 1, k),
                "cudnnSetFilter4dDescriptor");
  library.Check(library.create_convolution(&p.convolution), "cudnnCreateConvolutionDescriptor");
  library.Check(library.set_convolution(p.convolution, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                        CUDNN_DATA_FLOAT),
                "cudnnSetConvolution2dDescriptor");
  library.Check(library.set_groups(p.convolution, c), "cudnnSetConvolutionGroupCount");
  if (dtype == DType::kF32) {
    // No rounding of f32 to tf32.
    library.Check(library.set_math(p.convolution, CUDNN_FMA_MATH), "cudnnSetConvolutionMathType");
  }
  // What cuDNN's own heuristics put first.
  cudnnConvolutionFwdAlgoPerf_t best{};
  int found = 0;
  library.Check(
      library.choose(p.handle, p.input, p.filter, p.convolution, p.output, 1, &found, &best),
      "cudnnGetConvolutionForwardAlgorithm_v7");
  if (found < 1) Fail("cuDNN has no algorithm for ", channels, " channels and ", taps, " taps.");
  library.Check(best.status, "cudnnGetConvolutionForwardAlgorithm_v7");
  p.algorithm = best.algo;
  library.Check(library.set_math(p.convolution, best.mathType), "cudnnSetConvolutionMathType");
  p.workspace = cuda::DeviceMemory(best.memory);
}

CudnnConv::~CudnnConv() = default;

void CudnnConv::Run(const void* window, const void* filter, void* output) {
  const Parts& p = *parts_;
  const float one = 1;
  const float zero = 0;
  p.cudnn.Check(
      p.cudnn.forward(p.handle, &one, p.input, window, p.filter, filter, p.convolution, p.algorithm,
                      p.workspace.data(), p.workspace.bytes(), &zero, p.output, output),
      "cudnnConvolutionForward");
}

std::shared_ptr<const CudnnLibrary> LoadCudnn() { return std::make_shared<CudnnLibrary>(); }

}  // namespace adder

#else

namespace adder {

class CudnnLibrary {};
struct CudnnConv::Parts {};

CudnnConv::CudnnConv(const CudnnLibrary&, int64_t, int64_t, DType, const cuda::Stream&) {}
CudnnConv::~CudnnConv() = default;
void CudnnConv::Run(const void*, const void*, void*) {}

std::shared_ptr<const CudnnLibrary> LoadCudnn() {
  Fail(
      "This adder was built without cuDNN's headers, so it cannot compare with cuDNN; install "
      "them ",
      "and build it again.");
}

}  // namespace adder

#endif
