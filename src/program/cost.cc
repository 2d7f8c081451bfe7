#include <algorithm>

#include "core/error.h"
#include "program/program.h"

namespace adder {
namespace {

constexpr int64_t kFloatBytes = 4;

// What a batch amounts to, for costs.
struct Work {
  int64_t tokens;
  int64_t sequences;
  int64_t context;
};

class Costing {
 public:
  Costing(const Program& program, const Work& work) : program_(program), work_(work) {}

  OpCost operator()(const EmbedOp& op) const {
    const WeightMatrix& matrix = Matrix(op.embedding);
    const int64_t row_bytes = matrix.rows > 0 ? MatrixBytes(op.embedding) / matrix.rows : 0;
    return {work_.tokens * row_bytes + NormBytes(op.norm), 0, work_.tokens * matrix.cols};
  }

  OpCost operator()(const LinearOp& op) const {
    const int64_t tokens =
        op.logits_rows_only ? std::min(work_.tokens, work_.sequences) : work_.tokens;
    return {LinearBytes(op.linear) + NormBytes(op.norm), 0, tokens * MatrixFlops(op.linear.weight)};
  }

  OpCost operator()(const JoinOp&) const { return {}; }

  OpCost operator()(const UpdateOp& op) const {
    const int64_t width = program_.buffers[static_cast<size_t>(op.output)].width;
    int64_t per_element = op.norm ? 4 : 1;
    int64_t bytes = NormBytes(op.norm) + VectorBytes(op.total);
    for (const VectorId id : {op.add_bias, op.add_scale, op.keep_bias, op.keep_scale}) {
      per_element += id != kNoId;
      bytes += VectorBytes(id);
    }
    return {bytes, 0, work_.tokens * per_element * width};
  }

  OpCost operator()(const NormAddOp& op) const {
    return {NormBytes(op.norm), 0, work_.tokens * 4 * VectorElements(op.norm.weight)};
  }

  OpCost operator()(const Mamba2Op& op) const {
    const Mamba2& m = op.mixer;
    OpCost cost = Scan(m);
    cost.weight_bytes += VectorBytes(m.conv_weight) + VectorBytes(m.conv_bias);
    if (m.norm_before_gate) cost.weight_bytes += NormBytes(m.gated_norm);
    cost.state_bytes += work_.sequences * 2 * (m.d_conv - 1) * m.conv_channels() * kFloatBytes;
    cost.flops += work_.tokens * 2 * m.d_conv * m.conv_channels();
    return cost;
  }

  OpCost operator()(const Mamba2SelectedOp& op) const {
    const Mamba2Selection& selection = *op.mixer.selection;
    OpCost cost = Scan(op.mixer);
    cost.weight_bytes += LinearBytes(selection.dt_proj) + NormBytes(selection.b_norm) +
                         NormBytes(selection.c_norm) + NormBytes(selection.dt_norm);
    cost.flops += work_.tokens * MatrixFlops(selection.dt_proj.weight);
    return cost;
  }

  OpCost operator()(const CausalConvOp& op) const {
    const int64_t gates = (op.gate_before >= 0) + (op.gate_after >= 0);
    return {VectorBytes(op.weight) + VectorBytes(op.bias),
            work_.sequences * 2 * (op.d_conv - 1) * op.channels * kFloatBytes,
            work_.tokens * (2 * op.d_conv + gates) * op.channels};
  }

  OpCost operator()(const Mamba1ScanOp& op) const {
    const Mamba1& m = op.mixer;
    // As for Mamba-2, and per state element the product of dt and a.
    const int64_t per_token = 6 * m.inner * m.d_state + 3 * m.inner;
    return {LinearBytes(m.dt_proj) + VectorBytes(m.a) + VectorBytes(m.d) + NormBytes(m.dt_norm) +
                NormBytes(m.b_norm) + NormBytes(m.c_norm),
            work_.sequences * 2 * m.inner * m.d_state * kFloatBytes,
            work_.tokens * (per_token + MatrixFlops(m.dt_proj.weight))};
  }

