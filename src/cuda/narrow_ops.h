// The ops of a program over slices of few tokens, and over steps of decoding.
//
// Owns the activation buffers of those slices; WideOps, for many tokens, has its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/device_state.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/route.h"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/rwkv7_step.h"
#include "cuda/slice.h"
#include "cuda/tiled_weights.h"
#include "program/program.h"

namespace adder::cuda {

// Tokens of a slice of a batch at most.
inline constexpr int kNarrowSliceRows = 512;
// Rows of logits at most, and sequences of a decoding step.
inline constexpr int kMostDecodeRows = 256;

class NarrowOps {
 public:
  // Takes the memory, for slices of at most `rows` tokens. The arguments must outlive it. `f32`:
  // see CudaOptions.
  NarrowOps(const Program& program, const DeviceWeights& weights, const DeviceState& state,
            const TiledWeights& tiled_weights, const Stream& stream, int multiprocessors, bool f32,
            int rows);

  // Puts one op on the stream, for all rows of the slice.
  void Launch(const Op& op, const Slice& slice);
  // Of a decoding step: the same for the op with this number, which may be launched together with
  // its neighbours; one whose work another's launch does puts nothing on the stream.
  void LaunchOfStep(size_t index, const Slice& slice);
  // Writes what steps deferred of the sequences' Mamba-2 states; see kernels/mamba2_deferred.h.
  void SettleStates(std::span<const SequenceId> sequences) const;
  // The head for `rows` rows, at most kMostDecodeRows: row i is row input_rows[i] (on the device)
  // of `input`, rows as distant as this class's.
  void LaunchHead(const LinearOp& head, int rows, const float* input, const int* input_rows);

  // From now on the buffer's rows are those of `with` from first_row on, of the same program.
  void PlaceBuffer(BufferId id, const NarrowOps& with, int first_row);

  float* Values(BufferId id) const { return buffers_[static_cast<size_t>(id)]; }
  int Width(BufferId id) const;
  // In floats.
  int Stride(BufferId id) const;

 private:
  void AllocateBuffers();
  void AllocateRounded();
  int RoundedStride(BufferId id) const;
  uint16_t* RoundedOutput(BufferId id);
  const uint16_t* RoundedInput(BufferId id, const float* values, int rows, const int* input_rows);

  static bool IsPlain(const LinearOp& op);
  bool SharesGates(const ExpertGateUpOp& gate_up, const LinearOp& shared) const;
  const LinearOp* SharedExpertOf(size_t index) const;
  const LinearOp* SharedOf(size_t index) const;
  bool JoinsGates(size_t index) const;
  bool JoinsMixer(size_t index) const;
  void ShareLaunch(ExpertParams& params) const;
  void SetExchange(ExpertParams& params) const;
  static float FactorOf(const LinearOp& op);
  void FindJoined();
  void FindGatedShared();
  // In narrow_several.cc.
  struct Several {
    std::vector<size_t> ops;
    bool has_mixer = false;  // the last one, whose launch makes what it reads of the others
  };
  void FindSeveral();
  void AddSeveral(const Several& group);
  bool AddMixer(size_t begin, size_t mixer);
  Rwkv7StepParams StepOf(const Several& group) const;
  void LaunchMixer(const Several& group);
  bool LaunchSeveral(size_t index);
  void LaunchPair(size_t index);
  void LaunchAdditions(size_t index);
  void LaunchConvolved(size_t index);
  void LaunchBeside(size_t index);
  void MarkWritten(BufferId id) { rounded_fresh_[static_cast<size_t>(id)] = false; }

