// The gated delta rule, for one token or token by token.
//
// Ownership. A block owns kPart columns of one head's state (or, where it takes whole heads, one
// such part after the other) and all of its rows. Each of its warps owns kWarpRows rows, and a lane
// four columns of four of them: eight lanes together read 128 contiguous bytes of a row, and each
// state element is in a register of one thread.
//
// With the decayed state S, and q and k as they come from the convolution, the sums over rows
//   A = k S,  B = q S,  k . k,  q . q,  q . k
// give all that a token needs, since lengths are only factors: what k changes is
// u = beta (v - A / |k|) / |k|, the state becomes S + k u, and its answer to q is
// (B + (q . k) u) / |q|. So there is one exchange between the warps per token.
//
// Step kernel. Phases: (1) load state, conv weights and windows, which earlier steps wrote; (2)
// PdlWait; (3) a warp convolves q and k of its own rows, one of both per lane, and passes them on
// through its own shared memory; the last warp convolves v; (4) decay, and the warp's share of the
// sums; (5) barrier; the first warp has the answer and hands its sum of squares to the blocks of
// the cluster, which are those of the head; all update and store their state; (6) the first warp
// norms, gates and stores the answer. q and k are convolved by every block of their heads; the
// first of these writes their window.
//
// The scan kernel walks over a run with the state in registers, kScanTokens tokens between loads;
// a second kernel norms and gates. All kernels take the same sums in the same order.
// Preconditions: CheckSizes.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/error.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kPart = 32;
constexpr int kRows = 4;  // of a lane
constexpr int kWarpRows = 4 * kRows;
constexpr int kMostWarps = kMostDeltaKeyDim / kWarpRows;
constexpr int kMostThreads = kMostWarps * 32;
constexpr int kMostParts = kMostDeltaValueDim / kPart;
constexpr int kScanTokens = 8;
constexpr int kNormWarps = 8;
static_assert(2 * kWarpRows == 32, "a lane convolves one row of q or of k");
static_assert(kMostParts <= 8, "a head's blocks form a cluster");

// kExact: as p.exact; with errors of a few roundings otherwise.
template <bool kExact>
__device__ __forceinline__ float Sigmoid(float x) {
  return kExact ? 1.0f / (1.0f + expf(-x)) : __fdividef(1.0f, 1.0f + __expf(-x));
}
template <bool kExact>
__device__ __forceinline__ float InverseRoot(float x) {
  return kExact ? 1.0f / sqrtf(x) : rsqrtf(x);
}
template <bool kExact>
__device__ __forceinline__ float Silu(float x) {
  return kExact ? ConvSilu(x) : __fdividef(x, 1.0f + __expf(-x));
}
template <bool kExact>
__device__ __forceinline__ float Decay(float a, float x) {
  if constexpr (kExact) return expf(a * (x > 20.0f ? x : log1pf(expf(x))));
  return __expf(a * (x > 20.0f ? x : __logf(1.0f + __expf(x))));
}

// Which sizes a kernel is compiled for. kWarps: of a block whose rows and columns are all there; 0:
// any sizes. With it d_conv is 4.
template <int kWarps>
struct Compiled {
  static constexpr bool kAny = kWarps == 0;
  static constexpr int kTaps = kAny ? kMostDeltaTaps : 4;
  static constexpr int kThreads = kAny ? kMostThreads : kWarps * 32;
};
bool Fits(const GatedDeltaParams& p, int warps) {
  return p.key_dim == warps * kWarpRows && p.value_dim % kPart == 0 && p.d_conv == 4;
}

// Where a thread works.
struct Place {
  int lane;
  int warp;
  int warps;
  int head;
  int key_head;
  int row;        // whose q or k this lane brings
  int first_row;  // of the lane's kRows
  int column;     // of the lane's four, in the part
  bool has_row;
};
template <int kWarps>
__device__ __forceinline__ Place FindPlace(const GatedDeltaParams& p) {
  Place place;
  place.lane = static_cast<int>(threadIdx.x) % 32;
  place.warp = static_cast<int>(threadIdx.x) / 32;
  place.warps = kWarps == 0 ? static_cast<int>(blockDim.x) / 32 : kWarps;
  place.head = static_cast<int>(blockIdx.y);
  place.key_head = place.head / (p.value_heads / p.key_heads);
  place.row = place.warp * kWarpRows + place.lane % kWarpRows;
  place.first_row = place.warp * kWarpRows + place.lane / 8 * kRows;
  place.column = place.lane % 8 * 4;
  place.has_row = kWarps != 0 || place.row < p.key_dim;
  return place;
}

