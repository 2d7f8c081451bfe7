// Runs the comparison of measure/conv_bench.h on the GPU.
#pragma once

#include <functional>
#include <vector>

#include "measure/conv_bench.h"

namespace adder {

// A row per shape and dtype, in order. First one convolution of every kind is traced, for its
// kernels; then, without a tracer, a graph of many is timed with events, over and over. Inputs,
// weights and windows are random and all different. Throws Error without a GPU, CUPTI or cuDNN.
std::vector<ConvBenchRow> RunConvBench(const std::vector<ConvShape>& shapes,
                                       const std::vector<DType>& dtypes,
                                       const std::function<void(double fraction)>& progress);

}  // namespace adder
