// Experts of one token, with the shared one: every multiprocessor has one block with an equal share
// of the weights, all of which it asks for at once; what is read then counts alone. What the launch
// of gates (expert_gates.cu) and the one of `down` (expert_down.cu) share.
//
// Ownership: a block has several tiles, each of which column_warps warps share: warp w of a tile
// copies and multiplies the spans (see matvec_phases.cuh) w, w + column_warps, ...
//
// Between blocks: a word of `exchange` is kNothing until its one writer fills it; who reads it
// waits for that, and the last to read makes it kNothing again. Blocks only wait for blocks before
// them in the grid, or for themselves, and so for nothing that could not start.
#pragma once

#include <algorithm>

#include "cuda/kernels/expert_step.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec_phases.cuh"
#include "cuda/kernels/small_quotient.h"

namespace adder::cuda {

constexpr int kStepWarps = 16;
constexpr int kStepThreads = 32 * kStepWarps;
// Columns that a block's warps prepare in one round.
constexpr int kRoundCols = kStepWarps * 2 * kChunkCols;
constexpr unsigned kNothing = 0xffffffffu;

// How a block's work is cut.
struct StepCut {
  int tiles;  // at most
  int spans;  // of a tile, at most
  int column_warps;
  int column_warps_reciprocal;
};

// Shared memory: weights [tile][span], operands, their units, products [warp][16], then `more`
// bytes.
template <WeightFormat F, bool kWide>
struct StepLayout {
  int operands, units, products, more, total;