__device__ __forceinline__ float* StateOf(const GatedDeltaParams& p, const Place& place,
                                          float* recurrent, int part) {
  return recurrent + p.state_offset +
         (static_cast<long long>(place.head) * p.key_dim + place.first_row) * p.value_dim +
         part * kPart + place.column;
}
// Whether a head has this column of a part.
template <int kWarps>
__device__ __forceinline__ bool HasColumn(const GatedDeltaParams& p, int part, int column) {
  return kWarps != 0 || part * kPart + column < p.value_dim;
}

template <int kWarps>
__device__ __forceinline__ void LoadState(float4 (&state)[kRows], const float* from,
                                          const GatedDeltaParams& p, const Place& place,
                                          bool has_columns) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i] = make_float4(0, 0, 0, 0);
    if (kWarps != 0 || (has_columns && place.first_row + i < p.key_dim)) {
      state[i] = __ldcg(reinterpret_cast<const float4*>(from + i * p.value_dim));
    }
  }
}
template <int kWarps>
__device__ __forceinline__ void StoreState(const float4 (&state)[kRows], float* to,
                                           const GatedDeltaParams& p, const Place& place,
                                           bool has_columns) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (kWarps != 0 || (has_columns && place.first_row + i < p.key_dim)) {
      *reinterpret_cast<float4*>(to + i * p.value_dim) = state[i];
    }
  }
}

// Of a warp's rows: sums of k S and of q S by column, and {k . k, q . q, q . k}.
struct alignas(16) Sums {
  float columns[2][kPart];
  float4 products;
};

__device__ __forceinline__ void LoadRows(float (&to)[kRows], const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// Adds up over the four lanes that have the same columns, each of which has rows of its own.
__device__ __forceinline__ float SumOfRows(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 16);
  return x + __shfl_xor_sync(0xffffffffu, x, 8);
}

// Decays the state and puts the warp's sums. q, k and decays are those of the lane's rows, in
// shared memory; `decay` is the head's where decays are not per channel.
template <bool kPerChannel>
__device__ __forceinline__ void PutSums(float4 (&state)[kRows], const float* q_rows,
                                        const float* k_rows, const float* decay_rows, float decay,
                                        int lane, Sums& sums) {
  float q[kRows];
  float k[kRows];
  float decays[kRows];
  LoadRows(q, q_rows);
  LoadRows(k, k_rows);
  if (kPerChannel) LoadRows(decays, decay_rows);
  float4 a = make_float4(0, 0, 0, 0);
  float4 b = make_float4(0, 0, 0, 0);
  float4 products = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    products.x = fmaf(k[i], k[i], products.x);
    products.y = fmaf(q[i], q[i], products.y);
    products.z = fmaf(q[i], k[i], products.z);
    const float keep = kPerChannel ? decays[i] : decay;
    state[i].x = __fmul_rn(keep, state[i].x);
    state[i].y = __fmul_rn(keep, state[i].y);
    state[i].z = __fmul_rn(keep, state[i].z);
    state[i].w = __fmul_rn(keep, state[i].w);
    a.x = fmaf(k[i], state[i].x, a.x);
    a.y = fmaf(k[i], state[i].y, a.y);
    a.z = fmaf(k[i], state[i].z, a.z);
    a.w = fmaf(k[i], state[i].w, a.w);
    b.x = fmaf(q[i], state[i].x, b.x);
    b.y = fmaf(q[i], state[i].y, b.y);
    b.z = fmaf(q[i], state[i].z, b.z);
    b.w = fmaf(q[i], state[i].w, b.w);
  }
  products.x = SumOfRows(products.x);
  products.y = SumOfRows(products.y);
  products.z = SumOfRows(products.z);
  if (lane == 0) sums.products = products;
  // The lower two lanes of the four end up with two of a each, the upper two with two of b.
  constexpr unsigned kAll = 0xffffffffu;
  const bool upper = (lane & 16) != 0;
  float4 mine = upper ? b : a;
  mine.x += __shfl_xor_sync(kAll, upper ? a.x : b.x, 16);
  mine.y += __shfl_xor_sync(kAll, upper ? a.y : b.y, 16);
  mine.z += __shfl_xor_sync(kAll, upper ? a.z : b.z, 16);
  mine.w += __shfl_xor_sync(kAll, upper ? a.w : b.w, 16);
  const bool odd = (lane & 8) != 0;
  float2 two = odd ? make_float2(mine.z, mine.w) : make_float2(mine.x, mine.y);
  two.x += __shfl_xor_sync(kAll, odd ? mine.x : mine.z, 8);
  two.y += __shfl_xor_sync(kAll, odd ? mine.y : mine.w, 8);
  *reinterpret_cast<float2*>(sums.columns[upper] + lane % 8 * 4 + (odd ? 2 : 0)) = two;
}

