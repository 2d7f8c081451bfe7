// Outputs of the chunked scan: phase (4) of mamba2_chunks.cu, which has the formulas.
//
// A block of 4 warps owns one half of a piece and some units of a group, sixteen tokens i per warp.
// Phases: (1) C of the half and B of all tokens up to its end to shared memory; (2) C_i . B_j to
// registers; barrier, B's memory is free; (3) per unit: x, state and step sizes to shared memory,
// barrier; C_i S, then the weighted products with x, in one accumulator; barrier; the gate, which
// was loaded meanwhile, and the result.
#include "cuda/kernels/mamba2_chunks.cuh"

namespace adder::cuda {
namespace {

constexpr int kHalf = kPieceTokens / 2;

// Shared memory of OutputKernel: C [kHalf, kN] | B [kPieceTokens, kN], over which x [kPieceTokens,
// kP] and the state [kN, kP] of a unit come to lie | {dt, s} of the unit.
template <int kN, int kP>
struct OutputLayout {
  static constexpr int kX = kHalf * kN * 2;
  static constexpr int kState = kX + kPieceTokens * kP * 2;
  static constexpr int kUnitEnd = kState + kN * kP * 2;
  static constexpr int kBEnd = kX + kPieceTokens * kN * 2;
  static constexpr int kSteps = kUnitEnd > kBEnd ? kUnitEnd : kBEnd;
  static constexpr int kBytes = kSteps + kPieceTokens * 8;
};

__device__ __forceinline__ unsigned MultiplyBf16(unsigned a, unsigned b) {
  unsigned product;
  // Plus -0, which changes nothing: the plain product needs sm_90.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

// Products C_i . B_j are kept as bf16: they are rounded to it anyway once they are weighted.
template <int kN, int kP>
__global__ void __launch_bounds__(kChunkThreads, kN > 128   ? 2
                                                 : kP == 32 ? 4
                                                            : 3)
    OutputKernel(const __grid_constant__ Mamba2ChunkParams c, int parts, int share) {
  using Layout = OutputLayout<kN, kP>;
  const Mamba2Params& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned c_tile = SharedAddress(shared);
  const unsigned b_tile = c_tile + Layout::kX;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const Units units = FindUnits(p, parts, share);
  // Second halves, which have more to do, come first.
  const int piece_index = static_cast<int>(blockIdx.y) % c.piece_count;
  const int first_token = static_cast<int>(blockIdx.y) < c.piece_count ? kHalf : 0;
  PdlWait();
  PdlTrigger();
  const Piece piece = c.pieces[piece_index];
  if (first_token >= piece.tokens) return;
  // Tokens whose x takes part, and those rounded up to whole multiplications.
  const int keys = min(piece.tokens, first_token + kHalf);
  const int padded = (keys + 15) / 16 * 16;

  const auto copy_unit = [&](int of_all) {
    const int head = of_all / parts;
    const int part = of_all % parts * kP;
    constexpr int kUnits = kP / 8;
    const __nv_bfloat16* x =
        c.x + static_cast<long long>(piece.row) * c.x_stride + head * c.x_step + part;
    for (int i = threadIdx.x; i < padded * kUnits; i += kChunkThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool valid = r < keys && part + unit * 8 < p.head_dim;
      CopyAsync(c_tile + Layout::kX + UnitOffset<kP>(r, unit),
                valid ? x + static_cast<long long>(r) * c.x_stride + unit * 8 : x, valid);
    }
    const __nv_bfloat16* state =
        c.before + (static_cast<long long>(piece_index) * p.heads + head) * p.d_state * p.head_dim +
        part;
    for (int i = threadIdx.x; i < kN * kUnits; i += kChunkThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool valid = r < p.d_state && part + unit * 8 < p.head_dim;
      CopyAsync(c_tile + Layout::kState + UnitOffset<kP>(r, unit),
                valid ? state + static_cast<long long>(r) * p.head_dim + unit * 8 : state, valid);
    }
    const int token = static_cast<int>(threadIdx.x);
    const float2* steps = c.steps + static_cast<long long>(head) * c.rows + piece.row;
    const bool valid = token < keys;
    CopyAsync8(c_tile + Layout::kSteps + token * 8, valid ? steps + token : steps, valid);
    CopyCommit();
  };

  CopyBc<kN>(c, c_tile, piece.row + first_token, kHalf, piece.tokens - first_token, units.group, 1);
  CopyBc<kN>(c, b_tile, piece.row, padded, keys, units.group, 0);
  CopyCommit();
  CopyWait<0>();
  __syncthreads();

  // C_i . B_j of this warp's sixteen rows i, as the A operand of the product with x: blocks of
  // sixteen j up to the diagonal.
  constexpr int kBlocks = kPieceTokens / 16;
  const int last_block = (first_token + warp * 16) / 16;
  unsigned cb[kBlocks][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float products[kBlocks][4] = {};
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      unsigned a[4];
      LoadA<kN>(a, c_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int i = 0; i < kBlocks / 2; ++i) {
        const int block = half * (kBlocks / 2) + i;
        if (block > last_block || block * 16 >= padded) break;
        unsigned b[4];
        LoadB<kN>(b, b_tile, block * 16, 2 * k, lane);
        MmaPair(products[2 * i], products[2 * i + 1], a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      cb[half * (kBlocks / 2) + i / 2][i % 2 * 2] = PackBf16(products[i][0], products[i][1]);
      cb[half * (kBlocks / 2) + i / 2][i % 2 * 2 + 1] = PackBf16(products[i][2], products[i][3]);
    }
  }
  unsigned diagonal[4] = {};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block != last_block) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) diagonal[e] = cb[block][e];
  }
  __syncthreads();
  copy_unit(units.first);

