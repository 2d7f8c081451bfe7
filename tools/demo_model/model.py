"""The demo model: a dense `granitemoehybrid` network (Mamba-2, attention without positions, MLP).

Parameter names, shapes and arithmetic are those of Hugging Face's GraniteMoeHybridForCausalLM, so a
state dict moves between the two unchanged (`check_transformers.py` compares them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Architecture. Every matrix input is a multiple of 64 wide, so all of them quantise."""

    vocab_size: int = 4096
    hidden_size: int = 320
    layer_types: tuple[str, ...] = (
        "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba",
    )  # fmt: skip
    mlp_size: int = 640
    attention_heads: int = 5
    key_value_heads: int = 1
    mamba_expand: int = 2
    mamba_head_dim: int = 32
    mamba_state_size: int = 128
    mamba_kernel: int = 4
    embedding_multiplier: float = 12.0
    attention_multiplier: float = 0.0625
    residual_multiplier: float = 0.35
    logits_scaling: float = 3.0
    rms_norm_eps: float = 1e-5
    context_length: int = 1024

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.attention_heads

    @property
    def mamba_size(self) -> int:
        """Inner width of the Mamba-2 mixer."""
        return self.mamba_expand * self.hidden_size

    @property
    def mamba_heads(self) -> int:
        """Number of SSM heads."""
        return self.mamba_size // self.mamba_head_dim

    def to_hugging_face(self) -> dict:
        """The `config.json` that describes this model to other programs."""
        return {
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attention_multiplier": self.attention_multiplier,
            "bos_token_id": 0,
            "embedding_multiplier": self.embedding_multiplier,
            "eos_token_id": 0,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "init_method": "mup",
            "initializer_range": 0.1,
            # Unused in a dense model by transformers, but mlx-lm reads the MLP's width here.
            "intermediate_size": self.mlp_size,
            "layer_types": list(self.layer_types),
            "logits_scaling": self.logits_scaling,
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_d_conv": self.mamba_kernel,
            "mamba_d_head": self.mamba_head_dim,
            "mamba_d_state": self.mamba_state_size,
            "mamba_expand": self.mamba_expand,
            "mamba_n_groups": 1,
            "mamba_n_heads": self.mamba_heads,
            "mamba_proj_bias": False,
            "max_position_embeddings": self.context_length,
            "normalization_function": "rmsnorm",
            "num_attention_heads": self.attention_heads,
            "num_experts_per_tok": 0,
            "num_hidden_layers": len(self.layer_types),
            "num_key_value_heads": self.key_value_heads,
            "num_local_experts": 0,
            "output_router_logits": False,
            "pad_token_id": 0,
            "position_embedding_type": "nope",
            "residual_multiplier": self.residual_multiplier,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": None,
            "rope_theta": 10000,
            "router_aux_loss_coef": 0.0,
            "shared_intermediate_size": self.mlp_size,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab_size,
        }


