// What a launch of the matrix kernel for one token is told, and the choices that it is compiled
// for.
#pragma once

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/packed_matrix.h"
#include "cuda/kernels/route.h"

namespace adder::cuda {

constexpr int kMostWarps = 16;
constexpr int kStreamWarps = 8;
constexpr int kStreamBlocksPerMultiprocessor = 3;
// Spans that a warp has in flight when it cannot hold all of them.
constexpr int kRingSpans = 3;
// Shared memory that a block may fill with weights; two such blocks fit on a multiprocessor.
constexpr int kMostWeightBytes = 96 * 1024;
// Tiles of a router's matrix that one block multiplies alone.
constexpr int kMostRouterTiles = 8;

// How a warp goes over its spans.
enum class Walk {
  kKept,    // it keeps its one span in registers, whose loads it asks for at the beginning
  kOnce,    // it copies all of them at the beginning
  kLoop,    // all of one tile, through a ring
  kStream,  // all of many tiles, through a ring
};

// Of a row and its norm's weights as they are, in shared memory.
template <bool kNormalizes>
constexpr int StagedBytes(int columns) {
  return columns * (kNormalizes ? 2 : 1) * int{sizeof(float)};
}

struct MatvecParams {
  LinearParams linear;
  const float* routing;
  int routing_stride;
  int top_k;
  // See ExpertParams.
  PackedMatrix shared;
  const float* shared_input;
  int shared_input_stride;
  float* shared_output;
  int shared_output_stride;
  PackedMatrix router;
  const float* router_bias;
  float* chosen;
  int router_column_warps;
  int router_column_warps_reciprocal;
  int blocks_per_expert;
  int blocks_per_expert_reciprocal;
  int row_warps;
  int column_warps;
  // Reciprocals: see small_quotient.h.
  int column_warps_reciprocal;
  int spans;  // of one matrix
  int spans_reciprocal;
  int spans_of_block;  // of all its experts' matrices
  int held_spans;      // of each warp, at a time
  int router_held_spans;
  int weight_spans;  // that shared memory has room for
  // Warps that prepare activations: those that multiply, and more for long rows.
  int preparing_warps;
  float inverse_cols;
  bool triggers_early;
  // Last, so that what all launches read lies together.
  const float* shared_gate;
  int shared_gate_stride;
  // Of the second matrix of a pair.
  const float* second_bias;
  const float* second_factors;
  float second_scale;
  RouteParams route;      // of kRouteByRule
  CausalConvParams conv;  // of kConvolved
  int group_chunks;       // of kGrouped
};

// See Experts::kNormed.
template <Experts kExperts, LinearEpilogue kEpilogue>
constexpr bool kHasNoNorm = kExperts == Experts::kNone && (kEpilogue == LinearEpilogue::kStore ||
                                                           kEpilogue == LinearEpilogue::kAdd ||
                                                           kEpilogue == LinearEpilogue::kSiluMul);
template <Experts kExperts, LinearEpilogue kEpilogue>
constexpr bool kMayNormalize = kExperts != Experts::kDown&& kExperts != Experts::kConvolved &&
                               !kHasNoNorm<kExperts, kEpilogue>;
// Whether those who prepare activations add up their squares.
template <Experts kExperts, LinearEpilogue kEpilogue, Walk kWalk>
constexpr bool kChunkSquares = kExperts == Experts::kGrouped ||
                               (kWalk != Walk::kStream && !kHasNoNorm<kExperts, kEpilogue> &&
                                (kExperts == Experts::kNone || kExperts == Experts::kNormed ||
                                 kExperts == Experts::kPair));

// The same value, which the compiler then keeps and does not find out again.
__device__ __forceinline__ unsigned Kept(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ unsigned SharedPlace(const void* of_shared) {
  return Kept(static_cast<unsigned>(__cvta_generic_to_shared(of_shared)));
}
template <class T>
__device__ __forceinline__ T* Kept(T* of_shared) {
  return static_cast<T*>(__cvta_shared_to_generic(SharedPlace(of_shared)));
}

}  // namespace adder::cuda