  OpCost operator()(const HeadMixOp& op) const {
    const Attention& a = op.mixer;
    const HeadMixing& m = *a.mixing;
    const int64_t channels = a.q_width() + a.kv_width();
    return {VectorBytes(m.conv_weight) + VectorBytes(m.conv_bias) + VectorBytes(m.group_weight) +
                VectorBytes(m.group_bias),
            work_.sequences * 2 * (m.past() * channels + a.kv_width() / 2) * kFloatBytes,
            work_.tokens * channels * (2 * m.taps + 2 * m.group_taps * a.head_dim + 3)};
  }

  OpCost operator()(const TokenShiftOp& op) const {
    const int64_t mix = VectorElements(op.mix);
    const int64_t width = mix / op.parts;
    return {VectorBytes(op.mix) + NormBytes(op.norm), work_.sequences * 2 * width * kFloatBytes,
            work_.tokens * (width + 2 * mix)};
  }

  OpCost operator()(const RgLruOp& op) const {
    const RgLru& m = op.mixer;
    return {VectorBytes(m.input_weight) + VectorBytes(m.input_bias) +
                VectorBytes(m.recurrent_weight) + VectorBytes(m.recurrent_bias) +
                VectorBytes(m.decay),
            work_.sequences * 2 * m.width * kFloatBytes,
            // Both gates; per channel the products of gate, size and x, and a h + u.
            work_.tokens * (4 * m.width * m.block() + 5 * m.width)};
  }

  OpCost operator()(const Rwkv7Op& op) const {
    const Rwkv7& m = op.mixer;
    const int64_t state = m.inner() * m.head_dim;
    // As for the gated delta rule, and per state element the product with v and its addition.
    return {VectorBytes(m.key_scale) + VectorBytes(m.key_rate) + VectorBytes(m.bonus) +
                NormBytes(m.norm),
            work_.sequences * 2 * state * kFloatBytes, work_.tokens * 9 * state};
  }

  OpCost operator()(const GatedDeltaOp& op) const {
    const GatedDelta& m = op.mixer;
    const int64_t state = m.values() * m.key_dim;
    // Per state element: decay multiply, and multiply and add for the answer to k, for the
    // correction and for the answer to q.
    return {VectorBytes(m.dt_bias) + VectorBytes(m.a) + NormBytes(m.norm),
            work_.sequences * 2 * state * kFloatBytes, work_.tokens * 7 * state};
  }

  OpCost operator()(const AttentionOp& op) const {
    const Attention& a = op.mixer;
    const int64_t position_bytes = 2 * a.kv_heads * a.head_dim * kFloatBytes;
    const int64_t context = a.window > 0 ? std::min(work_.context, a.window - 1) : work_.context;
    return {NormBytes(a.q_norm) + NormBytes(a.k_norm) + NormBytes(a.v_norm),
            (work_.sequences * context + work_.tokens) * position_bytes,
            4 * a.heads * a.head_dim * AttendedPairs(a.window)};
  }

  OpCost operator()(const HeadsLinearOp& op) const {
    OpCost cost;
    for (const MatrixId id : op.matrices) {
      cost.weight_bytes += MatrixBytes(id);
      cost.flops += work_.tokens * MatrixFlops(id);
    }
    return cost;
  }

  OpCost operator()(const LatentAttentionOp& op) const {
    const LatentAttention& a = op.mixer;
    return {NormBytes(a.kv_norm),
            (work_.sequences * work_.context + work_.tokens) * a.key_dim() * kFloatBytes,
            2 * a.heads * (a.key_dim() + a.latent) * AttendedPairs()};
  }

  OpCost operator()(const LightningOp& op) const {
    const LightningAttention& m = op.mixer;
    const int64_t state = m.width() * m.head_dim;
    return {NormBytes(m.norm), work_.sequences * 2 * state * kFloatBytes, work_.tokens * 5 * state};
  }

  OpCost operator()(const RouterOp& op) const {
    return {LinearBytes(op.router) + VectorBytes(op.routing.choice_bias) +
                VectorBytes(op.routing.expert_scale) + NormBytes(op.norm),
            0, work_.tokens * MatrixFlops(op.router.weight)};
  }

  OpCost operator()(const ExpertGateUpOp& op) const {
    OpCost cost = Experts(op.gate_up, op.top_k);
    cost.weight_bytes += NormBytes(op.norm);
    return cost;
  }

