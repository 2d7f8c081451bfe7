// The form in which weight matrices lie in device memory: fragments of tensor-core instructions.
//
// A matrix [rows, cols] is cut into tiles of 16 rows and chunks of 64 columns (the last of each
// padded with zeros). A chunk of a tile is what one warp multiplies by four mma.m16n8k16: lane
// 4 * g + t (g = 0..7, t = 0..3) holds the weights of tile rows g and g + 8 at the columns
// 32 h + 8 t + i of the chunk, h = 0..1, i = 0..7. Instruction 2 h + i / 4 of the four takes them
// in its k slots 2 t, 2 t + 1 (i % 4 = 0, 1) and 2 t + 8, 2 t + 9 (i % 4 = 2, 3). Which columns
// share an instruction does not matter as long as weights and activations agree, and this choice
// lets a lane read its activations as two runs of eight.
//
// Memory: [tile][chunk][load][lane] 16-byte words, so that each load of a warp reads 512 contiguous
// bytes. What a lane's words hold, for row g (r = 0) and g + 8 (r = 1):
//   kQ4   1 load   component 2 h + r: eight 4-bit values; i = 2 p + s at nibble p + 4 s
//   kQ8   2 loads  load h, component 2 (i / 4) + r: four bytes in order
//   kBf16, kF16  4 loads  load 2 h + r: eight values in order
//   kF32  8 loads  load 4 h + 2 r + i / 4: four values in order
// Scales and biases of quantised weights (w = scale * q + bias):
//   compact  [tile][chunk][row of the tile]: both as 16-bit floats, the scale in the lower half
//   wide     [tile][chunk][h][row of the tile]: both as f32
// A matrix whose rows are gate | up may be stored interleaved: tile n holds gate rows 8 n .. 8 n +
// 7 in its rows 0..7 and the matching up rows in 8..15, so that a lane has both factors of a
// product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace adder::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kChunkCols = 64;

enum class WeightFormat { kQ4, kQ8, kBf16, kF16, kF32 };
enum class ScaleFormat {
  kNone,         // not quantised
  kCompactBf16,  // one pair per row and chunk
  kCompactF16,
  kWide,  // one pair per row and 32 columns
};

// A matrix, or a stack of matrices of one shape (experts). Does not own its memory.
struct PackedMatrix {
  const uint4* data = nullptr;
  const void* scales = nullptr;
  WeightFormat format = WeightFormat::kBf16;
  ScaleFormat scale_format = ScaleFormat::kNone;
  int rows = 0;
  int cols = 0;
  int tiles = 0;
  int chunks = 0;
  bool interleaved = false;
  // Distance from one matrix of the stack to the next, in 16-byte words and in bytes.
  int64_t data_stride = 0;
  int64_t scales_stride = 0;
};

// 16-byte words that a lane loads per tile and chunk.
constexpr int LoadsOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4:
      return 1;
    case WeightFormat::kQ8:
      return 2;
    case WeightFormat::kBf16:
    case WeightFormat::kF16:
      return 4;
    case WeightFormat::kF32:
      return 8;
  }
  return 0;
}
constexpr int ScaleBytesPerChunk(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kNone:
      return 0;
    case ScaleFormat::kCompactBf16:
    case ScaleFormat::kCompactF16:
      return kTileRows * 4;
    case ScaleFormat::kWide:
      return 2 * kTileRows * 8;
  }
  return 0;
}

// The logical row of row `in_tile` of tile `tile`; may be beyond the matrix (padding).
__host__ __device__ inline int LogicalRow(bool interleaved, int rows, int tile, int in_tile) {
  if (!interleaved) return tile * kTileRows + in_tile;
  const int half = rows / 2;
  const int row = tile * 8 + in_tile % 8;
  if (row >= half) return rows;
  return in_tile < 8 ? row : half + row;
}

// Rows of a matrix as the checkpoint has them, in device memory (see core/weight_matrix.h).
struct RawSegment {
  const unsigned char* data = nullptr;
  const unsigned char* scales = nullptr;
  const unsigned char* biases = nullptr;
  int row_begin = 0;
  int rows = 0;
  int bits = 0;  // 0: dense
  int group_size = 0;
  int float_bytes = 0;      // of a dense element, or of a scale: 2, 4 or 8
  bool bfloat16 = false;    // of two-byte floats
  long long row_bytes = 0;  // of data
};
inline constexpr int kMaxSegments = 8;
struct RawMatrix {
  RawSegment segments[kMaxSegments];
  int count = 0;
};

// Writes one matrix of `packed` (number `index` of the stack) from `raw`. The format must be able
// to hold it: quantised formats only quantised segments of no more bits.
void LaunchPack(const RawMatrix& raw, const PackedMatrix& packed, int index, cudaStream_t stream);

// out[i] [cols] f32 = scale * row tokens[i] of the matrix, for `count` tokens read from device
// memory. A token outside the matrix gives zeros. `out` rows are `stride` floats apart. `rounded`
// gets the same in bf16, unless it is null.
void LaunchEmbed(const PackedMatrix& matrix, const int* tokens, int count, float scale, float* out,
                 int stride, uint16_t* rounded, int rounded_stride, cudaStream_t stream);

}  // namespace adder::cuda
