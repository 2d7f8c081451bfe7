// The gated delta rule over chunks of kDeltaTokens tokens, in three kernels. With s the running sum
// of the logarithms of decay within a chunk, S the state before it, i and j tokens of it, q and k
// of their lengths and u the change that a token makes (gated_delta.cu), the recurrence says
//   u_i = beta_i (v_i - exp(s_i) k_i S - sum over j < i of exp(s_i - s_j) (k_i . k_j) u_j)
// which is a system with a triangular matrix: with T = (1 + A)^-1, A_ij = beta_i exp(s_i - s_j)
// (k_i . k_j) below the diagonal, it is u = values - past S where
//   values = T beta v,  past = T beta exp(s) k
// and with scores_ij = exp(s_i - s_j) (q_i . k_j) for j <= i, queries = exp(s) q, keys = exp(s_last
// - s) k the answers are y = queries S + scores u, and S becomes exp(s_last) S + keys^T u. Every
// exponent is at most 0. With a decay per channel the exponentials stand within the dot products.
//
// (1) Inputs (gated_delta_chunk_inputs.cu): a block owns a chunk and head, and makes queries, keys,
//     past, scores and values, which do not depend on the state.
// (2) States from chunk to chunk: a block owns kPassColumns columns of a head's state, each of its
//     four warps a quarter of the rows, in registers. Per chunk: the state before it to shared and
//     global memory as bf16; barrier; u, a warp for sixteen tokens, to the place of the values;
//     barrier; the state's update. The next chunk's factors are on their way meanwhile.
// (3) Answers, their norm and gate: a block owns a chunk and head, a warp sixteen tokens.
#include <cuda_runtime.h>

#include "cuda/kernels/gated_delta_chunks.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = kDeltaThreads;
constexpr int kTokens = kDeltaTokens;
constexpr int kPassColumns = 32;

__device__ __forceinline__ float First(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float Second(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

template <int kK>
constexpr size_t PassBytes() {
  return (4 * kTokens * kK + (kK + kTokens) * kPassColumns) * 2;
}

template <int kK, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    PassKernel(const __grid_constant__ GatedDeltaChunkParams c, const int columns,
               const float* added) {
  using Record = DeltaRecord<kK>;
  const GatedDeltaParams& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];  // keys | past, twice, state, u
  constexpr int kTileBytes = kTokens * kK * 2;
  constexpr int kRowTiles = kK / 64;  // of sixteen state rows, per warp
  constexpr int kPairs = kPassColumns / 16;
  unsigned char* state_bytes = shared + 4 * kTileBytes;
  unsigned char* u_bytes = state_bytes + kK * kPassColumns * 2;
  const unsigned tiles = SharedAddress(shared);
  const unsigned state_tile = SharedAddress(state_bytes);
  const unsigned u_tile = SharedAddress(u_bytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first_column = static_cast<int>(blockIdx.x) * kPassColumns;
  const int head = static_cast<int>(blockIdx.y);
  PdlWait();
  PdlTrigger();
  const SequenceRun run = p.runs[blockIdx.z];
  const int count = (run.tokens + kTokens - 1) / kTokens;
  const long long record_size = Record::Size(columns);
  const long long first_record =
      static_cast<long long>(2 * c.first_pieces[blockIdx.z]) * p.value_heads + head;
  const auto record_of = [&](int chunk) {
    return c.records + (first_record + static_cast<long long>(chunk) * p.value_heads) * record_size;
  };
  const auto copy = [&](int chunk) {
    const __nv_bfloat16* record = record_of(chunk);
    const unsigned to = tiles + chunk % 2 * 2 * kTileBytes;
    CopyRows<kK>(to, record + Record::kKeys, kTokens, kK);
    CopyRows<kK>(to + kTileBytes, record + Record::kPast, kTokens, kK);
    CopyCommit();
  };
  copy(0);

  // Row and column of this thread's first element of a tile of the state.
  const auto row_of = [&](int m) { return (warp * kRowTiles + m) * 16 + g; };
  float state[kRowTiles][2 * kPairs][4];
  float* slot =
      run.recurrent + p.state_offset + static_cast<long long>(head) * p.key_dim * p.value_dim;
  const auto for_each_pair = [&](auto visit) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          visit(state[m][n][2 * r], state[m][n][2 * r + 1], row_of(m) + 8 * r, n * 8 + 2 * t);
        }
      }
    }
  };
  for_each_pair([&](float& first, float& second, int row, int column) {
    first = second = 0;
    if (row >= p.key_dim || first_column + column >= p.value_dim) return;
    const float2 two =
        *reinterpret_cast<const float2*>(slot + row * p.value_dim + first_column + column);
    first = two.x, second = two.y;
  });

  // What a chunk needs besides its tiles.
  unsigned values[2 * kPairs][2];
  float keep[kRowTiles][2];
  float4 more[kAdds ? kRowTiles : 1][kAdds ? 2 * kPairs : 1];
  const int token = warp * 16 + g;
  const auto load = [&](int chunk) {
    const __nv_bfloat16* from =
        record_of(chunk) + Record::kValues + token * columns + first_column + 2 * t;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        values[n][r] = *reinterpret_cast<const unsigned*>(from + 8 * r * columns + n * 8);
      }
    }
    const float* keeps =
        c.keeps + (first_record + static_cast<long long>(chunk) * p.value_heads) * kMostChunkKeyDim;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) keep[m][r] = keeps[row_of(m) + 8 * r];
    }
    if constexpr (kAdds) {
      const long long index = first_record + static_cast<long long>(chunk) * p.value_heads;
      const float* of_chunk = added + index * kK * columns;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * kPairs; ++n) {
          const int tile = (warp * kRowTiles + m) * (columns / 8) + first_column / 8 + n;
          more[m][n] = *reinterpret_cast<const float4*>(of_chunk + tile * kAddedTile + 4 * lane);
        }
      }
    }
  };
  load(0);

