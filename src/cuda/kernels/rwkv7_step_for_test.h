// RWKV-7's rule for one token and head, in double precision, and what tests of its kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/kernels/ragged_runs_for_test.h"
#include "cuda/kernels/rwkv7.h"

namespace adder::cuda::test {

// input(which, i): r, k, v, decay, rate, gate, value_mix, first_value of channel i; vector(which,
// i): key_scale, key_rate, bonus, the norm's weight and bias. The norm's eps is 1e-3. Updates the
// state [dim, dim] and returns the gated output.
template <class Input, class Vector>
std::vector<double> Rwkv7Step(size_t dim, bool value_mix, Input input, Vector vector,
                              std::vector<double>& state) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto size = static_cast<double>(dim);
  std::vector<double> kappa, alpha, key, value, y(dim);
  double squares = 0;
  double own = 0;
  for (size_t i = 0; i < dim; ++i) {
    kappa.push_back(input(1, i) * vector(0, i));
    squares += kappa[i] * kappa[i];
    alpha.push_back(sigmoid(input(4, i)));
    key.push_back(input(1, i) * (1 + (alpha[i] - 1) * vector(1, i)));
    own += input(0, i) * key[i] * vector(2, i);
    value.push_back(input(2, i));
    if (value_mix) value[i] += sigmoid(input(6, i)) * (input(7, i) - value[i]);
  }
  for (double& of : kappa) of /= std::max(std::sqrt(squares), 1e-7);
  double mean = 0;
  for (size_t c = 0; c < dim; ++c) {
    double answer = 0;
    for (size_t n = 0; n < dim; ++n) answer -= kappa[n] * state[n * dim + c];
    for (size_t n = 0; n < dim; ++n) {
      double& s = state[n * dim + c];
      s = std::exp(-std::exp(-0.5) * sigmoid(input(3, n))) * s + alpha[n] * kappa[n] * answer +
          key[n] * value[c];
      y[c] += input(0, n) * s;
    }
    mean += y[c] / size;
  }
  double variance = 1e-3;
  for (double of : y) variance += (of - mean) * (of - mean) / size;
  for (size_t c = 0; c < dim; ++c) {
    const double normed = (y[c] - mean) / std::sqrt(variance) * vector(3, c) + vector(4, c);
    y[c] = (normed + own * value[c]) * input(5, c);
  }
  return y;
}

// A layer's vectors on the device, in the order in which Rwkv7Step asks for them.
class Rwkv7DeviceVectors {
 public:
  template <class Vectors>
  explicit Rwkv7DeviceVectors(const Vectors& vectors) {
    for (const std::vector<float>& vector : vectors) vectors_.emplace_back(vector);
  }
  // For rows of `stride` floats: `inputs` as Rwkv7Step numbers them, of which those that low ranks
  // make (3 to 6) are not set.
  Rwkv7Params Params(int heads, int head_dim, int state_offset, int stride,
                     const RaggedBatch& batch, const std::vector<const float*>& inputs,
                     float* output) const {
    Rwkv7Params p;
    p.heads = heads;
    p.head_dim = head_dim;
    p.key_scale = vectors_[0].data();
    p.key_rate = vectors_[1].data();
    p.bonus = vectors_[2].data();
    p.norm_weight = vectors_[3].data();
    p.norm_bias = vectors_[4].data();
    p.norm_eps = 1e-3f;
    p.state_offset = state_offset;
    p.runs = batch.runs;
    p.run_count = batch.run_count;
    p.stride = stride;
    p.r = inputs[0];
    p.k = inputs[1];
    p.v = inputs[2];
    p.first_value = inputs[7];
    p.output = output;
    return p;
  }

 private:
  std::vector<DeviceArray<float>> vectors_;
};

}  // namespace adder::cuda::test
