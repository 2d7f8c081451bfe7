// The lowering of a plan as its own files see it: lowering.cc has the blocks and what lies around
// them, lowering_mixers.cc the mixers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "program/program.h"

namespace adder {

// Makes the program of one plan.
class Lowering {
 public:
  Lowering(std::shared_ptr<const Plan> plan, std::shared_ptr<const BoundWeights> weights) {
    program_.layout = MakeStateLayout(*plan);
    program_.plan = std::move(plan);
    program_.weights = std::move(weights);
  }

  Program Run();

 private:
  void LowerBlock(int index);
  void LowerLayerInputs(const LayerInputs& inputs);
  // Sets what the block's mixers read.
  void LowerInput(const Block& block);

  void Lower(const Attention& mixer);
  void Lower(const LatentAttention& mixer);
  void Lower(const LightningAttention& mixer);
  void Lower(const Mamba2& mixer);
  void Lower(const ShortConv& mixer);
  void Lower(const Mamba1& mixer);
  void Lower(const GatedDelta& mixer);
  void Lower(const RgLru& mixer);
  void Lower(const Rwkv7& mixer);
  void Lower(const DenseMlp& mixer);
  void Lower(const MoeMlp& mixer);

  // What the adapter of a linear map with `rows` rows adds to it.
  BufferId LowerAdapter(const Adapter& adapter, const std::string& prefix, const std::string& kind,
                        int64_t rows);
  void LowerSelected(const Mamba2& mixer);
  // The two ops PREFIX NAME_down and NAME_up; the buffer of the second.
  BufferId LowerLowRank(const std::string& prefix, const std::string& name,
                        const LowRank& low_rank);
  // The same for a `down` that reads something else than x.
  BufferId LowerLowRank(const std::string& prefix, const std::string& role, const std::string& name,
                        const LowRank& low_rank, LinearOp down);
  // PREFIX shift: mixtures of x with the previous one, one per row of `mix`.
  BufferId LowerShift(const std::string& prefix, const char* role, VectorId mix, int64_t parts);
  // What a router with an MLP of its own reads.
  BufferId LowerRouterMlp(const RouterMlp& mlp, const std::string& prefix,
                          const std::optional<RmsNorm>& norm);
  // The convolution of a mixer over the first `channels` columns of `input`.
  template <class M>
  CausalConvOp Conv(const M& mixer, int64_t channels, BufferId input, BufferId output) const {
    CausalConvOp conv;
    conv.channels = channels;
    conv.d_conv = mixer.d_conv;
    conv.weight = mixer.conv_weight;
    conv.bias = mixer.conv_bias;
    conv.input = input;
    conv.output = output;
    conv.conv_state = program_.layout.FindRecurrent(block_index_, mixer_index_, "conv");
    return conv;
  }

  int64_t RowsOf(const Linear& linear) const;
  LinearOp Projection(const Linear& linear, Epilogue epilogue, BufferId output) const;
  // The last projection of a mixer, `prefix` + `name`: added to x, or when the block has a
  // post_norm kept for it, or the new side stream.
  void AddToResidual(const std::string& prefix, const char* name, BufferId input,
                     const std::optional<RmsNorm>& norm, const Linear& linear);
  // Where a mixer's result goes when the block's sum is kept apart from x: into the sum, or, when
  // it has a norm of its own, into a buffer beside it.
  struct Target {
    BufferId output;
    bool add;
  };
  Target TakeTarget();
  void AddBranchNorm(const std::string& prefix, const Target& target);
  // "layers.3.mlp.", or "layers.3.mlp_2." for the layer's second mixer of that kind.
  std::string Prefix(const std::string& kind);
  // A buffer for one role, shared by all blocks but not by two mixers of one block.
  BufferId TakeBuffer(const std::string& role, int64_t width);
  BufferId AddBuffer(std::string name, int64_t width);
  void AddOp(std::string name, int64_t layer, OpBody body);

  Program program_;
  const Block* block_ = nullptr;
  int block_index_ = 0;
  int mixer_index_ = 0;
  BufferId first_value_ = kNoId;  // of the first Rwkv7 mixer
  std::vector<Op> additions_;     // the ops of the block that add to the residual
  BufferId input_ = kNoId;        // what the block's mixers read
  std::optional<RmsNorm> norm_;   // through which the mixer being lowered reads it
  BranchNorms branch_;            // of that mixer
  bool apart_ = false;            // whether the mixers' sum is kept apart from x
  BufferId sum_ = kNoId;
  std::string residual_prefix_;
  BufferId layer_inputs_ = kNoId;
  BufferId router_state_ = kNoId;
  BufferId embedding_ = kNoId;
  BufferId joined_ = kNoId;
  BufferId side_ = kNoId;
  BufferId with_side_ = kNoId;
  std::unordered_set<BufferId> in_use_;
  std::unordered_map<std::string, std::vector<BufferId>> buffers_by_role_;
  std::unordered_map<std::string, int> mixers_by_prefix_;
};

}  // namespace adder
