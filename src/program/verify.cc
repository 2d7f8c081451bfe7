#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "program/program.h"

namespace adder {
namespace {

// Checks one op after another, keeping track of which buffers hold something.
class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program), written_(program.buffers.size(), false) {}

  void Run() {
    if (program_.plan == nullptr || program_.weights == nullptr) {
      Fail("The program has no plan or no weights.");
    }
    for (const Op& op : program_.ops) {
      op_ = &op;
      std::visit([this](const auto& body) { Check(body); }, op.body);
    }
    if (!Written(program_.residual) || !Written(program_.logits)) {
      Fail("The program leaves its residual or its logits buffer unwritten.");
    }
  }

 private:
  void Check(const EmbedOp& op) {
    const int64_t cols = SizeOf(op.embedding, "embedding").second;
    Matrix(op.embedding, program_.plan->vocab, cols, "embedding");
    Norm(op.norm, cols);
    Write(op.output, cols);
  }

  void Check(const LinearOp& op) {
    const int64_t input_width = Read(op.input);
    Norm(op.norm, input_width);
    int64_t cols = input_width;
    if (op.input_begin != -1) {
      cols = SizeOf(op.linear.weight, "weight").second;
      if (op.norm || op.input_begin < 0 || op.input_begin > input_width - cols) {
        Bad("it reads columns outside its input");
      }
    }
    const int64_t rows = LinearRows(op.linear, cols, "weight");
    const bool gated = op.epilogue == Epilogue::kGated;
    const bool activates = gated || op.epilogue == Epilogue::kActivate;
    if (gated && rows % 2 != 0) Bad("gate and up need an even number of rows");
    if (activates && op.scale != 1.0f) Bad("an activation needs scale 1");
    if (op.row_gate != kNoId) {
      if (!activates) Bad("only an activation takes a row gate");
      ReadWidth(op.row_gate, 1);
    }
    if (op.addend != kNoId) {
      if (op.epilogue == Epilogue::kAdd)
        Bad("an addend does not go with an output that is added to");
      if (op.addend == op.output) Bad("it writes to the buffer it reads");
      if (op.scale != 1.0f || op.logits_rows_only) Bad("an addend needs scale 1 and all rows");
      ReadWidth(op.addend, rows);
    }
    if (op.factor != kNoId) {
      if (op.epilogue != Epilogue::kActivate)
        Bad("only an activation without a gate takes a factor");
      const int64_t width = Read(op.factor);
      if (op.factor_column < 0 || rows > width || op.factor_column > width - rows) {
        Bad("its factor lies outside of the buffer's columns");
      }
    }
    if (op.cap < 0 || (op.cap > 0 && op.epilogue != Epilogue::kStore)) {
      Bad("only an output that is stored has a cap, which is positive");
    }
    if (op.logits_rows_only && op.output != program_.logits) {
      Bad("only the logits buffer may hold fewer rows than tokens");
    }
    if (op.epilogue == Epilogue::kAdd) {
      if (op.input == op.output) Bad("it adds to the buffer it reads");
      Read(op.output);
    }
    Write(op.output, gated ? rows / 2 : rows);
  }

  void Check(const JoinOp& op) {
    int64_t width = 0;
    for (const BufferId input : op.inputs) {
      if (input == op.output) Bad("it writes to the buffer it reads");
      width += Read(input);
    }
    Write(op.output, width);
  }

  void Check(const UpdateOp& op) {
    const int64_t width = Read(op.input);
    if (op.norm) {
      NormGroups(*op.norm, width);
      const int64_t size = op.norm->weight == kNoId ? width : VectorSize(op.norm->weight);
      if (size != width && size * op.norm->groups != width) Bad("its norm does not fit its input");
    }
    for (const VectorId id : {op.add_bias, op.add_scale, op.keep_bias, op.keep_scale}) {
      if (id != kNoId) Vector(id, width, "vector");
    }
    if (op.total != kNoId) Vector(op.total, 1, "total");
    if (op.keep != 0) {
      if (op.input == op.output) Bad("it adds to the buffer it reads");
      Read(op.output);
    }
    Write(op.output, width);
  }

  void Check(const Mamba2Op& op) {
    const Mamba2& m = op.mixer;
    ReadWidth(op.input, m.in_proj_rows());
    Vector(m.conv_weight, m.d_conv * m.conv_channels(), "conv weight");
    if (m.conv_bias != kNoId) Vector(m.conv_bias, m.conv_channels(), "conv bias");
    if (m.selection) Bad("its mixer has a selection");
    if (m.norm_before_gate && !m.gated_norm) Bad("it has no norm to take before the gate");
    if (m.norm_before_gate) Norm(m.gated_norm, m.inner());
    Recurrent(op.conv_state, {m.d_conv - 1, m.conv_channels()}, "conv");
    Scan(m, op.ssm_state);
    Write(op.output, m.inner());
  }

