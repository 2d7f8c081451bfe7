#include "cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "cuda/copied_matrix.h"
#include "cuda/cuda_call.h"
#include "cuda/supported.h"

namespace adder::cuda {
namespace {

constexpr size_t kAlign = 256;

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// On the device, before packing.
size_t RawBytes(const WeightMatrix& copied) {
  size_t total = 0;
  for (const MatrixSegment& segment : copied.segments) {
    total += 3 * kAlign + static_cast<size_t>(segment.bytes());
  }
  return total;
}

bool HaveOneFormat(const MatrixSegment& a, const MatrixSegment& b) {
  return a.dtype == b.dtype && a.bits == b.bits && a.group_size == b.group_size;
}

int Narrow(int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    Fail("A weight matrix has ", value, " rows or columns, more than the CUDA backend handles.");
  }
  return static_cast<int>(value);
}

// What a matrix of a stack takes, and what a kernel reads of it.
int64_t BytesOfEach(const PackedMatrix& stack) {
  return stack.data_stride * static_cast<int64_t>(sizeof(uint4)) + stack.scales_stride;
}

// Copies a segment of small floating-point numbers as dense ones, some rows at a time.
void CopyDense(const MatrixSegment& segment, DType dtype, std::byte* to, const Stream& stream) {
  constexpr int64_t kBytesAtOnce = 16 << 20;
  const int64_t row_bytes = segment.cols * static_cast<int64_t>(DTypeSize(dtype));
  const int64_t most = std::min(segment.rows, std::max<int64_t>(kBytesAtOnce / row_bytes, 1));
  std::vector<float> numbers(static_cast<size_t>(most * row_bytes) / sizeof(float) + 1);
  for (int64_t row = 0; row < segment.rows; row += most) {
    const int64_t rows = std::min(most, segment.rows - row);
    WriteDenseRows(segment, row, rows, dtype, numbers.data());
    Check(
        cudaMemcpyAsync(to + row * row_bytes, numbers.data(), static_cast<size_t>(rows * row_bytes),
                        cudaMemcpyHostToDevice, stream.get()),
        "copying weights to the GPU");
    // The next rows take the same place.
    stream.Synchronize();
  }
}

void ReleaseSmallFloats(const MatrixSegment& segment) {
  MappedFile::Release({segment.data, static_cast<size_t>(segment.rows * segment.row_bytes())});
  MappedFile::Release(
      {segment.scales, static_cast<size_t>(segment.rows * segment.scale_row_bytes())});
}

// What kernels of an op read that is in the plan itself; null: nothing.
const std::vector<float>* ConstantsOf(const Op& op) {
  const std::optional<Rope>* rope = nullptr;
  if (const auto* attention = std::get_if<AttentionOp>(&op.body)) rope = &attention->mixer.rope;
  if (const auto* latent = std::get_if<LatentAttentionOp>(&op.body)) rope = &latent->mixer.rope;
  if (const auto* lightning = std::get_if<LightningOp>(&op.body)) return &lightning->mixer.slopes;
  return rope != nullptr && *rope ? &(*rope)->inverse_frequencies : nullptr;
}

// What multiplies the rows of a scaled map, without its input_scale.
std::vector<float> RowFactors(const Linear& linear, const BoundWeights& weights) {
  std::vector<float> factors;
  for (const RowScale& scale : linear.row_scales) {
    factors.insert(factors.end(), static_cast<size_t>(scale.rows), scale.factor);
  }
  factors.resize(static_cast<size_t>(weights.matrices[static_cast<size_t>(linear.weight)].rows), 1);
  return factors;
}

}  // namespace

DeviceWeights::DeviceWeights(const Program& program, const Stream& stream,
                             const std::function<void(double)>& progress) {
  for (const Op& op : program.ops) {
    if (const auto* embed = std::get_if<EmbedOp>(&op.body)) {
      Collect({embed->embedding}, false);
    } else if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
      Collect({linear->linear.weight}, linear->epilogue == Epilogue::kGated &&
                                           (!NeedsFinish(*linear) || GatesRowsAlone(*linear)));
    } else if (const auto* router = std::get_if<RouterOp>(&op.body)) {
      Collect({router->router.weight}, false);
    } else if (const auto* gate_up = std::get_if<ExpertGateUpOp>(&op.body)) {
      Collect(gate_up->gate_up, gate_up->gated);
    } else if (const auto* down = std::get_if<ExpertDownOp>(&op.body)) {
      Collect(down->down, false);
    } else if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
      Collect({scan->mixer.dt_proj.weight}, false);
    } else if (const auto* selected = std::get_if<Mamba2SelectedOp>(&op.body)) {
      Collect({selected->mixer.selection->dt_proj.weight}, false);
    } else if (const auto* heads = std::get_if<HeadsLinearOp>(&op.body)) {
      Collect(heads->matrices, false);
    }
  }
  const BoundWeights& weights = *program.weights;
  for (const WeightMatrix& matrix : weights.matrices) matrix_bytes_.push_back(matrix.bytes());
  size_t largest = 0;
  int64_t all = 0;
  for (auto& [ids, matrix] : matrices_) {
    for (MatrixId id : ids) {
      const WeightMatrix& source = weights.matrices[static_cast<size_t>(id)];
      matrix.copied.push_back(AsCopied(source));
      largest = std::max(largest, RawBytes(matrix.copied.back()));
      all += source.bytes();
    }
    Plan(matrix);
    for (MatrixId id : ids) matrix_bytes_[static_cast<size_t>(id)] = BytesOfEach(matrix.view);
  }
  raw_ = DeviceMemory(largest);
  int64_t done = 0;
  for (auto& [ids, matrix] : matrices_) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const WeightMatrix& source = weights.matrices[static_cast<size_t>(ids[i])];
      Upload(source, weights.mapped, matrix, static_cast<int>(i), stream);
      done += source.bytes();
      if (progress) progress(static_cast<double>(done) / static_cast<double>(all));
    }
    matrix.copied.clear();
  }
  UploadVectors(program, stream);
  stream.Synchronize();
  raw_ = DeviceMemory();
}

