"""Save memory: keep part of a block's activations and recompute the rest in backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

# Slow to compute, cheap to keep: matrix products, attention, results of communication.
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,  # noqa: SLF001 - operators have no public names
    torch.ops.aten._scaled_mm_v2.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - as above
    torch.ops.higher_order.flex_attention,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001 - as above
]

T = TypeVar("T")
_remembered: ContextVar[dict[int, Any] | None] = ContextVar("_remembered", default=None)


def once(owner: object, compute: Callable[[], T]) -> T:
    """Return ``compute()``; where a block is recomputed, what it returned to this owner the first time."""
    remembered = _remembered.get()
    if remembered is None:
        return compute()
    if id(owner) not in remembered:
        remembered[id(owner)] = compute()
    found: T = remembered[id(owner)]
    return found


@dataclass(frozen=True, kw_only=True)
class Recomputation:
    """Options of a block's recomputation.

    Attributes:
        mode: ``full`` keeps the block's input, ``selective`` also the results of ``KEPT``.
        offload: keep the block's input in host memory.
        remembers: ``once`` works within the block, which then is not compiled as a whole.
    """

    mode: str = "full"
    offload: bool = False
    remembers: bool = False

    def __call__(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        """``compute(*args)``."""
        options: dict[str, Any] = {"use_reentrant": False}
        if self.mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
        with save_on_cpu(pin_memory=args[0].device.type != "cpu") if self.offload else nullcontext():
            y: Tensor = checkpoint(_remembering(compute) if self.remembers else compute, *args, **options)
        return y


def _remembering(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    remembered: dict[int, Any] = {}

    def computed(*args: Any) -> Tensor:
        token = _remembered.set(remembered)
        try:
            return compute(*args)
        finally:
            _remembered.reset(token)

    return computed