// What a token does, from the sums of all warps.
template <int kWarps, bool kExact>
struct Token {
  const Sums* sums;
  int warps;
  float beta;
  float key;    // 1 / |k|
  float query;  // query_scale / |q|
  float dot;    // q . k

  __device__ __forceinline__ Token(const GatedDeltaParams& p, const Sums* sums, const Place& place,
                                   float beta)
      : sums(sums), warps(kWarps == 0 ? place.warps : kWarps), beta(beta) {
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll(kWarps == 0 ? 1 : kWarps)
    for (int w = 0; w < warps; ++w) {
      const float4 products = sums[w].products;
      all.x += products.x, all.y += products.y, all.z += products.z;
    }
    key = InverseRoot<kExact>(all.x + p.qk_eps);
    query = __fmul_rn(p.query_scale, InverseRoot<kExact>(all.y + p.qk_eps));
    dot = all.z;
  }
  __device__ __forceinline__ float Change(float a, float v) const {
    return __fmul_rn(key, __fmul_rn(beta, fmaf(-key, a, v)));
  }

  // state += k u; v is of the lane's four columns, k of its rows, in shared memory.
  __device__ __forceinline__ void Update(float4 (&state)[kRows], const Place& place,
                                         const float* k_rows, const float* v) const {
    float4 a = make_float4(0, 0, 0, 0);
#pragma unroll(kWarps == 0 ? 1 : kWarps)
    for (int w = 0; w < warps; ++w) {
      const float4 more = *reinterpret_cast<const float4*>(sums[w].columns[0] + place.column);
      a.x += more.x, a.y += more.y, a.z += more.z, a.w += more.w;
    }
    const float4 value = *reinterpret_cast<const float4*>(v + place.column);
    float k[kRows];
    LoadRows(k, k_rows);
    const float4 change = make_float4(Change(a.x, value.x), Change(a.y, value.y),
                                      Change(a.z, value.z), Change(a.w, value.w));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      state[i].x = fmaf(k[i], change.x, state[i].x);
      state[i].y = fmaf(k[i], change.y, state[i].y);
      state[i].z = fmaf(k[i], change.z, state[i].z);
      state[i].w = fmaf(k[i], change.w, state[i].w);
    }
  }

  // The answer's element of this lane's column.
  __device__ __forceinline__ float Answer(const Place& place, const float* v) const {
    float a = 0;
    float b = 0;
#pragma unroll(kWarps == 0 ? 1 : kWarps)
    for (int w = 0; w < warps; ++w) {
      a += sums[w].columns[0][place.lane];
      b += sums[w].columns[1][place.lane];
    }
    return __fmul_rn(query, fmaf(dot, Change(a, v[place.lane]), b));
  }
};

