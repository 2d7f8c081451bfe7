#include "cpu/cpu_executor.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>

#include "core/error.h"
#include "cpu/random_weights_for_test.h"
#include "cpu/simd_targets_for_test.h"
#include "model/family.h"
#include "program/interpreter.h"

namespace adder {
namespace {

// A small hybrid with everything in it: two Mamba-2 layers with two groups and odd widths, an
// attention layer with shared KV heads, and dense MLPs or experts.
Plan HybridPlan(bool experts, const char* positions) {
  Json config = {{"model_type", "granitemoehybrid"},
                 {"vocab_size", 101},
                 {"hidden_size", 96},
                 {"num_hidden_layers", 3},
                 {"layer_types", {"mamba", "attention", "mamba"}},
                 {"num_attention_heads", 6},
                 {"num_key_value_heads", 2},
                 {"intermediate_size", 64},
                 {"shared_intermediate_size", 72},
                 {"num_local_experts", experts ? 5 : 0},
                 {"num_experts_per_tok", experts ? 2 : 0},
                 {"mamba_n_heads", 8},
                 {"mamba_d_head", 24},
                 {"mamba_d_state", 20},
                 {"mamba_n_groups", 2},
                 {"mamba_d_conv", 4},
                 {"mamba_expand", 2},
                 {"mamba_chunk_size", 16},
                 {"mamba_conv_bias", true},
                 {"mamba_proj_bias", false},
                 {"attention_bias", false},
                 {"position_embedding_type", positions},
                 {"rope_theta", 10000.0},
                 {"rms_norm_eps", 1e-5},
                 {"attention_multiplier", 0.2},
                 {"embedding_multiplier", 3.0},
                 {"residual_multiplier", 0.5},
                 {"logits_scaling", 0.7},
                 {"tie_word_embeddings", true},
                 {"max_position_embeddings", 512},
                 {"hidden_act", "silu"}};
  const JsonObject object(config, "test config");
  return FindFamily(object).build(object, TensorNames::Planned(true));
}

std::vector<int32_t> SomeTokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i * 7 + 3 * i + 5) % 101);
  return tokens;
}

Program Lowered(const Plan& plan, const std::vector<RandomFormat>& formats) {
  return LowerPlan(std::make_shared<const Plan>(plan), MakeRandomWeights(plan, formats, 11));
}

std::unique_ptr<Executor> MakeCpu(const Program& program, int threads, Compute compute) {
  CpuOptions options;
  options.threads = threads;
  options.compute = compute;
  return MakeCpuExecutor(program, options);
}

