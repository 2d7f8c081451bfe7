#include "cuda/wide_ops.h"

#include <algorithm>

#include "cuda/kernels/attention_chunks.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/mamba1_chunks.h"
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/rg_lru_chunks.h"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/ruled_rows.h"
#include "cuda/kernels/rwkv7_chunks.h"
#include "cuda/kernels/selection.h"
#include "cuda/op_params.h"
#include "cuda/supported.h"
#include "cuda/wide_support.h"

namespace adder::cuda {
namespace {

// Tokens of a product are rounded up to a multiple of this, so that few shapes are ever seen. The
// rows beyond a slice belong to nobody.
constexpr int kRowStep = 64;
// With memory for fewer, slices are not worth it.
constexpr int kFewestRows = 512;

int Narrow(int64_t value) { return static_cast<int>(value); }

// Largest sizes over a program's ops, in elements.
struct ScratchSizes {
  size_t activations = 0;
  size_t unpacked = 0;
  size_t gates = 0;
  size_t convolved = 0;
  size_t state = 0;
  size_t before = 0;
  size_t steps = 0;
  size_t step_rows = 0;
  size_t sums = 0;
  size_t delta_records = 0;
  size_t delta_keeps = 0;
  size_t widened = 0;
  size_t scores = 0;
  size_t expert_rows = 0;
  size_t expert_order = 0;
  size_t expert_tiles = 0;
};

// In elements, of so many matrices.
int64_t UnpackedSize(const PackedMatrix& matrix, size_t count) {
  return static_cast<int64_t>(count) * matrix.rows * Bf16Stride(matrix.cols);
}
size_t UnpackedBytes(const PackedMatrix& matrix, size_t count) {
  const size_t bytes = static_cast<size_t>(UnpackedSize(matrix, count)) * sizeof(__nv_bfloat16);
  return (bytes + 255) / 256 * 256;
}

void Raise(size_t& size, int64_t value) { size = std::max(size, static_cast<size_t>(value)); }

// The matrices of an op that is a dense product here, or part of one, of which all have one shape;
// empty: there is none.
std::vector<MatrixId> DenseMatrices(const Op& op) {
  if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
    if (linear->logits_rows_only) return {};
    return {linear->linear.weight};
  }
  if (const auto* router = std::get_if<RouterOp>(&op.body)) return {router->router.weight};
  if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
    return {scan->mixer.selection->dt_proj.weight};
  }
  if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) return {scan->mixer.dt_proj.weight};
  if (const auto* heads = std::get_if<HeadsLinearOp>(&op.body)) return heads->matrices;
  return {};
}

}  // namespace

WideOps::WideOps(const Program& program, const DeviceWeights& weights, const DeviceState& state,
                 const Stream& stream, int multiprocessors, const WideLimits& limits)
    : program_(program),
      weights_(weights),
      state_(state),
      stream_(stream),
      multiprocessors_(multiprocessors),
      rows_(limits.rows),
      bf16_parts_(program.buffers.size(), 0) {
  KeepUnpacked(limits.kept_bytes);
  while (rows_ >= kFewestRows && PlaceBuffers(nullptr) > limits.buffer_bytes) rows_ /= 2;
  rows_ = rows_ < kFewestRows ? 0 : rows_ / kRowStep * kRowStep;
  if (rows_ == 0) return;
  memory_ = DeviceMemory(PlaceBuffers(nullptr));
  PlaceBuffers(memory_.as<std::byte>());
}