template <bool kExact>
__device__ __forceinline__ void StoreOutput(const GatedDeltaParams& p, long long row, int at,
                                            float y, float squares, float weight, float gate) {
  const auto size = static_cast<float>(p.value_dim);
  const float mean = kExact ? squares / size : __fdividef(squares, size);
  const float factor = InverseRoot<kExact>(mean + p.norm_eps);
  float activated = Sigmoid<kExact>(gate);
  if (!p.gate_sigmoid) activated = __fmul_rn(activated, gate);
  const float out = __fmul_rn(__fmul_rn(__fmul_rn(y, factor), weight), activated);
  p.output[row * p.output_stride + at] = out;
  if (p.rounded_output != nullptr) {
    p.rounded_output[row * p.rounded_output_stride + at] =
        __bfloat16_as_ushort(__float2bfloat16_rn(out));
  }
}

struct alignas(16) OfWarp {
  float q_and_k[2 * kWarpRows];
  float decay[kWarpRows];
};

// kWarps: see Compiled. kExact: p.exact. kWhole: p.whole_heads; else blockIdx.x is the part.
template <int kWarps, bool kPerChannel, bool kExact, bool kWhole>
__global__ void __launch_bounds__(Compiled<kWarps>::kThreads, kWarps == 0 ? 1 : 3)
    GatedDeltaStepKernel(const __grid_constant__ GatedDeltaParams p) {
  using Sizes = Compiled<kWarps>;
  __shared__ OfWarp of_warps[Sizes::kThreads / 32];
  __shared__ Sums sums[Sizes::kThreads / 32];
  __shared__ __align__(16) float values[kPart];
  __shared__ float2 squares[kMostParts];
  __shared__ float answers[kWhole ? kMostDeltaValueDim : 1];
  const Place place = FindPlace<kWarps>(p);
  const SequenceRun run = p.runs[blockIdx.z];
  const int d_conv = Sizes::kAny ? p.d_conv : Sizes::kTaps;
  const int channels = p.conv_channels();
  float* ring = run.recurrent + p.conv_offset;
  const bool is_first = place.warp == 0;
  const bool brings_v = place.warp + 1 == place.warps;

  int part = kWhole ? 0 : static_cast<int>(blockIdx.x);
  float4 state[kRows];
  float* states = nullptr;
  ConvStep<Sizes::kTaps> conv_v;
  float v_bias = 0;
  int v_channel = 0;
  const auto load_part = [&] {
    states = StateOf(p, place, run.recurrent, part);
    LoadState<kWarps>(state, states, p, place, HasColumn<kWarps>(p, part, place.column));
    v_channel = 2 * p.keys() + place.head * p.value_dim + part * kPart + place.lane;
    if (brings_v && HasColumn<kWarps>(p, part, place.lane)) {
      conv_v.Load(p.conv_weight, ring, d_conv, channels, v_channel, run.position);
      if (p.conv_bias != nullptr) v_bias = p.conv_bias[v_channel];
    }
  };
  load_part();
  const int key_channel =
      place.key_head * p.key_dim + place.row + (place.lane < kWarpRows ? 0 : p.keys());
  ConvStep<Sizes::kTaps> conv_key;
  float key_bias = 0;
  const int decay_at = kPerChannel ? place.head * p.key_dim + place.row : place.head;
  const bool has_decay = !kPerChannel || place.has_row;
  float dt_bias = 0;
  if (place.has_row) {
    conv_key.Load(p.conv_weight, ring, d_conv, channels, key_channel, run.position);
    if (p.conv_bias != nullptr) key_bias = p.conv_bias[key_channel];
  }
  if (has_decay) dt_bias = p.dt_bias[decay_at];
  const float a = p.a[place.head];
  const long long row = run.row;
  const float* inputs = p.qkv + row * p.qkv_stride;
  const float* decays = p.decay + row * p.decay_stride + decay_at;
  const float* betas = p.beta + row * p.beta_stride + place.head;
  const float* gates = p.gate + row * p.gate_stride + place.head * p.value_dim;
  float* newest = ring + static_cast<long long>(run.position % d_conv) * channels;
  const bool writes_keys =
      d_conv > 1 && part == 0 && place.head == place.key_head * (p.value_heads / p.key_heads);
  const bool has_answer = is_first && HasColumn<kWarps>(p, part, place.lane);
  float weight = 0;
  if (!kWhole && has_answer) weight = p.norm_weight[part * kPart + place.lane];
  ReadyBeforeWait(inputs);
  ReadyBeforeWait(decays);
  ReadyBeforeWait(betas);
  ReadyBeforeWait(gates);
  ReadyBeforeWait(newest);
  ReadyBeforeWait(p.output);
  if (!kWhole) {
    ClusterArrive();
    ClusterWait();  // proves that all blocks of the head have begun
  }

  PdlWait();
  PdlTrigger();
  const float key_input = place.has_row ? inputs[key_channel] : 0.0f;
  const float decay_input = has_decay ? *decays : 0.0f;
  const float beta_input = *betas;
  float gate = 0;
  if (!kWhole && has_answer) gate = gates[part * kPart + place.lane];
  OfWarp& mine = of_warps[place.warp];
  float v_input = 0;
  if (brings_v && HasColumn<kWarps>(p, part, place.lane)) v_input = inputs[v_channel];
  mine.q_and_k[place.lane] =
      place.has_row ? Silu<kExact>(conv_key.Apply(key_bias, key_input, d_conv)) : 0.0f;
  const float decay = has_decay ? Decay<kExact>(a, decay_input + dt_bias) : 0.0f;
  if (kPerChannel && place.lane < kWarpRows) mine.decay[place.lane] = decay;
  if (writes_keys && place.has_row) newest[key_channel] = key_input;
  __syncwarp();
  const int of_rows = place.lane / 8 * kRows;
  const float* q_rows = mine.q_and_k + of_rows;
  const float* k_rows = q_rows + kWarpRows;
  const float beta = __fmul_rn(p.beta_scale, Sigmoid<kExact>(beta_input));
  const int parts = (p.value_dim + kPart - 1) / kPart;
  float y = 0;
  float total = 0;
#pragma unroll 1
  while (true) {
    if (brings_v) {
      const bool has_v = HasColumn<kWarps>(p, part, place.lane);
      values[place.lane] = has_v ? Silu<kExact>(conv_v.Apply(v_bias, v_input, d_conv)) : 0.0f;
      if (d_conv > 1 && has_v) newest[v_channel] = v_input;
    }
    PutSums<kPerChannel>(state, q_rows, k_rows, mine.decay + of_rows, decay, place.lane,
                         sums[place.warp]);
    __syncthreads();
    const Token<kWarps, kExact> token(p, sums, place, beta);
    if (is_first) {
      y = HasColumn<kWarps>(p, part, place.lane) ? token.Answer(place, values) : 0.0f;
      const float of_part = WarpSum(__fmul_rn(y, y));
      if (kWhole) {
        answers[part * kPart + place.lane] = y;
        total += of_part;
      } else if (place.lane < parts) {
        StoreIn(&squares[part], make_float2(of_part, 0), static_cast<unsigned>(place.lane));
      }
    }
    if (!kWhole) ClusterArrive();
    token.Update(state, place, k_rows, values);
    StoreState<kWarps>(state, states, p, place, HasColumn<kWarps>(p, part, place.column));
    if (!kWhole || ++part == parts) break;
    load_part();
    if (brings_v && HasColumn<kWarps>(p, part, place.lane)) v_input = inputs[v_channel];
    __syncthreads();
  }
  if (kWhole) {
    if (!is_first) return;
    for (int column = place.lane; column < p.value_dim; column += 32) {
      StoreOutput<kExact>(p, row, place.head * p.value_dim + column, answers[column], total,
                          p.norm_weight[column], gates[column]);
    }
    return;
  }
  ClusterWait();
  if (!has_answer) return;
#pragma unroll 1
  for (int i = 0; i < parts; ++i) total += squares[i].x;
  StoreOutput<kExact>(p, row, place.head * p.value_dim + part * kPart + place.lane, y, total,
                      weight, gate);
}

