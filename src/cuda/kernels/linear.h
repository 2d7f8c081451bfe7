// y = W norm(x) + bias with an epilogue, for one token or many, on tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/packed_matrix.h"
#include "cuda/kernels/route.h"
#include "model/plan.h"

namespace adder::cuda {

enum class LinearEpilogue {
  kStore,        // out = scale * y
  kAdd,          // out += scale * y
  kSiluMul,      // the matrix is interleaved gate | up: out = silu(gate) * up, rows / 2 wide
  kRouter,       // scores = y; the last block to finish a token chooses its experts
  kRule,         // as RowRule says
  kRouteByRule,  // of LaunchRouterByRule
};

// What other epilogues lack. With products W norm(x) of a row, z = factor * product + bias, and the
// result is activation(z) * z_up where the matrix is interleaved (z of the gate row and of the up
// row), activation(z) where it only activates, z otherwise; then as kStore or kAdd.
struct RowRule {
  const float* factors = nullptr;  // [rows]; null: all 1
  bool activates = false;          // always, if the matrix is interleaved
  Activation activation = Activation::kSilu;
  bool adds = false;
};

struct LinearParams {
  PackedMatrix matrix;
  const float* input = nullptr;  // [tokens, input_stride], the first `cols` of each row
  int input_stride = 0;
  const int* input_rows = nullptr;  // token i reads row input_rows[i]; null: row i
  // The same values rounded to bf16, [tokens, rounded_input_stride], rows on 16-byte boundaries.
  // See ReadsRounded.
  const uint16_t* rounded_input = nullptr;
  int rounded_input_stride = 0;
  int tokens = 0;
  const float* norm_weight = nullptr;  // RMSNorm over all of a row; null: none
  float norm_eps = 0;
  const float* bias = nullptr;  // [rows]; null: none
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  float scale = 1;
  float* output = nullptr;  // [tokens, output_stride]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output, written by the same launches
  int rounded_output_stride = 0;

  // kRouter: output [tokens, 2 * top_k] gets weights, then expert numbers as f32. `scores` [tokens,
  // rows] and `arrivals` [tokens], zero before and after, are scratch.
  int top_k = 0;
  float* scores = nullptr;
  unsigned* arrivals = nullptr;

  RowRule rule;  // of kRule
};

// Experts whose matrices a kernel multiplies by.
// kRoutedGateUp: kGateUp of a token whose experts the same launch chooses. kPair: no experts but
// two matrices that read the same token, the second in the place of the shared expert. kConvolved:
// none either; what the matrix reads is made by a convolution with gates in the same launch.
// kHeads: all matrices of a stack, each with its own part of the input (LaunchHeadsLinear).
// kNormed: none; what it reads is normed. Of the matrix kernel for one token with the epilogues
// kStore, kAdd and kSiluMul, whose kNone is without a norm. kGrouped: none; the norm of what it
// reads is one in groups.
enum class Experts {
  kNone,
  kNormed,
  kGateUp,
  kRoutedGateUp,
  kDown,
  kPair,
  kConvolved,
  kHeads,
  kGrouped,
};

// Chosen experts' matrices from one stack.
struct ExpertParams {
  LinearParams linear;             // `tokens` rows; routing picks the matrix of the stack
  const float* routing = nullptr;  // [tokens, routing_stride], as kRouter writes it
  int routing_stride = 0;
  int top_k = 0;

  // One more expert, of its own width, which every token takes with weight one; `rows` 0: none.
  // Needs CanShareLaunch. Its gated product goes to `shared_output` and comes from `shared_input`.
  PackedMatrix shared;
  const float* shared_input = nullptr;
  int shared_input_stride = 0;
  float* shared_output = nullptr;
  int shared_output_stride = 0;
  // Down: [tokens, shared_gate_stride], the first of each row; its sigmoid multiplies what the
  // shared expert adds. Null: none.
  const float* shared_gate = nullptr;
  int shared_gate_stride = 0;

  // Gate, up of one token: the router's matrix, if this launch is to choose the experts too (`rows`
  // 0: no). Needs CanRoute. `routing` is then written, as kRouter writes it.
  PackedMatrix router;
  const float* router_bias = nullptr;  // [experts]; null: none
  float* chosen = nullptr;             // where `routing` points
  RouteParams route;                   // the rule to choose by; `experts` 0: the common one

