// What a team of the attention step does with its tiles of 16 positions: loading, scores, an online
// softmax, weighted values.
//
// With lane = 4 g + t, mma.m16n8k16 is used as follows. Matrix dimensions may come in any order as
// long as both operands agree, so every operand is what one lane loads as 16 contiguous bytes.
//   scores: rows g are the query heads' upper halves as bf16, rows g + 8 the lower halves (their
//     sum is nearly f32); columns g are positions; dimensions 32 j + 8 t .. + 7 of each belong to
//     a lane. Rows behind the last query head are something else, of which nothing is used.
//   values: rows as before, of the softmax's weights; depth positions 2 t, 2 t + 1, 2 t + 8,
//     2 t + 9 of the tile; column g of the n-th of eight products is dimension 64 c + 8 g + n.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/attention_step_math.cuh"
#include "cuda/kernels/attention_step_results.cuh"

namespace adder::cuda {

constexpr int kTile = 16;  // positions

// Keys and values of a KV head in a sequence's pages. A tile lies in one page.
struct PagedHead {
  char** pages;
  long long offset;     // bytes of a page before the head's keys
  long long to_values;  // elements from a key to the value of the same position
  int page_shift;
  int page_mask;
  int head_dim;

  __device__ __forceinline__ __nv_bfloat16* KeyAt(int position) const {
    return reinterpret_cast<__nv_bfloat16*>(pages[position >> page_shift] + offset) +
           static_cast<long long>(position & page_mask) * head_dim;
  }
};

// Between the two warps of a team.
__device__ __forceinline__ void TeamBarrier(int team) {
  asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory");
}

// A warp's part of a team: kChunks units of 64 dimensions. kTeam: warps of a team, of which there
// are kTeams.
template <int kChunks, int kTeam, int kTeams>
class TilesOfWarp {
  static constexpr int kSlices = 2 * kChunks;  // of 32 dimensions
  // Wide heads, of which few warps are resident.
  static constexpr bool kPrefetches = kChunks > 1;

 public:
  __device__ __forceinline__ TilesOfWarp(const PagedHead& cache, int position, int first_position,
                                         int team, int side, int step)
      : cache_(cache),
        position_(position),
        first_position_(first_position),
        team_(team),
        side_(side),
        step_(step) {}