// The dynamic shared memory of the scan kernel: kScanTokens tokens, and sums of two.
struct ScanShared {
  Sums* sums;  // [2][warps]
  float* q;    // [tokens][rows of all warps], zero from key_dim on
  float* k;
  float* decay;  // [tokens][rows], or one per token
  float* v;      // [tokens][kPart]
  float* beta;   // [tokens]

  static __host__ __device__ size_t Bytes(int warps) {
    return static_cast<size_t>(2 * warps) * sizeof(Sums) +
           static_cast<size_t>(kScanTokens * (3 * warps * kWarpRows + kPart + 1)) * sizeof(float);
  }
  __device__ ScanShared(float4* memory, int warps) {
    const int rows = warps * kWarpRows;
    sums = reinterpret_cast<Sums*>(memory);
    q = reinterpret_cast<float*>(sums + 2 * warps);
    k = q + kScanTokens * rows;
    decay = k + kScanTokens * rows;
    v = decay + kScanTokens * rows;
    beta = v + kScanTokens * kPart;
  }
};

// Writes answers before their norm.
template <bool kPerChannel>
__global__ void __launch_bounds__(kMostThreads)
    GatedDeltaScanKernel(const __grid_constant__ GatedDeltaParams p) {
  extern __shared__ float4 shared_memory[];
  const Place place = FindPlace<0>(p);
  const int part = static_cast<int>(blockIdx.x);
  const SequenceRun run = p.runs[blockIdx.z];
  const ScanShared shared(shared_memory, place.warps);
  const int rows = place.warps * kWarpRows;
  const bool has_columns = HasColumn<0>(p, part, place.column);
  const bool has_column = HasColumn<0>(p, part, place.lane);
  float* states = StateOf(p, place, run.recurrent, part);
  float4 state[kRows];
  LoadState<0>(state, states, p, place, has_columns);
  const float a = p.a[place.head];
  PdlWait();
  PdlTrigger();
  const int column = place.head * p.value_dim + part * kPart + place.lane;
#pragma unroll 1
  for (int begin = 0; begin < run.tokens; begin += kScanTokens) {
    const int count = min(kScanTokens, run.tokens - begin);
    for (int i = place.warp; i < count; i += place.warps) {
      const long long row = run.row + begin + i;
      const float* qkv = p.qkv + row * p.qkv_stride;
      const float* decays = p.decay + row * p.decay_stride;
      for (int n = place.lane; n < rows; n += 32) {
        const bool inside = n < p.key_dim;
        const int channel = place.key_head * p.key_dim + n;
        shared.q[i * rows + n] = inside ? qkv[channel] : 0.0f;
        shared.k[i * rows + n] = inside ? qkv[p.keys() + channel] : 0.0f;
        if (kPerChannel) {
          const int at = place.head * p.key_dim + n;
          shared.decay[i * rows + n] = inside ? Decay<true>(a, decays[at] + p.dt_bias[at]) : 0.0f;
        }
      }
      shared.v[i * kPart + place.lane] = has_column ? qkv[2 * p.keys() + column] : 0.0f;
      if (place.lane == 0) {
        shared.beta[i] =
            __fmul_rn(p.beta_scale, Sigmoid<true>(p.beta[row * p.beta_stride + place.head]));
        if (!kPerChannel)
          shared.decay[i] = Decay<true>(a, decays[place.head] + p.dt_bias[place.head]);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      Sums* sums = shared.sums + i % 2 * place.warps;
      const int at = i * rows + place.first_row;
      PutSums<kPerChannel>(state, shared.q + at, shared.k + at, shared.decay + at, shared.decay[i],
                           place.lane, sums[place.warp]);
      // Behind this barrier nobody reads the other sums any more.
      __syncthreads();
      const Token<0, true> token(p, sums, place, shared.beta[i]);
      const float* v = shared.v + i * kPart;
      token.Update(state, place, shared.k + at, v);
      if (i % place.warps == place.warp && has_column) {
        p.output[(run.row + begin + i) * static_cast<long long>(p.output_stride) + column] =
            token.Answer(place, v);
      }
    }
    __syncthreads();
  }
  StoreState<0>(state, states, p, place, has_columns);
}

// After the scan: a warp norms and gates one head of one row.
__global__ void __launch_bounds__(kNormWarps * 32)
    GatedDeltaNormKernel(const __grid_constant__ GatedDeltaParams p) {
  PdlWait();
  PdlTrigger();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) * kNormWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= p.value_heads) return;
  const long long row = blockIdx.y;
  const int first = head * p.value_dim;
  const float* answers = p.output + row * p.output_stride + first;
  float y[kMostParts];
  float total = 0;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    y[i] = 0;
    if (i * kPart >= p.value_dim) break;
    if (i * kPart + lane < p.value_dim) y[i] = answers[i * kPart + lane];
    total += WarpSum(__fmul_rn(y[i], y[i]));
  }
  const float* gates = p.gate + row * p.gate_stride + first;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const int column = i * kPart + lane;
    if (column >= p.value_dim) break;
    StoreOutput<true>(p, row, first + column, y[i], total, p.norm_weight[column], gates[column]);
  }
}