#pragma unroll 1
  for (int chunk = 0; chunk < count; ++chunk) {
    __nv_bfloat16* record = record_of(chunk);
    __nv_bfloat16* before = record + Record::State(columns) + first_column;
    for_each_pair([&](float& first, float& second, int row, int column) {
      const unsigned pair = PackBf16(first, second);
      *reinterpret_cast<unsigned*>(before + row * columns + column) = pair;
      *reinterpret_cast<unsigned*>(state_bytes + UnitOffset<kPassColumns>(row, column / 8) +
                                   column % 8 * 2) = pair;
    });
    CopyWait<0>();
    __syncthreads();
    const unsigned keys = tiles + chunk % 2 * 2 * kTileBytes;
    // Nobody reads the other buffer any more.
    if (chunk + 1 < count) copy(chunk + 1);
    float u[2 * kPairs][4] = {};
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      unsigned a[4];
      LoadA<kK>(a, keys + kTileBytes, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        unsigned b[4];
        LoadBTransposed<kPassColumns>(b, state_tile, k * 16, 2 * n, lane);
        MmaPair(u[2 * n], u[2 * n + 1], a, b);
      }
    }
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = token + 8 * r;
        const unsigned pair =
            PackBf16(First(values[n][r]) - u[n][2 * r], Second(values[n][r]) - u[n][2 * r + 1]);
        *reinterpret_cast<unsigned*>(record + Record::kValues + row * columns + first_column +
                                     n * 8 + 2 * t) = pair;
        *reinterpret_cast<unsigned*>(u_bytes + UnitOffset<kPassColumns>(row, n) + 4 * t) = pair;
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) state[m][n][e] *= keep[m][e / 2];
        if constexpr (kAdds) {
          state[m][n][0] += more[m][n].x, state[m][n][1] += more[m][n].y;
          state[m][n][2] += more[m][n].z, state[m][n][3] += more[m][n].w;
        }
      }
    }
    __syncthreads();
    if (chunk + 1 < count) load(chunk + 1);
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      unsigned b[kPairs][4];
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        LoadBTransposed<kPassColumns>(b[n], u_tile, k * 16, 2 * n, lane);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        unsigned a[4];
        LoadATransposed<kK>(a, keys, k * 16, (warp * kRowTiles + m) * 2, lane);
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
          MmaPair(state[m][2 * n], state[m][2 * n + 1], a, b[n]);
        }
      }
    }
  }
  for_each_pair([&](float& first, float& second, int row, int column) {
    if (row >= p.key_dim || first_column + column >= p.value_dim) return;
    *reinterpret_cast<float2*>(slot + row * p.value_dim + first_column + column) =
        make_float2(first, second);
  });
}

