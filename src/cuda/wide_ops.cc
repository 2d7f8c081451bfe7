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
#include "cuda/op_params.h"
#include "cuda/supported.h"

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

size_t UnpackedBytes(const PackedMatrix& matrix) {
  return static_cast<size_t>(int64_t{matrix.rows} * Bf16Stride(matrix.cols)) *
         sizeof(__nv_bfloat16);
}

void Raise(size_t& size, int64_t value) { size = std::max(size, static_cast<size_t>(value)); }

// The matrix of an op that is a dense product here, or part of one; kNoId: there is none.
MatrixId DenseMatrix(const Op& op) {
  if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
    return linear->logits_rows_only ? kNoId : linear->linear.weight;
  }
  if (const auto* router = std::get_if<RouterOp>(&op.body)) return router->router.weight;
  if (const auto* scan = std::get_if<Mamba2SelectedOp>(&op.body)) {
    return scan->mixer.selection->dt_proj.weight;
  }
  if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) return scan->mixer.dt_proj.weight;
  return kNoId;
}

// Whether all that comes behind an activation is a factor of each element.
bool HasFactorAlone(const LinearOp& op) {
  return op.epilogue == Epilogue::kActivate && op.factor != kNoId && op.row_gate == kNoId &&
         op.addend == kNoId && op.cap == 0;
}

// Whether LaunchBf16Norm has such a norm, which reads groups four values at a time; true for none.
bool NormsRows(const std::optional<RmsNorm>& norm, int64_t width) {
  if (!norm) return true;
  if (norm->centered || norm->weight == kNoId) return false;
  return norm->groups == 1 || width / norm->groups % 4 == 0;
}

}  // namespace

bool WideOps::Support(const Program& program) {
  for (const Op& op : program.ops) {
    const bool known = std::visit(
        [](const auto& body) { return kHasWideKernels<std::decay_t<decltype(body)>>; }, op.body);
    if (!known) return false;
    if (const auto* mamba = std::get_if<Mamba2Op>(&op.body)) {
      const Mamba2& m = mamba->mixer;
      if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.d_state), Narrow(m.d_conv))) {
        return false;
      }
      if (m.norm_before_gate && !NormsRows(m.gated_norm, m.inner())) return false;
    } else if (const auto* selected = std::get_if<Mamba2SelectedOp>(&op.body)) {
      const Mamba2& m = selected->mixer;
      if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.d_state), 1)) return false;
      if (m.d_conv > kMostConvTaps) return false;
    } else if (const auto* scan = std::get_if<Mamba1ScanOp>(&op.body)) {
      if (scan->mixer.inner % 8 != 0 || scan->mixer.d_conv > kMostConvTaps) return false;
    } else if (const auto* lru = std::get_if<RgLruOp>(&op.body)) {
      if (!RgLruChunksSupport(Narrow(lru->mixer.block()))) return false;
      if (lru->mixer.d_conv > kMostConvTaps) return false;
    } else if (const auto* lightning = std::get_if<LightningOp>(&op.body)) {
      const LightningAttention& m = lightning->mixer;
      if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.head_dim), 1)) return false;
      if (!NormsRows(m.norm, m.width())) return false;
    } else if (const auto* delta = std::get_if<GatedDeltaOp>(&op.body)) {
      const GatedDelta& m = delta->mixer;
      if (!GatedDeltaChunksSupport(Narrow(m.key_dim), Narrow(m.value_dim))) return false;
      // Gates are read two at a time.
      if (!m.gate_proj && (m.in_proj_rows() - m.values()) % 2 != 0) return false;
    } else if (const auto* added = std::get_if<NormAddOp>(&op.body)) {
      if (added->norm.centered || added->norm.weight == kNoId) return false;
    } else if (const auto* rwkv = std::get_if<Rwkv7Op>(&op.body)) {
      if (!Rwkv7ChunksSupport(Narrow(rwkv->mixer.head_dim))) return false;
    } else if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
      if (!attention->mixer.owns_kv()) return false;
      if (!AttentionChunksSupport(Narrow(attention->mixer.head_dim),
                                  Narrow(program.layout.page_positions))) {
        return false;
      }
    } else if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
      if (linear->logits_rows_only) continue;  // not one of these kernels'
      if (NeedsFinish(*linear) && !GatesRowsAlone(*linear) && !HasFactorAlone(*linear))
        return false;
      if (linear->input_begin > 0 && linear->input_begin % 8 != 0) return false;
      const bool refused = linear->epilogue == Epilogue::kAdd || linear->row_gate != kNoId;
      if (NeedsRule(*linear) && refused) return false;
      const int64_t width = program.buffers[static_cast<size_t>(linear->input)].width;
      if (!NormsRows(linear->norm, width)) return false;
    } else if (const auto* router = std::get_if<RouterOp>(&op.body)) {
      if (router->routing.idle > 0 || router->router.scaled()) return false;
      if (router->experts > kMostGroupedExperts) return false;
    } else if (const auto* gate_up = std::get_if<ExpertGateUpOp>(&op.body)) {
      if (NeedsRule(*gate_up) || gate_up->intermediate % 8 != 0) return false;
    }
  }
  return true;
}

