"""Save memory: keep part of a block's activations and recompute the rest in backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

# Slow to compute, cheap to keep: matrix products, attention, results of communication.
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,  # noqa: SLF001 - operators have no public names
    torch.ops.aten._scaled_mm.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - as above
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001 - as above
    torch.ops.higher_order.flex_attention,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001 - as above
]

T = TypeVar("T")
_remembered: ContextVar[dict[int, Any] | None] = ContextVar("_remembered", default=None)


def once(owner: object, compute: Callable[[], T]) -> T:
    """Return ``compute()``; while a block is recomputed, its first result for this owner."""
    remembered = _remembered.get()
    if remembered is None:
        return compute()
    if id(owner) not in remembered:
        remembered[id(owner)] = compute()
    value: T = remembered[id(owner)]
    return value


@dataclass(frozen=True, kw_only=True)
class Recomputation:
    """Options of a block's recomputation.

    Attributes:
        mode: ``full`` keeps the block's input, ``selective`` also the results of ``KEPT``.
        offload: keep the block's input in host memory.
        remembers: ``once`` works within the block, which then is not compiled as a whole.
        in_parts: a pipeline splits the backward pass: what is recomputed for its first part is kept for the others.
            PyTorch would recompute a block for the gradient of each of its weights.
    """

    mode: str = "full"
    offload: bool = False
    remembers: bool = False
    in_parts: bool = False

    def __call__(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        """``compute(*args)``."""
        compute = _remembering(compute) if self.remembers else compute
        if self.in_parts:
            return _Frame(compute, args).compute()
        options: dict[str, Any] = {"use_reentrant": False}
        if self.mode == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
        with save_on_cpu(pin_memory=args[0].device.type != "cpu") if self.offload else nullcontext():
            y: Tensor = checkpoint(compute, *args, **options)
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


class _Recomputed(Exception):  # noqa: N818 - no error: the rest of the block saves nothing
    """All saved tensors are recomputed."""


class _Frame:
    """A call of a block: its saved tensors are recomputed once, and kept until autograd forgets the call."""

    def __init__(self, compute: Callable[..., Tensor], args: tuple[Any, ...]) -> None:
        self._compute = compute
        self._args = [item.detach().requires_grad_(item.requires_grad) if _is_float(item) else item for item in args]
        self._arguments = args
        self._count = 0
        self._saved: list[Tensor] = []

    def compute(self) -> Tensor:
        arguments, self._arguments = self._arguments, ()
        with saved_tensors_hooks(self._forget, self._saved_again):
            return self._compute(*arguments)

    def _forget(self, _: Tensor) -> int:
        self._count += 1
        return self._count - 1

    def _saved_again(self, number: int) -> Tensor:
        if not self._saved:
            with suppress(_Recomputed), saved_tensors_hooks(self._save, lambda tensor: tensor), torch.enable_grad():
                self._compute(*self._args)
        return self._saved[number]

    def _save(self, tensor: Tensor) -> Tensor:
        detached = tensor.detach()  # A graph that saves its own result would keep itself alive.
        self._saved.append(detached)
        if len(self._saved) == self._count:
            raise _Recomputed
        return detached


def _is_float(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_floating_point()