  void Check(const NormAddOp& op) {
    const int64_t width = Read(op.input);
    Norm(op.norm, width);
    if (op.input == op.output) Bad("it adds to the buffer it reads");
    Read(op.output);
    Write(op.output, width);
  }

  void Check(const Mamba2SelectedOp& op) {
    const Mamba2& m = op.mixer;
    if (!m.selection) Bad("its mixer has no selection");
    if (m.norm_before_gate) Bad("its norm comes before the gate");
    ReadWidth(op.projected, m.in_proj_rows());
    ReadWidth(op.convolved, m.inner());
    ReadWidth(op.selected, m.selection_rows());
    Norm(m.selection->b_norm, m.groups * m.d_state);
    Norm(m.selection->c_norm, m.groups * m.d_state);
    Norm(m.selection->dt_norm, m.selection->dt_rank);
    if (LinearRows(m.selection->dt_proj, m.selection->dt_rank, "dt_proj") != m.heads) {
      Bad("dt_proj rows are not heads");
    }
    Scan(m, op.ssm_state);
    Write(op.output, m.inner());
  }

  // What both forms of Mamba-2 need for the recurrence.
  void Scan(const Mamba2& m, int ssm_state) const {
    Vector(m.dt_bias, m.heads, "dt bias");
    Vector(m.a, m.heads, "a");
    Vector(m.d, m.heads, "d");
    if (m.groups <= 0 || m.heads % m.groups != 0) Bad("groups do not divide heads");
    Recurrent(ssm_state, {m.heads, m.d_state, m.head_dim}, "ssm");
  }

  void Check(const CausalConvOp& op) {
    const int64_t width = Read(op.input);
    if (op.channels <= 0 || op.d_conv <= 0) Bad("it has no channels or no taps");
    for (const int64_t column : {op.x, op.gate_before, op.gate_after}) {
      if (column < -1 || column > width - op.channels) Bad("it reads columns outside its input");
    }
    if (op.x < 0) Bad("it has nothing to convolve");
    Vector(op.weight, op.d_conv * op.channels, "conv weight");
    if (op.bias != kNoId) Vector(op.bias, op.channels, "conv bias");
    Recurrent(op.conv_state, {op.d_conv - 1, op.channels}, "conv");
    Write(op.output, op.channels);
  }

  void Check(const Mamba1ScanOp& op) {
    const Mamba1& m = op.mixer;
    ReadWidth(op.projected, m.in_proj_rows());
    ReadWidth(op.convolved, m.inner);
    ReadWidth(op.selected, m.x_proj_rows());
    PlainNorm(m.dt_norm, m.dt_rank);
    PlainNorm(m.b_norm, m.d_state);
    PlainNorm(m.c_norm, m.d_state);
    if (LinearRows(m.dt_proj, m.dt_rank, "dt_proj") != m.inner) Bad("dt_proj rows are not inner");
    Vector(m.a, m.d_state * m.inner, "a");
    Vector(m.d, m.inner, "d");
    Recurrent(op.ssm_state, {m.d_state, m.inner}, "ssm");
    Write(op.output, m.inner);
  }

  void Check(const HeadMixOp& op) {
    const Attention& a = op.mixer;
    if (!a.mixing) Bad("its mixer has no mixing");
    const HeadMixing& m = *a.mixing;
    const int64_t channels = a.q_width() + a.kv_width();
    ReadWidth(op.input, a.qkv_rows());
    Vector(m.conv_weight, m.taps * channels, "conv weight");
    Vector(m.conv_bias, channels, "conv bias");
    Vector(m.group_weight, m.group_taps * a.head_dim * channels, "group weight");
    Vector(m.group_bias, channels, "group bias");
    Recurrent(op.conv_state, {m.past(), channels}, "conv");
    Recurrent(op.value_state, {a.kv_width() / 2}, "value");
    if (op.input == op.output) Bad("it writes to the buffer it reads");
    Write(op.output, a.qkv_rows());
  }

  void Check(const TokenShiftOp& op) {
    const int64_t width = Read(op.input);
    Norm(op.norm, width);
    if (op.parts <= 0) Bad("it has no parts");
    Vector(op.mix, op.parts * width, "mix");
    Recurrent(op.state, {width}, "shift");
    Write(op.output, op.parts * width);
  }