WideOps::WideOps(const Program& program, const DeviceWeights& weights, const DeviceState& state,
                 const Stream& stream, int multiprocessors, const WideLimits& limits)
    : program_(program),
      weights_(weights),
      state_(state),
      stream_(stream),
      multiprocessors_(multiprocessors),
      rows_(limits.rows),
      is_bf16_(program.buffers.size(), false) {
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
    if (const MatrixId id = DenseMatrix(op); id != kNoId) {
      const PackedMatrix& matrix = weights_.matrix(id);
      Raise(sizes.activations, rows * Bf16Stride(matrix.cols));
      if (kept_.count(matrix.data) == 0) {
        Raise(sizes.unpacked, int64_t{matrix.rows} * Bf16Stride(matrix.cols));
      }
    }
    if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
      if (linear->logits_rows_only) continue;
      const PackedMatrix& matrix = weights_.matrix(linear->linear.weight);
      Raise(sizes.activations, rows * Bf16Stride(Width(linear->input)));
      if (linear->epilogue == Epilogue::kGated || linear->epilogue == Epilogue::kActivate) {
        Raise(sizes.gates, rows * Bf16Stride(matrix.rows));
      }
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
      // Never more than tiles of the smaller kind.
      Raise(sizes.expert_tiles, rows * router->top_k / 64 + router->experts);
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
  std::vector<const PackedMatrix*> matrices;
  size_t total = 0;
  for (const Op& op : program_.ops) {
    const MatrixId id = DenseMatrix(op);
    if (id == kNoId) continue;
    const PackedMatrix& matrix = weights_.matrix(id);
    const size_t bytes = (UnpackedBytes(matrix) + 255) / 256 * 256;
    if (total + bytes > most_bytes || !kept_.emplace(matrix.data, nullptr).second) continue;
    matrices.push_back(&matrix);
    total += bytes;
  }
  kept_memory_ = DeviceMemory(total);
  auto* to = kept_memory_.as<std::byte>();
  for (const PackedMatrix* matrix : matrices) {
    auto* rows = reinterpret_cast<__nv_bfloat16*>(to);
    LaunchUnpack(*matrix, 0, rows, stream_.get());
    kept_[matrix->data] = rows;
    to += (UnpackedBytes(*matrix) + 255) / 256 * 256;
  }
}

const __nv_bfloat16* WideOps::Unpacked(const PackedMatrix& matrix) {
  const auto found = kept_.find(matrix.data);
  if (found != kept_.end()) return found->second;
  LaunchUnpack(matrix, 0, unpacked_, stream_.get());
  return unpacked_;
}

int WideOps::Width(BufferId id) const { return BufferWidth(program_, id); }
int WideOps::Stride(BufferId id) const { return BufferStride(program_, id); }

float* WideOps::F32Values(BufferId id) {
  is_bf16_[static_cast<size_t>(id)] = false;
  if (normalized_ == id) normalized_ = kNoId;
  return Values(id);
}

__nv_bfloat16* WideOps::Bf16Values(BufferId id) {
  is_bf16_[static_cast<size_t>(id)] = true;
  if (normalized_ == id) normalized_ = kNoId;
  return reinterpret_cast<__nv_bfloat16*>(Values(id));
}

float* WideOps::WidenedValues(BufferId id, int rows) {
  if (!is_bf16_[static_cast<size_t>(id)]) return Values(id);
  LaunchWiden(reinterpret_cast<const __nv_bfloat16*>(Values(id)), rows, Width(id), widened_,
              Stride(id), stream_.get());
  return widened_;
}

