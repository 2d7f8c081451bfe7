// The check of a plan as its own files see it: plan_validate.cc has the plan, its weights and its
// blocks, plan_validate_mixers.cc the mixers.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/plan.h"

namespace adder {

// Checks one plan. `where_` is the place being checked, for error messages.
class Validator {
 public:
  explicit Validator(const Plan& plan)
      : plan_(plan),
        matrix_used_(plan.matrices.size(), false),
        vector_used_(plan.vectors.size(), false) {}

  void Run();

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

  void CheckMatrices();
  void CheckVectors();
  void CheckTotal();
  void CheckMatrix(const char* field, MatrixId id, int64_t rows, int64_t cols);
  void CheckVector(const char* field, VectorId id, int64_t size);
  void CheckOptional(const char* field, VectorId id, int64_t size);
  void CheckLayerInputs(const LayerInputs& inputs);
  void CheckLinear(const char* field, const Linear& linear, int64_t rows, int64_t cols);
  void CheckNorm(const char* field, const RmsNorm& norm, int64_t size, bool may_center = false);
  // A norm that may be absent, or have no weight.
  void CheckPlainNorm(const char* field, const std::optional<RmsNorm>& norm, int64_t size);
  void CheckNormNumbers(const char* field, const RmsNorm& norm, int64_t size);
  void CheckBlock(size_t index);
  // Where the block reads and writes.
  void CheckSide(const Block& block);
  void CheckRule(const Block& block);
  // A weight that no mixer reads is a mistake of the family: it should be in ignored_tensors.
  void CheckAllUsed();

  void Check(const Attention& mixer);
  void Check(const LatentAttention& mixer);
  void Check(const LightningAttention& mixer);
  void Check(const Mamba2& mixer);
  void Check(const ShortConv& mixer);
  void Check(const Mamba1& mixer);
  void Check(const RgLru& mixer);
  void Check(const Rwkv7& mixer);
  void Check(const GatedDelta& mixer);
  void Check(const DenseMlp& mixer);
  void Check(const MoeMlp& mixer);
  void CheckAdapter(const char* field, const Adapter& adapter, int64_t rows, int64_t cols);
  void CheckMixing(const Attention& mixer, const HeadMixing& mixing);
  // The keys and values of an earlier block must be there, and fit.
  void CheckSharedKv(const Attention& mixer) const;
  // Of heads of `head_dim` elements.
  void CheckRope(const Rope& rope, int64_t head_dim) const;
  void CheckSelection(const Mamba2& mixer, const Mamba2Selection& selection);
  void CheckLowRank(const char* field, const LowRank& low_rank, int64_t rows);
  // A norm of all heads together, or of each head alone with one weight for all.
  void CheckHeadNorm(const char* field, const RmsNorm& norm, int64_t head_dim, int64_t heads);
  // `experts`: the idle ones are among them.
  void CheckRouting(const Routing& routing, int64_t experts, int64_t top_k);
  void CheckRouterMlp(const RouterMlp& mlp);

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

}  // namespace adder