class Linear(nn.Linear):
    """Linear layer without a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class MambaMixer(nn.Module):
    """Mamba-2: short causal convolution, selective state space, gated normalisation."""

    def __init__(self, config: ModelConfig, chunk_length: int) -> None:
        super().__init__()
        self.size = config.mamba_size
        self.heads = config.mamba_heads
        self.state_size = config.mamba_state_size
        self.chunk_length = chunk_length
        convolved = self.size + 2 * self.state_size
        self.in_proj = Linear(config.hidden_size, self.size + convolved + self.heads)
        self.conv1d = nn.Conv1d(convolved, convolved, config.mamba_kernel, groups=convolved)
        self.dt_bias = nn.Parameter(torch.empty(self.heads))
        self.A_log = nn.Parameter(torch.empty(self.heads))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = RMSNorm(self.size, config.rms_norm_eps)
        self.out_proj = Linear(self.size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes [batch, length, hidden] along the length."""
        convolved = self.size + 2 * self.state_size
        gate, xbc, dt = self.in_proj(x).split([self.size, convolved, self.heads], dim=-1)
        xbc = F.silu(self._convolve(xbc))
        inner, b, c = xbc.split([self.size, self.state_size, self.state_size], dim=-1)
        inner = inner.unflatten(-1, (self.heads, -1))
        dt = F.softplus(dt.float() + self.dt_bias)
        y = selective_scan(inner, dt, -torch.exp(self.A_log), b, c, self.chunk_length)
        y = y + inner.float() * self.D[:, None]
        gated = y.flatten(-2) * F.silu(gate.float())
        return self.out_proj(self.norm(gated).to(x.dtype))

    def _convolve(self, x: Tensor) -> Tensor:
        """Causal depthwise convolution as shifted products, which compilers fuse into one pass."""
        weight = self.conv1d.weight.squeeze(1)
        taps = weight.shape[-1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        length = x.shape[1]
        total = sum(padded[:, k : k + length] * weight[:, k] for k in range(taps))
        return (total + self.conv1d.bias).to(x.dtype)


def selective_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """The SSM recurrence h_t = exp(dt_t a) h_{t-1} + dt_t x_t b_t^T, y_t = h_t c_t, in chunks.

    Within a chunk the outputs are a masked matrix product, as in linear attention; between chunks
    only the chunks' final states are combined. The decays are float32 logarithms throughout: their
    running sums lose the long memories in bfloat16. The matrix products run in the type of `x`.

    Args:
        x: inputs, [batch, length, heads, head_dim].
        dt: positive step sizes, [batch, length, heads], float32.
        a: negative decay rates, [heads], float32.
        b: input directions, [batch, length, state], shared by all heads.
        c: output directions, [batch, length, state], shared by all heads.
        chunk: tokens per chunk.

    Returns:
        [batch, length, heads, head_dim], float32.
    """
    length, dtype = x.shape[1], x.dtype
    padding = -length % chunk
    if padding:
        # A step size of zero neither decays the state nor adds to it.
        x, dt = F.pad(x, (0, 0, 0, 0, 0, padding)), F.pad(dt, (0, 0, 0, padding))
        b, c = F.pad(b, (0, 0, 0, padding)), F.pad(c, (0, 0, 0, padding))

    # Precision is chosen here by hand, so autocast must not change it.
    with torch.autocast(x.device.type, enabled=False):
        x = x.unflatten(1, (-1, chunk))  # [batch, chunks, chunk, heads, head_dim]
        b = b.unflatten(1, (-1, chunk))  # [batch, chunks, chunk, state]
        c = c.unflatten(1, (-1, chunk))
        dt = dt.unflatten(1, (-1, chunk))
        decay = (dt * a).cumsum(dim=2)  # log of the decay from the chunk's start, inclusive
        weighted = (x.float() * dt[..., None]).to(dtype)

        # Outputs due to inputs of the same chunk.
        by_head = decay.transpose(2, 3)  # [batch, chunks, heads, chunk]
        mask = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
        between = by_head[..., :, None] - by_head[..., None, :]
        between = between.masked_fill(~mask, -math.inf).exp()
        scores = torch.matmul(c, b.transpose(2, 3))  # [batch, chunks, chunk, chunk]
        scores = (scores.float()[:, :, None] * between).to(dtype)
        y = torch.matmul(scores, weighted.transpose(2, 3)).transpose(2, 3).float()

        # Each chunk's own contribution to the state at its end, all heads in one product.
        to_end = (decay[:, :, -1:] - decay).exp()
        contribution = (weighted.float() * to_end[..., None]).to(dtype).flatten(-2)
        states = torch.matmul(contribution.transpose(2, 3), b)
        states = states.unflatten(2, (x.shape[3], -1))  # [batch, chunks, heads, head_dim, state]

        # State at each chunk's start: earlier contributions, decayed over the chunks in between.
        total = decay[:, :, -1].transpose(1, 2).cumsum(dim=-1)  # [batch, heads, chunks]
        before = F.pad(total, (1, 0))[..., :-1]
        chunks = total.shape[-1]
        earlier = torch.ones(chunks, chunks, dtype=torch.bool, device=x.device).tril(-1)
        across = before[..., :, None] - total[..., None, :]
        across = across.masked_fill(~earlier, -math.inf).exp().to(dtype)
        initial = torch.einsum("bhij,bjhpn->bihpn", across, states)

        # Outputs due to the state at the chunk's start.
        carried = torch.matmul(c, initial.flatten(2, 3).transpose(2, 3)).unflatten(-1, x.shape[3:])
        y = y + carried.float() * decay.exp()[..., None]
    return y.flatten(1, 2)[:, :length]


class Attention(nn.Module):
    """Causal grouped-query attention without position embedding: the SSM layers know the order."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scale = config.attention_multiplier
        self.q_proj = Linear(config.hidden_size, config.attention_heads * self.head_dim)
        self.k_proj = Linear(config.hidden_size, config.key_value_heads * self.head_dim)
        self.v_proj = Linear(config.hidden_size, config.key_value_heads * self.head_dim)
        self.o_proj = Linear(config.attention_heads * self.head_dim, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes [batch, length, hidden] along the length."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.scale, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class GatedMLP(nn.Module):
    """SiLU-gated MLP; gate and up projection are one matrix, as in Hugging Face's checkpoints."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_linear = Linear(config.hidden_size, 2 * config.mlp_size)
        self.output_linear = Linear(config.mlp_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Applies the MLP to every position."""
        gate, up = self.input_linear(x).chunk(2, dim=-1)
        return self.output_linear(F.silu(gate) * up)


class Block(nn.Module):
    """Pre-normalised mixer and MLP, each added to the residual stream with a fixed factor."""

    def __init__(self, config: ModelConfig, kind: str, dropout: float, chunk_length: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.kind = kind
        if kind == "mamba":
            self.mamba = MambaMixer(config, chunk_length)
        else:
            self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.shared_mlp = GatedMLP(config)
        self.residual_multiplier = config.residual_multiplier
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        mixer = self.mamba if self.kind == "mamba" else self.self_attn
        x = self._add(x, mixer(self.input_layernorm(x)))
        return self._add(x, self.shared_mlp(self.post_attention_layernorm(x)))

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        update = F.dropout(update, self.dropout, self.training)
        return x + update * self.residual_multiplier


class Backbone(nn.Module):
    """Embedding, blocks and final normalisation."""

    def __init__(self, config: ModelConfig, dropout: float, chunk_length: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Block(config, kind, dropout, chunk_length) for kind in config.layer_types
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class HybridModel(nn.Module):
    """The language model; the output matrix is the embedding."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0, chunk_length: int = 64) -> None:
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.model = Backbone(config, dropout, chunk_length)
        self._initialize()

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """Final normalised hidden states, [batch, length, hidden]."""
        x = self.model.embed_tokens(tokens) * self.config.embedding_multiplier
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token."""
        return F.linear(hidden, self.model.embed_tokens.weight) / self.config.logits_scaling

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position, [batch, length, vocab]."""
        return self.logits(self.hidden_states(tokens))

    def token_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target in nats, [batch * length]; 0 where it is -100."""
        logits = self.logits(hidden).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), reduction="none")

    def _initialize(self) -> None:
        nn.init.normal_(self.model.embed_tokens.weight, std=0.05)
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
            elif isinstance(module, MambaMixer):
                # Memories of about 1 to 1000 tokens: decay rates 1 to 16, steps 0.001 to 0.1.
                nn.init.uniform_(module.A_log, 1.0, 16.0).data.log_()
                step = torch.empty_like(module.dt_bias).uniform_(math.log(1e-3), math.log(0.1))
                module.dt_bias.data.copy_(torch.log(torch.expm1(step.exp())))