void DeviceWeights::Collect(const std::vector<MatrixId>& ids, bool interleaved) {
  const auto [place, added] = matrices_.try_emplace(ids);
  if (!added && place->second.view.interleaved != interleaved) {
    Fail("The CUDA backend cannot share one matrix between a gated projection and another use.");
  }
  place->second.view.interleaved = interleaved;
}

void DeviceWeights::Plan(Matrix& matrix) {
  const WeightMatrix& first = matrix.copied.front();
  PackedMatrix& view = matrix.view;
  const PackedFormat format = ChooseFormat(matrix.copied);
  view.format = format.weights;
  view.scale_format = format.scales;
  view.rows = Narrow(first.rows);
  view.cols = Narrow(first.cols);
  // Interleaved: eight rows of each half per tile.
  const int rows_per_tile = view.interleaved ? kTileRows / 2 : kTileRows;
  const int rows = view.interleaved ? view.rows / 2 : view.rows;
  view.tiles = (rows + rows_per_tile - 1) / rows_per_tile;
  view.chunks = (view.cols + kChunkCols - 1) / kChunkCols;
  const int64_t places = int64_t{view.tiles} * view.chunks;
  view.data_stride = places * LoadsOf(view.format) * 32;
  view.scales_stride = places * ScaleBytesPerChunk(view.scale_format);
  const auto count = static_cast<int64_t>(matrix.copied.size());
  const size_t data_bytes = Aligned(static_cast<size_t>(count * view.data_stride) * sizeof(uint4));
  const size_t scale_bytes = static_cast<size_t>(count * view.scales_stride);
  matrix.memory = DeviceMemory(data_bytes + scale_bytes);
  view.data = matrix.memory.as<const uint4>();
  view.scales = matrix.memory.as<const std::byte>() + data_bytes;
  bytes_ += static_cast<int64_t>(data_bytes + scale_bytes);
}

void DeviceWeights::Upload(const WeightMatrix& source, bool mapped, const Matrix& matrix, int index,
                           const Stream& stream) {
  RawMatrix raw;
  size_t used = 0;
  const std::vector<MatrixSegment>& segments = matrix.copied[static_cast<size_t>(index)].segments;
  int row = 0;
  for (size_t begin = 0; begin < segments.size();) {
    // Neighbours of one format are copied behind each other and are one segment from then on.
    const MatrixSegment& first = segments[begin];
    size_t end = begin;
    int64_t rows = 0;
    for (; end < segments.size() && HaveOneFormat(first, segments[end]); ++end) {
      rows += segments[end].rows;
    }
    if (raw.count == kMaxSegments) {
      Fail("The formats of a weight matrix's rows change more than ", kMaxSegments - 1,
           " times, which the CUDA backend cannot take; use --device cpu.");
    }
    const auto copy = [&](const std::byte* MatrixSegment::*from, int64_t row_bytes) {
      auto* to = raw_.as<unsigned char>() + used;
      for (size_t i = begin; i < end; ++i) {
        const MatrixSegment& stored = source.segments[i];
        const auto size = static_cast<size_t>(stored.rows * row_bytes);
        auto* place = raw_.as<std::byte>() + used;
        used += size;
        if (!stored.affine()) {
          CopyDense(stored, segments[i].dtype, place, stream);
          if (mapped) ReleaseSmallFloats(stored);
          continue;
        }
        Check(cudaMemcpyAsync(place, stored.*from, size, cudaMemcpyHostToDevice, stream.get()),
              "copying weights to the GPU");
        if (mapped) MappedFile::Release({stored.*from, size});
      }
      used = Aligned(used);
      return to;
    };
    RawSegment& out = raw.segments[raw.count++];
    out.row_begin = row;
    out.rows = Narrow(rows);
    out.bits = first.bits;
    out.group_size = first.group_size;
    out.float_bytes = static_cast<int>(DTypeSize(first.dtype));
    out.bfloat16 = first.dtype == DType::kBF16;
    out.row_bytes = first.row_bytes();
    out.data = copy(&MatrixSegment::data, first.row_bytes());
    if (first.quantized()) {
      const int64_t row_bytes = first.groups() * out.float_bytes;
      out.scales = copy(&MatrixSegment::scales, row_bytes);
      out.biases = copy(&MatrixSegment::biases, row_bytes);
    }
    row += out.rows;
    begin = end;
  }
  LaunchPack(raw, matrix.view, index, stream.get());
}