  // One token: what blocks of a launch tell each other (ExpertExchangeWords), words whose bits are
  // all ones before and after, and a counter, zero before and after. Null: launches do without.
  unsigned* exchange = nullptr;
  unsigned* arrivals = nullptr;
};

// Whether a launch of experts' gates for so many tokens can choose the experts as well: matrices of
// one format and width, a router's matrix that fits in a block's shared memory, one token, and not
// LinearShape::batch_invariant.
bool CanRoute(const PackedMatrix& experts, const PackedMatrix& router, int tokens);

// Whether a launch of experts can take in the shared one: matrices of one format, with the same
// input width (gate, up) or the same rows (down), and not LinearShape::batch_invariant.
bool CanShareLaunch(Experts kind, const PackedMatrix& experts, const PackedMatrix& shared);

// How a kernel is spread over the device.
struct LinearShape {
  // f32 throughout, and the sum over columns is cut in the same way whatever the number of tokens:
  // a token's result is bitwise the same in every batch.
  bool batch_invariant = false;
  int multiprocessors = 132;
  // The matrix unpacked to bf16 (see unpacked_linear.h), times the norm's weight; null: it is not.
  const uint16_t* unpacked = nullptr;
};

// Whether LaunchLinear reads rounded_input, and neither input nor input_rows, for so many tokens.
bool ReadsRounded(const LinearShape& shape, int tokens);

void LaunchLinear(const LinearParams& params, const LinearShape& shape, cudaStream_t stream);

// As LaunchLinear with the results as logits of LaunchRoute, in one launch, for one token and not
// LinearShape::batch_invariant. The matrix has a multiple of four columns; of `route`, logits and
// tokens are not used. `scores` and `arrivals` as for kRouter.
void LaunchRouterByRule(const LinearParams& linear, const RouteParams& route,
                        const LinearShape& shape, cudaStream_t stream);

// Whether LaunchConvolvedLinear takes them.
bool CanConvolve(const PackedMatrix& matrix, const CausalConvParams& conv,
                 const LinearShape& shape);
// As LaunchCausalConv of one run with one token, and LaunchLinear with kAdd of its result, in one
// launch; the conv's output is not written. No bias of the matrix, no norm.
void LaunchConvolvedLinear(const LinearParams& linear, const CausalConvParams& conv,
                           const LinearShape& shape, cudaStream_t stream);

// Whether LaunchGroupedLinear takes them: quantised weights, groups of whole chunks.
bool CanGroup(const PackedMatrix& matrix, int groups, const LinearShape& shape);
// As LaunchLinear with kAdd of one token, whose norm takes its mean over each of `groups` equal
// parts of the row. No bias.
void LaunchGroupedLinear(const LinearParams& linear, int groups, const LinearShape& shape,
                         cudaStream_t stream);

// Whether LaunchLinearPair takes these two matrices.
bool CanPair(const PackedMatrix& first, const PackedMatrix& second, const LinearShape& shape);
// Two matrices that one token's row goes through: as LaunchLinear of both, in one launch. The input
// and its norm are the first's; epilogues are kStore, or kRule without an activation or an
// addition.
void LaunchLinearPair(const LinearParams& first, const LinearParams& second,
                      const LinearShape& shape, cudaStream_t stream);

// For each token and each of the stack's `heads` matrices h: output[token][h * rows ..] = scale *
// W_h input[token][h * step .. h * step + cols). Always batch-invariant. Without a norm, a bias,
// input_rows, and with epilogue kStore.
void LaunchHeadsLinear(const LinearParams& params, int heads, int step, cudaStream_t stream);

// For each token and chosen expert j: output[token][j * width ..] = silu(gate) * up, width = rows /
// 2 of an interleaved stack; epilogue kSiluMul. With kRule as the rule says, width = rows of a
// stack that is not interleaved; without CanRoute.
void LaunchExpertGateUp(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream);
// output[token] += scale * sum over j of weight[j] * W_j input[token][j * cols ..]; epilogue kAdd.
void LaunchExpertDown(const ExpertParams& params, const LinearShape& shape, cudaStream_t stream);

}  // namespace adder::cuda