void CheckSizes(const GatedDeltaParams& p) {
  if (p.key_dim > kMostDeltaKeyDim || p.value_dim > kMostDeltaValueDim || p.value_dim % 4 != 0) {
    Fail("The CUDA backend's gated delta rule takes heads with keys of at most ", kMostDeltaKeyDim,
         " and values of at most ", kMostDeltaValueDim,
         " elements, the latter a multiple of 4, and this model's have ", p.key_dim, " and ",
         p.value_dim, "; use --device cpu.");
  }
}

int PartsOf(const GatedDeltaParams& p) { return (p.value_dim + kPart - 1) / kPart; }
int WarpsOf(const GatedDeltaParams& p) { return (p.key_dim + kWarpRows - 1) / kWarpRows; }

dim3 GridOf(const GatedDeltaParams& p, int blocks_per_head) {
  return {static_cast<unsigned>(blocks_per_head), static_cast<unsigned>(p.value_heads),
          static_cast<unsigned>(p.run_count)};
}

template <int kWarps, bool kExact, bool kWhole>
void LaunchStep(const GatedDeltaParams& p, cudaStream_t stream) {
  const int blocks = kWhole ? 1 : PartsOf(p);
  LaunchClusters("the step kernel of the gated delta rule",
                 p.decay_per_channel ? GatedDeltaStepKernel<kWarps, true, kExact, kWhole>
                                     : GatedDeltaStepKernel<kWarps, false, kExact, kWhole>,
                 GridOf(p, blocks), dim3(static_cast<unsigned>(WarpsOf(p)) * 32),
                 dim3(static_cast<unsigned>(blocks)), 0, stream, p);
}

}  // namespace