  __host__ __device__ StepLayout(const StepCut& cut, int more_bytes) {
    const int chunks = cut.spans * kSpanChunks<F, kWide>;
    operands = cut.tiles * cut.spans * kSpanBytes<F, kWide>;
    units = operands + chunks * kActivationBytesPerChunk;
    constexpr int kUnitBytes = kChunkGroups<kWide> * int{sizeof(GroupUnit)};
    products = units + (chunks * kUnitBytes + 15) / 16 * 16;
    more = products + kStepWarps * kTileRows * 4;
    total = more + more_bytes;
  }
};

__device__ __forceinline__ unsigned Peek(const unsigned* word) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void Put(unsigned* word, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void Publish(unsigned* word, float value) {
  // Whatever is not a number is the one that arithmetic gives, which is not kNothing.
  Put(word, value == value ? __float_as_uint(value) : 0x7fffffffu);
}
__device__ __forceinline__ float Await(const unsigned* word) {
  unsigned value = Peek(word);
  while (value == kNothing) value = Peek(word);
  return __uint_as_float(value);
}

__device__ __forceinline__ float2 LoadPair(const float* from, int col, int cols, float otherwise) {
  return col < cols ? *reinterpret_cast<const float2*>(from + col)
                    : make_float2(otherwise, otherwise);
}

// What a thread knows of itself and of its block's shared memory.
template <WeightFormat F, bool kWide>
struct StepBlock {
  using Span = WeightSpan<F, kWide>;

  unsigned char* shared;
  const StepLayout<F, kWide> layout;
  const StepCut& cut;
  const int thread, lane, warp;
  const int slot;       // this warp's tile of the block's
  const int column;     // and which of the tile's warps it is
  const int first_col;  // that this thread prepares
  const ScaleFormat format;

  __device__ __forceinline__ StepBlock(unsigned char* shared_memory, const StepCut& of_block,
                                       ScaleFormat scale_format)
      : shared(shared_memory),
        layout(of_block, 0),
        cut(of_block),
        thread(static_cast<int>(threadIdx.x)),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(__reduce_max_sync(0xffffffffu, threadIdx.x / 32))),
        slot(Quotient(warp, of_block.column_warps_reciprocal)),
        column(warp - slot * of_block.column_warps),
        first_col(static_cast<int>(threadIdx.x / 16) * kChunkCols + LaneColumns<F>::First(lane)),
        format(scale_format) {}

  __device__ __forceinline__ unsigned char* Weights(int tile, int span) const {
    return shared + (tile * cut.spans + span) * kSpanBytes<F, kWide>;
  }
  __device__ __forceinline__ GroupUnit* Units(int chunk) const {
    return reinterpret_cast<GroupUnit*>(shared + layout.units) + chunk * kChunkGroups<kWide>;
  }
  __device__ __forceinline__ float* Products(int of_warp) const {
    return reinterpret_cast<float*>(shared + layout.products) + of_warp * kTileRows;
  }
  template <class T>
  __device__ __forceinline__ T* More(int offset) const {
    return reinterpret_cast<T*>(shared + layout.more + offset);
  }

  // A group of copies per span: into place `to` of tile `in_block`.
  __device__ __forceinline__ void Copy(const PackedMatrix& m, int matrix, int tile, int span,
                                       int in_block, int to) const {
    Span::Copy(m, matrix, tile * m.chunks, span * Span::kChunks, m.chunks - 1, lane,
               Weights(in_block, to));
    CommitCopies();
  }

  // Whether the warp, whose lanes work together, has columns from `col` on.
  __device__ __forceinline__ bool HasColumns(int col, int columns) const {
    return col - first_col + warp * 2 * kChunkCols < columns;
  }
  __device__ __forceinline__ void Prepare(int col, float2 x, float2 y, int columns) const {
    const int chunk = col / kChunkCols;
    QuantizeActivations<F, kWide, false>(
        x, y, lane, col < columns, shared + layout.operands + chunk * kActivationBytesPerChunk,
        Units(chunk));
  }

  // Products of spans first, first + step, ... before `end` of a tile, which this warp copied in
  // this order and nothing since; its sums go to its place among the products.
  __device__ __forceinline__ void Multiply(int in_block, int first, int step, int end) const {
    float sums[2] = {0, 0};
    using Operands = typename Span::Operands;
    const unsigned place = Operands::Place(shared + layout.operands, 0, lane);
#pragma unroll 1
    for (int span = first; span < end; span += step) {
      // Groups behind this one.
      const int left = end - 1 - span;
      if (left >= 3 * step) {
        WaitForCopies<3>();
      } else if (left >= 2 * step) {
        WaitForCopies<2>();
      } else if (left >= step) {
        WaitForCopies<1>();
      } else {
        WaitForCopies<0>();
      }
      __syncwarp();
      typename Span::Lane weights;
      weights.Read(Weights(in_block, span), lane);
      Operands operands;
      operands.Read(place + span * Operands::kSpanBytes, lane);
      Span::Multiply(weights, operands, Units(span * Span::kChunks), lane, format, sums);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
    }
    if (lane % 4 < 2) Products(warp)[lane / 4 + lane % 4 * 8] = lane % 4 == 0 ? sums[0] : sums[1];
  }

  // Row lane % 16 of the sum of what `count` warps have, from warp `first` on.
  __device__ __forceinline__ float AddUp(int first, int count) const {
    float y = 0;
    const float* from = Products(first) + lane % kTileRows;
#pragma unroll
    for (int i = 0; i < kStepWarps / 2; ++i) {
      const int w = 2 * i + lane / kTileRows;
      y += w < count ? from[w * kTileRows] : 0.0f;
    }
    return y + __shfl_xor_sync(0xffffffffu, y, 16);
  }
};

template <WeightFormat F, bool kWide>
constexpr int SpansOf(const PackedMatrix& m) {
  return (m.chunks + kSpanChunks<F, kWide> - 1) / kSpanChunks<F, kWide>;
}

inline int StepRounded(int value, int by) { return (value + by - 1) / by; }

// Sets how many warps share a tile; false: there are too many tiles, or more shared memory would be
// needed than there is.
template <WeightFormat F, bool kWide>
bool CutFits(StepCut& cut, int more_bytes) {
  if (cut.tiles > kStepWarps) return false;
  cut.column_warps = std::min(cut.spans, kStepWarps / cut.tiles);
  cut.column_warps_reciprocal = Reciprocal(cut.column_warps);
  return StepLayout<F, kWide>(cut, more_bytes).total <= DeviceSharedBytes();
}

template <class Params>
void StartStep(void (*kernel)(Params), const Params& params, dim3 blocks, int shared_bytes,
               cudaStream_t stream) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "setting the shared memory of the kernel of experts");
  Launch("the kernel of experts", kernel, blocks, dim3(kStepThreads),
         static_cast<size_t>(shared_bytes), stream, params);
}

// What both launches need.
inline bool CanStep(const ExpertParams& p, const LinearShape& shape) {
  return !shape.batch_invariant && p.exchange != nullptr && p.linear.tokens == 1 &&
         p.linear.input_rows == nullptr && p.linear.bias == nullptr &&
         p.linear.rule.factors == nullptr && IsQuantized(p.linear.matrix.format) &&
         p.linear.matrix.cols % 4 == 0 && p.shared.cols % 4 == 0 && p.top_k <= 32;
}

template <class Step>
bool WithQuantizedFormat(const PackedMatrix& m, Step step) {
  const bool wide = m.scale_format == ScaleFormat::kWide;
  if (m.format == WeightFormat::kQ4) {
    return wide ? step.template operator()<WeightFormat::kQ4, true>()
                : step.template operator()<WeightFormat::kQ4, false>();
  }
  return wide ? step.template operator()<WeightFormat::kQ8, true>()
              : step.template operator()<WeightFormat::kQ8, false>();
}

}  // namespace adder::cuda