  OpCost operator()(const ExpertDownOp& op) const { return Experts(op.down, op.top_k); }

 private:
  // Pairs of a new token and a position that it attends to. Token i of a sequence's n new ones
  // attends to context + i + 1 positions, or the window (0: none) if that is less.
  int64_t AttendedPairs(int64_t window = 0) const {
    const auto attended = [this, window](int64_t n) {
      const int64_t all = window == 0 ? n : std::clamp<int64_t>(window - work_.context, 0, n);
      return all * work_.context + all * (all + 1) / 2 + (n - all) * window;
    };
    const int64_t longer = work_.sequences > 0 ? work_.tokens % work_.sequences : 0;
    const int64_t each = work_.sequences > 0 ? work_.tokens / work_.sequences : 0;
    return longer * attended(each + 1) + (work_.sequences - longer) * attended(each);
  }

  // The recurrence of Mamba-2. Per state element: decay multiply, input multiply, add, output
  // multiply, add. Per channel: the skip's multiply and add, and the gate's multiply.
  OpCost Scan(const Mamba2& m) const {
    const auto element_bytes = static_cast<int64_t>(DTypeSize(program_.layout.mamba2_dtype));
    return {VectorBytes(m.dt_bias) + VectorBytes(m.a) + VectorBytes(m.d),
            work_.sequences * 2 * m.inner() * m.d_state * element_bytes,
            work_.tokens * (5 * m.inner() * m.d_state + 3 * m.inner())};
  }

  // Experts of one layer have one shape, but mixed quantisation may give them different bytes:
  // which are chosen is not known, so the mean counts.
  OpCost Experts(const std::vector<MatrixId>& experts, int64_t top_k) const {
    const auto count = static_cast<int64_t>(experts.size());
    if (count == 0) return {};
    int64_t all_bytes = 0;
    for (MatrixId id : experts) all_bytes += MatrixBytes(id);
    const int64_t distinct = std::min(count, work_.tokens * top_k);
    return {all_bytes / count * distinct, 0, work_.tokens * top_k * MatrixFlops(experts[0])};
  }

  const WeightMatrix& Matrix(MatrixId id) const {
    return program_.weights->matrices[static_cast<size_t>(id)];
  }
  int64_t MatrixBytes(MatrixId id) const {
    return program_.matrix_bytes.empty() ? Matrix(id).bytes()
                                         : program_.matrix_bytes[static_cast<size_t>(id)];
  }
  int64_t MatrixFlops(MatrixId id) const { return 2 * Matrix(id).rows * Matrix(id).cols; }
  int64_t VectorElements(VectorId id) const {
    if (id == kNoId) return 0;
    return static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(id)].size());
  }
  int64_t VectorBytes(VectorId id) const { return VectorElements(id) * kFloatBytes; }
  int64_t LinearBytes(const Linear& linear) const {
    return MatrixBytes(linear.weight) + VectorBytes(linear.bias);
  }
  int64_t NormBytes(const std::optional<RmsNorm>& norm) const {
    return norm ? VectorBytes(norm->weight) + VectorBytes(norm->bias) : 0;
  }

  const Program& program_;
  const Work work_;
};

}  // namespace

OpCost CostOf(const Program& program, int index, int64_t tokens, int64_t sequences,
              int64_t context) {
  if (index < 0 || index >= static_cast<int>(program.ops.size())) {
    Fail("There is no op ", index, " in a program of ", program.ops.size(), " ops.");
  }
  if (tokens < 0 || sequences < 0 || context < 0) {
    Fail("A cost needs numbers of tokens, sequences and context positions that are not negative.");
  }
  return std::visit(Costing(program, {tokens, sequences, context}),
                    program.ops[static_cast<size_t>(index)].body);
}

OpCost CostOf(const Program& program, int64_t tokens, int64_t sequences, int64_t context) {
  OpCost total;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpCost cost = CostOf(program, static_cast<int>(i), tokens, sequences, context);
    total.weight_bytes += cost.weight_bytes;
    total.state_bytes += cost.state_bytes;
    total.flops += cost.flops;
  }
  return total;
}

}  // namespace adder
