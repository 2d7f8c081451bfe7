// Activations in double, for tests of kernels.
#pragma once

#include <cmath>

#include "model/plan.h"

namespace adder::cuda::test {

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return std::tanh(x);
  }
  return x;
}

}  // namespace adder::cuda::test
