#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "program/plan_builder_for_test.h"
#include "program/program.h"
#include "program/rows_for_test.h"

namespace adder {
namespace {

using test::PlanBuilder;

std::string MessageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(LowerPlan, GoldenOpList) {
  const Program program = test::TwoLayerPlan().Lower();
  EXPECT_EQ(test::OpList(program),
            "embed -> residual\n"
            "layers.0.mamba2.in_proj -> mamba2.in_proj\n"
            "layers.0.mamba2.scan -> mamba2.scan\n"
            "layers.0.mamba2.out_proj -> residual\n"
            // Everything that reads x comes before the first addition to it.
            "layers.0.moe.router -> moe.router\n"
            "layers.0.moe.gate_up -> moe.gate_up\n"
            "layers.0.mlp.gate_up -> mlp.gate_up\n"
            "layers.0.moe.down -> residual\n"
            "layers.0.mlp.down -> residual\n"
            "layers.1.attention.qkv -> attention.qkv\n"
            "layers.1.attention.attend -> attention.attend\n"
            "layers.1.attention.o_proj -> residual\n"
            "layers.1.mlp.gate_up -> mlp.gate_up\n"
            "layers.1.mlp.down -> residual\n"
            "head -> logits\n");
  EXPECT_EQ(program.ops[3].layer, 0);
  EXPECT_EQ(program.ops[0].layer, -1);
}

TEST(LowerPlan, FieldsOfTheOps) {
  const Program program = test::TwoLayerPlan().Lower();
  const auto& embed = std::get<EmbedOp>(program.ops[0].body);
  EXPECT_EQ(embed.scale, 1.5f);
  const auto& scan = std::get<Mamba2Op>(program.ops[2].body);
  EXPECT_EQ(program.layout.recurrent[static_cast<size_t>(scan.conv_state)].name, "conv");
  EXPECT_EQ(program.layout.recurrent[static_cast<size_t>(scan.ssm_state)].name, "ssm");
  const auto& out_proj = std::get<LinearOp>(program.ops[3].body);
  EXPECT_EQ(out_proj.epilogue, Epilogue::kAdd);
  EXPECT_EQ(out_proj.scale, 0.6f);
  ASSERT_TRUE(out_proj.norm.has_value());
  EXPECT_EQ(out_proj.norm->groups, 2);
  EXPECT_EQ(std::get<ExpertDownOp>(program.ops[7].body).scale, 0.6f);
  const auto& head = std::get<LinearOp>(program.ops.back().body);
  EXPECT_TRUE(head.logits_rows_only);
  EXPECT_EQ(head.scale, 0.25f);
  EXPECT_EQ(program.buffers[static_cast<size_t>(program.residual)].width, 7);
  EXPECT_EQ(program.buffers[static_cast<size_t>(program.logits)].width, 13);
}

TEST(LowerPlan, TwoMixersOfOneKindGetTheirOwnNamesAndBuffers) {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0,
                 {test::TestMlp(builder, "left", 7), test::TestMlp(builder, "right", 7)});
  test::AddBlock(builder, 1, {test::TestMlp(builder, "next", 7)});
  const Program program = builder.Lower();
  const Op& left = program.ops[1];
  const Op& right = program.ops[2];
  const Op& next = program.ops[5];
  EXPECT_EQ(left.name, "layers.0.mlp.gate_up");
  EXPECT_EQ(right.name, "layers.0.mlp_2.gate_up");
  EXPECT_EQ(next.name, "layers.1.mlp.gate_up");
  EXPECT_NE(OutputOf(left), OutputOf(right));
  EXPECT_EQ(OutputOf(left), OutputOf(next)) << "layers share buffers";
}

TEST(LowerPlan, WeightsThatDoNotFitAreErrors) {
  const PlanBuilder builder = test::TwoLayerPlan();
  const auto plan = std::make_shared<Plan>(builder.plan);
  const auto fewer = builder.Bind();
  fewer->matrices.pop_back();
  EXPECT_NE(MessageOf([&] { LowerPlan(plan, fewer); }).find("bound weights have"),
            std::string::npos);
  const auto misshapen = builder.Bind();
  misshapen->matrices[1].segments[0].rows -= 1;
  EXPECT_NE(MessageOf([&] {
              LowerPlan(plan, misshapen);
            }).find("matrix 'head' should be [13, 7], the bound one is [12, 7]"),
            std::string::npos);
  const auto short_vector = builder.Bind();
  short_vector->vectors[0].resize(3);
  EXPECT_NE(MessageOf([&] {
              LowerPlan(plan, short_vector);
            }).find("vector 'final_norm' should have 7 elements, the bound one has 3"),
            std::string::npos);
}

TEST(Program, FindOpSuggestsCloseNames) {
  const Program program = test::TwoLayerPlan().Lower();
  EXPECT_EQ(program.FindOp("layers.1.mlp.down"), 13);
  const std::string misspelt = MessageOf([&] { program.FindOp("layers.1.mlp.dwn"); });
  EXPECT_NE(misspelt.find("There is no op 'layers.1.mlp.dwn'"), std::string::npos);
  EXPECT_NE(misspelt.find("Close names: layers.1.mlp.down"), std::string::npos) << misspelt;
  const std::string partial = MessageOf([&] { program.FindOp("router"); });
  EXPECT_NE(partial.find("Close names: layers.0.moe.router"), std::string::npos) << partial;
  const std::string absurd = MessageOf([&] { program.FindOp(std::string(1 << 20, 'x')); });
  EXPECT_LT(absurd.size(), 500u);
}

TEST(Program, StringHasOneLinePerOpAndATotal) {
  const std::string text = ProgramString(test::TwoLayerPlan().Lower());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 17);
  EXPECT_NE(text.find("norm in 2 groups, linear [7 x 12] + bias, add, scale 0.6 -> residual"),
            std::string::npos)
      << text;
}

