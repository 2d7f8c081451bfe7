#include "cuda/driver_version.h"

#include <fstream>
#include <regex>

#include "core/error.h"
#include "cuda/cuda_call.h"

namespace adder {
namespace {

std::string Dotted(int version) { return Concat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

std::string CudaToolkitVersion() { return Dotted(CUDART_VERSION); }

std::string DriverVersion() {
  int version = 0;
  cuda::Check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  const std::string cuda = Concat("CUDA ", Dotted(version));
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ..."
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::smatch match;
  if (!std::regex_search(line, match, std::regex(R"(\s(\d+\.\d+(\.\d+)?)\s)"))) return cuda;
  return Concat(match[1].str(), " (", cuda, ")");
}

}  // namespace adder
