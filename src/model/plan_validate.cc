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
    Finite("logits_cap", plan_.logits_cap);
    if (plan_.logits_cap < 0) Fail(where_, "logits_cap is ", plan_.logits_cap, ", below 0.");
    CheckMatrices();
    CheckVectors();
    CheckTotal();

    Enter("");
    CheckMatrix("embedding", plan_.embedding, plan_.vocab, plan_.hidden);
    if (plan_.embedding_norm)
      CheckNorm("embedding_norm", *plan_.embedding_norm, plan_.hidden, true);
    CheckNorm("final_norm", plan_.final_norm, plan_.hidden, true);
    CheckLinear("head", plan_.head, plan_.vocab, plan_.hidden);
    CheckOptional("embedding_bias", plan_.embedding_bias, plan_.hidden);
    CheckOptional("embedding_factor", plan_.embedding_factor, plan_.hidden);
    if (plan_.layer_inputs) CheckLayerInputs(*plan_.layer_inputs);
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
        if (part.transposed && (matrix.parts.size() != 1 || part.experts > 0)) {
          Fail(where_, "a transposed part is the only one, and has no experts.");
        }
        Range("rows", part.rows, 1, kMaxRows);
        Range("row_begin", part.row_begin, 0, part.rows - 1);
        Range("row_count", part.row_count, 1, part.rows - part.row_begin);
        Range("experts", part.experts, 0, kMaxExpertsInAll);
        Range("expert", part.expert, 0, part.experts > 0 ? part.experts - 1 : 0);
        const int64_t cols = part.transposed ? matrix.rows : matrix.cols;
        if (!ElementCount({std::max<int64_t>(part.experts, 1), part.rows, cols})) {
          Fail(where_, "the number of elements overflows.");
        }
        rows += part.row_count;
        if (rows > kMaxRows) Fail(where_, "the parts have more than ", kMaxRows, " rows.");
      }
      Enter(Concat("matrix \"", matrix.label, "\""));
      if (matrix.parts.front().transposed) {
        Equal("cols", matrix.cols, "its part's number of rows", rows);
      } else {
        Equal("rows", matrix.rows, "the sum of its parts' rows", rows);
      }
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
      Range("repeat", vector.repeat, 1, kMaxSize);
      if (vector.last) Finite("last", *vector.last);
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
      if (vector.transform == VectorTransform::kGroupedConvTimeMajor) {
        if (vector.parts.size() != 1 || vector.parts[0].shapes.size() != 1 ||
            vector.parts[0].shapes[0].size() != 3) {
          Fail(where_, "a grouped convolution weight has exactly one part of three dimensions.");
        }
      }
      if (vector.transform != VectorTransform::kConvTimeMajor) continue;
      // The loader transposes [channels, 1, taps] or [channels, taps, 1] tensors.
      const Shape& first = vector.parts[0].shapes[0];
      for (const VectorPart& part : vector.parts) {
        for (const Shape& shape : part.shapes) {
          if (shape.size() != 3 || (shape[1] != 1 && shape[2] != 1)) {
            Fail(where_, "the convolution weight's shape is ", ShapeString(shape),
                 ", it should be [channels, 1, taps] or [channels, taps, 1].");
          }
          if (shape[1] * shape[2] != first[1] * first[2]) {
            Fail(where_, "its parts have ", shape[1] * shape[2], " and ", first[1] * first[2],
                 " taps, they should have as many.");
          }
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

  void CheckOptional(const char* field, VectorId id, int64_t size) {
    if (id != kNoId) CheckVector(field, id, size);
  }

  void CheckLayerInputs(const LayerInputs& inputs) {
    Range("layer_inputs parts", inputs.parts, 1, kMaxLayers);
    Range("layer_inputs width", inputs.width, 1, kMaxSize);
    const int64_t rows = inputs.parts * inputs.width;
    Finite("layer_inputs embedding_scale", inputs.embedding_scale);
    Finite("layer_inputs scale", inputs.scale);
    CheckMatrix("layer_inputs embedding", inputs.embedding, plan_.vocab, rows);
    CheckLinear("layer_inputs projection", inputs.projection, rows, plan_.hidden);
    CheckNorm("layer_inputs norm", inputs.norm, inputs.width);
    Equal("layer_inputs norm groups", inputs.norm.groups, "the number it may have", 1);
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

  void CheckNorm(const char* field, const RmsNorm& norm, int64_t size, bool may_center = false) {
    CheckVector(field, norm.weight, size);
    if (norm.centered && !may_center) Fail(where_, "a centered ", field, " is not implemented.");
    CheckNormNumbers(field, norm, size);
  }

  // A norm that may be absent, or have no weight.
  void CheckPlainNorm(const char* field, const std::optional<RmsNorm>& norm, int64_t size) {
    if (!norm) return;
    if (norm->centered) Fail(where_, "a centered ", field, " is not implemented.");
    if (norm->weight != kNoId) CheckVector(field, norm->weight, size);
    CheckNormNumbers(field, *norm, size);
  }

  void CheckNormNumbers(const char* field, const RmsNorm& norm, int64_t size) {
    if (norm.centered != (norm.bias != kNoId)) {
      Fail(where_, field, " should be centered and have a bias, or neither.");
    }
    if (norm.bias != kNoId) {
      CheckVector(Concat(field, " bias").c_str(), norm.bias, size);
    }
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
    CheckSide(block);
    if (!block.skip_pre_norm) CheckNorm("pre_norm", block.pre_norm, input_width_, true);
    Finite("residual_scale", block.residual_scale);
    if (block.mixers.empty()) Fail(where_, "it has no mixers.");
    if (block.post_norm) CheckNorm("post_norm", *block.post_norm, plan_.hidden);
    if (!block.branch_norms.empty()) {
      Equal("number of branch_norms", static_cast<int64_t>(block.branch_norms.size()),
            "the number of mixers", static_cast<int64_t>(block.mixers.size()));
    }
    for (const BranchNorms& norms : block.branch_norms) {
      if (norms.pre) CheckNorm("branch_norms pre", *norms.pre, input_width_);
      if (norms.post) CheckNorm("branch_norms post", *norms.post, plan_.hidden);
    }
    CheckRule(block);
    block_index_ = static_cast<int64_t>(index);
    for (size_t i = 0; i < block.mixers.size(); ++i) {
      Enter(Concat(place, ", mixer ", i, " (", MixerName(block.mixers[i]), ")"));
      std::visit([this](const auto& mixer) { Check(mixer); }, block.mixers[i]);
    }
  }

  // Where the block reads and writes.
  void CheckSide(const Block& block) {
    const bool joined = block.input == BlockInput::kResidualAndEmbedding;
    input_width_ = joined ? 2 * plan_.hidden : plan_.hidden;
    for (const Mixer& mixer : block.mixers) {
      if (joined && !std::holds_alternative<Attention>(mixer)) {
        Fail(where_, MixerName(mixer), " cannot read the residual and the embedding.");
      }
    }
    const bool reads_side =
        block.input == BlockInput::kSide || block.input == BlockInput::kResidualPlusSide;
    if (reads_side && !has_side_) Fail(where_, "no block before it goes to_side.");
    if (block.input == BlockInput::kResidualPlusSide) {
      CheckLinear("side_projection", block.side_projection, plan_.hidden, plan_.hidden);
    }
    if (!block.to_side) return;
    has_side_ = true;
    if (block.mixers.size() != 1 || std::holds_alternative<MoeMlp>(block.mixers[0]) ||
        block.post_norm || block.residual_scale != 1 || !block.branch_norms.empty() ||
        block.rule != ResidualRule{}) {
      Fail(where_,
           "a block that goes to_side has one mixer other than MoeMlp, and nothing that "
           "changes how x is added to.");
    }
  }

  void CheckRule(const Block& block) {
    const ResidualRule& rule = block.rule;
    Finite("keep", rule.keep);
    CheckOptional("keep_bias", rule.keep_bias, plan_.hidden);
    CheckOptional("keep_scale", rule.keep_scale, plan_.hidden);
    CheckOptional("add_bias", rule.add_bias, plan_.hidden);
    CheckOptional("add_scale", rule.add_scale, plan_.hidden);
    CheckOptional("total", rule.total, 1);
    if (!rule.normed) return;
    if (block.skip_pre_norm || block.input != BlockInput::kResidual) {
      Fail(where_,
           "x cannot become its pre_norm in a block without one, or that reads more than x.");
    }
    for (const BranchNorms& norms : block.branch_norms) {
      if (norms.pre) Fail(where_, "x becomes its pre_norm, but a mixer has another.");
    }
  }

  void CheckAdapter(const char* field, const Adapter& adapter, int64_t rows, int64_t cols) {
    const auto parts = static_cast<int64_t>(adapter.b.size());
    Range(Concat(field, " rank").c_str(), adapter.rank, 1, kMaxSize);
    Range(Concat(field, " parts").c_str(), parts, 1, 16);
    Divides(field, rows, "its number of parts", parts);
    CheckLinear(Concat(field, " a").c_str(), adapter.a, parts * adapter.rank, cols);
    for (const MatrixId id : adapter.b) {
      CheckMatrix(Concat(field, " b").c_str(), id, rows / parts, adapter.rank);
    }
  }

  void Check(const Attention& mixer) {
    Range("heads", mixer.heads, 1, kMaxSize);
    Range("kv_heads", mixer.kv_heads, 1, kMaxSize);
    Range("head_dim", mixer.head_dim, 1, kMaxHeadDim);
    Divides("heads", mixer.heads, "kv_heads", mixer.kv_heads);
    Finite("scale", mixer.scale);
    if (mixer.rope) CheckRope(*mixer.rope, mixer.head_dim);
    if (mixer.q_norm) CheckHeadNorm("q_norm", *mixer.q_norm, mixer.head_dim, mixer.heads);
    if (mixer.k_norm) CheckHeadNorm("k_norm", *mixer.k_norm, mixer.head_dim, mixer.kv_heads);
    if (mixer.v_norm) CheckHeadNorm("v_norm", *mixer.v_norm, mixer.head_dim, mixer.kv_heads);
    Range("window", mixer.window, 0, std::numeric_limits<int64_t>::max());
    if (!mixer.owns_kv()) CheckSharedKv(mixer);
    if (mixer.mixing) CheckMixing(mixer, *mixer.mixing);
    if (mixer.output_gate && mixer.mixing) {
      Fail(where_, "an output_gate beside mixing is not implemented.");
    }
    if (mixer.qk_norm_after_rope && !mixer.rope) {
      Fail(where_, "qk_norm_after_rope is set, but there is no rope.");
    }
    CheckLinear("qkv", mixer.qkv, mixer.qkv_rows(), input_width_);
    if (mixer.qkv_adapter) {
      CheckAdapter("qkv_adapter", *mixer.qkv_adapter, mixer.qkv_rows(), input_width_);
    }
    CheckLinear("output", mixer.output, plan_.hidden, mixer.heads * mixer.head_dim);
  }

  void CheckMixing(const Attention& mixer, const HeadMixing& mixing) {
    if (!mixer.owns_kv() || mixer.values_from_keys) {
      Fail(where_, "mixing needs keys and values of its own.");
    }
    Divides("kv_heads x head_dim", mixer.kv_width(), "2", 2);
    Range("taps", mixing.taps, 1, 1024);
    Range("group_taps", mixing.group_taps, 1, 1024);
    const int64_t channels = mixer.q_width() + mixer.kv_width();
    CheckVector("conv_weight", mixing.conv_weight, mixing.taps * channels);
    CheckVector("conv_bias", mixing.conv_bias, channels);
    CheckVector("group_weight", mixing.group_weight, mixing.group_taps * mixer.head_dim * channels);
    CheckVector("group_bias", mixing.group_bias, channels);
  }

  // The keys and values of an earlier block must be there, and fit.
  void CheckSharedKv(const Attention& mixer) const {
    Range("shared_kv_block", mixer.shared_kv_block, 0, block_index_ - 1);
    if (mixer.k_norm || mixer.v_norm || mixer.values_from_keys) {
      Fail(where_, "it has a k_norm, a v_norm or values_from_keys, but no keys of its own.");
    }
    const Block& block = plan_.blocks[static_cast<size_t>(mixer.shared_kv_block)];
    const Attention* owner =
        block.mixers.size() == 1 ? std::get_if<Attention>(&block.mixers[0]) : nullptr;
    if (owner == nullptr || !owner->owns_kv()) {
      Fail(where_, "shared_kv_block (", mixer.shared_kv_block,
           ") is no block of one Attention with keys of its own.");
    }
    Equal("kv_heads", mixer.kv_heads, "that of shared_kv_block", owner->kv_heads);
    Equal("head_dim", mixer.head_dim, "that of shared_kv_block", owner->head_dim);
  }

  // Of heads of `head_dim` elements.
  void CheckRope(const Rope& rope, int64_t head_dim) const {
    Range("rope rotary_dim", rope.rotary_dim, 2, head_dim);
    Divides("rope rotary_dim", rope.rotary_dim, "2", 2);
    Finite("rope theta", rope.theta);
    Equal("number of rope inverse_frequencies",
          static_cast<int64_t>(rope.inverse_frequencies.size()), "half of rotary_dim",
          rope.rotary_dim / 2);
    for (float frequency : rope.inverse_frequencies) Finite("rope inverse_frequencies", frequency);
  }

  void Check(const LatentAttention& mixer) {
    Range("heads", mixer.heads, 1, kMaxHeadsInAll);
    heads_in_all_ += mixer.heads;
    Range("heads of all layers so far", heads_in_all_, 1, kMaxHeadsInAll);
    Range("latent", mixer.latent, 1, kMaxHeadDim);
    Range("nope_dim", mixer.nope_dim, 1, kMaxHeadDim);
    Range("rope_dim", mixer.rope_dim, 0, kMaxHeadDim);
    Range("value_dim", mixer.value_dim, 1, kMaxHeadDim);
    Range("q_rank", mixer.q_rank, 0, kMaxSize);
    Finite("scale", mixer.scale);
    if (mixer.rope) {
      CheckRope(*mixer.rope, mixer.rope_dim);
      Equal("rope rotary_dim", mixer.rope->rotary_dim, "rope_dim", mixer.rope_dim);
    }
    if (mixer.q_rank > 0) {
      CheckLinear("q_a", mixer.q_a, mixer.q_rank, plan_.hidden);
      if (mixer.q_norm) CheckNorm("q_norm", *mixer.q_norm, mixer.q_rank);
    } else if (mixer.q_a.weight != kNoId || mixer.q_norm) {
      Fail(where_, "it has a q_a or a q_norm, but q_rank is 0.");
    }
    CheckLinear("q_b", mixer.q_b, mixer.heads * mixer.query_dim(),
                mixer.q_rank > 0 ? mixer.q_rank : plan_.hidden);
    CheckLinear("kv_a", mixer.kv_a, mixer.key_dim(), plan_.hidden);
    CheckNorm("kv_norm", mixer.kv_norm, mixer.latent);
    Equal("number of absorb matrices", static_cast<int64_t>(mixer.absorb.size()), "heads",
          mixer.heads);
    Equal("number of expand matrices", static_cast<int64_t>(mixer.expand.size()), "heads",
          mixer.heads);
    for (const MatrixId id : mixer.absorb) CheckMatrix("absorb", id, mixer.latent, mixer.nope_dim);
    for (const MatrixId id : mixer.expand) CheckMatrix("expand", id, mixer.value_dim, mixer.latent);
    CheckLinear("output", mixer.output, plan_.hidden, mixer.heads * mixer.value_dim);
  }

  void Check(const LightningAttention& mixer) {
    Range("heads", mixer.heads, 1, kMaxSize);
    Range("head_dim", mixer.head_dim, 1, kMaxHeadDim);
    const std::optional<int64_t> state =
        ElementCount({mixer.heads, mixer.head_dim, mixer.head_dim});
    if (!state || *state > kMaxStateSize) {
      Fail(where_, "a state of heads x head_dim x head_dim is larger than ", kMaxStateSize,
           " elements.");
    }
    Equal("number of slopes", static_cast<int64_t>(mixer.slopes.size()), "heads", mixer.heads);
    for (const float slope : mixer.slopes) {
      // Written so that NaN fails.
      if (!(slope >= 0) || !std::isfinite(slope)) {
        Fail(where_, "a slope is ", slope, ", it should be a number of at least 0.");
      }
    }
    CheckLinear("qkv", mixer.qkv, 3 * mixer.width(), plan_.hidden);
    CheckNorm("norm", mixer.norm, mixer.width());
    CheckLinear("gate", mixer.gate, mixer.width(), plan_.hidden);
    CheckLinear("output", mixer.output, plan_.hidden, mixer.width());
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

  void CheckLowRank(const char* field, const LowRank& low_rank, int64_t rows) {
    // The rank is whatever `down` has.
    const MatrixId down = low_rank.down.weight;
    const bool known = down >= 0 && down < static_cast<int64_t>(plan_.matrices.size());
    const int64_t rank = known ? plan_.matrices[down].rows : 0;
    CheckLinear(Concat(field, " down").c_str(), low_rank.down, rank, plan_.hidden);
    CheckLinear(Concat(field, " up").c_str(), low_rank.up, rows, rank);
  }

  void Check(const RgLru& mixer) {
    Range("width", mixer.width, 1, kMaxSize);
    Range("heads", mixer.heads, 1, kMaxSize);
    Divides("width", mixer.width, "heads", mixer.heads);
    Range("d_conv", mixer.d_conv, 1, 1024);
    Finite("decay_scale", mixer.decay_scale);
    CheckLinear("in_proj", mixer.in_proj, 2 * mixer.width, plan_.hidden);
    CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.width);
    if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.width);
    CheckVector("input_weight", mixer.input_weight, mixer.width * mixer.block());
    CheckVector("input_bias", mixer.input_bias, mixer.width);
    CheckVector("recurrent_weight", mixer.recurrent_weight, mixer.width * mixer.block());
    CheckVector("recurrent_bias", mixer.recurrent_bias, mixer.width);
    CheckVector("decay", mixer.decay, mixer.width);
    CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.width);
  }

  void Check(const Rwkv7& mixer) {
    Range("heads", mixer.heads, 1, kMaxSize);
    Range("head_dim", mixer.head_dim, 1, kMaxSize);
    const std::optional<int64_t> state =
        ElementCount({mixer.heads, mixer.head_dim, mixer.head_dim});
    if (!state || *state > kMaxStateSize) {
      Fail(where_, "a state of heads x head_dim x head_dim = ",
           ShapeString({mixer.heads, mixer.head_dim, mixer.head_dim}), " is larger than ",
           kMaxStateSize, " elements.");
    }
    if (mixer.value_mix && first_values_ == 0) {
      Fail(where_, "value_mix is set, but no mixer before it has values to mix.");
    }
    if (mixer.value_mix) Equal("inner", mixer.inner(), "that of the first mixer", first_values_);
    if (!mixer.value_mix && first_values_ != 0) {
      Fail(where_, "value_mix is missing, which only the first mixer may lack.");
    }
    first_values_ = mixer.inner();
    CheckVector("shift_mix", mixer.shift_mix, 6 * plan_.hidden);
    CheckLinear("r", mixer.r, mixer.inner(), plan_.hidden);
    CheckLinear("k", mixer.k, mixer.inner(), plan_.hidden);
    CheckLinear("v", mixer.v, mixer.inner(), plan_.hidden);
    CheckLowRank("decay", mixer.decay, mixer.inner());
    CheckLowRank("rate", mixer.rate, mixer.inner());
    CheckLowRank("gate", mixer.gate, mixer.inner());
    if (mixer.value_mix) CheckLowRank("value_mix", *mixer.value_mix, mixer.inner());
    CheckVector("key_scale", mixer.key_scale, mixer.inner());
    CheckVector("key_rate", mixer.key_rate, mixer.inner());
    CheckVector("bonus", mixer.bonus, mixer.inner());
    CheckNorm("norm", mixer.norm, mixer.inner(), true);
    Equal("groups of norm", mixer.norm.groups, "heads", mixer.heads);
    if (!mixer.norm.centered) Fail(where_, "norm should be centered and have a bias.");
    CheckLinear("output", mixer.output, plan_.hidden, mixer.inner());
  }

  void Check(const GatedDelta& mixer) {
    Range("key_heads", mixer.key_heads, 1, kMaxSize);
    Range("value_heads", mixer.value_heads, 1, kMaxSize);
    Divides("value_heads", mixer.value_heads, "key_heads", mixer.key_heads);
    Range("key_dim", mixer.key_dim, 1, kMaxSize);
    Range("value_dim", mixer.value_dim, 1, kMaxSize);
    Range("d_conv", mixer.d_conv, 1, 1024);
    Finite("query_scale", mixer.query_scale);
    Finite("beta_scale", mixer.beta_scale);
    // Written so that NaN fails.
    if (!(mixer.qk_eps >= 0) || !std::isfinite(mixer.qk_eps)) {
      Fail(where_, "qk_eps is ", mixer.qk_eps, ", it should be a number of at least 0.");
    }
    const std::optional<int64_t> state =
        ElementCount({mixer.value_heads, mixer.key_dim, mixer.value_dim});
    if (!state || *state > kMaxStateSize) {
      Fail(where_, "a state of value_heads x key_dim x value_dim = ",
           ShapeString({mixer.value_heads, mixer.key_dim, mixer.value_dim}), " is larger than ",
           kMaxStateSize, " elements.");
    }
    CheckLinear("in_proj", mixer.in_proj, mixer.in_proj_rows(), plan_.hidden);
    CheckVector("conv_weight", mixer.conv_weight, mixer.d_conv * mixer.conv_channels());
    if (mixer.conv_bias != kNoId) CheckVector("conv_bias", mixer.conv_bias, mixer.conv_channels());
    if (mixer.decay_proj) CheckLowRank("decay_proj", *mixer.decay_proj, mixer.decay_rows());
    if (mixer.gate_proj) CheckLowRank("gate_proj", *mixer.gate_proj, mixer.values());
    CheckVector("dt_bias", mixer.dt_bias, mixer.decay_rows());
    CheckVector("a", mixer.a, mixer.value_heads);
    CheckNorm("norm", mixer.norm, mixer.value_dim);
    CheckLinear("out_proj", mixer.out_proj, plan_.hidden, mixer.values());
  }

  // A norm of all heads together, or of each head alone with one weight for all.
  void CheckHeadNorm(const char* field, const RmsNorm& norm, int64_t head_dim, int64_t heads) {
    if (norm.weight == kNoId) return CheckNormNumbers(field, norm, head_dim);
    const bool known = norm.weight >= 0 && norm.weight < static_cast<int64_t>(plan_.vectors.size());
    const bool each = known && VectorSize(plan_.vectors[norm.weight]) == head_dim;
    CheckNorm(field, norm, each ? head_dim : heads * head_dim);
  }

  void Check(const DenseMlp& mixer) {
    Range("intermediate", mixer.intermediate, 1, kMaxSize);
    const int64_t rows = mixer.gated ? 2 * mixer.intermediate : mixer.intermediate;
    CheckLinear("gate_up", mixer.gate_up, rows, plan_.hidden);
    if (mixer.gate_up_adapter) {
      CheckAdapter("gate_up_adapter", *mixer.gate_up_adapter, rows, plan_.hidden);
    }
    CheckLinear("down", mixer.down, plan_.hidden, mixer.intermediate);
    if (mixer.layer_input >= 0) {
      if (!plan_.layer_inputs || mixer.gated) {
        Fail(where_, "layer_input needs layer_inputs and an MLP without a gate.");
      }
      Range("layer_input", mixer.layer_input, 0, plan_.layer_inputs->parts - 1);
      Equal("intermediate", mixer.intermediate, "the width of layer_inputs",
            plan_.layer_inputs->width);
    }
    if (mixer.shift_mix != kNoId) {
      CheckVector("shift_mix", mixer.shift_mix, plan_.hidden);
      if (mixer.gate_up_adapter) {
        Fail(where_, "a gate_up_adapter beside a shift_mix is not implemented.");
      }
    }
    if (mixer.output_gate.weight == kNoId) return;
    if (mixer.shift_mix != kNoId)
      Fail(where_, "an output_gate beside a shift_mix is not implemented.");
    CheckLinear("output_gate", mixer.output_gate, 1, plan_.hidden);
    if (mixer.down.bias != kNoId)
      Fail(where_, "down has a bias, which output_gate does not allow.");
  }

  // `experts`: the idle ones are among them.
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
    CheckOptional("routing expert_scale", routing.expert_scale, experts);
    // Written so that NaN fails.
    if (!(routing.normalize_eps >= 0) || !std::isfinite(routing.normalize_eps)) {
      Fail(where_, "routing normalize_eps is ", routing.normalize_eps,
           ", it should be a number of at least 0.");
    }
  }

  void CheckRouterMlp(const RouterMlp& mlp) {
    Range("router_mlp width", mlp.width, 1, kMaxSize);
    CheckLinear("router_mlp down", mlp.down, mlp.width, plan_.hidden);
    if (mlp.carried_scale != kNoId) {
      CheckVector("router_mlp carried_scale", mlp.carried_scale, mlp.width);
      Equal("router_mlp width", mlp.width, "that of the router before", router_width_);
    }
    router_width_ = mlp.width;
    CheckNorm("router_mlp norm", mlp.norm, mlp.width);
    CheckLinear("router_mlp fc1", mlp.fc1, mlp.width, mlp.width);
    CheckLinear("router_mlp fc2", mlp.fc2, mlp.width, mlp.width);
  }

  void Check(const MoeMlp& mixer) {
    Range("experts", mixer.experts, 1, kMaxExpertsInAll);
    experts_in_all_ += mixer.experts;
    Range("experts of all layers so far", experts_in_all_, 1, kMaxExpertsInAll);
    Range("top_k", mixer.top_k, 1, mixer.experts);
    Range("intermediate", mixer.intermediate, 1, kMaxSize);
    Range("idle", mixer.routing.idle, 0, mixer.experts);
    const int64_t classes = mixer.experts + mixer.routing.idle;
    CheckLinear("router", mixer.router, classes,
                mixer.router_mlp ? mixer.router_mlp->width : plan_.hidden);
    if (mixer.router_norm) CheckNorm("router_norm", *mixer.router_norm, plan_.hidden);
    if (mixer.router_mlp) CheckRouterMlp(*mixer.router_mlp);
    CheckRouting(mixer.routing, classes, mixer.top_k);
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
  int64_t heads_in_all_ = 0;  // of latent attention
  int64_t input_width_ = 0;   // of the block being checked
  int64_t block_index_ = 0;
  int64_t router_width_ = 0;  // of the last router_mlp; 0: there was none
  bool has_side_ = false;     // whether a block so far goes to_side
  int64_t first_values_ = 0;  // inner of the first Rwkv7 mixer; 0: none so far
};

}  // namespace

void ValidatePlan(const Plan& plan) { Validator(plan).Run(); }

}  // namespace adder