// Applies one change to a valid program; the verifier must name the op and the fault.
void ExpectInvalid(const std::function<void(Program&)>& change, const std::string& message) {
  Program program = test::TwoLayerPlan().Lower();
  change(program);
  const std::string found = MessageOf([&] { VerifyProgram(program); });
  EXPECT_NE(found.find(message), std::string::npos) << found;
}

TEST(VerifyProgram, FindsFaults) {
  ExpectInvalid([](Program& p) { p.ops.erase(p.ops.begin()); },
                "op 'layers.0.mamba2.in_proj': it reads buffer 'residual', which no op before it");
  ExpectInvalid([](Program& p) { p.ops.pop_back(); }, "unwritten");
  ExpectInvalid([](Program& p) { p.buffers[1].width = 3; }, "wide rows to buffer 'mamba2.in_proj'");
  ExpectInvalid([](Program& p) { std::get<Mamba2Op>(p.ops[2].body).ssm_state = -1; },
                "op 'layers.0.mamba2.scan': it has no ssm state");
  ExpectInvalid([](Program& p) { std::get<Mamba2Op>(p.ops[2].body).conv_state = 1; },
                "its conv state is 'ssm'");
  ExpectInvalid([](Program& p) { std::get<AttentionOp>(p.ops[10].body).kv = 1; },
                "op 'layers.1.attention.attend': it has no KV state");
  ExpectInvalid([](Program& p) { p.layout.kv[0].head_dim = 5; }, "KV state has another shape");
  ExpectInvalid([](Program& p) { std::get<LinearOp>(p.ops[1].body).input = 99; },
                "there is no buffer 99");
  ExpectInvalid([](Program& p) { std::get<LinearOp>(p.ops[1].body).linear.weight = 1000; },
                "there is no matrix 1000");
  ExpectInvalid([](Program& p) { std::get<LinearOp>(p.ops[1].body).linear.bias = 0; },
                "its bias has 7 elements where 48 are needed");
  ExpectInvalid([](Program& p) { std::get<ExpertGateUpOp>(p.ops[5].body).gate_up.pop_back(); },
                "4 expert matrices, not one per expert");
  ExpectInvalid([](Program& p) { std::get<RouterOp>(p.ops[4].body).top_k = 6; },
                "op 'layers.0.moe.router'");
  ExpectInvalid([](Program& p) { std::get<LinearOp>(p.ops[3].body).norm->groups = 5; },
                "norm groups do not divide");
  ExpectInvalid([](Program& p) { std::get<LinearOp>(p.ops[3].body).input = p.residual; },
                "op 'layers.0.mamba2.out_proj'");
  ExpectInvalid([](Program& p) { p.weights = nullptr; }, "no weights");
}

