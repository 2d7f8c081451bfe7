#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "model/plan.h"

namespace adder {
namespace {

// Checks one plan. `where_` is the place being checked, for error messages.
class Validator {
 public:
  explicit Validator(const Plan& plan)
      : plan_(plan),
        matrix_used_(plan.matrices.size(), false),
        vector_used_(plan.vectors.size(), false) {}

  void Run() {
    Enter("");
    Range("vocab", plan_.vocab, 1, kMaxRows);
    Range("hidden", plan_.hidden, 1, kMaxSize);
    Range("max_positions", plan_.max_positions, 0, std::numeric_limits<int64_t>::max());
    Range("number of blocks", static_cast<int64_t>(plan_.blocks.size()), 0, 4 * kMaxLayers);
    Finite("embedding_scale", plan_.embedding_scale);
    Finite("logits_scale", plan_.logits_scale);
    CheckMatrices();
    CheckVectors();
    CheckTotal();

    Enter("");
    CheckMatrix("embedding", plan_.embedding, plan_.vocab, plan_.hidden);
    CheckNorm("final_norm", plan_.final_norm, plan_.hidden);
    CheckLinear("head", plan_.head, plan_.vocab, plan_.hidden);
    for (size_t i = 0; i < plan_.blocks.size(); ++i) CheckBlock(i);
    CheckAllUsed();
  }

 private:
  void Enter(std::string place) {
    where_ = Concat("The plan of ", plan_.family.empty() ? "an unnamed family" : plan_.family,
                    place.empty() ? "" : ", ", place, ": ");
  }

  void Range(const char* field, int64_t value, int64_t min, int64_t max) const {
    if (value < min || value > max) {
      Fail(where_, field, " is ", value, ", outside ", min, " to ", max, ".");
    }
  }
  void Equal(const char* field, int64_t value, const char* meaning, int64_t expected) const {
    if (value != expected) {
      Fail(where_, field, " is ", value, ", but ", meaning, " is ", expected, ".");
    }
  }
  void Divides(const char* field, int64_t value, const char* divisor_field, int64_t divisor) const {
    if (value % divisor != 0) {
      Fail(where_, field, " (", value, ") is not a multiple of ", divisor_field, " (", divisor,
           ").");
    }
  }
  void Finite(const char* field, double value) const {
    if (!std::isfinite(value)) Fail(where_, field, " is ", value, ", it should be finite.");
  }

  void CheckMatrices() {
    if (plan_.matrices.size() > static_cast<size_t>(std::numeric_limits<MatrixId>::max())) {
      Fail(where_, "there are too many matrices.");
    }
    for (const MatrixRef& matrix : plan_.matrices) {
      Enter(Concat("matrix \"", matrix.label, "\""));
      Range("rows", matrix.rows, 1, kMaxRows);
      Range("cols", matrix.cols, 1, kMaxRows);
      if (matrix.parts.empty()) Fail(where_, "it has no parts.");
      int64_t rows = 0;
      for (const MatrixPart& part : matrix.parts) {
        if (part.module.empty()) Fail(where_, "a part names no module.");
        Enter(Concat("matrix \"", matrix.label, "\", part ", part.module));
        Range("rows", part.rows, 1, kMaxRows);
        Range("row_begin", part.row_begin, 0, part.rows - 1);
        Range("row_count", part.row_count, 1, part.rows - part.row_begin);
        Range("experts", part.experts, 0, kMaxExpertsInAll);
        Range("expert", part.expert, 0, part.experts > 0 ? part.experts - 1 : 0);
        if (!ElementCount({std::max<int64_t>(part.experts, 1), part.rows, matrix.cols})) {
          Fail(where_, "the number of elements overflows.");
        }
        rows += part.row_count;
        if (rows > kMaxRows) Fail(where_, "the parts have more than ", kMaxRows, " rows.");
      }
      Enter(Concat("matrix \"", matrix.label, "\""));
      Equal("rows", matrix.rows, "the sum of its parts' rows", rows);
    }
  }

