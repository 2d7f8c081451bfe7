// The CPU backend against the interpreter after every op of the program, so that a difference names
// the op that made it. The last op's output is the logits, so whole runs are compared too.
#include <gtest/gtest.h>
#include <algorithm>

#include <iostream>

#include "tests/support/numbers.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

// Relative error of an op's output in the Euclidean norm. f32: sums of n terms err by about
// sqrt(n) * 2^-24, 1e-6 at these sizes; a few layers amplify that a little. Measured: up to 1.4e-6.
constexpr double kF32Tolerance = 1e-5;
// Where heads are normed behind a state, small answers are magnified. Measured: up to 4.4e-6 on the
// CPU, 1.7e-5 on CUDA.
constexpr double kF32SelectionTolerance = 3e-5;
// Fast: rounding activations to int8 errs by about 1% of a typical one in every matmul, and layers
// add up; a short convolution multiplies three of them. Measured: up to 0.073, behind short
// convolutions 0.17, with adapters 0.26.
constexpr double kFastTolerance = 0.3;

double ToleranceOf(Backend backend, const Program& program) {
  if (!IsExact(backend)) return kFastTolerance;
  return HasSelections(program) ? kF32SelectionTolerance : kF32Tolerance;
}

// How many choices of experts differ; 0 for an op that chooses none.
int64_t OtherChoices(const Op& op, const std::vector<float>& found,
                     const std::vector<float>& expected) {
  const auto* router = std::get_if<RouterOp>(&op.body);
  if (router == nullptr) return 0;
  int64_t others = 0;
  // Of each row, the weights of its choices, then the experts.
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_expert = static_cast<int64_t>(i) % (2 * router->top_k) >= router->top_k;
    others += is_expert && found[i] != expected[i];
  }
  return others;
}

class OpDifference : public testing::TestWithParam<ModelAndBackend> {
 protected:
  void SetUp() override {
    const auto& [model, backend] = GetParam();
    const Program program = LoadProgram(model);
    ADDER_SKIP_UNSUPPORTED(backend, program);
    reference_ = MakeExecutor(Backend::kReference, program);
    ours_ = MakeExecutor(backend, program);
  }

  // Two sequences at different positions.
  struct Prepared {
    SequenceId a;
    SequenceId b;
  };
  static Prepared Prepare(Executor& executor, std::span<const int32_t> tokens) {
    const Prepared start{executor.CreateSequence(), executor.CreateSequence()};
    executor.Forward({{start.a, tokens, LogitsRows::kNone}});
    executor.Forward({{start.b, tokens.first(2), LogitsRows::kNone}});
    return start;
  }

  void Compare(int64_t chunk_tokens);

  std::unique_ptr<Executor> reference_;
  std::unique_ptr<Executor> ours_;
};

// `chunk_tokens` tokens of one sequence beside one of another.
void OpDifference::Compare(int64_t chunk_tokens) {
  const Backend backend = std::get<1>(GetParam());
  const Program& program = reference_->program();
  const std::vector<int32_t> before = RandomTokens(1, 66, program.plan->vocab);
  const std::vector<int32_t> chunk = RandomTokens(2, chunk_tokens, program.plan->vocab);
  const std::vector<int32_t> step = RandomTokens(3, 1, program.plan->vocab);
  const Prepared expected_start = Prepare(*reference_, before);
  const Prepared found_start = Prepare(*ours_, before);
  double worst = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const auto run = [&](Executor& executor, const Prepared& start) {
      const SequenceId a = executor.CopySequence(start.a);
      const SequenceId b = executor.CopySequence(start.b);
      std::vector<float> values = executor.ForwardUntil(
          {{a, chunk, LogitsRows::kAll}, {b, step, LogitsRows::kAll}}, static_cast<int>(i));
      executor.FreeSequence(a);
      executor.FreeSequence(b);
      return values;
    };
    const std::vector<float> expected = run(*reference_, expected_start);
    const std::vector<float> found = run(*ours_, found_start);
    const int64_t width = program.buffers[static_cast<size_t>(OutputOf(program.ops[i]))].width;
    ASSERT_EQ(expected.size(), static_cast<size_t>((chunk_tokens + 1) * width))
        << program.ops[i].name;
    const double difference = RelativeDifference(found, expected);
    // In the fast mode a near tie between experts may fall the other way; from there on the
    // sequences are different ones.
    const int64_t others = OtherChoices(program.ops[i], found, expected);
    if (!IsExact(backend) && others > 0) {
      EXPECT_LE(others, static_cast<int64_t>(expected.size()) / 4) << program.ops[i].name;
      break;
    }
    worst = std::max(worst, difference);
    EXPECT_LE(difference, ToleranceOf(backend, program)) << program.ops[i].name;
  }
  RecordProperty("worst_op_difference", std::to_string(worst));
  std::cout << std::get<0>(GetParam()).name << " " << BackendName(backend)
            << ": worst op differs by " << worst << "\n";
}

TEST_P(OpDifference, EveryOpMatchesTheInterpreter) { Compare(6); }

// Backends may have kernels of their own for single tokens.
TEST_P(OpDifference, EveryOpOfAStepMatchesTheInterpreter) { Compare(1); }

INSTANTIATE_TEST_SUITE_P(Tiny, OpDifference,
                         testing::Combine(testing::ValuesIn(TinyModels()),
                                          testing::ValuesIn(QuickBackends())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Demo, OpDifference,
                         testing::Combine(testing::ValuesIn(DemoModels()),
                                          testing::ValuesIn(QuickBackends())),
                         NameOf);

}  // namespace
}  // namespace adder::test
