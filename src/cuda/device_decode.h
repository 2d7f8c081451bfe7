// Decoding on the device: steps as graphs, one per power of two of sequences, which choose tokens
// themselves and read their sequences, tokens and ways to sample from device memory.
//
// A step of many sequences is cut into two lanes with half of them each, which run side by side:
// recurrent states of one half are read and written, which takes memory bandwidth, while the other
// half's matrices are multiplied, which takes little of it and leaves most of the device waiting.
// Lanes of many sequences meet before the head, whose matrix is then read once: the second lane's
// hidden states lie behind the first one's.
#pragma once

#include <cstdint>
#include <functional>
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
  // Makes what a lane beside the first one runs on: ops on a stream, for so many rows.
  using MakeOps = std::function<std::unique_ptr<NarrowOps>(const Stream& stream, int rows)>;

  // The arguments must outlive it; `executor` is whose sequences they are.
  DeviceDecode(const Executor& executor, DeviceState& state, NarrowOps& ops,
               TiledWeights& tiled_weights, const Stream& stream, MakeOps make_ops)
      : executor_(executor),
        state_(state),
        ops_(ops),
        tiled_weights_(tiled_weights),
        stream_(stream),
        make_ops_(std::move(make_ops)) {}

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

  // Some of a step's rows.
  struct Lane {
    NarrowOps& ops;
    const Stream& stream;
    int first;
    int rows;
  };

  bool CanDecode(std::span<const DecodeRow> rows) const;
  void Prepare(int bucket);
  std::vector<Lane> LanesOf(int bucket);
  int FirstJoinedPart(int bucket) const;
  // The row of its lane that row `index` of a step is.
  static int RowInLane(int bucket, int index);
  int StepParts() const;
  const LinearOp& Head() const;
  void LaunchStepParts(int bucket, int first, int last,
                       const std::function<void(int part)>& launched);
  void LaunchPart(const Lane& lane, int part);
  void LaunchChoice(const Lane& lane);
  const StepGraph& GraphOf(int bucket);

  const Executor& executor_;
  DeviceState& state_;
  NarrowOps& ops_;
  TiledWeights& tiled_weights_;
  const Stream& stream_;
  const MakeOps make_ops_;
  Stream second_stream_;
  std::unique_ptr<NarrowOps> second_ops_;
  Event fork_;
  Event join_;

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
