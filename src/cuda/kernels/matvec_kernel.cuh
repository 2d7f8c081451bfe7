// The matrix kernel for one token: decoding. Latency counts as much as bytes. Instructions are
// fetched once per launch and run once, so the code is kept short: what a launch does not need is
// not compiled into its kernel.
//
// Phases: (1) each warp starts copying its first spans of weights to shared memory, or loading its
// only one into registers; (2) PdlWait; (3) the block makes its token's row, times the norm's
// weight, into operands in shared memory (see matvec_phases.cuh) and adds up the squares of each
// chunk (streams and experts' gates: a warp of its own does, from loads of its own); barrier; (4)
// warps multiply their spans, a warp of its own makes the norm's factor. Then, in blocks: partial
// sums to shared memory, barrier, a warp per tile adds them up and applies the norm's factor, bias
// and epilogue. In streams: each warp goes over whole tiles, a grid apart, and finishes them
// itself; no further barrier.
//
// Ownership: in blocks, blockIdx.x owns row_warps tiles and column warp w of column_warps the spans
// w, w + column_warps, ...; in streams, warp i of the grid owns tiles i, i + warps of the grid, ...
// A warp reads only weights that it copied itself. With experts, blockIdx.y is a token, and blocks
// of its choices follow one another, then those of the shared expert (gate, up).
//
// Experts: which weights to copy is known once the router is done. Gates wait for it; or they
// choose themselves (kRoutedGateUp): every routed block multiplies all of the router's matrix,
// copied to shared memory before PdlWait, ranks the scores and then copies its expert's weights;
// the first block writes the choice down for the launch after, PdlTrigger comes behind that, and so
// `down` may copy its weights before PdlWait. Precondition: the input's rows, and those of each
// expert's input, begin on 16-byte boundaries.
#pragma once

#include "cuda/kernels/convolved_pair.cuh"
#include "cuda/kernels/expert_choice.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec_params.cuh"
#include "cuda/kernels/matvec_phases.cuh"
#include "cuda/kernels/route.cuh"
#include "cuda/kernels/small_quotient.h"

