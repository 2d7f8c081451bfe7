// Routers and experts of NarrowOps.
#include "cuda/cuda_call.h"
#include "cuda/kernels/route.h"
#include "cuda/narrow_ops.h"
#include "cuda/op_params.h"
#include "cuda/supported.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

// Rows of floats begin on 16-byte boundaries.
int StrideOf(int width) { return (width + 3) / 4 * 4; }

}  // namespace

RouteParams NarrowOps::RouteOf(const RouterOp& op) const {
  RouteParams route = RuleOf(op, weights_);
  route.logits = scores_;
  route.logits_stride = StrideOf(route.experts);
  route.tokens = slice_.rows;
  route.output = Values(op.output);
  route.output_stride = Stride(op.output);
  return route;
}

void NarrowOps::Launch(const RouterOp& op) {
  LinearParams params = Params(op.input, op.norm, slice_.rows);
  params.matrix = weights_.matrix(op.router.weight);
  params.bias = weights_.vector(op.router.bias);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  params.scores = scores_;
  params.arrivals = counters_.as<unsigned>();
  const LinearShape shape = Shape();
  const bool plain = op.routing.plain() && !op.router.scaled();
  if (plain) {
    params.epilogue = LinearEpilogue::kRouter;
    params.top_k = Narrow(op.top_k);
  } else if (slice_.rows == 1 && !f32_ && params.matrix.cols % 4 == 0 && !op.router.scaled()) {
    return LaunchRouterByRule(params, RouteOf(op), shape, stream_.get());
  } else {
    params.scale = UniformFactor(op.router);
    params.output = scores_;
    params.output_stride = StrideOf(params.matrix.rows);
  }
  if (ReadsRounded(shape, slice_.rows))
    params.rounded_input = RoundedInput(op.input, params.input, slice_.rows, nullptr);
  params.rounded_input_stride = RoundedStride(op.input);
  LaunchLinear(params, shape, stream_.get());
  if (!plain) LaunchRoute(RouteOf(op), stream_.get());
}

// With a router, if the launch of gates chooses the experts too.
ExpertParams NarrowOps::GatesOf(const ExpertGateUpOp& op, const RouterOp* router) const {
  ExpertParams params;
  params.linear = Params(op.input, op.norm, slice_.rows);
  params.linear.matrix = weights_.stack(op.gate_up);
  params.linear.epilogue = NeedsRule(op) ? LinearEpilogue::kRule : LinearEpilogue::kSiluMul;
  params.linear.rule.activates = true;
  params.linear.rule.activation = op.activation;
  params.linear.output = Values(op.output);
  params.linear.output_stride = Stride(op.output);
  params.routing = Values(op.routing);
  params.routing_stride = Stride(op.routing);
  params.top_k = Narrow(op.top_k);
  SetExchange(params);
  if (router == nullptr) return params;
  params.router = weights_.matrix(router->router.weight);
  params.router_bias = weights_.vector(router->router.bias);
  params.chosen = Values(op.routing);
  if (!router->routing.plain()) params.route = RouteOf(*router);
  return params;
}

void NarrowOps::SetExchange(ExpertParams& params) const {
  params.exchange = exchange_.as<unsigned>();
  params.arrivals = counters_.as<unsigned>();
}

void NarrowOps::Launch(const ExpertGateUpOp& op) {
  ExpertParams params = GatesOf(op, joined_router_);
  ShareLaunch(params);
  LaunchExpertGateUp(params, Shape(), stream_.get());
}

void NarrowOps::Launch(const ExpertDownOp& op) {
  ExpertParams params;
  params.linear = Params(op.input, std::nullopt, slice_.rows);
  params.linear.matrix = weights_.stack(op.down);
  params.linear.epilogue = LinearEpilogue::kAdd;
  params.linear.scale = op.scale;
  params.linear.output = Values(op.output);
  params.linear.output_stride = Stride(op.output);
  if (op.store) {
    const size_t row_bytes = static_cast<size_t>(Stride(op.output)) * sizeof(float);
    Check(cudaMemsetAsync(params.linear.output, 0, static_cast<size_t>(slice_.rows) * row_bytes,
                          stream_.get()),
          "cudaMemset");
  }
  params.routing = Values(op.routing);
  params.routing_stride = Stride(op.routing);
  params.top_k = Narrow(op.top_k);
  SetExchange(params);
  ShareLaunch(params);
  LaunchExpertDown(params, Shape(), stream_.get());
}

void NarrowOps::ShareLaunch(ExpertParams& params) const {
  if (shared_expert_ == nullptr) return;
  params.shared = weights_.matrix(shared_expert_->linear.weight);
  params.shared_input = Values(shared_expert_->input);
  params.shared_input_stride = Stride(shared_expert_->input);
  params.shared_output = Values(shared_expert_->output);
  params.shared_output_stride = Stride(shared_expert_->output);
  if (shared_gate_ == kNoId) return;
  params.shared_gate = Values(shared_gate_);
  params.shared_gate_stride = Stride(shared_gate_);
}

}  // namespace adder::cuda