  void Check(const RgLruOp& op) {
    const RgLru& m = op.mixer;
    if (m.heads <= 0 || m.width % m.heads != 0) Bad("heads do not divide its width");
    ReadWidth(op.projected, 2 * m.width);
    ReadWidth(op.convolved, m.width);
    Vector(m.input_weight, m.width * m.block(), "input weight");
    Vector(m.input_bias, m.width, "input bias");
    Vector(m.recurrent_weight, m.width * m.block(), "recurrent weight");
    Vector(m.recurrent_bias, m.width, "recurrent bias");
    Vector(m.decay, m.width, "decay");
    Recurrent(op.state, {m.width}, "lru");
    Write(op.output, m.width);
  }

  void Check(const Rwkv7Op& op) {
    const Rwkv7& m = op.mixer;
    for (BufferId id : {op.r, op.k, op.v, op.decay, op.rate, op.gate}) ReadWidth(id, m.inner());
    if (m.value_mix) {
      ReadWidth(op.value_mix, m.inner());
      ReadWidth(op.first_value, m.inner());
    }
    Vector(m.key_scale, m.inner(), "key scale");
    Vector(m.key_rate, m.inner(), "key rate");
    Vector(m.bonus, m.inner(), "bonus");
    Norm(m.norm, m.inner());
    if (m.norm.groups != m.heads || m.norm.bias == kNoId) Bad("its norm is not one of each head");
    Recurrent(op.state, {m.heads, m.head_dim, m.head_dim}, "wkv");
    Write(op.output, m.inner());
  }

  void Check(const GatedDeltaOp& op) {
    const GatedDelta& m = op.mixer;
    if (m.key_heads <= 0 || m.value_heads % m.key_heads != 0)
      Bad("value heads do not fit key heads");
    ReadWidth(op.projected, m.in_proj_rows());
    ReadWidth(op.convolved, m.conv_channels());
    if (m.decay_proj) ReadWidth(op.decay, m.decay_rows());
    if (m.gate_proj) ReadWidth(op.gate, m.values());
    Vector(m.dt_bias, m.decay_rows(), "dt bias");
    Vector(m.a, m.value_heads, "a");
    Norm(m.norm, m.value_dim);
    Recurrent(op.state, {m.value_heads, m.key_dim, m.value_dim}, "delta");
    Write(op.output, m.values());
  }

  void Check(const AttentionOp& op) {
    const Attention& a = op.mixer;
    ReadWidth(op.input, a.qkv_rows());
    if (a.kv_heads <= 0 || a.heads % a.kv_heads != 0) Bad("kv_heads does not divide heads");
    if (a.rope) Rotation(*a.rope, a.head_dim);
    if (a.q_norm) HeadNorm(*a.q_norm, a.head_dim, a.heads);
    if (a.k_norm) HeadNorm(*a.k_norm, a.head_dim, a.kv_heads);
    if (a.v_norm) HeadNorm(*a.v_norm, a.head_dim, a.kv_heads);
    if (a.window < 0) Bad("its window is negative");
    // The one that owns the keys has to come first.
    if (a.owns_kv()) {
      kv_written_.insert(op.kv);
    } else if (kv_written_.count(op.kv) == 0) {
      Bad("its keys and values belong to no op before it");
    }
    KeysAndValues(op.kv, a.kv_heads, a.head_dim, true);
    Write(op.output, a.heads * a.head_dim);
  }

  void Check(const HeadsLinearOp& op) {
    const int64_t width = Read(op.input);
    if (op.matrices.empty()) Bad("it has no heads");
    const auto heads = static_cast<int64_t>(op.matrices.size());
    const auto [rows, cols] = SizeOf(op.matrices.front(), "head matrix");
    for (const MatrixId id : op.matrices) Matrix(id, rows, cols, "head matrix");
    if (op.step < cols || op.step > width || width - cols < (heads - 1) * op.step) {
      Bad("its heads read columns outside its input");
    }
    if (op.input == op.output) Bad("it writes to the buffer it reads");
    Write(op.output, heads * rows);
  }

  void Check(const LatentAttentionOp& op) {
    const LatentAttention& a = op.mixer;
    ReadWidth(op.query, a.heads * a.query_dim());
    ReadWidth(op.absorbed, a.heads * a.latent);
    ReadWidth(op.kv, a.key_dim());
    Norm(a.kv_norm, a.latent);
    if (a.rope) Rotation(*a.rope, a.rope_dim);
    KeysAndValues(op.state, 1, a.key_dim(), false);
    Write(op.output, a.heads * a.latent);
  }