TEST(VerifyProgram, AcceptsWhatLoweringMakes) {
  EXPECT_NO_THROW(VerifyProgram(test::TwoLayerPlan().Lower()));
}

TEST(Cost, HandComputed) {
  const Program program = test::TwoLayerPlan().Lower();
  const auto cost = [&](const char* name, int64_t tokens, int64_t sequences, int64_t context) {
    return CostOf(program, program.FindOp(name), tokens, sequences, context);
  };
  // f32 rows of 7.
  EXPECT_EQ(cost("embed", 5, 1, 0).weight_bytes, 5 * 7 * 4);
  // in_proj: rows z 12 | x 12 | B 2 * 5 | C 2 * 5 | dt 4 = 48 of 7, bias 48, norm 7.
  EXPECT_EQ(cost("layers.0.mamba2.in_proj", 5, 1, 0).weight_bytes, (48 * 7 + 48 + 7) * 4);
  EXPECT_EQ(cost("layers.0.mamba2.in_proj", 5, 1, 0).flops, 5 * 2 * 48 * 7);
  // conv [4, 32] + bias 32 + dt_bias, a, d of 4; window [3, 32] and state [4, 5, 3], read +
  // written.
  const OpCost scan = cost("layers.0.mamba2.scan", 6, 2, 100);
  EXPECT_EQ(scan.weight_bytes, (4 * 32 + 32 + 12) * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * (3 * 32 + 60) * 4);
  EXPECT_EQ(scan.flops, 6 * (2 * 4 * 32 + 5 * 60 + 3 * 12));
  Program narrow = program;
  narrow.layout = MakeStateLayout(*program.plan, DType::kF16);
  EXPECT_EQ(CostOf(narrow, program.FindOp("layers.0.mamba2.scan"), 6, 2, 100).state_bytes,
            2 * 2 * (3 * 32 * 4 + 60 * 2));
  // k and v of 2 heads x 6: 24 floats a position; 3 and 2 new tokens after 10.
  const OpCost attend = cost("layers.1.attention.attend", 5, 2, 10);
  EXPECT_EQ(attend.weight_bytes, 0);
  EXPECT_EQ(attend.state_bytes, (2 * 10 + 5) * 24 * 4);
  EXPECT_EQ(attend.flops, 4 * 4 * 6 * ((11 + 12 + 13) + (11 + 12)));
  // One token chooses 3 of 5 experts; two tokens could choose all 5.
  EXPECT_EQ(cost("layers.0.moe.gate_up", 1, 1, 0).weight_bytes, (3 * 12 * 7 + 7) * 4);
  EXPECT_EQ(cost("layers.0.moe.gate_up", 2, 1, 0).weight_bytes, (5 * 12 * 7 + 7) * 4);
  EXPECT_EQ(cost("layers.0.moe.down", 2, 1, 0).flops, 2 * 3 * 2 * 7 * 6);
  // One row of logits per sequence.
  EXPECT_EQ(cost("head", 50, 2, 0).flops, 2 * 2 * 13 * 7);
  EXPECT_EQ(cost("head", 50, 2, 0).weight_bytes, (13 * 7 + 13 + 7) * 4);

  OpCost sum;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpCost one = CostOf(program, static_cast<int>(i), 3, 1, 9);
    sum.weight_bytes += one.weight_bytes;
    sum.state_bytes += one.state_bytes;
    sum.flops += one.flops;
  }
  const OpCost total = CostOf(program, 3, 1, 9);
  EXPECT_EQ(total.weight_bytes, sum.weight_bytes);
  EXPECT_EQ(total.state_bytes, sum.state_bytes);
  EXPECT_EQ(total.flops, sum.flops);
}

