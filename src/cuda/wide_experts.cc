// Routers and experts of WideOps.
#include "cuda/kernels/bf16_rows.h"
#include "cuda/op_params.h"
#include "cuda/supported.h"
#include "cuda/wide_ops.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

}  // namespace

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
  product.scale = UniformFactor(op.router);
  product.output = scores_;
  product.output_stride = Narrow(RowStride(matrix.rows));
  Multiply(matrix, Activations(op.input, op.norm, slice.rows), slice.rows, product);
  if (const float* bias = weights_.vector(op.router.bias)) {
    LaunchAddBias(bias, product.scale, slice.rows, matrix.rows, scores_, product.output_stride,
                  stream_.get());
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
  LaunchGroupedGateUp(groups, weights_.stack(op.gate_up), op.activation, input.data,
                      Bf16Values(op.output, groups.top_k), stream_.get());
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
