// The matrix kernel for two to eight tokens: the tokens are the eight columns of a multiplication.
//
// Phases: (1) each warp starts copying its first chunks of weights to shared memory, and the block
// the norm's weight; (2) PdlWait; (3) the block makes its tokens' rows, times the norm's weight,
// into operands in shared memory and adds up their squares; barrier; (4) warps multiply their
// chunks. Then, in blocks: partial sums to shared memory, while a warp of its own finds the norm's
// factors; barrier, and a thread per output adds up the sums and applies factor, bias and epilogue.
// In streams: each warp goes over whole tiles, a grid apart, and finishes them itself; no further
// barrier.
//
// few_phases.cuh says what operands are.
//
// Ownership: blockIdx.y owns `places` tokens. In blocks, blockIdx.x owns row_warps tiles and column
// warp w the chunks from w * warp_chunks on; in streams, warp i of the grid owns tiles i, i + warps
// of the grid, ... A warp reads only weights that it copied itself.
// Precondition: the input's rows begin on 16-byte boundaries, and so does the norm's weight.
#include "cuda/kernels/few_linear.h"

#include <algorithm>

#include "cuda/kernels/few_phases.cuh"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostWarps = 16;
// Shared memory that a block fills with weights; two such blocks, of this kernel and the next, fit
// on a multiprocessor.
constexpr int kMostWeightBytes = 96 * 1024;
// Tiles of a router's matrix that one block multiplies alone.
constexpr int kMostRouterTiles = 8;
// Distance between tokens of partial sums: lanes then write to different banks.
constexpr int kSumsPitch = kTileRows + 4;
constexpr int kWarpSums = 8 * kSumsPitch;
// Chunks that a warp multiplies together, so that neither waits for the other.
constexpr int StepOf(WeightFormat format) { return IsQuantized(format) ? 2 : 1; }
// Steps that a warp has in flight when it cannot hold all of them.
constexpr int kRing = 3;

// How a warp goes over its chunks.
enum class FewWalk {
  kOnce,    // it copies all of them at the beginning
  kLoop,    // all of one tile, through a ring
  kStream,  // all of many tiles, through a ring
};

// Where a block's shared memory has what follows its weights [warps][slots]; bytes.
struct FewLayout {
  int operands;  // [chunk][high, low (, of 32 columns)][place][64 bytes]
  int units;     // [chunk][place], of integers
  int sums;      // [chunk][groups][place], of integers
  int norm;      // [chunks * 64], the norm's weight
  int squares;   // [place][kMostWarps], of each preparing warp
  int factors;   // [place], the norm's
  int partial;   // [warp][8][kSumsPitch]
  int total;
};

struct FewParams {
  LinearParams linear;
  FewLayout layout;
  int token_bits;  // log2 of the tokens for which a block has places
  int row_warps;
  int column_warps;
  int warp_chunks;  // of a column warp
  float inverse_cols;
};