  LinearShape Shape() const;
  RmsNormParams NormParams(const RmsNorm& norm, BufferId input) const;
  LinearParams Params(BufferId input, const std::optional<RmsNorm>& norm, int tokens) const;
  void LaunchLinearOp(const LinearOp& op, int tokens, const float* input, const int* input_rows);
  void LaunchSteps(const Linear& linear, const std::optional<RmsNorm>& norm, const float* input,
                   int input_stride);
  void NormInput(const LinearOp& op, const float* input, int tokens, const int* input_rows);
  RowNorm MakeRowNorm(const RmsNorm& norm) const;
  void PlaceUpdate(BufferId input, BufferId output, RowUpdateParams& params);
  RowUpdateParams UpdateParams(BufferId input, BufferId output);
  int64_t MixedFloats(const Op& op) const;
  CausalConvParams ConvOf(const CausalConvOp& op) const;
  RouteParams RouteOf(const RouterOp& op) const;
  ExpertParams GatesOf(const ExpertGateUpOp& op, const RouterOp* router) const;
  void SetEpilogue(const LinearOp& op, LinearParams& params) const;
  void Launch(const EmbedOp& op);
  void Launch(const LinearOp& op);
  void Launch(const NormAddOp& op);
  void Launch(const Mamba2Op& op);
  void Launch(const Mamba2SelectedOp& op);
  void Launch(const Mamba1ScanOp& op);
  void Launch(const CausalConvOp& op);
  void Launch(const GatedDeltaOp& op);
  void Launch(const AttentionOp& op);
  // In expert_ops.cc.
  void Launch(const RouterOp& op);
  void Launch(const ExpertGateUpOp& op);
  void Launch(const ExpertDownOp& op);
  // In mixer_ops.cc.
  void Launch(const JoinOp& op);
  void Launch(const UpdateOp& op);
  void Launch(const HeadsLinearOp& op);
  void Launch(const HeadMixOp& op);
  void Launch(const LatentAttentionOp& op);
  void Launch(const LightningOp& op);
  void Launch(const TokenShiftOp& op);
  void Launch(const RgLruOp& op);
  void Launch(const Rwkv7Op& op);

  const Program& program_;
  const DeviceWeights& weights_;
  const DeviceState& state_;
  const TiledWeights& tiled_weights_;
  const Stream& stream_;
  const int multiprocessors_;
  const bool f32_;
  const int rows_;

  DeviceMemory activations_;
  std::vector<float*> buffers_;
  // Buffers that matrices read also exist rounded to bf16, in rows of 16-byte multiples: matrix
  // kernels of many tokens read those. Kernels that can write both; after others a kernel rounds.
  DeviceMemory rounded_memory_;
  std::vector<uint16_t*> rounded_;   // per buffer; null: never read
  std::vector<bool> rounded_fresh_;  // whether it holds the buffer's values
  float* convolved_ = nullptr;
  float* partial_ = nullptr;
  float* scores_ = nullptr;
  float* normalized_ = nullptr;
  float* products_ = nullptr;     // before a pass of their own
  float* steps_ = nullptr;        // dt of a mixer that computes it from fewer numbers
  float* mixed_ = nullptr;        // what one kernel of a mixer leaves for the next
  uint16_t* low_rank_ = nullptr;  // those, rounded
  DeviceMemory counters_;
  DeviceMemory exchange_;  // see ExpertParams

  // What an op of a single token's step is launched with.
  struct Joined {
    // The op behind that its launch does too, or that of attention which is launched before a scan
    // and runs beside it; 0: none.
    size_t second = 0;
    bool is_second = false;
    size_t routing = 0;  // of additions: place in additions_
    // Of an op of experts: that of the gated shared expert which its launch does too, up to
    // kMostShared rows; 0: none.
    size_t shared = 0;
    bool is_shared = false;
    BufferId shared_gate = kNoId;  // of `down`, which applies it
    size_t several = 0;            // the group, counted from 1, that it is launched with; 0: none
  };
  std::vector<Joined> joined_;    // per op
  DeviceMemory additions_;        // weight and number of only experts
  std::vector<Several> several_;  // ops that steps of few rows launch together
  DeviceMemory arrivals_;         // of each of those: see SeveralLinearParams

  Slice slice_;                                // what is being launched
  const LinearOp* shared_expert_ = nullptr;    // that the op being launched takes in
  BufferId shared_gate_ = kNoId;               // of shared_expert_, applied to its input
  const RouterOp* joined_router_ = nullptr;    // likewise
  const CausalConvOp* joined_conv_ = nullptr;  // likewise
  mutable DeviceMemory settled_runs_;          // of SettleStates
  bool beside_previous_ = false;               // see Mamba2Params
};

}  // namespace adder::cuda
