"""Layouts of published runs: recomputation, precisions and training that podwright-train does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from podwright.planning.layout import Layout

PublishedRecompute = Literal["none", "selective", "mlp", "full"]
RECOMPUTES: tuple[PublishedRecompute, ...] = ("none", "selective", "mlp", "full")
PublishedPrecision = Literal["bf16", "fp8", "fp4", "fp32"]
Training = Literal["full", "lora", "qlora"]


@dataclass(frozen=True, kw_only=True)
class PublishedLayout(Layout):
    """A layout of another trainer.

    ``recompute`` follows Megatron: ``selective`` repeats only the core of attention, ``mlp`` the MLP or the experts.
    ``repeated_modules`` are Megatron's small ones besides: ``layernorm``, ``moe_act``, ``mla_up_proj``.
    ``offloaded_layers`` keep all their activations in host memory.
    """

    recompute: PublishedRecompute = "none"  # type: ignore[assignment]
    precision: PublishedPrecision = "bf16"  # type: ignore[assignment]
    training: Training = "full"
    repeated_modules: tuple[str, ...] = ()
    offloaded_layers: int = 0
