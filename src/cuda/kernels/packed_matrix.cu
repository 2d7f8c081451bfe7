// Packing weights into tensor-core fragments, and reading single rows back (embeddings).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/packed_matrix.h"

namespace adder::cuda {
namespace {

__device__ float LoadFloatElement(const unsigned char* data, long long index, int bytes,
                                  bool bfloat16) {
  const unsigned char* at = data + index * bytes;
  if (bytes == 2) {
    const unsigned short bits = static_cast<unsigned short>(at[0] | at[1] << 8);
    return bfloat16 ? __uint_as_float(static_cast<unsigned>(bits) << 16)
                    : __half2float(__ushort_as_half(bits));
  }
  unsigned low = 0;
  for (int i = 0; i < 4; ++i) low |= static_cast<unsigned>(at[i]) << (8 * i);
  if (bytes == 4) return __uint_as_float(low);
  unsigned high = 0;
  for (int i = 0; i < 4; ++i) high |= static_cast<unsigned>(at[4 + i]) << (8 * i);
  return static_cast<float>(__hiloint2double(static_cast<int>(high), static_cast<int>(low)));
}

__device__ unsigned LoadQuantized(const RawSegment& segment, int row, int col) {
  const long long bit = static_cast<long long>(col) * segment.bits;
  const unsigned char* at = segment.data + row * segment.row_bytes + bit / 8;
  const int shift = static_cast<int>(bit % 8);
  unsigned value = at[0];
  if (shift + segment.bits > 8) value |= static_cast<unsigned>(at[1]) << 8;
  return value >> shift & ((1u << segment.bits) - 1);
}

struct Element {
  unsigned quantized;
  float scale;
  float bias;
  float value;
};

// The element at a logical row and a column; zeros in the padding.
__device__ Element LoadElement(const RawMatrix& raw, int row, int col, int cols) {
  Element element = {0, 0, 0, 0};
  if (col >= cols) return element;
  for (int s = 0; s < raw.count; ++s) {
    const RawSegment& segment = raw.segments[s];
    const int local = row - segment.row_begin;
    if (local < 0 || local >= segment.rows) continue;
    if (segment.bits == 0) {
      element.value = LoadFloatElement(segment.data, static_cast<long long>(local) * cols + col,
                                       segment.float_bytes, segment.bfloat16);
      return element;
    }
    const long long group =
        static_cast<long long>(local) * (cols / segment.group_size) + col / segment.group_size;
    element.quantized = LoadQuantized(segment, local, col);
    element.scale = LoadFloatElement(segment.scales, group, segment.float_bytes, segment.bfloat16);
    element.bias = LoadFloatElement(segment.biases, group, segment.float_bytes, segment.bfloat16);
    element.value = element.scale * static_cast<float>(element.quantized) + element.bias;
    return element;
  }
  return element;
}

// One warp per tile and chunk.
__global__ void PackKernel(RawMatrix raw, PackedMatrix packed, uint4* data, unsigned char* scales) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const long long warp = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (warp >= static_cast<long long>(packed.tiles) * packed.chunks) return;
  const int tile = static_cast<int>(warp / packed.chunks);
  const int chunk = static_cast<int>(warp % packed.chunks);
  const int loads = LoadsOf(packed.format);
  uint4* out = data + warp * loads * 32 + lane;
  unsigned words[32] = {};
  for (int r = 0; r < 2; ++r) {
    const int row = LogicalRow(packed.interleaved, packed.rows, tile, g + 8 * r);
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 8; ++i) {
        const int col = chunk * kChunkCols + 32 * h + 8 * t + i;
        const Element e = LoadElement(raw, row, col, packed.cols);
        switch (packed.format) {
          case WeightFormat::kQ4:
            words[2 * h + r] |= e.quantized << (4 * (i / 2 + 4 * (i % 2)));
            break;
          case WeightFormat::kQ8:
            words[4 * h + 2 * (i / 4) + r] |= e.quantized << (8 * (i % 4));
            break;
          case WeightFormat::kBf16:
            words[4 * (2 * h + r) + i / 2] |=
                static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(e.value)))
                << (16 * (i % 2));
            break;
          case WeightFormat::kF16:
            words[4 * (2 * h + r) + i / 2] |=
                static_cast<unsigned>(__half_as_ushort(__float2half_rn(e.value))) << (16 * (i % 2));
            break;
          case WeightFormat::kF32:
            words[4 * (4 * h + 2 * r + i / 4) + i % 4] = __float_as_uint(e.value);
            break;
        }
      }
      if (packed.scale_format == ScaleFormat::kNone || t != 0) continue;
      const Element e = LoadElement(raw, row, chunk * kChunkCols + 32 * h, packed.cols);
      if (packed.scale_format == ScaleFormat::kWide) {
        float2* pairs = reinterpret_cast<float2*>(scales);
        pairs[(warp * 2 + h) * kTileRows + g + 8 * r] = make_float2(e.scale, e.bias);
      } else if (h == 0) {
        const bool bf16 = packed.scale_format == ScaleFormat::kCompactBf16;
        const unsigned scale = bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(e.scale))
                                    : __half_as_ushort(__float2half_rn(e.scale));
        const unsigned bias = bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(e.bias))
                                   : __half_as_ushort(__float2half_rn(e.bias));
        reinterpret_cast<unsigned*>(scales)[warp * kTileRows + g + 8 * r] = scale | bias << 16;
      }
    }
  }
  for (int load = 0; load < loads; ++load) {
    out[load * 32] =
        make_uint4(words[4 * load], words[4 * load + 1], words[4 * load + 2], words[4 * load + 3]);
  }
}