size_t WideOps::PlaceBuffers(std::byte* base) {
  const int64_t rows = rows_;
  ScratchSizes sizes;
  for (const Op& op : program_.ops) {
    if (const std::vector<MatrixId> ids = DenseMatrices(op); !ids.empty()) {
      const PackedMatrix& matrix = weights_.stack(ids);
      Raise(sizes.activations, rows * Bf16Stride(matrix.cols) * static_cast<int64_t>(ids.size()));
      if (kept_.count(matrix.data) == 0) Raise(sizes.unpacked, UnpackedSize(matrix, ids.size()));
    }
    if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
      if (linear->logits_rows_only) continue;
      const PackedMatrix& matrix = weights_.matrix(linear->linear.weight);
      Raise(sizes.activations, rows * Bf16Stride(Width(linear->input)));
      if (FinishesProducts(*linear)) {
        Raise(sizes.step_rows, rows * RowStride(matrix.rows));
      } else if (linear->epilogue == Epilogue::kGated || linear->epilogue == Epilogue::kActivate) {
        Raise(sizes.gates, rows * Bf16Stride(matrix.rows));
      }
    } else if (const auto* heads = std::get_if<HeadsLinearOp>(&op.body)) {
      Raise(sizes.activations, rows * Bf16Stride(Width(heads->input)));
    } else if (const auto* mamba = std::get_if<Mamba2Op>(&op.body)) {
      const Mamba2& m = mamba->mixer;
      Raise(sizes.convolved, rows * m.conv_channels());
      Raise(sizes.state, WideSlicePieces(rows_) * m.inner() * m.d_state);
      Raise(sizes.before, WideSlicePieces(rows_) * m.inner() * m.d_state);
      Raise(sizes.steps, rows * m.heads);
    } else if (const auto* selected = std::get_if<Mamba2SelectedOp>(&op.body)) {
      const Mamba2& m = selected->mixer;
      Raise(sizes.convolved, rows * 2 * m.groups * m.d_state);
      Raise(sizes.state, WideSlicePieces(rows_) * m.inner() * m.d_state);
      Raise(sizes.before, WideSlicePieces(rows_) * m.inner() * m.d_state);
      Raise(sizes.steps, rows * m.heads);
      Raise(sizes.step_rows, rows * RowStride(m.heads));
    } else if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
      const Mamba1& m = scan->mixer;
      const int64_t segments = WideSlicePieces(rows_) * kMamba1Segments;
      Raise(sizes.state, segments * m.inner * m.d_state);
      Raise(sizes.step_rows, rows * RowStride(m.inner));
      Raise(sizes.sums, segments * m.inner);
    } else if (const auto* lru = std::get_if<RgLruOp>(&op.body)) {
      Raise(sizes.step_rows, rows * 2 * lru->mixer.width);
      Raise(sizes.state, WideSlicePieces(rows_) * kRgLruSegments * 2 * lru->mixer.width);
    } else if (const auto* lightning = std::get_if<LightningOp>(&op.body)) {
      const LightningAttention& m = lightning->mixer;
      Raise(sizes.state, WideSlicePieces(rows_) * m.width() * m.head_dim);
      Raise(sizes.before, WideSlicePieces(rows_) * m.width() * m.head_dim);
      Raise(sizes.steps, rows * m.heads);
    } else if (const auto* rwkv = std::get_if<Rwkv7Op>(&op.body)) {
      const int64_t chunks = 2 * WideSlicePieces(rows_) * rwkv->mixer.heads;
      Raise(sizes.delta_records, chunks * kRwkv7Record);
      Raise(sizes.delta_keeps, chunks * kRwkv7Keeps);
      Raise(sizes.state, chunks * kRwkv7Sums);
      Raise(sizes.sums, chunks * kRwkv7Own);
    } else if (const auto* delta = std::get_if<GatedDeltaOp>(&op.body)) {
      const GatedDelta& m = delta->mixer;
      const int64_t chunks = 2 * WideSlicePieces(rows_) * m.value_heads;
      const size_t record = GatedDeltaRecord(Narrow(m.key_dim), Narrow(m.value_dim));
      Raise(sizes.delta_records, chunks * static_cast<int64_t>(record));
      Raise(sizes.delta_keeps, chunks * kMostChunkKeyDim);
    } else if (const auto* router = std::get_if<RouterOp>(&op.body)) {
      Raise(sizes.scores, rows * RowStride(weights_.matrix(router->router.weight).rows));
      Raise(sizes.expert_order, rows * router->top_k);
      // Tiles of 32 rows, which few pairs have, are two per expert at most.
      Raise(sizes.expert_tiles, rows * router->top_k / 64 + 2 * router->experts);
    } else if (const auto* gate_up = std::get_if<ExpertGateUpOp>(&op.body)) {
      Raise(sizes.activations, rows * Bf16Stride(weights_.stack(gate_up->gate_up).cols));
    } else if (const auto* down = std::get_if<ExpertDownOp>(&op.body)) {
      Raise(sizes.expert_rows, rows * down->top_k * Bf16Stride(weights_.stack(down->down).rows));
    }
  }
  size_t total = 0;
  const auto place = [&]<class T>(T*& pointer, size_t count) {
    pointer = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base) + total);
    total += (count * sizeof(T) + 255) / 256 * 256;
  };
  buffers_.assign(program_.buffers.size(), nullptr);
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const auto id = static_cast<BufferId>(b);
    // The head's rows are the executor's.
    if (id == program_.logits) continue;
    const auto floats = static_cast<size_t>(rows * Stride(id));
    place(buffers_[b], floats);
    sizes.widened = std::max(sizes.widened, floats);
  }
  place(activations_, sizes.activations);
  place(unpacked_, sizes.unpacked);
  place(gates_, sizes.gates);
  place(convolved_, sizes.convolved);
  place(before_, sizes.before);
  place(added_, sizes.state);
  place(steps_, sizes.steps);
  place(step_rows_, sizes.step_rows);
  place(sums_, sizes.sums);
  place(delta_records_, sizes.delta_records);
  place(delta_keeps_, sizes.delta_keeps);
  place(widened_, sizes.widened);
  place(scores_, sizes.scores);
  place(expert_rows_, sizes.expert_rows);
  place(expert_chosen_, sizes.expert_order);
  place(expert_order_, sizes.expert_order);
  place(expert_tiles_, sizes.expert_tiles);
  place(expert_tile_count_, 1);
  return total;
}

