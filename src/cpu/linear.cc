#include "cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "cpu/elementwise.h"

namespace adder {
namespace {

// A range of blocks should be worth more than the hand-over to another thread (about a
// microsecond).
constexpr int64_t kMinRangeBytes = 16 << 10;

MatmulOutput FromRow(MatmulOutput output, int64_t row) {
  output.data += row;
  if (output.bias != nullptr) output.bias += row;
  if (output.row_scales != nullptr) output.row_scales += row;
  return output;
}

// Blocks [begin, end) of one matrix.
void RunBlocks(const MatmulJob& job, int64_t begin, int64_t end, MatmulScratch& scratch) {
  int64_t first_block = 0;
  for (const LoadedSegment& segment : job.matrix->segments) {
    const int64_t from = std::max(begin - first_block, int64_t{0});
    const int64_t to = std::min(end - first_block, segment.blocks());
    first_block += segment.blocks();
    if (from >= to) continue;
    const MatmulOutput output = FromRow(job.output, segment.first_row);
    const PreparedInput& input = *job.input;
    if (!segment.quantized) {
      MatmulDense(segment.dense, from * kBlockRows, std::min(to * kBlockRows, segment.rows),
                  input.rows(), input.tokens(), output);
    } else if (const QuantizedInput* quantized = segment.packed.integer()
                                                     ? input.quantized(segment.packed.group_size)
                                                     : nullptr) {
      MatmulPackedFast(segment.packed, from, to, *quantized, input.tokens(), output, scratch);
    } else {
      MatmulPackedF32(segment.packed, from, to, input.rows(), input.tokens(), output, scratch);
    }
  }
}

}  // namespace

void NormRow(const InputNorm& norm, const float* x, int64_t size, float* out) {
  if (!norm.centered) return RmsNormRow(x, norm.weight, size, norm.groups, norm.eps, out);
  const int64_t part = size / norm.groups;
  for (int64_t begin = 0; begin < size; begin += part) {
    LayerNormRow(x + begin, norm.weight + begin, norm.bias + begin, part, norm.eps, out + begin);
  }
}

void PreparedInput::Prepare(const float* x, int64_t stride, int64_t tokens, const InputNorm& norm,
                            const LoadedMatrix& matrix, bool quantize, ThreadPool& pool) {
  const int64_t cols = matrix.cols;
  tokens_ = tokens;
  forms_used_ = 0;
  for (const LoadedSegment& segment : matrix.segments) {
    if (!quantize || !segment.quantized || !segment.packed.integer() ||
        quantized(segment.packed.group_size) != nullptr) {
      continue;
    }
    if (forms_used_ == forms_.size()) forms_.emplace_back();
    Form& form = forms_[forms_used_++];
    const int64_t groups = segment.packed.groups();
    form.input.group_size = segment.packed.group_size;
    form.input.values = form.values.Get(static_cast<size_t>(tokens * cols));
    form.input.scales = form.scales.Get(static_cast<size_t>(tokens * groups));
    form.input.sums = form.sums.Get(static_cast<size_t>(tokens * groups));
  }
  const bool copy = norm.weight != nullptr || stride != cols;
  float* normalized = copy ? normalized_.Get(static_cast<size_t>(tokens * cols)) : nullptr;
  rows_ = copy ? normalized : x;
  const int64_t tile = TokenTile();
  pool.ParallelFor((tokens + tile - 1) / tile, 1, [&](int64_t begin, int64_t end, int) {
    const int64_t token_end = std::min(end * tile, tokens);
    for (int64_t t = begin * tile; copy && t < token_end; ++t) {
      if (norm.weight != nullptr) {
        NormRow(norm, x + t * stride, cols, normalized + t * cols);
      } else {
        std::memcpy(normalized + t * cols, x + t * stride,
                    static_cast<size_t>(cols) * sizeof(float));
      }
    }
    for (size_t f = 0; f < forms_used_; ++f) {
      Form& form = forms_[f];
      QuantizeRows(rows_, tokens, cols, form.input.group_size, begin * tile, token_end,
                   form.values.data(), form.scales.data(), form.sums.data());
    }
  });
}

const QuantizedInput* PreparedInput::quantized(int group_size) const {
  for (size_t f = 0; f < forms_used_; ++f) {
    if (forms_[f].input.group_size == group_size) return &forms_[f].input;
  }
  return nullptr;
}

void RunMatmuls(std::span<const MatmulJob> jobs, ThreadPool& pool,
                std::vector<MatmulScratch>& scratch) {
  int64_t blocks = 0;
  int64_t work = 0;
  for (const MatmulJob& job : jobs) {
    blocks += job.matrix->blocks();
    work += job.matrix->bytes() * job.input->tokens();
  }
  const int64_t grain = work > 0 ? blocks * kMinRangeBytes / work + 1 : 1;
  pool.ParallelFor(blocks, grain, [&](int64_t begin, int64_t end, int thread) {
    int64_t first_block = 0;
    for (const MatmulJob& job : jobs) {
      const int64_t count = job.matrix->blocks();
      const int64_t from = std::max(begin - first_block, int64_t{0});
      const int64_t to = std::min(end - first_block, count);
      first_block += count;
      if (from < to) RunBlocks(job, from, to, scratch[static_cast<size_t>(thread)]);
    }
  });
}

}  // namespace adder