  void CheckVectors() {
    if (plan_.vectors.size() > static_cast<size_t>(std::numeric_limits<VectorId>::max())) {
      Fail(where_, "there are too many vectors.");
    }
    for (const VectorRef& vector : plan_.vectors) {
      Enter(Concat("vector \"", vector.label, "\""));
      for (const VectorPart& part : vector.parts) {
        if (part.tensor.empty()) Fail(where_, "a part names no tensor.");
      }
      const int64_t size = VectorSize(vector);
      if (size < 0) Fail(where_, "its shapes are missing, disagree or overflow.");
      Finite("offset", vector.offset);
      Range("size", size, 1, kMaxRows);
      if (vector.transform == VectorTransform::kNegativeExpTransposed) {
        // The loader transposes one [channels, d_state] tensor.
        if (vector.parts.size() != 1 || vector.parts[0].shapes.size() != 1 ||
            vector.parts[0].shapes[0].size() != 2) {
          Fail(where_, "a decay to be transposed has exactly one part of two dimensions.");
        }
      }
      if (vector.transform != VectorTransform::kConvTimeMajor) continue;
      // The loader transposes one [channels, 1, taps] or [channels, taps, 1] tensor.
      if (vector.parts.size() != 1) Fail(where_, "a convolution weight has exactly one part.");
      for (const Shape& shape : vector.parts[0].shapes) {
        if (shape.size() != 3 || (shape[1] != 1 && shape[2] != 1)) {
          Fail(where_, "the convolution weight's shape is ", ShapeString(shape),
               ", it should be [channels, 1, taps] or [channels, taps, 1].");
        }
      }
    }
  }

  void CheckTotal() {
    Enter("");
    int64_t total = 0;
    bool overflow = false;
    for (const MatrixRef& matrix : plan_.matrices) {
      overflow |= __builtin_add_overflow(total, matrix.rows * matrix.cols, &total);
    }
    for (const VectorRef& vector : plan_.vectors) {
      overflow |= __builtin_add_overflow(total, VectorSize(vector), &total);
    }
    if (overflow) Fail(where_, "the number of parameters overflows.");
  }

  void CheckMatrix(const char* field, MatrixId id, int64_t rows, int64_t cols) {
    if (id < 0 || id >= static_cast<int64_t>(plan_.matrices.size())) {
      Fail(where_, field, " has the matrix id ", id, ", the plan has ", plan_.matrices.size(),
           " matrices.");
    }
    const MatrixRef& matrix = plan_.matrices[id];
    if (matrix.rows != rows || matrix.cols != cols) {
      Fail(where_, field, " is \"", matrix.label, "\" of shape ",
           ShapeString({matrix.rows, matrix.cols}), ", it should be ", ShapeString({rows, cols}),
           ".");
    }
    matrix_used_[id] = true;
  }

  void CheckVector(const char* field, VectorId id, int64_t size) {
    if (id < 0 || id >= static_cast<int64_t>(plan_.vectors.size())) {
      Fail(where_, field, " has the vector id ", id, ", the plan has ", plan_.vectors.size(),
           " vectors.");
    }
    const VectorRef& vector = plan_.vectors[id];
    if (VectorSize(vector) != size) {
      Fail(where_, field, " is \"", vector.label, "\" of size ", VectorSize(vector),
           ", it should be ", size, ".");
    }
    vector_used_[id] = true;
  }

  void CheckLinear(const char* field, const Linear& linear, int64_t rows, int64_t cols) {
    CheckMatrix(field, linear.weight, rows, cols);
    if (linear.bias != kNoId) CheckVector(Concat(field, " bias").c_str(), linear.bias, rows);
    Finite(Concat(field, " input_scale").c_str(), linear.input_scale);
    if (linear.row_scales.empty()) return;
    int64_t scaled = 0;
    for (const RowScale& scale : linear.row_scales) {
      Finite(Concat(field, " row_scales").c_str(), scale.factor);
      Range(Concat(field, " rows of row_scales").c_str(), scale.rows, 1, rows - scaled);
      scaled += scale.rows;
    }
    Equal(Concat(field, " rows of row_scales").c_str(), scaled, "the number of rows", rows);
  }

