"""Group-wise affine quantisation as MLX stores it: w = q * scale + bias per group of inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GROUP_SIZE = 64
CLIP_RATIOS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Fractions of a group's range that are tried; at 4 bits losing an outlier can pay."""


def affine_parameters(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and bias of every group, [rows, groups, 1], already rounded to bfloat16.

    Chooses, per group, the clip ratio of least squared error.
    """
    groups = weight.unflatten(-1, (-1, GROUP_SIZE))
    low = groups.amin(dim=-1, keepdim=True)
    high = groups.amax(dim=-1, keepdim=True)
    best_scale = best_bias = best_error = None
    for ratio in CLIP_RATIOS:
        scale = _round_to_bfloat16(((high - low) * ratio / (2**bits - 1)).clamp_min(1e-8))
        bias = _round_to_bfloat16(low * ratio)
        error = (groups - _nearest_level(groups, scale, bias, bits) * scale - bias).square()
        error = error.sum(dim=-1, keepdim=True)
        if best_error is None:
            best_scale, best_bias, best_error = scale, bias, error
        else:
            better = error < best_error
            best_scale = torch.where(better, scale, best_scale)
            best_bias = torch.where(better, bias, best_bias)
            best_error = torch.where(better, error, best_error)
    return best_scale, best_bias


def quantize(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Levels [rows, inputs] (int64), scales and biases [rows, groups] (bfloat16 values)."""
    scale, bias = affine_parameters(weight, bits)
    groups = weight.unflatten(-1, (-1, GROUP_SIZE))
    levels = _nearest_level(groups, scale, bias, bits).long().flatten(-2)
    return levels, scale.squeeze(-1), bias.squeeze(-1)


def dequantize(levels: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
    """The float32 weight that `quantize` stored."""
    groups = levels.float().unflatten(-1, (-1, GROUP_SIZE))
    return (groups * scales[..., None].float() + biases[..., None].float()).flatten(-2)


def pack(levels: Tensor, bits: int) -> Tensor:
    """Packs levels along the input axis into uint32 words, value k at bit k * bits of the row."""
    per_word = 32 // bits
    words = levels.cpu().numpy().astype(np.uint64)
    words = words.reshape(words.shape[0], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    return torch.from_numpy((words << shifts).sum(axis=-1, dtype=np.uint64).astype(np.uint32))


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Inverse of `pack`."""
    per_word = 32 // bits
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    levels = (packed.numpy()[..., None] >> shifts) & np.uint32(2**bits - 1)
    return torch.from_numpy(levels.reshape(levels.shape[0], -1).astype(np.int64))


def _nearest_level(groups: Tensor, scale: Tensor, bias: Tensor, bits: int) -> Tensor:
    return ((groups - bias) / scale).round().clamp(0, 2**bits - 1)


def _round_to_bfloat16(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16).to(torch.float32)