template <WeightFormat F, bool kWide, FewWalk kWalk, FewEnd kEnd>
__global__ void __launch_bounds__(kMostWarps * 32, LoadsOf(F) <= 4 ? 2 : 1)
    FewLinearKernel(const __grid_constant__ FewParams params) {
  constexpr int kLoads = LoadsOf(F);
  constexpr int kScaleBytes = !IsQuantized(F) ? 0 : kWide ? 256 : 64;
  constexpr int kUnit = kLoads * 512 + kScaleBytes;
  constexpr int kStep = StepOf(F);
  constexpr int kGroups = kWide ? 2 : 1;
  constexpr bool kStream = kWalk == FewWalk::kStream;
  constexpr bool kOnce = kWalk == FewWalk::kOnce;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const FewLayout& layout = params.layout;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  // The same in all lanes, which the compiler cannot know of a quotient.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int token_bits = params.token_bits;
  const int places = 1 << token_bits;
  const int first_token = static_cast<int>(blockIdx.y) * places;
  const int tokens = min(places, p.tokens - first_token);
  const bool has_norm = p.norm_weight != nullptr;
  // In blocks the last warp finds the norm's factors instead of preparing and multiplying.
  const int preparers = warps - (has_norm && !kStream ? 1 : 0);

  const int row_warp = kStream ? warp : warp / params.column_warps;
  const int column_warp = kStream ? 0 : warp - row_warp * params.column_warps;
  const int first_tile = static_cast<int>(blockIdx.x) * params.row_warps + row_warp;
  const int tile_step = static_cast<int>(gridDim.x) * params.row_warps;
  const bool multiplies = row_warp < params.row_warps && first_tile < m.tiles;
  const int first_chunk = column_warp * params.warp_chunks;
  const int my_chunks = min(params.warp_chunks, m.chunks - first_chunk);

  extern __shared__ uint4 shared[];
  unsigned char* bytes = reinterpret_cast<unsigned char*>(shared);
  const int held = kOnce ? params.warp_chunks : kRing * kStep;
  unsigned char* weights = bytes + warp * held * kUnit;
  unsigned char* operands = bytes + layout.operands;
  float* units = reinterpret_cast<float*>(bytes + layout.units);
  float* sums = reinterpret_cast<float*>(bytes + layout.sums);
  float* norm = reinterpret_cast<float*>(bytes + layout.norm);
  float* squares = reinterpret_cast<float*>(bytes + layout.squares);
  float* factors = reinterpret_cast<float*>(bytes + layout.factors);

  if (has_norm) {
#pragma unroll 1
    for (int col = 4 * thread; col < m.chunks * kChunkCols; col += 4 * blockDim.x) {
      if (col < m.cols) {
        CopyAsync(norm + col, p.norm_weight + col);
      } else {
        *reinterpret_cast<float4*>(norm + col) = make_float4(0, 0, 0, 0);
      }
    }
  }
  CommitCopies();
  const long long first_place = static_cast<long long>(first_tile) * m.chunks + first_chunk;
  const uint4* data = m.data + first_place * (kLoads * 32) + lane;
  const unsigned char* scales =
      static_cast<const unsigned char*>(m.scales) + first_place * kScaleBytes + lane * 16;
  int to_copy = !multiplies ? 0
                : kStream   ? (m.tiles - first_tile + tile_step - 1) / tile_step * m.chunks
                            : my_chunks;
  int of_tile = m.chunks;
  // Copies the next chunk to `to`, unless there is none.
  const auto copy_chunk = [&](unsigned char* to) {
    if (to_copy == 0) return;
    --to_copy;
    to += lane * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) CopyAsync(to + i * 512, data + i * 32);
    if (lane < kScaleBytes / 16) CopyAsync(to + kLoads * 512, scales);
    data += kLoads * 32;
    scales += kScaleBytes;
  };
  // Copies the chunks of the ring's next step.
  const auto copy_step = [&](int slot) {
#pragma unroll 1
    for (int i = 0; i < kStep; ++i) {
      copy_chunk(weights + (slot * kStep + i) * kUnit);
      if (kStream && --of_tile == 0) {
        of_tile = m.chunks;
        const long long skipped = static_cast<long long>(tile_step - 1) * m.chunks;
        data += skipped * (kLoads * 32);
        scales += skipped * kScaleBytes;
        break;
      }
    }
    CommitCopies();
  };
  if constexpr (kOnce) {
#pragma unroll 1
    for (int i = 0; i < held; ++i) copy_chunk(weights + i * kUnit);
    CommitCopies();
  } else {
#pragma unroll 1
    for (int slot = 0; slot < kRing; ++slot) copy_step(slot);
  }

  // In blocks: the row of a tile, times a token, that this thread finishes first.
  const FewOutputs<kEnd> outputs(p, first_token);
  const int items = params.row_warps * places * kTileRows;
  const auto place_of = [&](int item) { return item / kTileRows & (places - 1); };
  const auto row_of = [&](int item) {
    const int tile =
        static_cast<int>(blockIdx.x) * params.row_warps + (item / kTileRows >> token_bits);
    return LogicalRow(outputs.gated, m.rows, tile, item % kTileRows);
  };
  const int first_row = row_of(thread);
  const bool finishes =
      !kStream && thread < items && place_of(thread) < tokens && first_row < m.rows;
  const float first_bias = finishes && p.bias != nullptr ? p.bias[first_row] : 0.0f;
  constexpr bool kRule = kEnd == FewEnd::kRule;
  const auto row_factor = [&](int row) {
    return kRule && p.rule.factors != nullptr && row < m.rows ? p.rule.factors[row] : 1.0f;
  };
  const float first_row_factor = row_factor(finishes ? first_row : m.rows);
  float* const first_to = outputs.At(place_of(thread), first_row);

  // Preparation: a quad of lanes has a chunk of a token; places without a token repeat the last.
  const int part = lane % 4;
  const int place = lane / 4 & (places - 1);
  const int pass_chunks = 8 >> token_bits;
  const int of_pass = lane / 4 >> token_bits;
  const int token = first_token + min(place, tokens - 1);
  const float* from = p.input + 8 * part;
  ReadyBeforeWait(from);
  ReadyBeforeWait(p.input_rows);
  ReadyBeforeWait(outputs.scale);
  ReadyBeforeWait(p.norm_eps);
  // The norm's weight has arrived.
  WaitForCopies<kOnce ? 1 : kRing>();
  __syncthreads();

  PdlWait();
  PdlTrigger();
  const float first_old = finishes && outputs.adds ? *first_to : 0.0f;
  if (warp < preparers) {
    from += static_cast<long long>(p.input_rows == nullptr ? token : p.input_rows[token]) *
            p.input_stride;
    // What this lane has of its quad's chunk; of the last chunk where that is beyond it.
    const auto load = [&](int chunk, float4(&x)[4]) {
      const int col = min(chunk, m.chunks - 1) * kChunkCols;
      const float4* four = reinterpret_cast<const float4*>(from + col);
      if (col + kChunkCols <= m.cols) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = four[i / 2 * 8 + i % 2];
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i] = col + 8 * part + i / 2 * 32 + i % 2 * 4 < m.cols ? four[i / 2 * 8 + i % 2]
                                                                  : make_float4(0, 0, 0, 0);
        }
      }
    };
    float squared = 0;
    float4 fours[4];
    // The first chunk of the warp's pass: the same for all its lanes.
    int base = warp * pass_chunks;
    load(base + of_pass, fours);