// kSlices: of 64 columns.
template <int kK, int kSlices>
constexpr size_t OutputBytes() {
  return (kTokens * (kK + kTokens) + (kSlices > 1 ? 2 : 1) * (kK + kTokens) * 64) * 2;
}

template <int kK, int kSlices>
__global__ void __launch_bounds__(kThreads)
    OutputKernel(const __grid_constant__ GatedDeltaChunkParams c) {
  using Record = DeltaRecord<kK>;
  const GatedDeltaParams& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];  // queries, scores, {state, u} twice
  constexpr int kColumns = kSlices * 64;
  constexpr int kStateBytes = kK * 64 * 2;
  constexpr int kSliceBytes = kStateBytes + kTokens * 64 * 2;
  const unsigned query_tile = SharedAddress(shared);
  const unsigned score_tile = query_tile + kTokens * kK * 2;
  const unsigned slices = score_tile + kTokens * kTokens * 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int t = lane % 4;
  const int head = static_cast<int>(blockIdx.x);
  PdlWait();
  PdlTrigger();
  const int chunk = static_cast<int>(blockIdx.y);
  const Piece piece = c.pieces[chunk / 2];
  const int first = chunk % 2 * kTokens;
  if (first >= piece.tokens) return;
  const __nv_bfloat16* record =
      c.records + (static_cast<long long>(chunk) * p.value_heads + head) * Record::Size(kColumns);
  const auto copy = [&](int slice) {
    const unsigned to = slices + slice % 2 * kSliceBytes;
    CopyRows<64>(to, record + Record::State(kColumns) + slice * 64, kK, kColumns);
    CopyRows<64>(to + kStateBytes, record + Record::kValues + slice * 64, kTokens, kColumns);
    CopyCommit();
  };
  CopyRows<kK>(query_tile, record + Record::kQueries, kTokens, kK);
  CopyRows<kTokens>(score_tile, record + Record::kScores, kTokens, kTokens);
  copy(0);
  if (kSlices > 1) copy(1);

  float y[kSlices][8][4] = {};
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    if (slice + 1 < kSlices) {
      CopyWait<1>();
    } else {
      CopyWait<0>();
    }
    __syncthreads();
    const unsigned state_tile = slices + slice % 2 * kSliceBytes;
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      unsigned a[4];
      LoadA<kK>(a, query_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned b[4];
        LoadBTransposed<64>(b, state_tile, k * 16, 2 * n, lane);
        MmaPair(y[slice][2 * n], y[slice][2 * n + 1], a, b);
      }
    }
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      if (k > warp) break;  // scores of later tokens are 0
      unsigned a[4];
      LoadA<kTokens>(a, score_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned b[4];
        LoadBTransposed<64>(b, state_tile + kStateBytes, k * 16, 2 * n, lane);
        MmaPair(y[slice][2 * n], y[slice][2 * n + 1], a, b);
      }
    }
    if (slice + 2 < kSlices) {
      __syncthreads();
      copy(slice + 2);
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float squares = 0;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        squares = fmaf(y[slice][n][2 * r], y[slice][n][2 * r], squares);
        squares = fmaf(y[slice][n][2 * r + 1], y[slice][n][2 * r + 1], squares);
      }
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    const float factor = rsqrtf(squares / static_cast<float>(p.value_dim) + p.norm_eps);
    const int token = first + warp * 16 + lane / 4 + 8 * r;
    if (token >= piece.tokens) continue;
    const long long row = piece.row + token;
    const float* gates = p.gate + row * p.gate_stride + head * p.value_dim;
    __nv_bfloat16* out = c.output + row * c.output_stride + head * p.value_dim;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int column = slice * 64 + n * 8 + 2 * t;
        if (column >= p.value_dim) continue;
        const float2 gate = *reinterpret_cast<const float2*>(gates + column);
        const float2 weight = *reinterpret_cast<const float2*>(p.norm_weight + column);
        const auto finish = [&](float value, float of_weight, float of_gate) {
          const float activated =
              __fdividef(p.gate_sigmoid ? 1.0f : of_gate, 1.0f + __expf(-of_gate));
          return value * factor * of_weight * activated;
        };
        PutPair(out + column, finish(y[slice][n][2 * r], weight.x, gate.x),
                finish(y[slice][n][2 * r + 1], weight.y, gate.y));
      }
    }
  }
}