void WideOps::KeepUnpacked(size_t most_bytes) {
  std::vector<std::pair<const PackedMatrix*, size_t>> stacks;
  size_t total = 0;
  for (const Op& op : program_.ops) {
    const std::vector<MatrixId> ids = DenseMatrices(op);
    if (ids.empty()) continue;
    const PackedMatrix& matrix = weights_.stack(ids);
    const size_t bytes = UnpackedBytes(matrix, ids.size());
    if (total + bytes > most_bytes || !kept_.emplace(matrix.data, nullptr).second) continue;
    stacks.emplace_back(&matrix, ids.size());
    total += bytes;
  }
  kept_memory_ = DeviceMemory(total);
  auto* to = kept_memory_.as<std::byte>();
  for (const auto& [matrix, count] : stacks) {
    auto* rows = reinterpret_cast<__nv_bfloat16*>(to);
    LaunchUnpack(*matrix, static_cast<int>(count), rows, stream_.get());
    kept_[matrix->data] = rows;
    to += UnpackedBytes(*matrix, count);
  }
}

const __nv_bfloat16* WideOps::Unpacked(const PackedMatrix& matrix, int count) {
  const auto found = kept_.find(matrix.data);
  if (found != kept_.end()) return found->second;
  LaunchUnpack(matrix, count, unpacked_, stream_.get());
  return unpacked_;
}

int WideOps::Width(BufferId id) const { return BufferWidth(program_, id); }
int WideOps::Stride(BufferId id) const { return BufferStride(program_, id); }

float* WideOps::F32Values(BufferId id) {
  bf16_parts_[static_cast<size_t>(id)] = 0;
  if (normalized_ == id) normalized_ = kNoId;
  return Values(id);
}

__nv_bfloat16* WideOps::Bf16Values(BufferId id, int parts) {
  bf16_parts_[static_cast<size_t>(id)] = parts;
  if (normalized_ == id) normalized_ = kNoId;
  return reinterpret_cast<__nv_bfloat16*>(Values(id));
}

float* WideOps::WidenedValues(BufferId id, int rows) {
  if (!IsBf16(id)) return Values(id);
  LaunchWiden(reinterpret_cast<const __nv_bfloat16*>(Values(id)), rows, Width(id),
              bf16_parts_[static_cast<size_t>(id)], widened_, Stride(id), stream_.get());
  return widened_;
}