#pragma unroll 1
    for (; base < m.chunks; base += preparers * pass_chunks) {
      const int chunk = base + of_pass;
      // Chunks beyond are made, but not kept.
      const bool keep = chunk < m.chunks;
      float x[16];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[4 * i] = fours[i].x, x[4 * i + 1] = fours[i].y;
        x[4 * i + 2] = fours[i].z, x[4 * i + 3] = fours[i].w;
      }
      if (base + preparers * pass_chunks < m.chunks) load(chunk + preparers * pass_chunks, fours);
      if (has_norm) {
        const float4* weight =
            reinterpret_cast<const float4*>(norm + (keep ? chunk : 0) * kChunkCols + 8 * part);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 four = weight[i / 2 * 8 + i % 2];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float& value = x[4 * i + j];
            sum = fmaf(value, value, sum);
            value *= j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w;
          }
        }
        if (keep) squared += sum;
      }
      uint4* to =
          reinterpret_cast<uint4*>(operands + chunk * places * OperandBytes(F)) + place * 4 + part;
      if constexpr (IsQuantized(F)) {
        Integers made = MakeIntegers<F>(x);
        if (!kWide) made.sums[0] += made.sums[1];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          made.sums[group] += __shfl_xor_sync(0xffffffffu, made.sums[group], 1);
          made.sums[group] += __shfl_xor_sync(0xffffffffu, made.sums[group], 2);
        }
        if (keep) {
          to[0] = made.high;
          to[places * 4] = made.low;
          if (part == 0) {
            const float unit = made.largest * (1.0f / kLargestQuantized);
            units[chunk * places + place] = unit;
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
              sums[(chunk * kGroups + group) * places + place] =
                  unit * static_cast<float>(made.sums[group]);
            }
          }
        }
      } else if (keep) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          unsigned high[4];
          unsigned low[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float first = x[8 * h + 2 * i];
            const float second = x[8 * h + 2 * i + 1];
            high[i] = PackBf16(first, second);
            low[i] = PackBf16(first - __uint_as_float(high[i] << 16),
                              second - __uint_as_float(high[i] & 0xffff0000u));
          }
          to[h * places * 4] = make_uint4(high[0], high[1], high[2], high[3]);
          to[(2 + h) * places * 4] = make_uint4(low[0], low[1], low[2], low[3]);
        }
      }
    }
    if (has_norm) {
      squared += __shfl_xor_sync(0xffffffffu, squared, 1);
      squared += __shfl_xor_sync(0xffffffffu, squared, 2);
#pragma unroll 1
      for (int offset = 4 * places; offset < 32; offset *= 2) {
        squared += __shfl_xor_sync(0xffffffffu, squared, offset);
      }
      if (part == 0 && of_pass == 0) squares[place * kMostWarps + warp] = squared;
    }
  }
  // A warp's copies are seen by all its lanes after the barrier.
  if (kOnce) WaitForCopies<0>();
  __syncthreads();

  const auto factor_of = [&](int of_place) {
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < preparers; ++i) sum += squares[of_place * kMostWarps + i];
    return rsqrtf(fmaf(sum, params.inverse_cols, p.norm_eps));
  };
  float acc[4] = {};
  int slot = 0;
  // Multiplies by a step of `count` chunks, or more than there are in a step, from `chunk` on.
  const auto multiply = [&](int chunk, int count) {
    const unsigned char* first = weights + slot * (kStep * kUnit);
    float add[kStep][4] = {};
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      // A second one that is not there repeats the first, and is dropped.
      const int c = i < count ? i : 0;
      MultiplyChunk<F, kWide>(first + c * kUnit, operands + (chunk + c) * places * OperandBytes(F),
                              units + (chunk + c) * places, sums + (chunk + c) * kGroups * places,
                              places, lane, m.scale_format, add[i]);
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[k] += i < count ? add[i][k] : 0.0f;
    }
  };
  // Waits for the oldest step of the ring, and asks for another in its place.
  const auto take = [&](int chunk, int count) {
    WaitForCopies<kRing - 1>();
    __syncwarp();
    multiply(chunk, count);
    __syncwarp();
    copy_step(slot);
    if (++slot == kRing) slot = 0;
  };

  const int g = lane / 4;
  const int t = lane % 4;
  if constexpr (kStream) {
    if (!multiplies) return;
    float factor[2] = {1, 1};
    if (has_norm) {
      factor[0] = factor_of(2 * t & (places - 1));
      factor[1] = factor_of((2 * t + 1) & (places - 1));
    }
#pragma unroll 1
    for (int tile = first_tile; tile < m.tiles; tile += tile_step) {
#pragma unroll 1
      for (int chunk = 0; chunk < m.chunks; chunk += kStep) take(chunk, m.chunks - chunk);
      const int rows[2] = {LogicalRow(outputs.gated, m.rows, tile, g),
                           LogicalRow(outputs.gated, m.rows, tile, g + 8)};
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = rows[i / 2];
        y[i] = fmaf(acc[i], factor[i % 2] * row_factor(row),
                    p.bias != nullptr && row < m.rows ? p.bias[row] : 0.0f);
        acc[i] = 0;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (2 * t + i % 2 >= tokens || rows[i / 2] >= outputs.rows) continue;
        float* to = outputs.At(2 * t + i % 2, rows[i / 2]);
        outputs.Store(to, y[i], y[i | 2], outputs.adds ? *to : 0.0f);
      }
    }
    return;
  }

  float* partial = reinterpret_cast<float*>(bytes + layout.partial);
  if (multiplies) {
#pragma unroll 1
    for (int i = 0; i < my_chunks; i += kStep) {
      if constexpr (kOnce) {
        multiply(first_chunk + i, my_chunks - i);
        ++slot;
      } else {
        take(first_chunk + i, my_chunks - i);
      }
    }
    float* sum = partial + warp * kWarpSums + 2 * t * kSumsPitch + g;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i % 2 * kSumsPitch + i / 2 * 8] = acc[i];
  } else if (has_norm && warp == preparers && lane < places) {
    factors[lane] = factor_of(lane);
  }
  __syncthreads();
