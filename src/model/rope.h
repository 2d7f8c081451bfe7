// Rotary position embeddings (Su et al., "RoFormer", arXiv:2104.09864) as a plan describes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace adder {

// Rotary position embedding of the first `rotary_dim` elements of each head, in the half-split
// form: element i pairs with i + rotary_dim / 2; or interleaved: element 2 i pairs with 2 i + 1.
// Pair i of a token at position p turns by the angle a = p * inverse_frequencies[i]:
//   (x, y) becomes factor * (x cos a - y sin a, y cos a + x sin a)
// inverse_frequencies has rotary_dim / 2 entries with any scaling (linear, llama3, ...) already
// applied.
struct Rope {
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  std::string scaling = "default";  // for people
  std::vector<float> inverse_frequencies;
  bool interleaved = false;
  float factor = 1;

  // What follows is of scalings whose frequencies depend on the length of texts (FitRope).
  int64_t trained_positions = 0;
  double dynamic_factor = 0;                          // of "dynamic"; else 0
  std::vector<float> short_inverse_frequencies = {};  // of "longrope": up to trained_positions,
  std::vector<float> long_inverse_frequencies = {};   // and beyond; else empty
};

// theta ^ (-2 i / rotary_dim) for each of rotary_dim / 2 pairs i.
std::vector<float> PlainFrequencies(double theta, int64_t rotary_dim);

// Chooses the frequencies for texts of up to `positions` tokens, at least 1:
// - "longrope" (Ding et al., arXiv:2402.13753) has two sets, for texts within trained_positions and
//   for longer ones;
// - "dynamic" keeps the plain ones within trained_positions; beyond, the base is stretched to
//   theta * (dynamic_factor * positions / trained_positions - (dynamic_factor - 1)) ^
//   (rotary_dim / (rotary_dim - 2)).
// Any other scaling has one set. References choose anew as a text grows, which leaves keys in the
// cache that were turned by other frequencies; here one choice holds for the whole text.
void FitRope(Rope& rope, int64_t positions);

}  // namespace adder