  // Positions before the row's own; kPrefetches: and those of the team's next tile, `step` tiles
  // further, into the second cache.
  __device__ __forceinline__ void Load(int tile) {
    const __nv_bfloat16* keys = cache_.KeyAt(tile * kTile);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      LoadPosition<32>(keys_[i], keys, tile, g() + 8 * i, first_dim() + 8 * t());
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      LoadPosition<64>(values_[i], keys + cache_.to_values, tile, ValuePosition(i),
                       first_dim() + 8 * g());
    }
    const int next = tile + step_;
    if (!kPrefetches || next * kTile > position_) return;
    keys = cache_.KeyAt(next * kTile);
    constexpr int kLine = 64;  // elements
    for (int i = side_ * 32 + lane(); i < kTile * cache_.head_dim / kLine; i += 32 * kTeam) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + kLine * i));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + cache_.to_values + kLine * i));
    }
  }

  // Puts the row's own key and value in their place of the last tile.
  __device__ __forceinline__ void UseOwn(const __nv_bfloat16* key, const __nv_bfloat16* value) {
    const int own = position_ % kTile;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (own != g() + 8 * i) continue;
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        keys_[i][j] = *reinterpret_cast<const uint4*>(key + first_dim() + 32 * j + 8 * t());
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (own != ValuePosition(i)) continue;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        values_[i][c] = *reinterpret_cast<const uint4*>(value + first_dim() + 64 * c + 8 * g());
      }
    }
  }

  // No tile.
  __device__ __forceinline__ void Clear() {
    largest_ = kLowestScore;
    sum_ = 0;
    ClearProducts();
  }

  // Adds what was loaded. kFirst: nothing was added before. query: head g's, as HeadOfWarp prepares
  // it. exchange: [2][kTeams][2][32], for teams of two warps.
  template <bool kFirst>
  __device__ __forceinline__ void Add(int tile, const float* query, float4* exchange) {
    // Sums of even and of odd slices.
    float scores[2][2][4] = {};
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      const auto* words = reinterpret_cast<const uint4*>(query + first_dim() + 32 * j + 8 * t());
      const uint4 first = words[0];
      const uint4 second = words[1];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Multiply(scores[j % 2][i], first, keys_[i][j].x, keys_[i][j].y);
        Multiply(scores[j % 2][i], second, keys_[i][j].z, keys_[i][j].w);
      }
    }
    float weights[4];  // of this lane's four positions and head; first scores
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i % 2;
      weights[i] = scores[0][i / 2][n] + scores[1][i / 2][n] +
                   (scores[0][i / 2][n + 2] + scores[1][i / 2][n + 2]);
    }
    if constexpr (kTeam == 2) {
      // Twice, so that one barrier per tile suffices.
      exchange += (parity_ * kTeams + team_) * 64 + lane();
      parity_ ^= 1;
      exchange[side_ * 32] = make_float4(weights[0], weights[1], weights[2], weights[3]);
      TeamBarrier(team_);
      const float4 other = exchange[(side_ ^ 1) * 32];
      weights[0] += other.x, weights[1] += other.y, weights[2] += other.z, weights[3] += other.w;
    }
    float most = kFirst ? kLowestScore : largest_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = tile * kTile + ValuePosition(i);
      if (position > position_ || position < first_position_) weights[i] = kLowestScore;
      most = fmaxf(most, weights[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if constexpr (kFirst) {
      sum_ = 0;
      ClearProducts();
    } else {
      const float keep = Exp2(largest_ - most);
      sum_ *= keep;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) products_[c][n][i] *= keep;
        }
      }
    }
    largest_ = most;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = Exp2(weights[i] - most);
      sum_ += weights[i];
    }
    uint4 rounded;
    rounded.x = Pack(weights[0], weights[1]);
    rounded.y = PackRest(weights[0], weights[1], rounded.x);
    rounded.z = Pack(weights[2], weights[3]);
    rounded.w = PackRest(weights[2], weights[3], rounded.z);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        // Dimension n of two positions each.
        const unsigned halves = n % 2 == 0 ? 0x5410 : 0x7632;
        Multiply(products_[c][n], rounded,
                 __byte_perm(Word(values_[0][c], n / 2), Word(values_[1][c], n / 2), halves),
                 __byte_perm(Word(values_[2][c], n / 2), Word(values_[3][c], n / 2), halves));
      }
    }
  }

  // Writes scores and quads of the query head g, if there is one: see PlaceOfQuad.
  __device__ __forceinline__ void Store(bool has_head, float2* scores, float4* quads) {
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    if (!has_head) return;
    if (t() == 0 && side_ == 0) *scores = make_float2(largest_, sum_);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
          const auto of = [&](int m) { return products_[c][m][i] + products_[c][m][i + 2]; };
          const int quad = first_dim() / 4 + 16 * c + 4 * t() + 2 * i + n / 4;
          quads[PlaceOfQuad(g(), quad)] = make_float4(of(n), of(n + 1), of(n + 2), of(n + 3));
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int g() { return lane() / 4; }
  static __device__ __forceinline__ int t() { return lane() % 4; }
  __device__ __forceinline__ int first_dim() const { return side_ * 64 * kChunks; }
  // Of a tile: where the i-th of a lane's four positions lies.
  static __device__ __forceinline__ int ValuePosition(int i) { return 2 * t() + i % 2 + i / 2 * 8; }

  // Dimensions d .. d + 7, and the same kStep further.
  template <int kStep, int kWords>
  __device__ __forceinline__ void LoadPosition(uint4 (&words)[kWords], const __nv_bfloat16* from,
                                               int tile, int at, int d) const {
    const bool cached = tile * kTile + at < position_;
    from += at * cache_.head_dim + d;
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      words[j] = cached && d + kStep * j < cache_.head_dim
                     ? __ldcg(reinterpret_cast<const uint4*>(from + kStep * j))
                     : make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ void ClearProducts() {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) products_[c][n][i] = 0;
      }
    }
  }

  const PagedHead cache_;
  const int position_;
  const int first_position_;
  const int team_;
  const int side_;
  const int step_;
  int parity_ = 0;
  uint4 keys_[2][kSlices];    // of positions g and g + 8
  uint4 values_[4][kChunks];  // of positions 2 t, 2 t + 1, 2 t + 8, 2 t + 9
  float largest_;             // of head g
  float sum_;                 // of head g and this lane's positions, in the end of all
  float products_[kChunks][8][4];
};

}  // namespace adder::cuda
