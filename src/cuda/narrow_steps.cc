// Steps of decoding: which ops one launch does together. What is decided here follows from the
// program and the number of rows alone, so a step may be cut between any two ops.
#include "cuda/cuda_call.h"
#include "cuda/kernels/expert_step.h"
#include "cuda/narrow_ops.h"
#include "cuda/nvtx_range.h"
#include "cuda/supported.h"

namespace adder::cuda {
namespace {

// Rows of a step up to which launches of experts take in the shared one.
constexpr int kMostShared = 8;

}  // namespace

void NarrowOps::LaunchOfStep(size_t index, const Slice& slice) {
  slice_ = slice;
  if (LaunchSeveral(index)) return;
  if ((index > 0 && SharedExpertOf(index - 1) != nullptr) || JoinsGates(index) ||
      JoinsMixer(index)) {
    return;
  }
  const bool shares = slice.rows <= kMostShared;
  if (shares && joined_[index].is_shared) return;
  const bool joins = slice.rows == 1;
  if (joins && joined_[index].is_second) return;
  if (joins && joined_[index].second != 0) {
    const OpBody& body = program_.ops[index].body;
    if (std::holds_alternative<Mamba2Op>(body)) return LaunchBeside(index);
    const auto* op = std::get_if<LinearOp>(&body);
    if (op == nullptr) return LaunchConvolved(index);
    return op->epilogue == Epilogue::kAdd ? LaunchAdditions(index) : LaunchPair(index);
  }
  shared_expert_ = SharedOf(index);
  if (shares) shared_gate_ = joined_[index].shared_gate;
  if (index > 0 && JoinsGates(index - 1)) {
    joined_router_ = &std::get<RouterOp>(program_.ops[index - 1].body);
  }
  if (index > 0 && JoinsMixer(index - 1)) {
    joined_conv_ = &std::get<CausalConvOp>(program_.ops[index - 1].body);
  }
  Launch(program_.ops[index], slice);
  shared_expert_ = nullptr;
  shared_gate_ = kNoId;
  joined_router_ = nullptr;
  joined_conv_ = nullptr;
}

// Whether it is a product alone, and an epilogue.
bool NarrowOps::IsPlain(const LinearOp& op) {
  return op.linear.bias == kNoId && !op.linear.scaled() && op.input_begin == -1 && !NeedsFinish(op);
}
bool NarrowOps::SharesGates(const ExpertGateUpOp& gate_up, const LinearOp& shared) const {
  return IsPlain(shared) &&
         shared.epilogue == (gate_up.gated ? Epilogue::kGated : Epilogue::kActivate) &&
         shared.activation == gate_up.activation && shared.input == gate_up.input &&
         shared.norm == gate_up.norm &&
         CanShareLaunch(Experts::kGateUp, weights_.stack(gate_up.gate_up),
                        weights_.matrix(shared.linear.weight));
}
// Of a step: the op behind a launch of experts that multiplies the same activations by an expert
// which every token takes, or adds its product to the same buffer. One launch does both, and the
// second op has none of its own.
const LinearOp* NarrowOps::SharedExpertOf(size_t index) const {
  if (f32_ || slice_.rows > kMostShared || index + 1 >= program_.ops.size()) return nullptr;
  const auto* linear = std::get_if<LinearOp>(&program_.ops[index + 1].body);
  if (linear == nullptr || !IsPlain(*linear)) return nullptr;
  const PackedMatrix& shared = weights_.matrix(linear->linear.weight);
  const Op& op = program_.ops[index];
  if (const auto* gate_up = std::get_if<ExpertGateUpOp>(&op.body)) {
    return SharesGates(*gate_up, *linear) ? linear : nullptr;
  }
  if (const auto* down = std::get_if<ExpertDownOp>(&op.body)) {
    const bool same = linear->epilogue == Epilogue::kAdd && linear->output == down->output &&
                      linear->scale == down->scale && !linear->norm;
    return same && CanShareLaunch(Experts::kDown, weights_.stack(down->down), shared) ? linear
                                                                                      : nullptr;
  }
  return nullptr;
}
// Of a step: whether the op is a router whose choice the launch of the op behind it makes.
bool NarrowOps::JoinsGates(size_t index) const {
  if (f32_ || index + 1 >= program_.ops.size()) return false;
  const auto* router = std::get_if<RouterOp>(&program_.ops[index].body);
  const auto* gate_up = std::get_if<ExpertGateUpOp>(&program_.ops[index + 1].body);
  if (router == nullptr || gate_up == nullptr || router->router.scaled() ||
      router->output != gate_up->routing || router->input != gate_up->input ||
      router->norm != gate_up->norm || slice_.rows != 1) {
    return false;
  }
  if (!NeedsRule(*gate_up) && router->routing.plain() &&
      CanRoute(weights_.stack(gate_up->gate_up), weights_.matrix(router->router.weight), 1)) {
    return true;
  }
  ExpertParams params = GatesOf(*gate_up, router);
  const LinearOp* shared = SharedOf(index + 1);
  if (shared != nullptr) params.shared = weights_.matrix(shared->linear.weight);
  return CanStepGates(params, Shape());
}
// Of a step's op of experts: the shared one whose work its launch does too, gated or not.
const LinearOp* NarrowOps::SharedOf(size_t index) const {
  if (slice_.rows <= kMostShared && joined_[index].shared != 0) {
    return &std::get<LinearOp>(program_.ops[joined_[index].shared].body);
  }
  return SharedExpertOf(index);
}
// Finds shared experts behind whose experts' gates comes the op of their row gate. Their gates, up
// go with those of the experts, and what `down` reads is multiplied by the row gate only there.
void NarrowOps::FindGatedShared() {
  const auto linear = [&](size_t index) {
    return index < program_.ops.size() ? std::get_if<LinearOp>(&program_.ops[index].body) : nullptr;
  };
  for (size_t i = 0; i + 2 < program_.ops.size(); ++i) {
    const auto* gate_up = std::get_if<ExpertGateUpOp>(&program_.ops[i].body);
    const LinearOp* gate = linear(i + 1);
    const LinearOp* shared = linear(i + 2);
    if (gate_up == nullptr || gate == nullptr || shared == nullptr || !GatesRowsAlone(*shared) ||
        shared->row_gate != gate->output) {
      continue;
    }
    LinearOp ungated = *shared;
    ungated.row_gate = kNoId;
    if (!SharesGates(*gate_up, ungated)) continue;
    for (size_t j = i + 3; j < program_.ops.size(); ++j) {
      const auto* down = std::get_if<ExpertDownOp>(&program_.ops[j].body);
      if (down == nullptr || down->routing != gate_up->routing) continue;
      if (SharedExpertOf(j) != nullptr && linear(j + 1)->input == shared->output) {
        joined_[i].shared = i + 2;
        joined_[j].shared = j + 1;
        joined_[j].shared_gate = shared->row_gate;
        joined_[i + 2].is_shared = joined_[j + 1].is_shared = true;
      }
      break;
    }
  }
}

// Finds what single tokens' steps launch together: pairs of projections of the same activations,
// between which is at most a scan of the first one's rows, and what attends to the second's;
// convolutions and the projection behind
// them; and pairs of additions to the same rows.
// For the latter, the launch adds up experts of which the first op is the only routed one; its
// weight makes up for the difference of the two ops' factors.
void NarrowOps::FindJoined() {
  joined_.assign(program_.ops.size(), {});
  if (f32_) return;
  FindGatedShared();
  FindSeveral();
  std::vector<float> routing;
  const auto linear = [&](size_t index) -> const LinearOp* {
    if (index >= program_.ops.size() || joined_[index].second != 0 || joined_[index].is_second ||
        joined_[index].is_shared || joined_[index].several != 0) {
      return nullptr;
    }
    const auto* op = std::get_if<LinearOp>(&program_.ops[index].body);
    const bool apart =
        op != nullptr && (op->logits_rows_only || NeedsFinish(*op) || op->input_begin != -1 ||
                          (op->norm && NormsApart(*op->norm)));
    return apart ? nullptr : op;
  };
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    if (const auto* conv = std::get_if<CausalConvOp>(&program_.ops[i].body)) {
      const LinearOp* reader = linear(i + 1);
      if (reader != nullptr && reader->epilogue == Epilogue::kAdd && !reader->norm &&
          reader->input == conv->output && reader->linear.bias == kNoId && !NeedsRule(*reader) &&
          CanConvolve(weights_.matrix(reader->linear.weight), ConvOf(*conv), Shape())) {
        joined_[i].second = i + 1;
        joined_[i + 1].is_second = true;
      }
      continue;
    }
    const LinearOp* first = linear(i);
    if (first == nullptr) continue;
    const PackedMatrix& matrix = weights_.matrix(first->linear.weight);
    const auto join = [&](size_t second) {
      joined_[i].second = second;
      joined_[second].is_second = true;
    };
    if (first->epilogue == Epilogue::kStore) {
      const bool scans = i + 1 < program_.ops.size() &&
                         std::holds_alternative<Mamba2Op>(program_.ops[i + 1].body) &&
                         std::get<Mamba2Op>(program_.ops[i + 1].body).input == first->output;
      const size_t at = scans ? i + 2 : i + 1;
      const LinearOp* second = linear(at);
      if (second != nullptr && second->epilogue == Epilogue::kStore &&
          second->input == first->input && second->norm == first->norm &&
          second->output != first->output &&
          CanPair(matrix, weights_.matrix(second->linear.weight), Shape())) {
        join(at);
        if (!scans || at + 1 >= program_.ops.size()) continue;
        const auto* attention = std::get_if<AttentionOp>(&program_.ops[at + 1].body);
        if (attention == nullptr || attention->input != second->output) continue;
        joined_[i + 1].second = at + 1;
        joined_[at + 1].is_second = true;
      }
    } else if (first->epilogue == Epilogue::kAdd) {
      const auto plain = [](const LinearOp& op) {
        return !op.norm && op.linear.bias == kNoId && !NeedsRule(op);
      };
      const LinearOp* second = linear(i + 1);
      if (second != nullptr && second->epilogue == Epilogue::kAdd &&
          second->output == first->output && plain(*first) && plain(*second) &&
          FactorOf(*second) != 0 &&
          CanShareLaunch(Experts::kDown, matrix, weights_.matrix(second->linear.weight))) {
        join(i + 1);
        joined_[i].routing = routing.size();
        routing.push_back(FactorOf(*first) / FactorOf(*second));
        routing.push_back(0);  // the number of the only expert
      }
    }
  }
  if (routing.empty()) return;
  additions_ = DeviceMemory(routing.size() * sizeof(float));
  Check(cudaMemcpyAsync(additions_.data(), routing.data(), additions_.bytes(),
                        cudaMemcpyHostToDevice, stream_.get()),
        "copying factors to the GPU");
  // `routing` must outlive the copy.
  stream_.Synchronize();
}