WideOps::Bf16Rows WideOps::Activations(BufferId id, const std::optional<RmsNorm>& norm, int rows) {
  if (IsBf16(id) && !norm) {
    return {reinterpret_cast<const __nv_bfloat16*>(Values(id)), Width(id)};
  }
  // The ops of a block that read the residual share one norm.
  if (norm && normalized_ == id && norm_weight_ == norm->weight) return {activations_, Width(id)};
  normalized_ = norm ? id : kNoId;
  norm_weight_ = norm ? norm->weight : kNoId;
  if (!NormsRows(norm, Width(id))) return OddlyNormed(id, *norm, rows);
  Bf16NormParams params;
  if (IsBf16(id)) {
    params.bf16_input = reinterpret_cast<const __nv_bfloat16*>(Values(id));
    params.stride = Bf16Stride(Width(id));
  } else {
    params.input = Values(id);
    params.stride = Stride(id);
  }
  params.rows = rows;
  params.width = Width(id);
  if (norm) {
    params.groups = Narrow(norm->groups);
    params.weight = weights_.vector(norm->weight);
    params.eps = norm->eps;
  }
  params.output = activations_;
  LaunchBf16Norm(params, stream_.get());
  return {activations_, Width(id)};
}

WideOps::Bf16Rows WideOps::OddlyNormed(BufferId id, const RmsNorm& norm, int rows) {
  NormRows(norm, id, rows, WidenedValues(id, rows), widened_);
  Bf16NormParams rounding;
  rounding.input = widened_;
  rounding.stride = Stride(id);
  rounding.rows = rows;
  rounding.width = Width(id);
  rounding.output = activations_;
  LaunchBf16Norm(rounding, stream_.get());
  return {activations_, Width(id)};
}

void WideOps::RoundColumns(BufferId id, int begin, int width, int rows, __nv_bfloat16* output) {
  RoundedParts parts;
  parts.rows = rows;
  parts.input = WidenedValues(id, rows);
  parts.input_stride = Stride(id);
  parts.count = 1;
  parts.parts[0] = {begin, width, {}, output, Bf16Stride(width)};
  normalized_ = kNoId;
  LaunchRoundParts(parts, stream_.get());
}

// `product` says what becomes of the result.
void WideOps::Multiply(const PackedMatrix& matrix, const Bf16Rows& input, int rows,
                       DenseProduct product) {
  product.tokens = (rows + kRowStep - 1) / kRowStep * kRowStep;
  product.rows = matrix.rows;
  product.cols = matrix.cols;
  product.activations = input.data;
  product.activations_stride = Bf16Stride(input.width);
  product.weights = Unpacked(matrix, product.count);
  product.weights_stride = Bf16Stride(matrix.cols);
  products_.Launch(product, stream_);
}

void WideOps::Launch(const Op& op, const Slice& slice) {
  std::visit([&](const auto& body) { Launch(body, slice); }, op.body);
}

void WideOps::Launch(const EmbedOp& op, const Slice& slice) {
  LaunchEmbed(weights_.matrix(op.embedding), slice.tokens, slice.rows, op.scale,
              F32Values(op.output), Stride(op.output), nullptr, 0, stream_.get());
  if (op.norm) NormRows(*op.norm, op.output, slice.rows, Values(op.output), Values(op.output));
}

void WideOps::Launch(const LinearOp& op, const Slice& slice) {
  const PackedMatrix& matrix = weights_.matrix(op.linear.weight);
  const float* bias = weights_.vector(op.linear.bias);
  Bf16Rows input;
  if (op.input_begin > 0 && op.input_begin % 8 != 0) {
    RoundColumns(op.input, Narrow(op.input_begin), matrix.cols, slice.rows, activations_);
    input = {activations_, matrix.cols};
  } else {
    input = Activations(op.input, op.norm, slice.rows);
    if (op.input_begin > 0) input.data += op.input_begin;
  }
  if (FinishesProducts(op)) return LaunchFinished(op, input, slice.rows);
  if (NeedsRule(op) || op.factor != kNoId) return LaunchRuled(op, input, slice.rows);
  DenseProduct product;
  if (op.epilogue == Epilogue::kGated) {
    product.output = gates_;
    product.output_bf16 = true;
    product.output_stride = Bf16Stride(matrix.rows);
    Multiply(matrix, input, slice.rows, product);
    SiluMulParams gated;
    gated.gates = gates_;
    gated.bias = bias;
    if (op.row_gate != kNoId) {
      gated.row_gate = Values(op.row_gate);
      gated.row_gate_stride = Stride(op.row_gate);
    }
    gated.rows = slice.rows;
    gated.width = matrix.rows / 2;
    gated.output = Bf16Values(op.output);
    LaunchSiluMul(gated, stream_.get());
    return;
  }
  const float scale = op.scale * UniformFactor(op.linear);
  product.scale = scale;
  product.add = op.epilogue == Epilogue::kAdd;
  product.output = F32Values(op.output);
  product.output_stride = Stride(op.output);
  Multiply(matrix, input, slice.rows, product);
  if (bias != nullptr) {
    LaunchAddBias(bias, scale, slice.rows, matrix.rows, Values(op.output), Stride(op.output),
                  stream_.get());
  }
}

