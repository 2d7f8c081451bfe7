// Decoding on the device: steps as graphs, one per power of two of sequences, which choose tokens
// themselves and read their sequences, tokens and ways to sample from device memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/device_state.h"
#include "cuda/narrow_ops.h"
#include "program/executor.h"

namespace adder::cuda {

class DeviceDecode {
 public:
  // The arguments must outlive it; `executor` is whose sequences they are.
  DeviceDecode(const Executor& executor, DeviceState& state, NarrowOps& ops, const Stream& stream)
      : executor_(executor), state_(state), ops_(ops), stream_(stream) {}

  // As Executor's; null and nothing where the device cannot do what the rows ask, or while another
  // stream is alive. Throws Error for a bad batch.
  std::unique_ptr<DecodeStream> Start(std::span<const DecodeRow> rows);
  std::vector<StepPart> Profile(std::span<const DecodeRow> rows);

 private:
  class Steps;
  struct StepGraph {
    Graph graph;
    std::vector<int64_t> launches;  // of each part
  };

  bool CanDecode(std::span<const DecodeRow> rows) const;
  void Prepare();
  int StepParts() const;
  void LaunchStepParts(int bucket, int first, int last);
  void LaunchChoice(int bucket);
  const StepGraph& GraphOf(int bucket);

  const Executor& executor_;
  DeviceState& state_;
  NarrowOps& ops_;
  const Stream& stream_;

  DeviceMemory runs_;
  DeviceMemory tokens_;
  DeviceMemory row_runs_;
  DeviceMemory sampling_;
  DeviceMemory history_;
  PinnedMemory chosen_;  // [kOutputSteps][kMostDecodeRows]
  std::map<int, StepGraph> graphs_;
  bool decoding_ = false;  // one stream at a time
};

}  // namespace adder::cuda
