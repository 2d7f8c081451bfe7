"""The checkpoint on disk: MLX's tensor names and layouts, quantised, next to its `config.json`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import HybridModel, ModelConfig
from quantization import GROUP_SIZE, dequantize, pack, quantize, unpack

WEIGHT_BITS = 4
EMBEDDING_BITS = 8
"""The embedding is also the output matrix, where rounding costs the most."""

EMBEDDING = "model.embed_tokens"


def save_checkpoint(model: HybridModel, folder: Path) -> None:
    """Writes `model.safetensors` and `config.json`."""
    tensors: dict[str, Tensor] = {}
    for name, value in _to_mlx_names(model.state_dict()).items():
        module, _, leaf = name.rpartition(".")
        if value.dim() == 2 and leaf == "weight":
            levels, scales, biases = quantize(value.float(), _bits(module))
            tensors[name] = pack(levels, _bits(module))
            tensors[f"{module}.scales"] = scales.to(torch.bfloat16)
            tensors[f"{module}.biases"] = biases.to(torch.bfloat16)
        else:
            tensors[name] = value.to(torch.bfloat16)
    tensors = {name: tensors[name].cpu().contiguous() for name in sorted(tensors)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})

    config = model.config.to_hugging_face()
    config["quantization"] = {
        "group_size": GROUP_SIZE,
        "bits": WEIGHT_BITS,
        "mode": "affine",
        EMBEDDING: {"group_size": GROUP_SIZE, "bits": EMBEDDING_BITS},
    }
    config["quantization_config"] = config["quantization"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_checkpoint(folder: Path) -> HybridModel:
    """The model with the dequantised weights in float32."""
    model = HybridModel(ModelConfig())
    stored = load_file(folder / "model.safetensors")
    tensors: dict[str, Tensor] = {}
    for name, value in stored.items():
        module, _, leaf = name.rpartition(".")
        if f"{module}.scales" not in stored:
            tensors[name] = value.float()
        elif leaf == "weight":
            levels = unpack(value, _bits(module))
            scales, biases = stored[f"{module}.scales"], stored[f"{module}.biases"]
            tensors[name] = dequantize(levels, scales, biases)
    model.load_state_dict(_from_mlx_names(tensors))
    return model.eval()


def _bits(module: str) -> int:
    return EMBEDDING_BITS if module == EMBEDDING else WEIGHT_BITS


def _to_mlx_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, value in tensors.items():
        if name.endswith("shared_mlp.input_linear.weight"):
            gate, up = value.chunk(2)
            layer = name.removesuffix("shared_mlp.input_linear.weight")
            renamed[f"{layer}mlp.gate_proj.weight"] = gate
            renamed[f"{layer}mlp.up_proj.weight"] = up
        elif name.endswith("conv1d.weight"):
            renamed[name] = value.transpose(1, 2)
        else:
            renamed[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = value
    return renamed


def _from_mlx_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, value in tensors.items():
        if name.endswith("mlp.gate_proj.weight"):
            layer = name.removesuffix("mlp.gate_proj.weight")
            both = torch.cat([value, tensors[f"{layer}mlp.up_proj.weight"]])
            renamed[f"{layer}shared_mlp.input_linear.weight"] = both
        elif name.endswith("mlp.up_proj.weight"):
            continue
        elif name.endswith("conv1d.weight"):
            renamed[name] = value.transpose(1, 2)
        else:
            renamed[name.replace("mlp.down_proj", "shared_mlp.output_linear")] = value
    return renamed