void NarrowOps::LaunchPair(size_t index) {
  const NvtxRange range(program_.ops[index].name);
  LinearParams params[2];
  for (const size_t i : {index, joined_[index].second}) {
    const auto& op = std::get<LinearOp>(program_.ops[i].body);
    LinearParams& p = params[i == index ? 0 : 1];
    p = Params(op.input, op.norm, slice_.rows);
    p.matrix = weights_.matrix(op.linear.weight);
    SetEpilogue(op, p);
    p.output = Values(op.output);
    p.output_stride = Stride(op.output);
    MarkWritten(op.output);
  }
  LaunchLinearPair(params[0], params[1], Shape(), stream_.get());
}

// Attention and then a scan, both of rows that a pair of projections made. Attention takes longer,
// and is better off as the one whose first part runs beside that launch.
void NarrowOps::LaunchBeside(size_t index) {
  Launch(program_.ops[joined_[index].second], slice_);
  beside_previous_ = true;
  Launch(program_.ops[index], slice_);
  beside_previous_ = false;
}

// A convolution with the projection of its result.
void NarrowOps::LaunchConvolved(size_t index) {
  const NvtxRange range(program_.ops[index].name);
  const auto& conv = std::get<CausalConvOp>(program_.ops[index].body);
  const auto& op = std::get<LinearOp>(program_.ops[index + 1].body);
  LinearParams params = Params(op.input, std::nullopt, slice_.rows);
  params.matrix = weights_.matrix(op.linear.weight);
  SetEpilogue(op, params);
  params.output = Values(op.output);
  params.output_stride = Stride(op.output);
  MarkWritten(op.output);
  LaunchConvolvedLinear(params, ConvOf(conv), Shape(), stream_.get());
}

float NarrowOps::FactorOf(const LinearOp& op) { return op.scale * UniformFactor(op.linear); }

void NarrowOps::LaunchAdditions(size_t index) {
  const NvtxRange range(program_.ops[index].name);
  const auto& first = std::get<LinearOp>(program_.ops[index].body);
  const auto& second = std::get<LinearOp>(program_.ops[index + 1].body);
  ExpertParams params;
  params.linear = Params(first.input, std::nullopt, slice_.rows);
  params.linear.matrix = weights_.matrix(first.linear.weight);
  params.linear.epilogue = LinearEpilogue::kAdd;
  params.linear.scale = FactorOf(second);
  params.linear.output = Values(first.output);
  params.linear.output_stride = Stride(first.output);
  params.routing = additions_.as<float>() + joined_[index].routing;
  params.routing_stride = 2;
  params.top_k = 1;
  params.shared = weights_.matrix(second.linear.weight);
  params.shared_input = Values(second.input);
  params.shared_input_stride = Stride(second.input);
  MarkWritten(first.output);
  LaunchExpertDown(params, Shape(), stream_.get());
}

}  // namespace adder::cuda