  void CheckNorm(const char* field, const RmsNorm& norm, int64_t size) {
    CheckVector(field, norm.weight, size);
    CheckNormNumbers(field, norm, size);
  }

  // A norm that may be absent, or have no weight.
  void CheckPlainNorm(const char* field, const std::optional<RmsNorm>& norm, int64_t size) {
    if (!norm) return;
    if (norm->weight != kNoId) CheckVector(field, norm->weight, size);
    CheckNormNumbers(field, *norm, size);
  }

  void CheckNormNumbers(const char* field, const RmsNorm& norm, int64_t size) const {
    if (!std::isfinite(norm.eps) || norm.eps < 0) {
      Fail(where_, field, " eps is ", norm.eps, ", it should be a number of at least 0.");
    }
    Range(Concat(field, " groups").c_str(), norm.groups, 1, size);
    Divides(field, size, "groups", norm.groups);
  }

  void CheckBlock(size_t index) {
    const Block& block = plan_.blocks[index];
    const std::string place = Concat("block ", index, " (layer ", block.layer, ")");
    Enter(place);
    Range("layer", block.layer, 0, kMaxLayers - 1);
    CheckNorm("pre_norm", block.pre_norm, plan_.hidden);
    Finite("residual_scale", block.residual_scale);
    if (block.mixers.empty()) Fail(where_, "it has no mixers.");
    if (block.post_norm) {
      CheckNorm("post_norm", *block.post_norm, plan_.hidden);
      Equal("number of mixers", static_cast<int64_t>(block.mixers.size()),
            "the number that post_norm allows", 1);
      if (std::holds_alternative<MoeMlp>(block.mixers[0])) {
        Fail(where_, "a post_norm after MoeMlp is not implemented.");
      }
    }
    for (size_t i = 0; i < block.mixers.size(); ++i) {
      Enter(Concat(place, ", mixer ", i, " (", MixerName(block.mixers[i]), ")"));
      std::visit([this](const auto& mixer) { Check(mixer); }, block.mixers[i]);
    }
  }

  void Check(const Attention& mixer) {
    Range("heads", mixer.heads, 1, kMaxSize);
    Range("kv_heads", mixer.kv_heads, 1, kMaxSize);
    Range("head_dim", mixer.head_dim, 1, kMaxHeadDim);
    Divides("heads", mixer.heads, "kv_heads", mixer.kv_heads);
    Finite("scale", mixer.scale);
    if (mixer.rope) {
      const Rope& rope = *mixer.rope;
      Range("rope rotary_dim", rope.rotary_dim, 2, mixer.head_dim);
      Divides("rope rotary_dim", rope.rotary_dim, "2", 2);
      Finite("rope theta", rope.theta);
      Equal("number of rope inverse_frequencies",
            static_cast<int64_t>(rope.inverse_frequencies.size()), "half of rotary_dim",
            rope.rotary_dim / 2);
      for (float frequency : rope.inverse_frequencies) {
        Finite("rope inverse_frequencies", frequency);
      }
    }
    if (mixer.q_norm) CheckHeadNorm("q_norm", *mixer.q_norm, mixer.head_dim, mixer.heads);
    if (mixer.k_norm) CheckHeadNorm("k_norm", *mixer.k_norm, mixer.head_dim, mixer.kv_heads);
    if (mixer.qk_norm_after_rope && !mixer.rope) {
      Fail(where_, "qk_norm_after_rope is set, but there is no rope.");
    }
    CheckLinear("qkv", mixer.qkv, (mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim,
                plan_.hidden);
    CheckLinear("output", mixer.output, plan_.hidden, mixer.heads * mixer.head_dim);
  }

  void Check(const Mamba2& mixer) {
    Range("heads", mixer.heads, 1, kMaxSize);
    Range("head_dim", mixer.head_dim, 1, kMaxSize);
    Range("d_state", mixer.d_state, 1, kMaxSize);
    Range("groups", mixer.groups, 1, kMaxSize);
    Range("d_conv", mixer.d_conv, 1, 1024);
    Range("chunk", mixer.chunk, 1, kMaxSize);
    Divides("heads", mixer.heads, "groups", mixer.groups);
    Finite("dt_min", mixer.dt_min);
    // Written so that NaN fails.
    if (!(mixer.dt_min >= 0)) Fail(where_, "dt_min is ", mixer.dt_min, ", below 0.");
    if (!(mixer.dt_max >= mixer.dt_min)) {
      Fail(where_, "dt_max is ", mixer.dt_max, ", it should be at least dt_min (", mixer.dt_min,
           ").");
    }
    if (mixer.selection) Range("selection dt_rank", mixer.selection->dt_rank, 1, kMaxSize);
    const std::optional<int64_t> state = ElementCount({mixer.heads, mixer.d_state, mixer.head_dim});
    if (!state || *state > kMaxStateSize) {
      Fail(where_, "a state of heads x d_state x head_dim = ",
           ShapeString({mixer.heads, mixer.d_state, mixer.head_dim}), " is larger than ",
           kMaxStateSize, " elements.");
    }
    CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
    CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.conv_channels());
    if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.conv_channels());
    CheckVector("dt_bias", mixer.dt_bias, mixer.heads);
    CheckVector("a", mixer.a, mixer.heads);
    CheckVector("d", mixer.d, mixer.heads);
    if (mixer.selection) CheckSelection(mixer, *mixer.selection);
    if (mixer.gated_norm) CheckNorm("gated_norm", *mixer.gated_norm, mixer.inner());
    if (mixer.norm_before_gate && !mixer.gated_norm) {
      Fail(where_, "norm_before_gate is set, but there is no gated_norm.");
    }
    if (mixer.norm_before_gate && mixer.selection) {
      Fail(where_, "norm_before_gate is set, which a mixer with a selection cannot have.");
    }
    CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.inner());
  }

