// Which ops of a program the CUDA backend has kernels for.
#pragma once

#include <type_traits>
#include <variant>

#include "core/error.h"
#include "program/program.h"

namespace adder::cuda {

template <class Body>
inline constexpr bool kHasKernels =
    !std::is_same_v<Body, Mamba1ConvOp> && !std::is_same_v<Body, Mamba1ScanOp>;

// Throws Error naming the first op of the program that no kernel runs.
inline void RequireKernels(const Program& program) {
  for (const Op& op : program.ops) {
    std::visit(
        [&op](const auto& body) {
          if (!kHasKernels<std::decay_t<decltype(body)>>) {
            Fail("Cannot use --device cuda: it has no kernel for the op '", op.name,
                 "' yet. Use --device cpu.");
          }
        },
        op.body);
  }
}

}  // namespace adder::cuda