#pragma unroll 1
  for (int first = warp * 32; first < items; first += 32 * warps) {
    const int item = first + lane;
    const int of_place = place_of(item);
    const int row = row_of(item);
    const bool exists = of_place < tokens && row < m.rows;
    float bias = first_bias;
    float of_row = first_row_factor;
    float old = first_old;
    float* to = first_to;
    if (item != thread) {
      to = outputs.At(of_place, row);
      bias = exists && p.bias != nullptr ? p.bias[row] : 0.0f;
      of_row = row_factor(exists ? row : m.rows);
      old = exists && outputs.adds ? *to : 0.0f;
    }
    const float* sum = partial +
                       (item / kTileRows >> token_bits) * params.column_warps * kWarpSums +
                       of_place * kSumsPitch + item % kTileRows;
    float y = 0;
#pragma unroll 1
    for (int w = 0; w < params.column_warps; w += 8, sum += 8 * kWarpSums) {
      float more[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        more[i] = w + i < params.column_warps ? sum[i * kWarpSums] : 0.0f;
      }
      y += more[0] + more[1] + (more[2] + more[3]) + (more[4] + more[5] + (more[6] + more[7]));
    }
    y = fmaf(y, (has_norm ? factors[of_place] : 1.0f) * of_row, bias);
    // Gate rows of a tile come before its up rows.
    const float up = __shfl_xor_sync(0xffffffffu, y, 8);
    if (exists && row < outputs.rows) outputs.Store(to, y, up, old);
  }
  if constexpr (kEnd == FewEnd::kRouter) {
    RouteWhenLast(p, p.output, first_token, first_token + tokens, p.arrivals + blockIdx.y);
  }
}