void WideOps::LaunchRuled(const LinearOp& op, const Bf16Rows& input, int rows) {
  const PackedMatrix& matrix = weights_.matrix(op.linear.weight);
  const DeviceWeights::RowVectors vectors = weights_.row_vectors(op.linear);
  DenseProduct product;
  if (op.epilogue == Epilogue::kStore) {
    product.output = F32Values(op.output);
    product.output_stride = Stride(op.output);
    Multiply(matrix, input, rows, product);
    LaunchScaleRows(vectors.factors, vectors.bias, op.scale, rows, matrix.rows, Values(op.output),
                    product.output_stride, stream_.get());
    return;
  }
  product.output = gates_;
  product.output_bf16 = true;
  product.output_stride = Bf16Stride(matrix.rows);
  Multiply(matrix, input, rows, product);
  RuledRows ruled;
  ruled.products = gates_;
  ruled.rows = rows;
  ruled.width = Width(op.output);
  ruled.gated = op.epilogue == Epilogue::kGated;
  ruled.activation = op.activation;
  ruled.factors = vectors.factors;
  ruled.bias = vectors.bias;
  if (op.factor != kNoId) {
    ruled.times = WidenedValues(op.factor, rows) + op.factor_column;
    ruled.times_stride = Stride(op.factor);
  }
  ruled.output = Bf16Values(op.output);
  LaunchRuledRows(ruled, stream_.get());
}

void WideOps::LaunchFinished(const LinearOp& op, const Bf16Rows& input, int rows) {
  const PackedMatrix& matrix = weights_.matrix(op.linear.weight);
  DenseProduct product;
  product.output = step_rows_;
  product.output_stride = Narrow(RowStride(matrix.rows));
  Multiply(matrix, input, rows, product);
  FinishParams finish = FinishRules(op, weights_);
  finish.products = step_rows_;
  finish.products_stride = product.output_stride;
  finish.rows = rows;
  finish.width = Width(op.output);
  if (op.row_gate != kNoId) {
    finish.row_gate = Values(op.row_gate);
    finish.row_gate_stride = Stride(op.row_gate);
  }
  if (op.addend != kNoId) {
    finish.addend = WidenedValues(op.addend, rows);
    finish.addend_stride = Stride(op.addend);
  }
  if (op.factor != kNoId) {
    finish.factor = WidenedValues(op.factor, rows) + op.factor_column;
    finish.factor_stride = Stride(op.factor);
  }
  finish.output = F32Values(op.output);
  finish.output_stride = Stride(op.output);
  LaunchFinish(finish, stream_.get());
}

void WideOps::Launch(const HeadsLinearOp& op, const Slice& slice) {
  const PackedMatrix& matrix = weights_.stack(op.matrices);
  DenseProduct product;
  product.count = static_cast<int>(op.matrices.size());
  Bf16Rows input;
  if (op.step % 8 == 0) {
    input = Activations(op.input, std::nullopt, slice.rows);
    product.activations_step = op.step;
  } else {
    input = {activations_, matrix.cols};
    product.activations_step = int64_t{rows_} * Bf16Stride(matrix.cols);
    for (int head = 0; head < product.count; ++head) {
      RoundColumns(op.input, head * Narrow(op.step), matrix.cols, slice.rows,
                   activations_ + head * product.activations_step);
    }
  }
  product.weights_step = UnpackedSize(matrix, 1);
  product.output_step = matrix.rows;
  product.output_bf16 = matrix.rows % 8 == 0;
  if (product.output_bf16) {
    product.output = Bf16Values(op.output);
    product.output_stride = Bf16Stride(Width(op.output));
  } else {
    product.output = F32Values(op.output);
    product.output_stride = Stride(op.output);
  }
  Multiply(matrix, input, slice.rows, product);
}

}  // namespace adder::cuda