  void Check(const LightningOp& op) {
    const LightningAttention& m = op.mixer;
    ReadWidth(op.input, 3 * m.width());
    Norm(m.norm, m.width());
    if (static_cast<int64_t>(m.slopes.size()) != m.heads) Bad("its slopes are not one per head");
    Recurrent(op.state, {m.heads, m.head_dim, m.head_dim}, "h");
    Write(op.output, m.width());
  }

  void Check(const RouterOp& op) {
    const int64_t cols = Read(op.input);
    Norm(op.norm, cols);
    const adder::Routing& r = op.routing;
    const int64_t classes = op.experts + r.idle;
    if (r.idle < 0 || LinearRows(op.router, cols, "router") != classes) {
      Bad("router rows are not experts");
    }
    if (op.top_k <= 0 || op.top_k > op.experts) Bad("top_k is not between 1 and experts");
    if (r.choice_bias != kNoId) Vector(r.choice_bias, classes, "choice bias");
    if (r.expert_scale != kNoId) Vector(r.expert_scale, classes, "expert scale");
    if (r.groups <= 0 || classes % r.groups != 0 || r.top_groups <= 0 || r.top_groups > r.groups) {
      Bad("the groups of its experts do not fit");
    }
    Write(op.output, 2 * op.top_k);
    experts_[op.output] = op.experts;
  }

  void Check(const ExpertGateUpOp& op) {
    const int64_t cols = Read(op.input);
    Norm(op.norm, cols);
    Routing(op.routing, op.top_k, op.gate_up.size());
    const int64_t rows = op.gated ? 2 * op.intermediate : op.intermediate;
    for (MatrixId id : op.gate_up) Matrix(id, rows, cols, "expert gate_up");
    Write(op.output, op.top_k * op.intermediate);
  }

  void Check(const ExpertDownOp& op) {
    ReadWidth(op.input, op.top_k * op.intermediate);
    Routing(op.routing, op.top_k, op.down.size());
    if (op.input == op.output) Bad("it adds to the buffer it reads");
    if (op.down.empty()) Bad("it has no experts");
    const int64_t rows = SizeOf(op.down.front(), "expert down").first;
    if (!op.store) Read(op.output);
    Write(op.output, rows);
    for (MatrixId id : op.down) Matrix(id, rows, op.intermediate, "expert down");
  }

  bool Written(BufferId id) const {
    return id >= 0 && id < static_cast<BufferId>(written_.size()) &&
           written_[static_cast<size_t>(id)];
  }

  // The width of a buffer that an earlier op wrote.
  int64_t Read(BufferId id) {
    Exists(id);
    if (!Written(id)) Bad("it reads buffer '", Name(id), "', which no op before it wrote");
    return program_.buffers[static_cast<size_t>(id)].width;
  }

  void ReadWidth(BufferId id, int64_t width) {
    const int64_t found = Read(id);
    if (found != width) {
      Bad("it reads ", width, " wide rows from buffer '", Name(id), "', which is ", found, " wide");
    }
  }

  void Write(BufferId id, int64_t width) {
    Exists(id);
    const int64_t found = program_.buffers[static_cast<size_t>(id)].width;
    if (found != width) {
      Bad("it writes ", width, " wide rows to buffer '", Name(id), "', which is ", found, " wide");
    }
    written_[static_cast<size_t>(id)] = true;
  }

  // The router's expert indices must stay inside the list of expert matrices.
  void Routing(BufferId id, int64_t top_k, size_t matrices) {
    ReadWidth(id, 2 * top_k);
    const auto found = experts_.find(id);
    if (found == experts_.end() || found->second != static_cast<int64_t>(matrices)) {
      Bad("it has ", matrices, " expert matrices, not one per expert of its router");
    }
  }

  void Exists(BufferId id) const {
    if (id < 0 || id >= static_cast<BufferId>(program_.buffers.size())) {
      Bad("there is no buffer ", id);
    }
  }

  const std::string& Name(BufferId id) const {
    return program_.buffers[static_cast<size_t>(id)].name;
  }

  void Matrix(MatrixId id, int64_t rows, int64_t cols, const char* what) const {
    const auto [found_rows, found_cols] = SizeOf(id, what);
    if (found_rows != rows || found_cols != cols) {
      Bad("its ", what, " is ", ShapeString({found_rows, found_cols}), " where ",
          ShapeString({rows, cols}), " is needed");
    }
  }