void LaunchGatedDeltaStep(const GatedDeltaParams& params, cudaStream_t stream) {
  CheckSizes(params);
  if (params.d_conv > kMostDeltaTaps) {
    Fail("The CUDA backend's gated delta rule takes convolutions of at most ", kMostDeltaTaps,
         " taps, and this model's have ", params.d_conv, "; use --device cpu.");
  }
  if (params.whole_heads || (PartsOf(params) > 1 && !DeviceHasClusters())) {
    return LaunchStep<0, true, true>(params, stream);
  }
  if (params.exact) return LaunchStep<0, true, false>(params, stream);
  if (Fits(params, 8)) return LaunchStep<8, false, false>(params, stream);
  if (Fits(params, 6)) return LaunchStep<6, false, false>(params, stream);
  LaunchStep<0, false, false>(params, stream);
}

void LaunchGatedDeltaScan(const GatedDeltaParams& params, cudaStream_t stream) {
  CheckSizes(params);
  const int warps = WarpsOf(params);
  Launch("the scan kernel of the gated delta rule",
         params.decay_per_channel ? GatedDeltaScanKernel<true> : GatedDeltaScanKernel<false>,
         GridOf(params, PartsOf(params)), dim3(static_cast<unsigned>(warps) * 32),
         ScanShared::Bytes(warps), stream, params);
  Launch("the norm kernel of the gated delta rule", GatedDeltaNormKernel,
         dim3(static_cast<unsigned>((params.value_heads + kNormWarps - 1) / kNormWarps),
              static_cast<unsigned>(params.rows)),
         dim3(kNormWarps * 32), 0, stream, params);
}

}  // namespace adder::cuda
