// What of the vocabulary the CUDA backend has kernels for.
#pragma once

#include <string>
#include <type_traits>

#include "program/program.h"

namespace adder::cuda {

// Whether there are kernels for an op at all; CheckSupported refuses programs with others.
template <class Body>
inline constexpr bool kHasKernels =
    !std::is_same_v<Body, NormAddOp> && !std::is_same_v<Body, Mamba2SelectedOp> &&
    !std::is_same_v<Body, CausalConvOp> && !std::is_same_v<Body, Mamba1ScanOp> &&
    !std::is_same_v<Body, JoinOp> && !std::is_same_v<Body, UpdateOp> &&
    !std::is_same_v<Body, HeadsLinearOp> && !std::is_same_v<Body, LatentAttentionOp> &&
    !std::is_same_v<Body, LightningOp> && !std::is_same_v<Body, HeadMixOp> &&
    !std::is_same_v<Body, GatedDeltaOp> && !std::is_same_v<Body, TokenShiftOp> &&
    !std::is_same_v<Body, RgLruOp> && !std::is_same_v<Body, Rwkv7Op>;

// The first part of the program that has no kernel ("layers.3.mlp.gate_up: an MLP without a gate"),
// or nothing when all have.
std::string UnsupportedPart(const Program& program);

// Throws Error naming that part.
void CheckSupported(const Program& program);

}  // namespace adder::cuda