  // Rows and columns of a matrix.
  std::pair<int64_t, int64_t> SizeOf(MatrixId id, const char* what) const {
    if (id < 0 || id >= static_cast<MatrixId>(program_.weights->matrices.size())) {
      Bad("there is no matrix ", id, " for its ", what);
    }
    const WeightMatrix& matrix = program_.weights->matrices[static_cast<size_t>(id)];
    return {matrix.rows, matrix.cols};
  }

  // Rows of a linear map over `cols` inputs.
  int64_t LinearRows(const Linear& linear, int64_t cols, const char* what) const {
    const int64_t rows = SizeOf(linear.weight, what).first;
    Matrix(linear.weight, rows, cols, what);
    if (linear.bias != kNoId) Vector(linear.bias, rows, "bias");
    int64_t scaled = 0;
    for (const RowScale& scale : linear.row_scales) scaled += scale.rows;
    if (!linear.row_scales.empty() && scaled != rows) Bad("its row scales are not one per row");
    return rows;
  }

  void Vector(VectorId id, int64_t size, const char* what) const {
    if (id < 0 || id >= static_cast<VectorId>(program_.weights->vectors.size())) {
      Bad("there is no vector ", id, " for its ", what);
    }
    const auto found =
        static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(id)].size());
    if (found != size) Bad("its ", what, " has ", found, " elements where ", size, " are needed");
  }

  int64_t VectorSize(VectorId id) const {
    if (id < 0 || id >= static_cast<VectorId>(program_.weights->vectors.size())) {
      Bad("there is no vector ", id, " for its norm");
    }
    return static_cast<int64_t>(program_.weights->vectors[static_cast<size_t>(id)].size());
  }

  void Norm(const std::optional<RmsNorm>& norm, int64_t width) const {
    if (!norm) return;
    Vector(norm->weight, width, "norm weight");
    NormGroups(*norm, width);
  }

  // A norm that may have no weight.
  void PlainNorm(const std::optional<RmsNorm>& norm, int64_t width) const {
    if (!norm) return;
    if (norm->weight != kNoId) Vector(norm->weight, width, "norm weight");
    NormGroups(*norm, width);
  }

  void NormGroups(const RmsNorm& norm, int64_t width) const {
    if (norm.bias != kNoId) Vector(norm.bias, width, "norm bias");
    if (norm.groups <= 0 || width % norm.groups != 0) Bad("norm groups do not divide its input");
  }

  // One weight for each head alone, or one for all heads together.
  void HeadNorm(const RmsNorm& norm, int64_t head_dim, int64_t heads) const {
    if (norm.weight == kNoId) return NormGroups(norm, head_dim);
    Norm(norm, VectorSize(norm.weight) == head_dim ? head_dim : heads * head_dim);
  }

  // A rotary embedding of heads of `head_dim` elements.
  void Rotation(const Rope& rope, int64_t head_dim) const {
    if (rope.rotary_dim > head_dim ||
        2 * static_cast<int64_t>(rope.inverse_frequencies.size()) != rope.rotary_dim) {
      Bad("the rotary dimension does not fit");
    }
  }

  void KeysAndValues(int index, int64_t kv_heads, int64_t head_dim, bool has_values) const {
    if (index < 0 || index >= static_cast<int>(program_.layout.kv.size())) {
      Bad("it has no KV state");
    }
    const KvState& kv = program_.layout.kv[static_cast<size_t>(index)];
    if (kv.kv_heads != kv_heads || kv.head_dim != head_dim || kv.has_values != has_values) {
      Bad("its KV state has another shape");
    }
  }

  void Recurrent(int index, const Shape& shape, const char* what) const {
    if (index < 0 || index >= static_cast<int>(program_.layout.recurrent.size())) {
      Bad("it has no ", what, " state");
    }
    const RecurrentState& state = program_.layout.recurrent[static_cast<size_t>(index)];
    if (state.name != what || state.shape != shape) {
      Bad("its ", what, " state is '", state.name, "' ", ShapeString(state.shape), " where ",
          ShapeString(shape), " is needed");
    }
  }

  template <class... Parts>
  [[noreturn]] void Bad(const Parts&... parts) const {
    Fail("The program is not valid: op '", op_->name, "': ", parts..., ".");
  }

  const Program& program_;
  std::vector<bool> written_;
  std::unordered_map<BufferId, int64_t> experts_;  // of the router that wrote the buffer
  std::unordered_set<int> kv_written_;             // KV states whose owner came
  const Op* op_ = nullptr;
};

}  // namespace

void VerifyProgram(const Program& program) { Verifier(program).Run(); }

}  // namespace adder