void DeviceWeights::UploadVectors(const Program& program, const Stream& stream) {
  constexpr size_t kAlignFloats = kAlign / sizeof(float);
  std::vector<float> all;
  const auto add = [&](const std::vector<float>& values) {
    const size_t offset = all.size();
    all.insert(all.end(), values.begin(), values.end());
    all.resize((all.size() + kAlignFloats - 1) / kAlignFloats * kAlignFloats);
    return offset;
  };
  for (const std::vector<float>& vector : program.weights->vectors) {
    vector_offsets_.push_back(add(vector));
  }
  for (const Op& op : program.ops) {
    if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
      const std::optional<RmsNorm>& norm = scan->mixer.dt_norm;
      const auto size = static_cast<size_t>(scan->mixer.dt_rank);
      if (norm && norm->weight == kNoId) ones_ = std::max(ones_, size);
      continue;
    }
    if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
      constexpr int64_t kMostDense = 1 << 16;
      const MatrixId id = scan->mixer.selection->dt_proj.weight;
      const WeightMatrix& matrix = program.weights->matrices[static_cast<size_t>(id)];
      if (matrix.rows * matrix.cols > kMostDense || dense_offsets_.count(id) != 0) continue;
      std::vector<float> dense(static_cast<size_t>(matrix.rows * matrix.cols));
      for (int64_t row = 0; row < matrix.rows; ++row) {
        DequantizeRow(matrix, row, dense.data() + row * matrix.cols);
      }
      dense_offsets_[id] = add(dense);
    }
    const auto* linear = std::get_if<LinearOp>(&op.body);
    if (linear != nullptr && NeedsRule(*linear) && linear->linear.scaled()) {
      const Linear& map = linear->linear;
      const std::vector<float> factors = RowFactors(map, *program.weights);
      const auto [place, added] = row_offsets_.try_emplace(map.weight);
      if (!added) continue;
      std::vector<float> scaled = factors;
      for (float& factor : scaled) factor *= map.input_scale;
      place->second.factors = add(scaled);
      if (map.bias == kNoId) continue;
      std::vector<float> bias = program.weights->vectors[static_cast<size_t>(map.bias)];
      for (size_t row = 0; row < bias.size(); ++row) bias[row] *= factors[row];
      place->second.bias = add(bias);
    }
    const std::vector<float>* constants = ConstantsOf(op);
    if (constants != nullptr && constant_offsets_.count(*constants) == 0) {
      constant_offsets_[*constants] = add(*constants);
    }
  }
  ones_offset_ = add(std::vector<float>(ones_, 1.0f));
  vectors_ = DeviceMemory(all.size() * sizeof(float));
  bytes_ += static_cast<int64_t>(vectors_.bytes());
  if (all.empty()) return;
  Check(cudaMemcpyAsync(vectors_.data(), all.data(), vectors_.bytes(), cudaMemcpyHostToDevice,
                        stream.get()),
        "copying weights to the GPU");
  // `all` must outlive the copy.
  stream.Synchronize();
}

const float* DeviceWeights::vector(VectorId id) const {
  if (id == kNoId) return nullptr;
  return vectors_.as<const float>() + vector_offsets_.at(static_cast<size_t>(id));
}

DeviceWeights::RowVectors DeviceWeights::row_vectors(const Linear& linear) const {
  const auto found = row_offsets_.find(linear.weight);
  if (found == row_offsets_.end()) return {nullptr, vector(linear.bias)};
  const auto* all = vectors_.as<const float>();
  return {all + found->second.factors, linear.bias == kNoId ? nullptr : all + found->second.bias};
}

const float* DeviceWeights::dense_rows(MatrixId id) const {
  const auto found = dense_offsets_.find(id);
  return found == dense_offsets_.end() ? nullptr : vectors_.as<const float>() + found->second;
}

const float* DeviceWeights::ones() const {
  return ones_ == 0 ? nullptr : vectors_.as<const float>() + ones_offset_;
}

const float* DeviceWeights::Constants(const std::vector<float>& values) const {
  return vectors_.as<const float>() + constant_offsets_.at(values);
}

const float* DeviceWeights::inverse_frequencies(const std::optional<Rope>& rope) const {
  return rope ? Constants(rope->inverse_frequencies) : nullptr;
}

const float* DeviceWeights::slopes(const LightningAttention& mixer) const {
  return Constants(mixer.slopes);
}

}  // namespace adder::cuda
