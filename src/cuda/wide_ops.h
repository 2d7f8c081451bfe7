// The ops of a program over slices of many tokens: dense bf16 products on unpacked weights, the
// chunked scans, attention on tensor cores. wide_support.h says which programs they are for.
//
// Has activation buffers of its own, since decode graphs hold pointers to those of the executor.
// Some activations are bf16 here; they lie at the beginning of their f32 buffer.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/blas.h"
#include "cuda/device_memory.h"
#include "cuda/device_state.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/expert_groups.h"
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/row_update.h"
#include "cuda/slice.h"
#include "program/program.h"

namespace adder::cuda {

struct WideLimits {
  int rows = 0;             // tokens of a slice, fewer where there is too little memory
  size_t buffer_bytes = 0;  // for activations
  size_t kept_bytes = 0;    // for unpacked weights that are kept; others are unpacked each time
};

// Between f32 rows of scratch.
constexpr int64_t RowStride(int64_t width) { return (width + 3) / 4 * 4; }

class WideOps {
 public:
  // Takes the memory. The arguments must outlive it.
  WideOps(const Program& program, const DeviceWeights& weights, const DeviceState& state,
          const Stream& stream, int multiprocessors, const WideLimits& limits);

  // Tokens a slice may have; 0: there is too little memory for wide slices.
  int rows() const { return rows_; }

  // Puts one op on the stream. Not for the head: its rows are few.
  void Launch(const Op& op, const Slice& slice);

  // f32 rows, as distant as the executor's.
  float* Values(BufferId id) const { return buffers_[static_cast<size_t>(id)]; }
  // The same for a buffer that may hold bf16; valid until the next call.
  float* WidenedValues(BufferId id, int rows);

 private:
  // Rows of bf16, Bf16Stride(width) apart.
  struct Bf16Rows {
    const __nv_bfloat16* data = nullptr;
    int width = 0;
  };

  void KeepUnpacked(size_t most_bytes);
  // Sets the pointers to parts of memory that begins at `base`; returns its size.
  size_t PlaceBuffers(std::byte* base);
  const __nv_bfloat16* Unpacked(const PackedMatrix& matrix, int count);
  int Width(BufferId id) const;
  int Stride(BufferId id) const;
  // Rows of a buffer whose contents are f32 or bf16 from now on.
  float* F32Values(BufferId id);
  // bf16: of so many equal parts, each of which begins on a boundary of 16 bytes.
  __nv_bfloat16* Bf16Values(BufferId id, int parts = 1);
  bool IsBf16(BufferId id) const { return bf16_parts_[static_cast<size_t>(id)] > 0; }
  Bf16Rows Activations(BufferId id, const std::optional<RmsNorm>& norm, int rows);
  ExpertGroups Groups(BufferId routing, int64_t top_k, size_t experts, int rows) const;
  // The same with its lists filled.
  ExpertGroups Grouped(BufferId routing, int64_t top_k, size_t experts, int rows);
  // The same for a norm that LaunchBf16Norm does not have.
  Bf16Rows OddlyNormed(BufferId id, const RmsNorm& norm, int rows);
  // output [rows, Bf16Stride(width)], in activations_: columns of a buffer, from any one on.
  void RoundColumns(BufferId id, int begin, int width, int rows, __nv_bfloat16* output);
  // output: rows as those of the buffer, of which `input` has the values.
  void NormRows(const RmsNorm& norm, BufferId id, int rows, const float* input, float* output);
  // Columns of the output from `column` on, as many as the input has.
  void UpdateRows(BufferId input, int rows, BufferId output, int column, RowUpdateParams rules);
  void Multiply(const PackedMatrix& matrix, const Bf16Rows& input, int rows, DenseProduct product);

  void Launch(const EmbedOp& op, const Slice& slice);
  void Launch(const LinearOp& op, const Slice& slice);
  void LaunchRuled(const LinearOp& op, const Bf16Rows& input, int rows);
  void LaunchFinished(const LinearOp& op, const Bf16Rows& input, int rows);
  // wide_mixers.cc has these.
  Mamba2ChunkParams ChunkParams(const Slice& slice) const;
  // step_rows_ [rows, RowStride(of the matrix)] = the linear map of activations_ without its bias.
  void MakeSteps(const Linear& linear, int rows);
  void Launch(const Mamba2Op& op, const Slice& slice);
  void Launch(const Mamba2SelectedOp& op, const Slice& slice);
  void Launch(const Mamba1ScanOp& op, const Slice& slice);
  void Launch(const RgLruOp& op, const Slice& slice);
  void Launch(const LightningOp& op, const Slice& slice);
  void Launch(const TokenShiftOp& op, const Slice& slice);
  void Launch(const Rwkv7Op& op, const Slice& slice);
  // In place, rows of an op's output.
  void NormOutput(const RmsNorm& norm, BufferId output, int rows, const float* gate,
                  int gate_stride);
  void Launch(const JoinOp& op, const Slice& slice);
  void Launch(const NormAddOp& op, const Slice& slice);
  void Launch(const UpdateOp& op, const Slice& slice);
  void Launch(const CausalConvOp& op, const Slice& slice);
  void Launch(const GatedDeltaOp& op, const Slice& slice);
  void Launch(const HeadMixOp& op, const Slice& slice);
  void Launch(const HeadsLinearOp& op, const Slice& slice);
  void Launch(const LatentAttentionOp& op, const Slice& slice);
  void Launch(const AttentionOp& op, const Slice& slice);
  void Launch(const RouterOp& op, const Slice& slice);
  void Launch(const ExpertGateUpOp& op, const Slice& slice);
  void Launch(const ExpertDownOp& op, const Slice& slice);

  const Program& program_;
  const DeviceWeights& weights_;
  const DeviceState& state_;
  const Stream& stream_;
  const int multiprocessors_;
  int rows_;
  DenseProducts products_;

  // Matrices as bf16 rows, by their packed data.
  DeviceMemory kept_memory_;
  std::map<const void*, const __nv_bfloat16*> kept_;

  DeviceMemory memory_;
  std::vector<float*> buffers_;
  std::vector<int> bf16_parts_;           // of a buffer's rows; 0: they are f32
  __nv_bfloat16* activations_ = nullptr;  // operand of the next product
  __nv_bfloat16* unpacked_ = nullptr;     // its weights, where they are not kept
  __nv_bfloat16* gates_ = nullptr;        // gate | up before their product
  __nv_bfloat16* convolved_ = nullptr;
  __nv_bfloat16* before_ = nullptr;
  float* added_ = nullptr;
  float2* steps_ = nullptr;
  // dt of selections, recurrences of RG-LRU, products before a pass over them
  float* step_rows_ = nullptr;
  float* sums_ = nullptr;
  __nv_bfloat16* delta_records_ = nullptr;
  float* delta_keeps_ = nullptr;
  float* widened_ = nullptr;              // a buffer's rows, or their norm
  float* scores_ = nullptr;               // of a router
  __nv_bfloat16* expert_rows_ = nullptr;  // [tokens * top_k, width]: what experts add
  int* expert_chosen_ = nullptr;
  int* expert_order_ = nullptr;
  ExpertTile* expert_tiles_ = nullptr;
  int* expert_tile_count_ = nullptr;

  // What activations_ holds: a buffer, normalised; kNoId: something else.
  BufferId normalized_ = kNoId;
  VectorId norm_weight_ = kNoId;
  // The routing that the experts' lists are of.
  BufferId grouped_ = kNoId;
};

}  // namespace adder::cuda
