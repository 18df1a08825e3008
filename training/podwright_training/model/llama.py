"""Build the model: one block for every family, with Hugging Face's parameter names.

Papers: Llama (arXiv:2302.13971), Llama 2 (arXiv:2307.09288), Llama 3 (arXiv:2407.21783), Mistral (arXiv:2310.06825),
Mixtral (arXiv:2401.04088).
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from podwright_training.config.architecture import ModelConfig
from podwright_training.model.attention import Attention, Mask, make_mask
from podwright_training.model.embedding import Embedding
from podwright_training.model.experts import FeedForward, MixtureOfExperts, is_router_bias
from podwright_training.model.head import Head
from podwright_training.model.recomputation import Recomputation
from podwright_training.model.rotary import RotaryEmbedding

LOGIT_VARIANCE = 0.1  # A new model's loss is then ln(vocab_size) + 0.05, whatever its width.


class LlamaForCausalLM(nn.Module):
    """Token ids → logits or loss. Build it on the meta device, shard it, ``to_empty``, then ``init_weights``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self.lm_head = Head(config)

    def forward(
        self, tokens_BT: Tensor, *, labels_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """Return the logits ``[B, T, V]`` of each next token; with labels, their summed loss, a scalar in fp32.

        Args:
            tokens_BT: token ids.
            labels_BT: the next token of each, or ``IGNORED``.
            positions_BT: the position of each token in its document; tokens do not attend to other documents.
        """
        return self.head(self.model(tokens_BT, positions_BT), labels_BT)

    def head(self, hidden_BTD: Tensor, labels_BT: Tensor | None) -> Tensor:
        """Return logits, or the summed loss of labels, from the output of the last norm."""
        tied_VD = self.model.embed_tokens.weight if self.config.tie_word_embeddings else None
        result: Tensor = self.lm_head(hidden_BTD, labels_BT, tied_VD)
        return result

    def next_tokens(self, hidden_SD: Tensor) -> Tensor:
        """Return the likeliest next token of each, ``[S]``, from the output of the last norm.

        Of ranks that divide the head, the others pass zeros for a token that one of them has.
        """
        tied_VD = self.model.embed_tokens.weight if self.config.tie_word_embeddings else None
        result: Tensor = self.lm_head(hidden_SD, None, tied_VD, next_tokens=True)
        return result

    @torch.no_grad()
    def init_weights(self, *, seed: int) -> None:
        """Initialize every parameter and buffer.

        A value depends on the seed and the parameter's name, never on how the parameter is sharded.
        """
        for name, parameter in self.named_parameters():
            std = self._initial_std(name)
            _fill(parameter, std=std, seed=seed + zlib.crc32(name.encode()))
        self.reset_buffers()

    @torch.no_grad()
    def reset_buffers(self) -> None:
        """Recompute the buffers, which no checkpoint contains: after ``to_empty`` they are garbage."""
        self.model.rotary_emb.reset()
        self.weigh_loss(1.0)

    @torch.no_grad()
    def weigh_loss(self, weight: float) -> None:
        """Set the factor of the summed loss before backward; it applies to the experts' loss too."""
        for module in self.modules():
            if isinstance(module, MixtureOfExperts):
                module.loss_weight.fill_(weight)

    def _initial_std(self, name: str) -> float | None:
        """Return the initial standard deviation of a matrix; ``None`` for a norm's weight, which starts at one."""
        config = self.config
        head_std = min(config.initializer_range, math.sqrt(LOGIT_VARIANCE / config.hidden_size))
        if name.endswith("norm.weight"):
            return None
        if is_router_bias(name):
            return 0.0
        if name == "lm_head.weight" or (config.tie_word_embeddings and name == "model.embed_tokens.weight"):
            return head_std
        if name.endswith(("o_proj.weight", "down_proj.weight", "experts.down_proj")):
            # the sum of all blocks keeps its size (GPT-2)
            return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)
        return config.initializer_range


class LlamaModel(nn.Module):
    """Token ids → normalised hidden states.

    Attributes:
        attention: the GPU's attention kernel, as of ``make_mask``.
    """

    attention = "auto"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        """Return the hidden states ``[B, T, D]``."""
        x_BTD = self.embed_tokens(tokens_BT)
        mask = make_mask(tokens_BT, positions_BT=positions_BT, window=self.config.sliding_window, how=self.attention)
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) if positions_BT is None else positions_BT
        cos_T1H, sin_T1H = self.rotary_emb(positions, x_BTD.dtype)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_T1H, sin_T1H, mask)
        hidden_BTD: Tensor = self.norm(x_BTD)
        return hidden_BTD


class Block(nn.Module):
    """Attention, then feed-forward, each added to the residual stream."""

    recomputation: Recomputation | None = None  # in backward, of activations that were not kept

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MixtureOfExperts(config) if config.num_local_experts else FeedForward(config)

    def forward(self, x_BTD: Tensor, cos_T1H: Tensor, sin_T1H: Tensor, mask: Mask = None) -> Tensor:
        """Return the residual stream after this block, ``[B, T, D]``."""
        if self.recomputation is None:
            return self._forward(x_BTD, cos_T1H, sin_T1H, mask)
        return self.recomputation(self._forward, x_BTD, cos_T1H, sin_T1H, mask)

    def _forward(self, x_BTD: Tensor, cos_T1H: Tensor, sin_T1H: Tensor, mask: Mask) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_T1H, sin_T1H, mask)
        y_BTD: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return y_BTD


def _fill(parameter: Tensor, *, std: float | None, seed: int) -> None:
    """Fill a parameter; each rank draws the same whole parameter and keeps its shard."""
    if std is None:
        parameter.fill_(1.0)
        return
    generator = torch.Generator(device=parameter.device).manual_seed(seed)
    full = torch.empty(parameter.shape, device=parameter.device).normal_(std=std, generator=generator)
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        shape, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
        full = full[tuple(slice(begin, begin + size) for begin, size in zip(offset, shape, strict=True))]
        parameter = parameter.to_local()
    parameter.copy_(full)
