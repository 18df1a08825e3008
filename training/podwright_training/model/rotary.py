"""Compute rotary position embeddings (arXiv:2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from podwright_training.config.architecture import ModelConfig


class RotaryEmbedding(nn.Module):
    """Rotary angles, computed in fp32 from a buffer that no checkpoint contains; it stays in fp32 in every model."""

    inv_freq: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("inv_freq", rotary_frequencies(config), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:  # noqa: FBT001, FBT002 - PyTorch's
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.inv_freq.dtype != torch.float32:  # a model in bf16 would have angles with an error of a radian
            self.inv_freq = rotary_frequencies(self.config, device=self.inv_freq.device)
        return self

    def reset(self) -> None:
        """Recompute the buffer: after ``to_empty`` it is garbage."""
        self.inv_freq.copy_(rotary_frequencies(self.config, device=self.inv_freq.device))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions ``[T]`` or ``[B, T]``, each ``[…, T, 1, H]``, for ``rotate``."""
        angles = positions.unsqueeze(-1) * self.inv_freq
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat((cos, cos), dim=-1).unsqueeze(-2), torch.cat((-sin, sin), dim=-1).unsqueeze(-2)


def rotate(x_BTNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """Rotate each pair of dimensions ``i`` and ``i + H / 2`` by its angle: the pairing of Hugging Face's Llama."""
    first_half, second_half = x_BTNH.chunk(2, dim=-1)
    return torch.addcmul(x_BTNH * cos_T1H, torch.cat((second_half, first_half), dim=-1), sin_T1H)


def rotary_frequencies(config: ModelConfig, device: torch.device | None = None) -> Tensor:
    """Return the radians per position of each pair of dimensions, fp32 ``[H / 2]``.

    With ``rope_scaling``, wavelengths above the original context divided by ``low_freq_factor`` are scaled by
    ``factor``, those below it divided by ``high_freq_factor`` stay, those between are interpolated.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    waves_in_context = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept_share = ((waves_in_context - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept_share + (1 - kept_share) / scaling.factor)