WideOps::Bf16Rows WideOps::Activations(BufferId id, const std::optional<RmsNorm>& norm, int rows) {
  if (is_bf16_[static_cast<size_t>(id)] && !norm) {
    return {reinterpret_cast<const __nv_bfloat16*>(Values(id)), Width(id)};
  }
  // The ops of a block that read the residual share one norm.
  if (norm && normalized_ == id && norm_weight_ == norm->weight) return {activations_, Width(id)};
  normalized_ = norm ? id : kNoId;
  norm_weight_ = norm ? norm->weight : kNoId;
  Bf16NormParams params;
  if (is_bf16_[static_cast<size_t>(id)]) {
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

// `product` says what becomes of the result.
void WideOps::Multiply(const PackedMatrix& matrix, const Bf16Rows& input, int rows,
                       DenseProduct product) {
  product.tokens = (rows + kRowStep - 1) / kRowStep * kRowStep;
  product.rows = matrix.rows;
  product.cols = matrix.cols;
  product.activations = input.data;
  product.activations_stride = Bf16Stride(input.width);
  product.weights = Unpacked(matrix);
  product.weights_stride = Bf16Stride(matrix.cols);
  products_.Launch(product, stream_);
}

void WideOps::Launch(const Op& op, const Slice& slice) {
  std::visit(
      [&](const auto& body) {
        if constexpr (kHasWideKernels<std::decay_t<decltype(body)>>) Launch(body, slice);
      },
      op.body);
}

void WideOps::Launch(const EmbedOp& op, const Slice& slice) {
  LaunchEmbed(weights_.matrix(op.embedding), slice.tokens, slice.rows, op.scale,
              F32Values(op.output), Stride(op.output), nullptr, 0, stream_.get());
  if (!op.norm) return;
  RowUpdateParams update;
  update.norm = MakeRowNorm(*op.norm, program_, weights_);
  update.input = update.output = Values(op.output);
  update.input_stride = update.output_stride = Stride(op.output);
  update.rows = slice.rows;
  update.width = Width(op.output);
  LaunchRowUpdate(update, stream_.get());
}

void WideOps::Launch(const LinearOp& op, const Slice& slice) {
  const PackedMatrix& matrix = weights_.matrix(op.linear.weight);
  const float* bias = weights_.vector(op.linear.bias);
  Bf16Rows input = Activations(op.input, op.norm, slice.rows);
  if (op.input_begin > 0) input.data += op.input_begin;
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

void WideOps::Launch(const UpdateOp& op, const Slice& slice) {
  RowUpdateParams update = RulesOf(op, program_, weights_);
  update.input = WidenedValues(op.input, slice.rows);
  update.input_stride = Stride(op.input);
  update.rows = slice.rows;
  update.width = Width(op.input);
  update.output = F32Values(op.output);
  update.output_stride = Stride(op.output);
  LaunchRowUpdate(update, stream_.get());
}

void WideOps::Launch(const NormAddOp& op, const Slice& slice) {
  RmsNormParams params;
  params.input = Values(op.input);
  params.stride = Stride(op.input);
  params.rows = slice.rows;
  params.width = Width(op.input);
  params.groups = Narrow(op.norm.groups);
  params.weight = weights_.vector(op.norm.weight);
  params.eps = op.norm.eps;
  params.epilogue = NormEpilogue::kAdd;
  params.scale = op.scale;
  params.output = F32Values(op.output);
  LaunchRmsNorm(params, stream_.get());
}

ExpertGroups WideOps::Groups(BufferId routing, int64_t top_k, size_t experts, int rows) const {
  ExpertGroups groups;
  groups.tokens = rows;
  groups.top_k = Narrow(top_k);
  groups.experts = static_cast<int>(experts);
  groups.routing = Values(routing);
  groups.routing_stride = Stride(routing);
  groups.chosen = expert_chosen_;
  groups.order = expert_order_;
  groups.tiles = expert_tiles_;
  groups.tile_count = expert_tile_count_;
  return groups;
}

ExpertGroups WideOps::Grouped(BufferId routing, int64_t top_k, size_t experts, int rows) {
  const ExpertGroups groups = Groups(routing, top_k, experts, rows);
  if (grouped_ != routing) LaunchGroupExperts(groups, stream_.get());
  grouped_ = routing;
  return groups;
}

void WideOps::Launch(const RouterOp& op, const Slice& slice) {
  const PackedMatrix& matrix = weights_.matrix(op.router.weight);
  DenseProduct product;
  product.output = scores_;
  product.output_stride = RowStride(matrix.rows);
  Multiply(matrix, Activations(op.input, op.norm, slice.rows), slice.rows, product);
  if (const float* bias = weights_.vector(op.router.bias)) {
    LaunchAddBias(bias, 1, slice.rows, matrix.rows, scores_, product.output_stride, stream_.get());
  }
  const ExpertGroups groups =
      Groups(op.output, op.top_k, static_cast<size_t>(op.experts), slice.rows);
  F32Values(op.output);
  if (op.routing.plain()) {
    LaunchChooseExperts(scores_, product.output_stride, groups, stream_.get());
  } else {
    RouteParams route = RuleOf(op, weights_);
    route.logits = scores_;
    route.logits_stride = product.output_stride;
    route.tokens = slice.rows;
    route.output = groups.routing;
    route.output_stride = groups.routing_stride;
    route.chosen = groups.chosen;
    LaunchRoute(route, stream_.get());
  }
  grouped_ = kNoId;
}

void WideOps::Launch(const ExpertGateUpOp& op, const Slice& slice) {
  const Bf16Rows input = Activations(op.input, op.norm, slice.rows);
  const ExpertGroups groups = Grouped(op.routing, op.top_k, op.gate_up.size(), slice.rows);
  LaunchGroupedGateUp(groups, weights_.stack(op.gate_up), input.data, Bf16Values(op.output),
                      stream_.get());
}

void WideOps::Launch(const ExpertDownOp& op, const Slice& slice) {
  const PackedMatrix& stack = weights_.stack(op.down);
  const ExpertGroups groups = Grouped(op.routing, op.top_k, op.down.size(), slice.rows);
  LaunchGroupedDown(groups, stack, reinterpret_cast<const __nv_bfloat16*>(Values(op.input)),
                    expert_rows_, stream_.get());
  LaunchCombineExperts(groups, expert_rows_, op.scale, stack.rows, !op.store, F32Values(op.output),
                       Stride(op.output), stream_.get());
}

}  // namespace adder::cuda