std::vector<float> AllLogits(const Executor& executor) {
  std::vector<float> all;
  for (int64_t i = 0; i < executor.LogitsCount(); ++i) {
    const std::span<const float> row = executor.Logits(i);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// Logits of all positions, the tokens fed in pieces of the given sizes (then one by one).
std::vector<float> RunInPieces(Executor& executor, const std::vector<int32_t>& tokens,
                               const std::vector<size_t>& pieces) {
  const SequenceId sequence = executor.CreateSequence();
  std::vector<float> all;
  size_t done = 0;
  for (size_t i = 0; done < tokens.size(); ++i) {
    const size_t take = std::min(i < pieces.size() ? pieces[i] : 1, tokens.size() - done);
    executor.Forward({{sequence, std::span(tokens).subspan(done, take), LogitsRows::kAll}});
    const std::vector<float> logits = AllLogits(executor);
    all.insert(all.end(), logits.begin(), logits.end());
    done += take;
  }
  executor.FreeSequence(sequence);
  return all;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_TRUE(std::isfinite(a[i]));
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

const std::vector<RandomFormat> kMixed = {{4, 32, DType::kBF16}, {0, 0, DType::kBF16},
                                          {8, 32, DType::kF16},  {6, 32, DType::kF32},
                                          {0, 0, DType::kF32},   {3, 32, DType::kBF16}};

class CpuExecutorOnEveryTarget : public OnEveryTarget {};

TEST_P(CpuExecutorOnEveryTarget, F32EqualsTheReferenceToRounding) {
  for (const bool experts : {false, true}) {
    const Program program = Lowered(HybridPlan(experts, experts ? "rope" : "nope"), kMixed);
    const auto reference = MakeInterpreter(program);
    const auto cpu = MakeCpu(program, 2, Compute::kF32);
    const std::vector<int32_t> tokens = SomeTokens(75);
    const std::vector<float> expected = RunInPieces(*reference, tokens, {75});
    const std::vector<float> actual = RunInPieces(*cpu, tokens, {75});
    double size = 0;
    for (float value : expected) size = std::max(size, std::abs(static_cast<double>(value)));
    // f32 sums of at most a few hundred terms, through nine blocks.
    EXPECT_LT(LargestDifference(expected, actual), 2e-5 * size) << "logits up to " << size;
  }
}

void ExpectEveryOpEqualsTheReference(const Program& program) {
  const auto reference = MakeInterpreter(program);
  const auto cpu = MakeCpu(program, 2, Compute::kF32);
  const std::vector<int32_t> tokens = SomeTokens(9);
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    const SequenceId a = reference->CreateSequence();
    const SequenceId b = cpu->CreateSequence();
    const auto expected = reference->ForwardUntil({{a, tokens, LogitsRows::kLast}}, op);
    const auto actual = cpu->ForwardUntil({{b, tokens, LogitsRows::kLast}}, op);
    EXPECT_LT(LargestDifference(expected, actual), 1e-3) << program.ops[op].name;
    reference->FreeSequence(a);
    cpu->FreeSequence(b);
  }
}

TEST_P(CpuExecutorOnEveryTarget, EveryOpEqualsTheReference) {
  ExpectEveryOpEqualsTheReference(Lowered(HybridPlan(true, "rope"), kMixed));
}

// Options that no family of these tests has by itself, each of them in one plan.
Plan PlanOfOptions() {
  Plan plan = HybridPlan(true, "rope");
  for (Block& block : plan.blocks) {
    for (Mixer& mixer : block.mixers) {
      if (auto* mlp = std::get_if<DenseMlp>(&mixer)) {
        mlp->activation = Activation::kGelu;
        mlp->output_gate.weight = plan.AddMatrix("output_gate", "output_gate", 1, plan.hidden);
        mlp->gate_up.input_scale = 0.7f;
        mlp->gate_up.row_scales = {{50, 1.3f}, {94, 0.6f}};
      } else if (auto* moe = std::get_if<MoeMlp>(&mixer)) {
        moe->activation = Activation::kGeluTanh;
        moe->routing.scores = RouterScores::kSigmoid;
        moe->routing.choice_bias = plan.AddVector("bias", "bias", moe->experts);
        moe->routing.normalize_eps = 0.1f;
        moe->routing.scale = 1.7f;
      } else if (auto* attention = std::get_if<Attention>(&mixer)) {
        // One weight for every head, and one for all heads.
        attention->q_norm = RmsNorm{plan.AddVector("q", "q", attention->head_dim), 1e-4f, 1};
        attention->k_norm =
            RmsNorm{plan.AddVector("k", "k", attention->kv_heads * attention->head_dim), 1e-4f, 1};
        attention->qk_norm_after_rope = true;
        attention->v_norm = RmsNorm{kNoId, 1e-4f, 1};
        attention->window = 5;
      } else if (auto* mamba = std::get_if<Mamba2>(&mixer)) {
        mamba->norm_before_gate = true;
        mamba->gated_norm->groups = 2;
      }
    }
  }
  ValidatePlan(plan);
  return plan;
}

TEST_P(CpuExecutorOnEveryTarget, EveryOptionEqualsTheReference) {
  ExpectEveryOpEqualsTheReference(Lowered(PlanOfOptions(), kMixed));
}

// The property the whole backend is built around: bitwise the same for any chunking, any number of
// threads and any company in the batch.
TEST_P(CpuExecutorOnEveryTarget, ResultsDoNotDependOnChunksThreadsOrBatch) {
  for (const Compute compute : {Compute::kFast, Compute::kF32}) {
    const Program program = Lowered(HybridPlan(true, "rope"), kMixed);
    const std::vector<int32_t> tokens = SomeTokens(70);
    const auto one = MakeCpu(program, 1, compute);
    const auto three = MakeCpu(program, 3, compute);
    const std::vector<float> whole = RunInPieces(*one, tokens, {70});
    EXPECT_EQ(whole, RunInPieces(*one, tokens, {}));
    EXPECT_EQ(whole, RunInPieces(*three, tokens, {1, 2, 3, 13, 7}));
    EXPECT_EQ(whole, RunInPieces(*three, tokens, {64, 5, 1}));
    // Beside another sequence that is elsewhere in its text.
    const SequenceId other = three->CreateSequence();
    const SequenceId sequence = three->CreateSequence();
    const std::vector<int32_t> noise = SomeTokens(33);
    three->Forward({{other, std::span(noise).first(20), LogitsRows::kNone}});
    three->Forward({{other, std::span(noise).subspan(20, 9), LogitsRows::kLast},
                    {sequence, tokens, LogitsRows::kAll}});
    ASSERT_EQ(three->LogitsCount(), 71);
    std::vector<float> logits = AllLogits(*three);
    logits.erase(logits.begin(), logits.begin() + 101);
    EXPECT_EQ(whole, logits);
  }
}

TEST_P(CpuExecutorOnEveryTarget, FastModeStaysNearF32) {
  const Program program = Lowered(HybridPlan(false, "rope"), {{4, 32, DType::kBF16}});
  const std::vector<int32_t> tokens = SomeTokens(40);
  const std::vector<float> exact = RunInPieces(*MakeCpu(program, 1, Compute::kF32), tokens, {40});
  const std::vector<float> fast = RunInPieces(*MakeCpu(program, 1, Compute::kFast), tokens, {40});
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(exact[i]) - fast[i], 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_GT(error, 0) << "fast mode did not quantise anything";
  // int8 with a scale per 32 values: about half a percent per product, ten of them in a row.
  EXPECT_LT(std::sqrt(error / size), 0.04);
}

ADDER_ON_EVERY_TARGET(CpuExecutorOnEveryTarget);

// More tokens than one slice holds, and prompts shorter than the convolution.
TEST(CpuExecutorTest, LongAndShortPrompts) {
  const Program program = Lowered(HybridPlan(false, "rope"), kMixed);
  const auto reference = MakeInterpreter(program);
  const auto cpu = MakeCpu(program, 2, Compute::kF32);
  for (int count : {1, 2, 3, 300}) {
    const std::vector<int32_t> tokens = SomeTokens(count);
    const SequenceId a = reference->CreateSequence();
    const SequenceId b = cpu->CreateSequence();
    reference->Forward({{a, tokens, LogitsRows::kLast}});
    cpu->Forward({{b, tokens, LogitsRows::kLast}});
    EXPECT_EQ(cpu->Position(b), count);
    EXPECT_LT(LargestDifference(AllLogits(*reference), AllLogits(*cpu)), 1e-3);
  }
}

TEST(CpuExecutorTest, BadBatchesAreRefusedAndChangeNothing) {
  const auto cpu = MakeCpu(Lowered(HybridPlan(false, "nope"), kMixed), 2, Compute::kFast);
  const SequenceId sequence = cpu->CreateSequence();
  const std::vector<int32_t> good = {1, 2};
  const std::vector<int32_t> bad = {1, 101};
  EXPECT_THROW(cpu->Forward({{sequence, bad, LogitsRows::kLast}}), Error);
  EXPECT_THROW(cpu->Forward({{sequence, {}, LogitsRows::kLast}}), Error);
  EXPECT_THROW(cpu->Forward({{sequence, good, LogitsRows::kLast}, {sequence, good}}), Error);
  EXPECT_THROW(cpu->Forward({{sequence + 7, good, LogitsRows::kLast}}), Error);
  EXPECT_EQ(cpu->Position(sequence), 0);
  cpu->Forward({{sequence, good, LogitsRows::kNone}});
  EXPECT_EQ(cpu->LogitsCount(), 0);
  EXPECT_THROW(cpu->Logits(0), Error);
  EXPECT_THROW(cpu->ForwardUntil({{sequence, good, LogitsRows::kNone}}, 1000), Error);
}

// A restored or copied sequence continues bit for bit.
TEST(CpuExecutorTest, SnapshotsContinueExactly) {
  const auto cpu = MakeCpu(Lowered(HybridPlan(false, "rope"), kMixed), 2, Compute::kFast);
  const std::vector<int32_t> tokens = SomeTokens(80);
  const SequenceId sequence = cpu->CreateSequence();
  cpu->Forward({{sequence, std::span(tokens).first(67), LogitsRows::kNone}});
  const SequenceId copy = cpu->CopySequence(sequence);
  const SequenceId imported = cpu->ImportSequence(cpu->ExportSequence(sequence));
  std::vector<std::vector<float>> results;
  for (SequenceId id : {sequence, copy, imported}) {
    cpu->Forward({{id, std::span(tokens).subspan(67), LogitsRows::kAll}});
    results.push_back(AllLogits(*cpu));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace adder
