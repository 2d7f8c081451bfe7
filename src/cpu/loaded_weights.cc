#include "cpu/loaded_weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/file.h"

namespace adder {
namespace {

// Source pages are released after every slab of about this size.
constexpr int64_t kSlabBytes = int64_t{4} << 20;

void ReleaseRows(const MatrixSegment& segment, int64_t row_begin, int64_t row_end) {
  const auto release = [&](const std::byte* data, int64_t row_bytes) {
    MappedFile::Release(
        {data + row_begin * row_bytes, static_cast<size_t>((row_end - row_begin) * row_bytes)});
  };
  release(segment.data, segment.row_bytes());
  release(segment.scales, segment.scale_row_bytes());
  if (segment.affine()) release(segment.biases, segment.scale_row_bytes());
}

void PackSegment(const MatrixSegment& source, bool mapped, ThreadPool& pool,
                 const PackedMatrix& packed) {
  const int64_t slab = std::max<int64_t>(1, kSlabBytes / packed.block_bytes());
  for (int64_t begin = 0; begin < packed.blocks(); begin += slab) {
    const int64_t end = std::min(begin + slab, packed.blocks());
    pool.ParallelFor(end - begin, 1, [&](int64_t first, int64_t last, int) {
      PackBlocks(source, begin + first, begin + last, packed);
    });
    if (mapped) {
      ReleaseRows(source, begin * kBlockRows, std::min(end * kBlockRows, source.rows));
    }
  }
  // Slabs end inside pages, so the pages on their borders are released here.
  if (mapped) ReleaseRows(source, 0, source.rows);
}

}  // namespace

int64_t LoadedMatrix::blocks() const {
  int64_t total = 0;
  for (const LoadedSegment& segment : segments) total += segment.blocks();
  return total;
}

int64_t LoadedMatrix::bytes() const {
  int64_t total = 0;
  for (const LoadedSegment& segment : segments) {
    total += segment.quantized ? segment.packed.bytes() : segment.dense.bytes();
  }
  return total;
}

LoadedWeights::LoadedWeights(const BoundWeights& weights, ThreadPool& pool,
                             const std::function<void(double fraction)>& progress) {
  matrices_.resize(weights.matrices.size());
  for (const WeightMatrix& source : weights.matrices) {
    for (const MatrixSegment& segment : source.segments) {
      if (segment.quantized()) {
        memory_bytes_ += static_cast<size_t>(DescribePacked(segment).bytes());
      }
    }
  }
  if (memory_bytes_ > 0) {
    void* memory =
        mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      Fail("Cannot allocate ", memory_bytes_, " bytes for the weights: ", std::strerror(errno),
           ".");
    }
    memory_ = static_cast<std::byte*>(memory);
    // Large pages save address translation; they are a hint.
    (void)madvise(memory_, memory_bytes_, MADV_HUGEPAGE);
  }
  size_t used = 0;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const WeightMatrix& source = weights.matrices[i];
    LoadedMatrix& matrix = matrices_[i];
    matrix.rows = source.rows;
    matrix.cols = source.cols;
    for (const MatrixSegment& segment : source.segments) {
      LoadedSegment loaded;
      loaded.quantized = segment.quantized();
      loaded.rows = segment.rows;
      loaded.first_row = matrix.segments.empty()
                             ? 0
                             : matrix.segments.back().first_row + matrix.segments.back().rows;
      if (loaded.quantized) {
        loaded.packed = DescribePacked(segment);
        loaded.packed.data = memory_ + used;
        used += static_cast<size_t>(loaded.packed.bytes());
      }
      matrix.segments.push_back(loaded);
    }
    Load(source, weights.mapped, pool, matrix);
    if (progress && memory_bytes_ > 0) {
      progress(static_cast<double>(used) / static_cast<double>(memory_bytes_));
    }
  }
}

LoadedWeights::~LoadedWeights() {
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

void LoadedWeights::Load(const WeightMatrix& source, bool mapped, ThreadPool& pool,
                         LoadedMatrix& matrix) {
  for (size_t i = 0; i < matrix.segments.size(); ++i) {
    const MatrixSegment& segment = source.segments[i];
    LoadedSegment& loaded = matrix.segments[i];
    if (loaded.quantized) {
      PackSegment(segment, mapped, pool, loaded.packed);
      continue;
    }
    loaded.dense = segment;
    if (segment.dtype == DType::kF64) {
      std::vector<float>& values =
          converted_.emplace_back(static_cast<size_t>(segment.rows * segment.cols));
      for (int64_t row = 0; row < segment.rows; ++row) {
        DequantizeRow(segment, row, values.data() + row * segment.cols);
      }
      loaded.dense.dtype = DType::kF32;
      loaded.dense.data = reinterpret_cast<const std::byte*>(values.data());
    }
  }
}

int64_t LoadedWeights::bytes() const {
  int64_t total = 0;
  for (const LoadedMatrix& matrix : matrices_) total += matrix.bytes();
  return total;
}

void DequantizeLoadedRow(const LoadedMatrix& matrix, int64_t row, float* out) {
  for (const LoadedSegment& segment : matrix.segments) {
    if (row < segment.rows) {
      if (segment.quantized) {
        DequantizePackedRow(segment.packed, row, out);
      } else {
        DequantizeRow(segment.dense, row, out);
      }
      return;
    }
    row -= segment.rows;
  }
}

}  // namespace adder
