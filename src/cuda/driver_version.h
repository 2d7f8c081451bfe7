// Which driver runs the GPU.
#pragma once

#include <string>

namespace adder {

// "580.95.05 (CUDA 13.0)": the kernel driver's release where the system tells it, and the newest
// CUDA it supports.
std::string DriverVersion();

}  // namespace adder
