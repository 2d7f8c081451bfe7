// Which driver runs the GPU.
#pragma once

#include <string>

namespace adder {

// "13.0": what this program was built with.
std::string CudaToolkitVersion();

// "580.95.05 (CUDA 13.0)": the kernel driver's release where the system tells it, and the newest
// CUDA it supports. Throws Error when CUDA does not answer.
std::string DriverVersion();

}  // namespace adder
