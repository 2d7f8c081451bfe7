// The scalar functions of the vocabulary as the interpreter computes them.
#pragma once

#include <cmath>
#include <numbers>

#include "model/plan.h"

namespace adder {

inline double Silu(double x) { return x / (1.0 + std::exp(-x)); }

inline double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// log(1 + e^x). Above the threshold the result is x to f32 rounding; the references switch there.
inline double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

inline double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return Silu(x);
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      // sqrt(2 / pi) = (2 / sqrt(pi)) / sqrt(2)
      return 0.5 * x *
             (1.0 + std::tanh(2.0 * std::numbers::inv_sqrtpi / std::numbers::sqrt2 *
                              (x + 0.044715 * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0.0;
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return std::tanh(x);
  }
  return x;
}

}  // namespace adder
