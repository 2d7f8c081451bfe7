// Names what the host launches, for outside profilers (Nsight Systems, Nsight Compute). Without one
// a range costs a comparison.
#pragma once

#include <string_view>

namespace adder::cuda {

// From its construction to its destruction, on this thread. Ranges around launches that a graph
// captures name the capture.
class NvtxRange {
 public:
  // An op's name: "layers.3.mamba2.in_proj" shows as "layer 3 mamba2 in_proj".
  explicit NvtxRange(std::string_view op_name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace adder::cuda