template <int kK, bool kAdds>
void LaunchPass(const GatedDeltaChunkParams& params, const float* added, cudaStream_t stream) {
  const GatedDeltaParams& p = params.mixer;
  const auto pass = PassKernel<kK, kAdds>;
  AllowSharedMemory(pass, PassBytes<kK>());
  Launch("the kernel that passes states of the delta rule on", pass,
         dim3(static_cast<unsigned>(DeltaColumns(p.value_dim) / kPassColumns),
              static_cast<unsigned>(p.value_heads), static_cast<unsigned>(p.run_count)),
         dim3(kThreads), PassBytes<kK>(), stream, params, DeltaColumns(p.value_dim), added);
}

template <int kK>
void LaunchKey(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  const GatedDeltaParams& p = params.mixer;
  LaunchPass<kK, false>(params, nullptr, stream);
  const auto output = [&]<int kSlices>() {
    const auto kernel = OutputKernel<kK, kSlices>;
    constexpr size_t kBytes = OutputBytes<kK, kSlices>();
    AllowSharedMemory(kernel, kBytes);
    Launch(
        "the kernel of answers of the delta rule", kernel,
        dim3(static_cast<unsigned>(p.value_heads), static_cast<unsigned>(2 * params.piece_count)),
        dim3(kThreads), kBytes, stream, params);
  };
  switch (DeltaColumns(p.value_dim)) {
    case 64:
      return output.template operator()<1>();
    case 128:
      return output.template operator()<2>();
    case 192:
      return output.template operator()<3>();
    default:
      return output.template operator()<4>();
  }
}

}  // namespace

bool GatedDeltaChunksSupport(int key_dim, int value_dim) {
  return key_dim % 8 == 0 && value_dim % 8 == 0 && key_dim <= kMostChunkKeyDim &&
         value_dim <= kMostDeltaValueDim;
}

size_t GatedDeltaRecord(int key_dim, int value_dim) {
  const int columns = DeltaColumns(value_dim);
  return static_cast<size_t>(key_dim <= 64 ? DeltaRecord<64>::Size(columns)
                                           : DeltaRecord<kMostChunkKeyDim>::Size(columns));
}

void LaunchDeltaPassAdding(const GatedDeltaChunkParams& params, const float* added,
                           cudaStream_t stream) {
  LaunchPass<64, true>(params, added, stream);
}

void LaunchGatedDeltaChunks(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  LaunchDeltaInputs(params, stream);
  if (params.mixer.key_dim <= 64) return LaunchKey<64>(params, stream);
  LaunchKey<kMostChunkKeyDim>(params, stream);
}

}  // namespace adder::cuda