  void CheckSelection(const Mamba2& mixer, const Mamba2Selection& selection) {
    const int64_t states = mixer.groups * mixer.d_state;
    CheckLinear("selection proj", selection.proj, mixer.selection_rows(), mixer.inner());
    if (selection.b_norm) CheckNorm("selection b_norm", *selection.b_norm, states);
    if (selection.c_norm) CheckNorm("selection c_norm", *selection.c_norm, states);
    if (selection.dt_norm) CheckNorm("selection dt_norm", *selection.dt_norm, selection.dt_rank);
    CheckLinear("selection dt_proj", selection.dt_proj, mixer.heads, selection.dt_rank);
  }

  void Check(const ShortConv& mixer) {
    Range("channels", mixer.channels, 1, kMaxSize);
    Range("d_conv", mixer.d_conv, 1, 1024);
    CheckLinear("in_proj", mixer.in_proj, 3 * mixer.channels, plan_.hidden);
    CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.channels);
    if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.channels);
    CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.channels);
  }

  void Check(const Mamba1& mixer) {
    Range("inner", mixer.inner, 1, kMaxSize);
    Range("d_state", mixer.d_state, 1, kMaxSize);
    Range("d_conv", mixer.d_conv, 1, 1024);
    Range("dt_rank", mixer.dt_rank, 1, kMaxSize);
    const std::optional<int64_t> state = ElementCount({mixer.d_state, mixer.inner});
    if (!state || *state > kMaxStateSize) {
      Fail(where_, "a state of d_state x inner = ", ShapeString({mixer.d_state, mixer.inner}),
           " is larger than ", kMaxStateSize, " elements.");
    }
    CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
    CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.inner);
    if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.inner);
    CheckLinear("x_proj", mixer.x_proj, mixer.x_proj_rows(), mixer.inner);
    CheckPlainNorm("dt_norm", mixer.dt_norm, mixer.dt_rank);
    CheckPlainNorm("b_norm", mixer.b_norm, mixer.d_state);
    CheckPlainNorm("c_norm", mixer.c_norm, mixer.d_state);
    CheckLinear("dt_proj", mixer.dt_proj, mixer.inner, mixer.dt_rank);
    CheckVector("a", mixer.a, mixer.d_state * mixer.inner);
    CheckVector("d", mixer.d, mixer.inner);
    CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.inner);
  }

  // A norm of all heads together, or of each head alone with one weight for all.
  void CheckHeadNorm(const char* field, const RmsNorm& norm, int64_t head_dim, int64_t heads) {
    const bool known = norm.weight >= 0 && norm.weight < static_cast<int64_t>(plan_.vectors.size());
    const bool each = known && VectorSize(plan_.vectors[norm.weight]) == head_dim;
    CheckNorm(field, norm, each ? head_dim : heads * head_dim);
  }

  void Check(const DenseMlp& mixer) {
    Range("intermediate", mixer.intermediate, 1, kMaxSize);
    const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
    CheckLinear("gate_up", mixer.gate_up, rows, plan_.hidden);
    CheckLinear("down", mixer.down, plan_.hidden, mixer.intermediate);
    if (mixer.output_gate.weight == kNoId) return;
    CheckLinear("output_gate", mixer.output_gate, 1, plan_.hidden);
    if (mixer.down.bias != kNoId)
      Fail(where_, "down has a bias, which output_gate does not allow.");
  }

  void CheckRouting(const Routing& routing, int64_t experts, int64_t top_k) {
    if (routing.choice_bias != kNoId) CheckVector("choice_bias", routing.choice_bias, experts);
    Range("routing groups", routing.groups, 1, experts);
    Range("routing top_groups", routing.top_groups, 1, routing.groups);
    Divides("experts", experts, "routing groups", routing.groups);
    if (routing.top_groups < routing.groups) {
      Range("experts of a routing group", experts / routing.groups, 2, experts);
      Range("top_k", top_k, 1, routing.top_groups * (experts / routing.groups));
    }
    Finite("routing scale", routing.scale);
    // Written so that NaN fails.
    if (!(routing.normalize_eps >= 0) || !std::isfinite(routing.normalize_eps)) {
      Fail(where_, "routing normalize_eps is ", routing.normalize_eps,
           ", it should be a number of at least 0.");
    }
  }

  void Check(const MoeMlp& mixer) {
    Range("experts", mixer.experts, 1, kMaxExpertsInAll);
    experts_in_all_ += mixer.experts;
    Range("experts of all layers so far", experts_in_all_, 1, kMaxExpertsInAll);
    Range("top_k", mixer.top_k, 1, mixer.experts);
    Range("intermediate", mixer.intermediate, 1, kMaxSize);
    CheckLinear("router", mixer.router, mixer.experts, plan_.hidden);
    CheckRouting(mixer.routing, mixer.experts, mixer.top_k);
    const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
    Equal("number of gate_up matrices", static_cast<int64_t>(mixer.gate_up.size()), "experts",
          mixer.experts);
    Equal("number of down matrices", static_cast<int64_t>(mixer.down.size()), "experts",
          mixer.experts);
    for (int64_t expert = 0; expert < mixer.experts; ++expert) {
      CheckMatrix("gate_up", mixer.gate_up[expert], rows, plan_.hidden);
      CheckMatrix("down", mixer.down[expert], plan_.hidden, mixer.intermediate);
    }
  }

  // A weight that no mixer reads is a mistake of the family: it should be in ignored_tensors.
  void CheckAllUsed() {
    Enter("");
    for (size_t i = 0; i < matrix_used_.size(); ++i) {
      if (!matrix_used_[i]) {
        Fail(where_, "the matrix \"", plan_.matrices[i].label, "\" is used nowhere.");
      }
    }
    for (size_t i = 0; i < vector_used_.size(); ++i) {
      if (!vector_used_[i]) {
        Fail(where_, "the vector \"", plan_.vectors[i].label, "\" is used nowhere.");
      }
    }
  }

  const Plan& plan_;
  std::string where_;
  std::vector<bool> matrix_used_;
  std::vector<bool> vector_used_;
  int64_t experts_in_all_ = 0;
};

}  // namespace

void ValidatePlan(const Plan& plan) { Validator(plan).Run(); }

}  // namespace adder