// The value at row `in_tile` of a tile and a column, from the packed form.
__device__ float PackedElement(const PackedMatrix& m, int tile, int in_tile, int col) {
  const int chunk = col / kChunkCols;
  const int h = col % kChunkCols / 32;
  const int t = col % 32 / 8;
  const int i = col % 8;
  const int lane = in_tile % 8 * 4 + t;
  const int r = in_tile / 8;
  const long long place = static_cast<long long>(tile) * m.chunks + chunk;
  const unsigned* words = reinterpret_cast<const unsigned*>(m.data);
  // Component `component` of load `load` of this lane.
  const auto word = [&](int load, int component) {
    return words[((place * LoadsOf(m.format) + load) * 32 + lane) * 4 + component];
  };
  float quantized = 0;
  switch (m.format) {
    case WeightFormat::kQ4:
      quantized = static_cast<float>(word(0, 2 * h + r) >> (4 * (i / 2 + 4 * (i % 2))) & 15u);
      break;
    case WeightFormat::kQ8:
      quantized = static_cast<float>(word(h, 2 * (i / 4) + r) >> (8 * (i % 4)) & 255u);
      break;
    case WeightFormat::kBf16:
      return __uint_as_float(word(2 * h + r, i / 2) >> (16 * (i % 2)) << 16);
    case WeightFormat::kF16:
      return __half2float(
          __ushort_as_half(static_cast<unsigned short>(word(2 * h + r, i / 2) >> (16 * (i % 2)))));
    case WeightFormat::kF32:
      return __uint_as_float(word(4 * h + 2 * r + i / 4, i % 4));
  }
  if (m.scale_format == ScaleFormat::kWide) {
    const float2 pair = static_cast<const float2*>(m.scales)[(place * 2 + h) * kTileRows + in_tile];
    return pair.x * quantized + pair.y;
  }
  const unsigned pair = static_cast<const unsigned*>(m.scales)[place * kTileRows + in_tile];
  if (m.scale_format == ScaleFormat::kCompactBf16) {
    return __uint_as_float(pair << 16) * quantized + __uint_as_float(pair & 0xffff0000u);
  }
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair))) * quantized +
         __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
}

__global__ void EmbedKernel(PackedMatrix matrix, const int* tokens, float scale, float* out,
                            int stride, uint16_t* rounded, int rounded_stride) {
  ReadyBeforeWait(tokens);
  ReadyBeforeWait(matrix.data);
  ReadyBeforeWait(matrix.scales);
  ReadyBeforeWait(out);
  ReadyBeforeWait(rounded);
  PdlWait();
  PdlTrigger();
  const int token = tokens[blockIdx.y];
  const bool inside = token >= 0 && token < matrix.rows;
  for (int col = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); col < matrix.cols;
       col += static_cast<int>(gridDim.x * blockDim.x)) {
    const float value =
        inside ? scale * PackedElement(matrix, token / kTileRows, token % kTileRows, col) : 0.0f;
    out[static_cast<long long>(blockIdx.y) * stride + col] = value;
    if (rounded != nullptr) {
      rounded[static_cast<long long>(blockIdx.y) * rounded_stride + col] =
          __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
  }
}

}  // namespace

void LaunchPack(const RawMatrix& raw, const PackedMatrix& packed, int index, cudaStream_t stream) {
  const long long warps = static_cast<long long>(packed.tiles) * packed.chunks;
  if (warps == 0) return;
  uint4* data = const_cast<uint4*>(packed.data) + index * packed.data_stride;
  unsigned char* scales =
      static_cast<unsigned char*>(const_cast<void*>(packed.scales)) + index * packed.scales_stride;
  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads);
  PackKernel<<<blocks, kThreads, 0, stream>>>(raw, packed, data, scales);
  Check(cudaGetLastError(), "packing weights");
}

void LaunchEmbed(const PackedMatrix& matrix, const int* tokens, int count, float scale, float* out,
                 int stride, uint16_t* rounded, int rounded_stride, cudaStream_t stream) {
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((matrix.cols + kThreads - 1) / kThreads);
  Launch("the embedding kernel", EmbedKernel, dim3(blocks, static_cast<unsigned>(count)),
         dim3(kThreads), 0, stream, matrix, tokens, scale, out, stride, rounded, rounded_stride);
}

}  // namespace adder::cuda