TEST(Cost, QuantisedWeightsCountAsStored) {
  const PlanBuilder builder = test::TwoLayerPlan();
  const auto weights = builder.Bind();
  // The head as 4-bit with one bf16 scale and bias per 7 columns would be ragged; use 8 bits.
  MatrixSegment& segment = weights->matrices[1].segments[0];
  segment.bits = 8;
  segment.group_size = 7;
  segment.dtype = DType::kBF16;
  const Program program = LowerPlan(std::make_shared<Plan>(builder.plan), weights);
  const OpCost head = CostOf(program, program.FindOp("head"), 1, 1, 0);
  EXPECT_EQ(head.weight_bytes, 13 * (7 + 2 * 2) + (13 + 7) * 4);
}

// An executor's own bytes, all different: those of each op's matrices.
TEST(Cost, MatricesCountAsTheExecutorKeepsThem) {
  Program program = test::TwoLayerPlan().Lower();
  const OpCost stored = CostOf(program, program.FindOp("layers.0.mamba2.in_proj"), 5, 1, 0);
  for (size_t i = 0; i < program.weights->matrices.size(); ++i) {
    program.matrix_bytes.push_back(program.weights->matrices[i].bytes() +
                                   13 * (1000 + static_cast<int64_t>(i)));
  }
  const auto weight_bytes = [&](const char* name) {
    return CostOf(program, program.FindOp(name), 5, 1, 0).weight_bytes;
  };
  const auto& linear =
      std::get<LinearOp>(program.ops[static_cast<size_t>(program.FindOp("head"))].body).linear;
  EXPECT_EQ(weight_bytes("head"), (13 * 7 + 13 + 7) * 4 + 13 * (1000 + linear.weight));
  const auto& in_proj = std::get<LinearOp>(
      program.ops[static_cast<size_t>(program.FindOp("layers.0.mamba2.in_proj"))].body);
  EXPECT_EQ(weight_bytes("layers.0.mamba2.in_proj"),
            stored.weight_bytes + 13 * (1000 + in_proj.linear.weight));
  // Five of the embedding's thirteen rows.
  const auto& embed =
      std::get<EmbedOp>(program.ops[static_cast<size_t>(program.FindOp("embed"))].body);
  EXPECT_EQ(weight_bytes("embed"), 5 * (7 * 4 + 1000 + embed.embedding));
  // All five experts of two tokens with three choices each; the mean is rounded down.
  const auto& gate_up = std::get<ExpertGateUpOp>(
      program.ops[static_cast<size_t>(program.FindOp("layers.0.moe.gate_up"))].body);
  int64_t all = 0;
  for (const MatrixId id : gate_up.gate_up) all += program.matrix_bytes[static_cast<size_t>(id)];
  EXPECT_EQ(weight_bytes("layers.0.moe.gate_up"), all / 5 * 5 + 7 * 4);
}

TEST(Cost, BadArgumentsAreErrors) {
  const Program program = test::TwoLayerPlan().Lower();
  EXPECT_THROW(CostOf(program, 15, 1, 1, 0), Error);
  EXPECT_THROW(CostOf(program, -1, 1, 1, 0), Error);
  EXPECT_THROW(CostOf(program, 0, -1, 1, 0), Error);
}

}  // namespace
}  // namespace adder
