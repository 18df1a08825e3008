"""Llama: RMSNorm, grouped-query attention with rotary positions, SwiGLU; parameter names are Hugging Face's.

Shapes are in names: B sequences, T tokens, D hidden_size, N query heads, K key-value heads, H head_dim, V vocab_size.
Papers: Llama (arXiv:2302.13971), Llama 2 (arXiv:2307.09288), Llama 3 (arXiv:2407.21783).
"""

from __future__ import annotations

import math
import zlib
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from podwright_training.config import ModelConfig

LOGIT_VARIANCE = 0.1  # of a new model: its loss is ln(vocab_size) + 0.05, whatever its width


class LlamaForCausalLM(nn.Module):
    """Token ids → logits. Build it on the meta device, shard it, ``to_empty``, then ``init_weights``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits ``[B, T, V]`` of each next token."""
        head = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(self.model(tokens_BT), head.weight)

    @torch.no_grad()
    def init_weights(self, *, seed: int) -> None:
        """Give every parameter and buffer its initial value.

        A value depends on the seed and the parameter's name, never on how the parameter is sharded.
        """
        for name, parameter in self.named_parameters():
            std = self._initial_std(name)
            _fill(parameter, std=std, seed=seed + zlib.crc32(name.encode()))
        self.model.rotary_emb.reset()

    def _initial_std(self, name: str) -> float | None:
        """Standard deviation of a matrix's initial values; ``None`` for a norm's weight, which starts at one."""
        config = self.config
        head_std = min(config.initializer_range, math.sqrt(LOGIT_VARIANCE / config.hidden_size))
        if name.endswith("norm.weight"):
            return None
        if name == "lm_head.weight" or (config.tie_word_embeddings and name == "model.embed_tokens.weight"):
            return head_std
        if name.endswith(("o_proj.weight", "down_proj.weight")):  # the sum of all blocks keeps its size (GPT-2)
            return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
        return config.initializer_range


class LlamaModel(nn.Module):
    """Token ids → normalised hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]``."""
        x_BTD = self.embed_tokens(tokens_BT)
        cos_TH, sin_TH = self.rotary_emb(tokens_BT.shape[1], x_BTD.dtype)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TH, sin_TH)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream."""

    recompute = False  # keep only the input for backward, compute the rest again
    offload = False  # keep that input in the host's memory

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        """The residual stream after this block, ``[B, T, D]``."""
        if not self.recompute:
            return self._forward(x_BTD, cos_TH, sin_TH)
        with save_on_cpu(pin_memory=x_BTD.is_cuda) if self.offload else nullcontext():
            y_BTD: Tensor = checkpoint(self._forward, x_BTD, cos_TH, sin_TH, use_reentrant=False)
        return y_BTD

    def _forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TH, sin_TH)
        y_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return y_BTD


class Attention(nn.Module):
    """Causal attention; groups of N / K query heads share a key-value head (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_width = config.num_attention_heads * config.head_dim
        key_value_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_value_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_value_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.grouped = config.num_key_value_heads < config.num_attention_heads

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        """What each token takes from those before it and itself, ``[B, T, D]``."""
        q_BNTH = rotate(self._heads(self.q_proj(x_BTD)), cos_TH, sin_TH)
        k_BKTH = rotate(self._heads(self.k_proj(x_BTD)), cos_TH, sin_TH)
        v_BKTH = self._heads(self.v_proj(x_BTD))
        y_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BKTH, v_BKTH, is_causal=True, enable_gqa=self.grouped)
        y_BTD: Tensor = self.o_proj(y_BNTH.transpose(1, 2).flatten(2))
        return y_BTD

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """``[B, T, D]`` → ``[B, T, D]``."""
        y_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return y_BTD


class RotaryEmbedding(nn.Module):
    """Angles of the rotary positions (arXiv:2104.09864), computed in fp32 from a buffer that no checkpoint holds."""

    inv_freq: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("inv_freq", rotary_frequencies(config), persistent=False)

    def reset(self) -> None:
        """Compute the buffer again: after ``to_empty`` it holds garbage."""
        self.inv_freq.copy_(rotary_frequencies(self.config, device=self.inv_freq.device))

    def forward(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine for positions 0 … length - 1, each ``[T, H]`` with two equal halves."""
        positions_T = torch.arange(length, device=self.inv_freq.device, dtype=torch.float32)
        angles_TH = torch.outer(positions_T, self.inv_freq).repeat(1, 2)
        return angles_TH.cos().to(dtype), angles_TH.sin().to(dtype)


def rotate(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Turn each pair of dimensions ``i`` and ``i + H / 2`` by its angle: the pairing of Hugging Face's Llama."""
    first, second = x_BNTH.chunk(2, dim=-1)
    return x_BNTH * cos_TH + torch.cat((-second, first), dim=-1) * sin_TH


def rotary_frequencies(config: ModelConfig, device: torch.device | None = None) -> Tensor:
    """Radians per position of each pair of dimensions, fp32 ``[H / 2]``.

    With ``rope_scaling``, waves longer than the original context divided by ``low_freq_factor`` are stretched by
    ``factor``, those shorter than it divided by ``high_freq_factor`` stay, those between are interpolated.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    waves_in_context = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((waves_in_context - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _fill(parameter: Tensor, *, std: float | None, seed: int) -> None:
    """Fill a parameter, one whole parameter in memory at a time; each rank keeps its shard of the same values."""
    if std is None:
        parameter.fill_(1.0)
        return
    generator = torch.Generator(device=parameter.device).manual_seed(seed)
    full = torch.empty(parameter.shape, device=parameter.device).normal_(std=std, generator=generator)
    if isinstance(parameter, DTensor):
        full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(full)