  const int i0 = first_token + warp * 16 + g;
  const int i1 = i0 + 8;
  const float2* steps = reinterpret_cast<const float2*>(shared + Layout::kSteps);
#pragma unroll 1
  for (int of_all = units.first; of_all < units.end; ++of_all) {
    const int head = of_all / parts;
    const int part = of_all % parts * kP;
    const long long row = piece.row + i0;
    // Of a mixer without gates, never read.
    const float* z0 = p.projected + row * p.projected_stride + head * p.head_dim + part + 2 * t;
    const float* z1 = z0 + 8LL * p.projected_stride;
    float2 z[2][kP / 8];
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
      const bool inside = p.gates && part + n * 8 < p.head_dim;
      const auto two = [](const float* from) { return *reinterpret_cast<const float2*>(from); };
      z[0][n] = inside && i0 < piece.tokens ? two(z0 + n * 8) : make_float2(0, 0);
      z[1][n] = inside && i1 < piece.tokens ? two(z1 + n * 8) : make_float2(0, 0);
    }
    CopyWait<0>();
    __syncthreads();
    const float s0 = steps[i0].y;
    const float s1 = steps[i1].y;
    float acc[kP / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      unsigned a[4];
      LoadA<kN>(a, c_tile, warp * 16, 2 * k, lane);
#pragma unroll
      for (int n = 0; n < kP / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kP>(b, c_tile + Layout::kState, k * 16, 2 * n, lane);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    }
    // With `border` the sum s before the warp's rows, exp(s_i - s_j) is exp(s_i - border) times
    // exp(border - s_j) for every j before them, both exponents at most 0: one exponential per j
    // and one per i, which is applied to the sum.
    const float border = last_block == 0 ? 0.0f : steps[last_block * 16 - 1].y;
    const float border_decay = Exp2(border);
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= border_decay;
    }
    const auto multiply_x = [&](const unsigned(&a)[4], int block) {
#pragma unroll
      for (int n = 0; n < kP / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kP>(b, c_tile + Layout::kX, block * 16, 2 * n, lane);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    };
#pragma unroll
    for (int block = 0; block < kBlocks - 1; ++block) {
      if (block >= last_block) break;
      unsigned a[4];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const float4 two = *reinterpret_cast<const float4*>(steps + block * 16 + q * 8 + 2 * t);
        const unsigned weights =
            PackBf16(two.x * Exp2(border - two.y), two.z * Exp2(border - two.w));
        a[2 * q] = MultiplyBf16(cb[block][2 * q], weights);
        a[2 * q + 1] = MultiplyBf16(cb[block][2 * q + 1], weights);
      }
      multiply_x(a, block);
    }
    const float decay0 = Exp2(s0 - border);
    const float decay1 = Exp2(s1 - border);
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
      acc[n][0] *= decay0, acc[n][1] *= decay0;
      acc[n][2] *= decay1, acc[n][3] *= decay1;
    }
    // The block on the diagonal.
    unsigned a[4];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int j = last_block * 16 + q * 8 + 2 * t;
      const float4 two = *reinterpret_cast<const float4*>(steps + j);
      const auto weigh = [&](unsigned products, float s, int i) {
        return MultiplyBf16(products, PackBf16(j <= i ? two.x * Exp2(s - two.y) : 0.0f,
                                               j + 1 <= i ? two.z * Exp2(s - two.w) : 0.0f));
      };
      a[2 * q] = weigh(diagonal[2 * q], s0, i0);
      a[2 * q + 1] = weigh(diagonal[2 * q + 1], s1, i1);
    }
    if (last_block * 16 < padded) multiply_x(a, last_block);
    const float d = p.d == nullptr ? 0.0f : p.d[head];
#pragma unroll
    for (int n = 0; n < kP / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned x = *reinterpret_cast<const unsigned*>(
            shared + Layout::kX + UnitOffset<kP>(r == 0 ? i0 : i1, n) + t * 4);
        acc[n][2 * r] = fmaf(d, __uint_as_float(x << 16), acc[n][2 * r]);
        acc[n][2 * r + 1] = fmaf(d, __uint_as_float(x & 0xffff0000u), acc[n][2 * r + 1]);
      }
    }
    __syncthreads();
    if (of_all + 1 < units.end) copy_unit(of_all + 1);
    const auto gate = [&](float of_z) { return p.gates ? FastSilu(of_z) : 1.0f; };
    __nv_bfloat16* out = c.output + row * c.output_stride + head * p.head_dim + part + 2 * t;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((r == 0 ? i0 : i1) >= piece.tokens) continue;
#pragma unroll
      for (int n = 0; n < kP / 8; ++n) {
        if (part + n * 8 >= p.head_dim) continue;
        *reinterpret_cast<unsigned*>(out + 8LL * r * c.output_stride + n * 8) =
            PackBf16(acc[n][2 * r] * gate(z[r][n].x), acc[n][2 * r + 1] * gate(z[r][n].y));
      }
    }
  }
}

}  // namespace

void LaunchMamba2Outputs(const Mamba2ChunkParams& params, int multiprocessors,
                         cudaStream_t stream) {
  WithSizes(params.mixer, [&]<int kN, int kP>() {
    const UnitGrid grid = ShareUnits(params.mixer, kP, 2 * params.piece_count, multiprocessors);
    const auto kernel = OutputKernel<kN, kP>;
    constexpr size_t kBytes = OutputLayout<kN, kP>::kBytes;
    AllowSharedMemory(kernel, kBytes);
    Launch("the kernel of chunk outputs", kernel,
           dim3(grid.blocks, static_cast<unsigned>(2 * params.piece_count)), dim3(kChunkThreads),
           kBytes, stream, params, grid.parts, grid.share);
  });
}

}  // namespace adder::cuda