int RoundedUp(int value, int by) { return (value + by - 1) / by; }

struct FewLauncher {
  FewParams params;
  int multiprocessors;
  cudaStream_t stream;
  int warps;  // of a block

  template <WeightFormat F, bool kWide>
  void CutMemory(int held) {
    constexpr int kScaleBytes = !IsQuantized(F) ? 0 : kWide ? 256 : 64;
    const int chunks = params.linear.matrix.chunks;
    const int places = 1 << params.token_bits;
    FewLayout& layout = params.layout;
    int end = 0;
    const auto take = [&end](int bytes) {
      const int begin = end;
      end += RoundedUp(bytes, 16) * 16;
      return begin;
    };
    take(warps * held * (LoadsOf(F) * 512 + kScaleBytes));
    layout.operands = take(chunks * places * OperandBytes(F));
    layout.units = take(IsQuantized(F) ? chunks * places * 4 : 0);
    layout.sums = take(IsQuantized(F) ? chunks * (kWide ? 2 : 1) * places * 4 : 0);
    const bool has_norm = params.linear.norm_weight != nullptr;
    layout.norm = take(has_norm ? chunks * kChunkCols * 4 : 0);
    layout.squares = take(has_norm ? places * kMostWarps * 4 : 0);
    layout.factors = take(has_norm ? places * 4 : 0);
    layout.partial = take(warps * kWarpSums * 4);
    layout.total = end;
  }

