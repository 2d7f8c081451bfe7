// What the kernels of mamba2_chunks.cu and mamba2_chunk_outputs.cu share.
//
// A block works on some units of one group: heads, or parts of kP channels of heads wider than kP.
#pragma once

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {

inline constexpr int kChunkThreads = 128;

// Phase (4).
void LaunchMamba2Outputs(const Mamba2ChunkParams& params, int multiprocessors, cudaStream_t stream);

__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// The units a block works on: `share` consecutive ones of a group.
struct Units {
  int group;
  int first;
  int end;
};
__device__ __forceinline__ Units FindUnits(const Mamba2Params& p, int parts, int share) {
  const int per_group = p.heads / p.groups * parts;
  const int blocks = (per_group + share - 1) / share;
  const int group = static_cast<int>(blockIdx.x) / blocks;
  const int first = static_cast<int>(blockIdx.x) % blocks * share;
  return {group, group * per_group + first, group * per_group + min(first + share, per_group)};
}

// Rows of B (0) or C (1) of a group to a tile [.., kN] in the background.
template <int kN>
__device__ __forceinline__ void CopyBc(const Mamba2ChunkParams& c, unsigned tile, int row, int rows,
                                       int valid_rows, int group, int b_or_c) {
  const Mamba2Params& p = c.mixer;
  const __nv_bfloat16* from =
      (b_or_c == 0 ? c.b : c.c) + static_cast<long long>(row) * c.b_c_stride + group * c.b_c_step;
  constexpr int kUnits = kN / 8;
  for (int i = threadIdx.x; i < rows * kUnits; i += kChunkThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    const bool valid = r < valid_rows && unit * 8 < p.d_state;
    CopyAsync(tile + UnitOffset<kN>(r, unit),
              valid ? from + static_cast<long long>(r) * c.b_c_stride + unit * 8 : from, valid);
  }
}

// Calls with the compile-time sizes that hold the mixer's.
template <class Call>
void WithSizes(const Mamba2Params& p, Call call) {
  const auto with_width = [&]<int kN>() {
    return p.head_dim <= 32 ? call.template operator()<kN, 32>()
                            : call.template operator()<kN, 64>();
  };
  if (p.d_state <= 64) return with_width.template operator()<64>();
  if (p.d_state <= 128) return with_width.template operator()<128>();
  return with_width.template operator()<kMaxStateSize>();
}

// How units are shared out: each block takes `share` of a group's, as many as leave eight blocks
// per multiprocessor, so that the work on B and C is shared and the device full.
struct UnitGrid {
  int parts;  // units per head
  int share;
  unsigned blocks;
};
inline UnitGrid ShareUnits(const Mamba2Params& p, int width, int blocks_per_unit,
                           int multiprocessors) {
  UnitGrid grid;
  grid.parts = (p.head_dim + width - 1) / width;
  const int per_group = p.heads / p.groups * grid.parts;
  grid.share = std::clamp(blocks_per_unit * p.groups * per_group / (8 * multiprocessors), 1,
                          std::min(per_group, 8));
  grid.blocks = static_cast<unsigned>(p.groups * ((per_group + grid.share - 1) / grid.share));
  return grid;
}

}  // namespace adder::cuda