namespace adder::cuda {

template <WeightFormat F, bool kWide, Experts kExperts, LinearEpilogue kEpilogue, Walk kWalk>
__global__ void __launch_bounds__((kWalk == Walk::kStream ? kStreamWarps : kMostWarps) * 32 + 32,
                                  F == WeightFormat::kF16 || F == WeightFormat::kF32 ||
                                          kExperts == Experts::kRoutedGateUp
                                      ? 1
                                  : kWalk == Walk::kStream ? kStreamBlocksPerMultiprocessor
                                                           : 2)
    MatvecKernel(const __grid_constant__ MatvecParams params) {
  using Span = WeightSpan<F, kWide>;
  constexpr int kChunks = Span::kChunks;
  constexpr int kSpanCols = kChunks * kChunkCols;
  constexpr bool kStream = kWalk == Walk::kStream;
  constexpr bool kKept = kWalk == Walk::kKept;
  constexpr bool kConvolves = kExperts == Experts::kConvolved;
  constexpr bool kNormalizes = kMayNormalize<kExperts, kEpilogue>;
  constexpr bool kRoutes = kExperts == Experts::kRoutedGateUp;
  constexpr bool kPair = kExperts == Experts::kPair;
  constexpr bool kGateUp = kExperts == Experts::kGateUp || kRoutes || kPair;
  const LinearParams& p = params.linear;
  // The last blocks of a row of the grid have the shared expert (gate, up).
  int block = static_cast<int>(blockIdx.x);
  int choice = 0;
  bool is_shared = false;
  if constexpr (kGateUp) {
    choice = min(Quotient(block, params.blocks_per_expert_reciprocal), params.top_k);
    block -= choice * params.blocks_per_expert;
    is_shared = choice == params.top_k;
  }
  const PackedMatrix& m = is_shared ? params.shared : p.matrix;
  constexpr bool kRule = kEpilogue == LinearEpilogue::kRule;
  const bool interleaved = kRule ? m.interleaved : kEpilogue == LinearEpilogue::kSiluMul;
  const int lane = static_cast<int>(threadIdx.x % 32);
  // The same in all lanes, which the compiler cannot know of a quotient.
  const int warp = static_cast<int>(__reduce_max_sync(0xffffffffu, threadIdx.x / 32));
  const int column_warps = kStream ? 1 : params.column_warps;
  const int warps = column_warps * params.row_warps;  // that multiply
  const int row_warp = kStream ? warp : Quotient(warp, params.column_warps_reciprocal);
  const int column_warp = kStream ? 0 : warp - row_warp * column_warps;
  const bool multiplies = warp < warps;
  const bool prepares = warp < params.preparing_warps;
  // kGrouped: chunks' own factors take the place of the row's.
  constexpr bool kGrouped = kExperts == Experts::kGrouped;
  const bool has_norm = kExperts == Experts::kNormed || (kNormalizes && p.norm_weight != nullptr);
  const bool has_factor = has_norm && !kGrouped;
  constexpr bool kSquares = kChunkSquares<kExperts, kEpilogue, kWalk>;
  const int spans = kExperts == Experts::kDown ? params.spans_of_block : params.spans;

  const float* input = p.input;
  float* output = p.output;
  const float* routing = nullptr;
  const float* shared_input = nullptr;
  if constexpr (kGateUp) {
    const auto token = static_cast<long long>(blockIdx.y);
    input += token * p.input_stride;
    if (is_shared) {
      output = params.shared_output + token * params.shared_output_stride;
    } else if constexpr (!kPair) {
      routing = params.routing + token * params.routing_stride + params.top_k + choice;
      output += token * p.output_stride + choice * (interleaved ? m.rows / 2 : m.rows);
    }
  } else if constexpr (kExperts == Experts::kDown) {
    routing = params.routing + static_cast<long long>(blockIdx.y) * params.routing_stride;
    input += static_cast<long long>(blockIdx.y) * p.input_stride;
    output += static_cast<long long>(blockIdx.y) * p.output_stride;
    shared_input =
        params.shared_input + static_cast<long long>(blockIdx.y) * params.shared_input_stride;
  }
  // Spans of chosen experts come first, those of the shared one last (down).
  const int routed_spans = params.top_k * params.spans;

  // Shared memory: weights [warps][held_spans] (kKept: the row and its norm's weights),
  // activations, their units, chunks' squares, partial sums [warps][16], the norm's factor, a
  // router's ExpertChoice.
  extern __shared__ uint4 shared_memory[];
  uint4* shared = Kept(shared_memory);
  // This block multiplies the router's matrix, all of it, before its own.
  bool is_routing = kRoutes && !is_shared;
  int held = is_routing             ? params.router_held_spans
             : kWalk == Walk::kOnce ? params.held_spans
                                    : kRingSpans;
  typename Span::Lane kept;
  const auto own_weights = [&] {
    return reinterpret_cast<unsigned char*>(shared) + warp * held * kSpanBytes<F, kWide>;
  };
  unsigned char* weights = own_weights();
  const int columns = spans * kSpanCols;
  unsigned char* activations =
      reinterpret_cast<unsigned char*>(shared) +
      (kKept ? StagedBytes<kNormalizes>(columns) : params.weight_spans * kSpanBytes<F, kWide>);
  const int stride = columns + kColumnPad;
  constexpr int kGroups = kChunkGroups<kWide>;
  GroupUnit* units = reinterpret_cast<GroupUnit*>(
      activations + (IsQuantized(F) ? spans * kChunks * kActivationBytesPerChunk : 4 * stride));
  // kSquares: those of each chunk, then.
  float* chunk_squares =
      reinterpret_cast<float*>(units + (IsQuantized(F) ? spans * kChunks * kGroups : 0));
  float* partial = chunk_squares + (kSquares ? spans * kChunks : 0);
  float* factor = partial + (kStream ? 0 : warps * kTileRows);
  const ExpertChoice chosen(factor + 1, kRoutes ? params.router.rows : m.rows);

  // Where the next span to copy lies.
  const int first_tile = block * params.row_warps + row_warp;
  const int tile_step = static_cast<int>(gridDim.x) * params.row_warps;
  int copy_tile = multiplies ? first_tile : m.tiles;
  int copy_span = column_warp;
  int copy_step = column_warps;
  if (is_routing) {
    copy_step = params.router_column_warps;
    copy_tile = Quotient(warp, params.router_column_warps_reciprocal);
    copy_span = warp - copy_tile * copy_step;
  }
  // `slot` is the place in the ring.
  const auto copy_next = [&](int slot) {
    const PackedMatrix& from = is_routing ? params.router : m;
    if (copy_tile >= from.tiles || copy_span >= spans) return;
    int matrix = 0;
    int span = copy_span;
    const auto fetch = [&](const PackedMatrix& packed, int place, int first) {
      if constexpr (kKept) {
        kept.Load(packed, matrix, place, first, packed.chunks - 1, lane);
      } else {
        Span::Copy(packed, matrix, place, first, packed.chunks - 1, lane,
                   weights + slot * kSpanBytes<F, kWide>);
      }
    };
    if constexpr (kRoutes) {
      if (!is_shared && !is_routing) matrix = chosen.experts[choice];
    } else if constexpr (kGateUp && !kPair) {
      if (!is_shared) matrix = static_cast<int>(*routing);
    }
    if (kExperts == Experts::kDown && span >= routed_spans) {
      const PackedMatrix& shared_matrix = params.shared;
      fetch(shared_matrix, copy_tile * shared_matrix.chunks, (span - routed_spans) * kChunks);
    } else {
      if constexpr (kExperts == Experts::kDown) {
        const int choice = Quotient(span, params.spans_reciprocal);
        span -= choice * params.spans;
        matrix = static_cast<int>(__ldcg(routing + params.top_k + choice));
      }
      fetch(from, copy_tile * from.chunks, span * kChunks);
    }
    copy_span += copy_step;
    if (kStream && copy_span >= spans) {
      copy_span = 0;
      copy_tile += tile_step;
    }
  };
  const auto copy_first = [&] {
    if constexpr (kKept) {
      copy_next(0);
    } else {
#pragma unroll 1
      for (int slot = 0; slot < held; ++slot) {
        copy_next(slot);
        if (kWalk != Walk::kOnce) CommitCopies();
      }
    }
  };

  // What was routed is known (down): the launch of gates triggers only then.
  if (kExperts != Experts::kGateUp || is_shared) copy_first();
  // This lane's columns: two here and two kSecond beyond.
  const int first_col =
      static_cast<int>(threadIdx.x / 16) * kChunkCols + LaneColumns<F>::First(lane);
  constexpr int kSecond = LaneColumns<F>::kSecond;
  const auto load_pair = [&](const float* from, int col, float otherwise) {
    return col < m.cols ? *reinterpret_cast<const float2*>(from + col)
                        : make_float2(otherwise, otherwise);
  };
  float2 norm[2];
  norm[0] = norm[1] = make_float2(1, 1);
  const auto load_norm = [&](int col) {
    if (!has_norm) return;
    norm[0] = load_pair(p.norm_weight, col, 1);
    norm[1] = load_pair(p.norm_weight, col + kSecond, 1);
  };
  if constexpr (!kKept) load_norm(first_col);
  // Of long rows, the same of the next round, which would come from memory behind the wait.
  const int step = params.preparing_warps * 2 * kChunkCols;
  float2 next_norm[2];
  const auto load_next_norm = [&](int col) {
    if (!has_norm) return;
    next_norm[0] = load_pair(p.norm_weight, col, 1);
    next_norm[1] = load_pair(p.norm_weight, col + kSecond, 1);
  };
  if constexpr (kSquares && !kKept) {
    next_norm[0] = next_norm[1] = make_float2(1, 1);
    load_next_norm(first_col + step);
  }
  // With spans in registers, what the warp prepares comes through shared memory, sixteen bytes of
  // each round per thread: loads into registers would be waited for together with the weights.
  float* staged = reinterpret_cast<float*>(shared);
  const int own_col = static_cast<int>(threadIdx.x) * 4;
  const bool stages = kKept && prepares && own_col < columns;
  const unsigned staged_place = SharedPlace(staged + own_col);
  const auto stage = [&](unsigned to, const float* from, unsigned bytes) {
#pragma unroll 1
    for (int col = own_col;;) {
      CopyAsync(to, from, bytes);
      col += step;
      if (col >= columns) break;
      to += step * sizeof(float);
      from += step;
      bytes = col < m.cols ? 16 : 0;
    }
  };
  if (stages && kNormalizes && has_norm) {
    stage(staged_place + columns * sizeof(float), p.norm_weight + own_col,
          own_col < m.cols ? 16 : 0);
  }
  // In blocks: the row that this thread finishes, if it does.
  const int finish_tile = block * params.row_warps + warp;
  const int row = LogicalRow(interleaved, m.rows, finish_tile, lane % kTileRows);
  const bool finishes = !kStream && warp < params.row_warps && row < m.rows;
  const bool is_second = kPair && is_shared;
  const float* biases = is_second ? params.second_bias : p.bias;
  const float bias = finishes && biases != nullptr ? biases[row] : 0.0f;
  const float* row_factors = is_second ? params.second_factors : p.rule.factors;
  float row_factor = 1;
  if (kRule && finishes && row_factors != nullptr) row_factor = row_factors[row];

  ConvolvedPair window[2];
  SequenceRun run = {};
  if constexpr (kConvolves) run = params.conv.runs[0];
  const auto load_window = [&](int col) {
    if constexpr (kConvolves) {
      window[0].Load(params.conv, run, col);
      window[1].Load(params.conv, run, col + kSecond);
    }
  };
  if (prepares) load_window(first_col);

  // Known before the wait, and not found out again behind it.
  const bool has_input_rows = Kept(p.input_rows != nullptr ? 1u : 0u) != 0;
  const float* own_input = input + own_col;
  unsigned own_bytes = own_col < m.cols ? 16 : 0;
  if constexpr (kKept) {
    asm volatile("" : "+l"(own_input));
    own_bytes = Kept(own_bytes);
  }

  if (params.triggers_early) PdlTrigger();
  PdlWait();
  if (!params.triggers_early && (!kRoutes || is_shared)) PdlTrigger();
  if (kExperts == Experts::kGateUp && !is_shared) copy_first();
  float old = 0;
  const auto load_old = [&] {
    if constexpr (!kStream && (kRule || kEpilogue == LinearEpilogue::kAdd)) {
      if (finishes && (!kRule || p.rule.adds)) old = output[row];
    }
  };
  if (has_input_rows) {
    const long long offset = static_cast<long long>(*p.input_rows) * p.input_stride;
    input += offset;
    own_input += offset;
  }
  if (stages) stage(staged_place, own_input, own_bytes);
  load_old();
  float squares = 0;
  float shared_weight = 1;
  if (kExperts == Experts::kDown && params.shared_gate != nullptr) {
    const float gate =
        params.shared_gate[static_cast<long long>(blockIdx.y) * params.shared_gate_stride];
    shared_weight = __fdividef(1.0f, 1.0f + __expf(-gate));
  }
  if (prepares) {
    const auto load_input = [&](int col, float2& x, float2& y) {
      if constexpr (kExperts == Experts::kDown) {
        const int span = col / kSpanCols;
        const bool of_shared = span >= routed_spans;
        const int choice = of_shared ? 0 : Quotient(span, params.spans_reciprocal);
        const int from = col - (of_shared ? routed_spans : choice * params.spans) * kSpanCols;
        const float* activated = of_shared ? shared_input : input + choice * m.cols;
        const int width = of_shared ? params.shared.cols : m.cols;
        const float2 none = make_float2(0, 0);
        x = from < width ? *reinterpret_cast<const float2*>(activated + from) : none;
        y = from + kSecond < width ? *reinterpret_cast<const float2*>(activated + from + kSecond)
                                   : none;
        const float weight = of_shared ? shared_weight : routing[choice];
        x.x *= weight, x.y *= weight, y.x *= weight, y.y *= weight;
      } else if constexpr (kConvolves) {
        const bool writes = blockIdx.x == 0;
        x = window[0].Apply(params.conv, run, col, writes);
        y = window[1].Apply(params.conv, run, col + kSecond, writes);
      } else {
        x = load_pair(input, col, 0);
        y = load_pair(input, col + kSecond, 0);
      }
    };
    // `square`: of what x and y were without the norm's weight.
    const auto prepare = [&](int col, float2 x, float2 y, float square) {
      const int chunk = col / kChunkCols;
      if constexpr (IsQuantized(F)) {
        QuantizeActivations<F, kWide, kSquares>(
            x, y, lane, col < columns, activations + chunk * kActivationBytesPerChunk,
            units + chunk * kGroups, square, chunk_squares + chunk);
      } else {
        if constexpr (kSquares) {
#pragma unroll
          for (int offset = 8; offset > 0; offset /= 2) {
            square += __shfl_xor_sync(0xffffffffu, square, offset);
          }
        }
        if (col >= columns) return;
        __nv_bfloat16* to = reinterpret_cast<__nv_bfloat16*>(activations) + col;
        SplitActivations(x, to, stride);
        SplitActivations(y, to + kSecond, stride);
        if (kSquares && lane % 16 == 0) chunk_squares[chunk] = square;
      }
    };
    // Whether the warp, whose lanes work together, has columns from here on.
    const auto has_columns = [&](int col) {
      return col - first_col + warp * 2 * kChunkCols < columns;
    };
    if constexpr (kKept) {
      CommitCopies();
      WaitForCopies<0>();
      __syncwarp();
#pragma unroll 1
      for (int col = first_col; has_columns(col); col += step) {
        float2 x = *reinterpret_cast<const float2*>(staged + col);
        float2 y = *reinterpret_cast<const float2*>(staged + col + kSecond);
        const float square = x.x * x.x + x.y * x.y + (y.x * y.x + y.y * y.y);
        if (has_norm) {
          norm[0] = *reinterpret_cast<const float2*>(staged + columns + col);
          norm[1] = *reinterpret_cast<const float2*>(staged + columns + col + kSecond);
          x.x *= norm[0].x, x.y *= norm[0].y, y.x *= norm[1].x, y.y *= norm[1].y;
        }
        prepare(col, x, y, square);
      }
    } else if constexpr (kExperts == Experts::kDown && kWalk == Walk::kLoop) {
      // Many experts' columns: several rounds' loads are on their way.
      constexpr int kTogether = 4;
#pragma unroll 1
      for (int base = first_col; has_columns(base); base += kTogether * step) {
        float2 x[kTogether];
        float2 y[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) load_input(base + i * step, x[i], y[i]);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) prepare(base + i * step, x[i], y[i], 0);
      }
    } else {
      float2 x;
      float2 y;
      load_input(first_col, x, y);
#pragma unroll 1
      for (int col = first_col;;) {
        float2 next_x;
        float2 next_y;
        load_window(col + step);
        load_input(col + step, next_x, next_y);
        const float square = x.x * x.x + x.y * x.y + (y.x * y.x + y.y * y.y);
        if constexpr (kNormalizes) {
          x.x *= norm[0].x, x.y *= norm[0].y, y.x *= norm[1].x, y.y *= norm[1].y;
        }
        prepare(col, x, y, square);
        col += step;
        if (!has_columns(col)) break;
        if constexpr (kSquares) {
          norm[0] = next_norm[0];
          norm[1] = next_norm[1];
          load_next_norm(col + step);
        } else {
          load_norm(col);
        }
        x = next_x;
        y = next_y;
      }
    }
  } else if (has_factor && !kSquares) {
    squares = SquaresOfRow(input, lane, m.cols);
  }
  const auto find_factor = [&] {
    if (prepares || !has_factor) return;
    if constexpr (kSquares) {
#pragma unroll 1
      for (int chunk = lane; chunk < m.chunks; chunk += 32) squares += chunk_squares[chunk];
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    if (lane == 0) *factor = rsqrtf(squares * params.inverse_cols + p.norm_eps);
  };
  static_assert(!kKept || ((kSquares || !kNormalizes) && kExperts != Experts::kDown &&
                           kExperts != Experts::kGateUp && !kConvolves && !kRoutes));
  if constexpr (kStream || kRoutes) find_factor();
  if constexpr (kWalk == Walk::kOnce) {
    // A warp's copies are seen by all its lanes after the barrier.
    CommitCopies();
    WaitForCopies<0>();
  }
  // Found out before the barrier, as what is behind it is waited for.
  using Operands = typename Span::Operands;
  const int first_multiplied = kStream ? 0 : column_warp;
  const unsigned place =
      Kept(Operands::Place(activations, stride, lane) + first_multiplied * Operands::kSpanBytes);
  const GroupUnit* place_units = Kept(units + first_multiplied * kChunks * kGroups);
  __syncthreads();

  if constexpr (kGrouped) {
    ApplyGroupFactors<kWide>(units, chunk_squares, m.chunks, params.group_chunks, p.norm_eps);
    __syncthreads();
  }
  float sums[2] = {0, 0};
  const auto multiply = [&](int slot, int span) {
    const int beyond = span - first_multiplied;
    Operands operands;
    operands.Read(place + beyond * Operands::kSpanBytes, lane);
    typename Span::Lane read;
    if constexpr (!kKept) read.Read(weights + slot * kSpanBytes<F, kWide>, lane);
    Span::Multiply(kKept ? kept : read, operands, place_units + beyond * kChunks * kGroups, lane,
                   m.scale_format, sums);
  };
  // Waits for the oldest span of the ring, and asks for another in its place.
  const auto take = [&](int& slot, int span) {
    WaitForCopies<kRingSpans - 1>();
    __syncwarp();
    multiply(slot, span);
    __syncwarp();
    copy_next(slot);
    CommitCopies();
    if (++slot == kRingSpans) slot = 0;
  };
  int slot = 0;
  if constexpr (kStream) {
    if (!multiplies) return;
    const float scale = has_factor ? *factor : 1.0f;
#pragma unroll 1
    for (int tile = first_tile; tile < m.tiles; tile += tile_step) {
#pragma unroll 1
      for (int span = 0; span < spans; ++span) take(slot, span);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
        sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
      }
      if (lane % 4 == 0) {
        StoreRows<kEpilogue>(p, output, tile, lane / 4, 0, sums[0] * scale, sums[1] * scale,
                             LoadOld<kEpilogue>(p, output, tile, lane / 4, 0));
      }
      sums[0] = sums[1] = 0;
    }
    return;
  } else {
    // Once, or for the router's matrix and then for this block's.
#pragma unroll 1
    for (;;) {
      const int own_column_warps = is_routing ? params.router_column_warps : column_warps;
      const int own_row_warps = is_routing ? params.router.tiles : params.row_warps;
      int first_span = column_warp;
      if (is_routing) {
        first_span =
            warp - Quotient(warp, params.router_column_warps_reciprocal) * own_column_warps;
      }
      if (kRoutes ? warp < own_row_warps * own_column_warps : multiplies) {
        if constexpr (kKept) {
          multiply(0, first_span);
        } else {
#pragma unroll 1
          for (int span = first_span; span < spans; span += own_column_warps) {
            if constexpr (kWalk == Walk::kOnce) {
              multiply(slot++, span);
            } else {
              take(slot, span);
            }
          }
        }
        // Odd lanes of a quad add up row g + 8, even ones row g.
        const bool odd = lane % 2 != 0;
        float sum = odd ? sums[1] : sums[0];
        sum += __shfl_xor_sync(0xffffffffu, odd ? sums[0] : sums[1], 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 < 2) partial[warp * kTileRows + lane / 4 + lane % 4 * 8] = sum;
      }
      if constexpr (!kRoutes) find_factor();
      __syncthreads();
      if (warp < own_row_warps) {
        // Half a warp adds up every other column warp's sums.
        float y = 0;
        const float* from = partial + warp * own_column_warps * kTileRows + lane % kTileRows;
        static_assert(kMostWarps == 16);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int w = 2 * i + lane / kTileRows;
          y += w < own_column_warps ? from[w * kTileRows] : 0.0f;
        }
        y += __shfl_xor_sync(0xffffffffu, y, 16);
        if (has_factor) y *= *factor;
        if (is_routing) {
          const int expert = warp * kTileRows + lane;
          if (lane < kTileRows && expert < params.router.rows) {
            chosen.SetScore(expert,
                            params.router_bias == nullptr ? y : y + params.router_bias[expert]);
          }
        } else {
          if constexpr (kRule) {
            y = fmaf(y, row_factor, bias);
            if (interleaved || p.rule.activates) {
              const float up = __shfl_xor_sync(0xffffffffu, y, 8);
              y = Activate(p.rule.activation, y);
              if (interleaved) y *= up;
            }
            if (finishes && lane < (interleaved ? 8 : kTileRows)) {
              output[row] = fmaf(is_second ? params.second_scale : p.scale, y, old);
            }
          } else if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
            y += bias;
            const float up = __shfl_xor_sync(0xffffffffu, y, 8);
            if (finishes && lane < 8) output[row] = FastSilu(y) * up;
          } else if (finishes && lane < kTileRows) {
            y += bias;
            if constexpr (kEpilogue == LinearEpilogue::kRouter) {
              if (gridDim.x == 1) {
                chosen.SetScore(row, y);
              } else {
                __stcg(p.scores + row, y);
              }
            } else if constexpr (kEpilogue == LinearEpilogue::kRouteByRule) {
              __stcg(p.scores + row, y);
            } else {
              output[row] = fmaf(p.scale, y, old);
            }
          }
        }
      }
      if (!is_routing) break;
      __syncthreads();
      chosen.Rank(params.top_k);
      is_routing = false;
      held = params.held_spans;
      weights = own_weights();
      copy_tile = multiplies ? first_tile : m.tiles;
      copy_span = column_warp;
      copy_step = column_warps;
      copy_first();
      CommitCopies();
      if (blockIdx.x == 0) {
        chosen.Write(params.top_k, params.chosen);
        __threadfence();
        __syncthreads();
      }
      PdlTrigger();
      slot = 0;
      sums[0] = sums[1] = 0;
      WaitForCopies<0>();
      __syncwarp();
    }
  }
  if constexpr (kEpilogue == LinearEpilogue::kRouteByRule) {
    if (!ArrivesLast(p.arrivals)) return;
    for (int e = static_cast<int>(threadIdx.x); e < m.rows; e += static_cast<int>(blockDim.x)) {
      chosen.scores[e] = __ldcg(p.scores + e);
    }
    __syncthreads();
    ChooseByRule(params.route, chosen.scores, output);
  }
  if constexpr (kEpilogue == LinearEpilogue::kRouter) {
    if (gridDim.x > 1) return RouteWhenLast(p, output, 0, 1, p.arrivals);
    __syncthreads();
    chosen.Rank(p.top_k);
    chosen.Write(p.top_k, output);
  }
}

}  // namespace adder::cuda