  template <WeightFormat F, bool kWide>
  bool Run() {
    constexpr int kUnit = LoadsOf(F) * 512 + (!IsQuantized(F) ? 0 : kWide ? 256 : 64);
    const PackedMatrix& m = params.linear.matrix;
    params.token_bits = 1;
    while (params.token_bits < 3 && 1 << params.token_bits < params.linear.tokens) {
      ++params.token_bits;
    }
    const int tiles_per_multiprocessor = RoundedUp(m.tiles, multiprocessors);
    const bool routes = params.linear.epilogue == LinearEpilogue::kRouter;
    // What large models have more tiles of than a block has room for.
    if (tiles_per_multiprocessor > kMostWarps / 2 && !routes) {
      params.column_warps = 1;
      params.warp_chunks = m.chunks;
      for (warps = kMostWarps; warps >= 4; warps /= 2) {
        CutMemory<F, kWide>(kRing * StepOf(F));
        if (params.layout.total <= DeviceSharedBytes()) break;
      }
      warps = std::max(warps, 4);
      params.row_warps = warps;
      // Every warp has the same number of tiles, or one fewer.
      const int rounds = RoundedUp(m.tiles, multiprocessors * warps);
      return Start<F, kWide, FewWalk::kStream>(RoundedUp(RoundedUp(m.tiles, rounds), warps));
    }
    params.row_warps = std::min(kMostWarps / 2, tiles_per_multiprocessor);
    // One block chooses experts without waiting for others.
    if (routes && m.tiles <= kMostRouterTiles) params.row_warps = m.tiles;
    const int helpers = params.linear.norm_weight != nullptr ? 1 : 0;
    const int column_warps =
        std::max(1, std::min((kMostWarps - helpers) / params.row_warps, m.chunks));
    params.warp_chunks = RoundedUp(m.chunks, column_warps);
    params.column_warps = RoundedUp(m.chunks, params.warp_chunks);
    const int multiplying = params.row_warps * params.column_warps;
    const int passes = RoundedUp(m.chunks, 8 >> params.token_bits);
    warps = std::max(multiplying, std::min(kMostWarps - helpers, passes)) + helpers;
    const int blocks = RoundedUp(m.tiles, params.row_warps);
    if (routes) return StartEnd<F, kWide, FewWalk::kLoop, FewEnd::kRouter>(blocks);
    if (warps * params.warp_chunks * kUnit <= kMostWeightBytes) {
      return Start<F, kWide, FewWalk::kOnce>(blocks);
    }
    return Start<F, kWide, FewWalk::kLoop>(blocks);
  }

  template <WeightFormat F, bool kWide, FewWalk kWalk>
  bool Start(int blocks) {
    return params.linear.epilogue == LinearEpilogue::kRule
               ? StartEnd<F, kWide, kWalk, FewEnd::kRule>(blocks)
               : StartEnd<F, kWide, kWalk, FewEnd::kPlain>(blocks);
  }

  template <WeightFormat F, bool kWide, FewWalk kWalk, FewEnd kEnd>
  bool StartEnd(int blocks) {
    const auto kernel = FewLinearKernel<F, kWide, kWalk, kEnd>;
    const int held = kWalk == FewWalk::kOnce ? params.warp_chunks : kRing * StepOf(F);
    for (;; --params.token_bits) {
      CutMemory<F, kWide>(held);
      if (params.layout.total <= DeviceSharedBytes()) break;
      if (params.token_bits == 1) return false;
    }
    if (params.layout.total > 48 * 1024) {
      // Always the same number, so that launches in a graph keep what they need.
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 DeviceSharedBytes()),
            "setting the shared memory of the matrix kernel of few tokens");
    }
    const int groups = RoundedUp(params.linear.tokens, 1 << params.token_bits);
    Launch("the matrix kernel of few tokens", kernel,
           dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)),
           dim3(static_cast<unsigned>(warps * 32)), static_cast<size_t>(params.layout.total),
           stream, params);
    return true;
  }
};

}  // namespace

bool LaunchFewLinear(const LinearParams& linear, const LinearShape& shape, cudaStream_t stream) {
  const PackedMatrix& m = linear.matrix;
  FewLauncher launcher = {};
  launcher.params.linear = linear;
  launcher.params.inverse_cols = 1.0f / static_cast<float>(m.cols);
  launcher.multiprocessors = shape.multiprocessors;
  launcher.stream = stream;
  const bool wide = m.scale_format == ScaleFormat::kWide;
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? launcher.Run<WeightFormat::kQ4, true>()
                  : launcher.Run<WeightFormat::kQ4, false>();
    case WeightFormat::kQ8:
      return wide ? launcher.Run<WeightFormat::kQ8, true>()
                  : launcher.Run<WeightFormat::kQ8, false>();
    case WeightFormat::kBf16:
      return launcher.Run<WeightFormat::kBf16, false>();
    case WeightFormat::kF16:
      return launcher.Run<WeightFormat::kF16, false>();
    case WeightFormat::kF32:
      return launcher.Run<WeightFormat::kF32, false>();
  }
  return false;
}

}  // namespace adder::cuda
