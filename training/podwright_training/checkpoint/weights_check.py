"""Decide whether a model can go on from a checkpoint's tensors: they are finite, and their size has not jumped.

Each rank measures its own part; sums over all ranks are those of the whole model in any layout, because a part that
several ranks have counts as a fraction on each. The size is the root mean square of all weights. Between two
checkpoints training changes it by a few percent, and a ruinous update by many orders of magnitude, so the limit is far
from both: a factor of ``LIMIT`` above the largest or below the smallest of the last good checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from podwright_training.local_tensor import local_tensor

LIMIT = 100.0  # factor between the sizes of neighbouring checkpoints
LARGEST_RMS = 1e4  # Initial weights are below 1, and those of a trained norm layer below 100.
HISTORY = 8  # good checkpoints


class Measured(NamedTuple):
    """One rank's part of a checkpoint.

    Attributes:
        squares: Sum of the squares of its weights.
        elements: Their number.
        broken: Names of tensors with an element that is not finite, a few of them.
    """

    squares: float
    elements: float
    broken: list[str]


def measure(tensors: Mapping[str, Mapping[str, Tensor]]) -> Measured:
    """Measure this rank's part; only ``model`` has a size, and the optimizers' states must be finite too."""
    squares = elements = 0.0
    broken = []
    for part, content in tensors.items():
        for name, tensor in content.items():
            local = local_tensor(tensor)
            if not local.is_floating_point() or local.numel() == 0:
                continue
            local = local.float() if local.dtype.itemsize == 1 else local  # float8 has no norm
            if part == "model":  # in float64 no weight that fp32 can hold is too large
                norm = torch.linalg.vector_norm(local, dtype=torch.float64).item()
                squares += norm * norm / _copies(tensor) if math.isfinite(norm) else 0.0
                elements += local.numel() / _copies(tensor)
            else:
                norm = torch.linalg.vector_norm(local, ord=math.inf).item()
            if not math.isfinite(norm):
                broken.append(f"{part}.{name}")
    return Measured(squares, elements, sorted(broken)[:3])


def rms(parts: Iterable[Measured]) -> float:
    """Return the root mean square of the weights of all ranks."""
    parts = list(parts)
    return math.sqrt(sum(part.squares for part in parts) / max(1.0, sum(part.elements for part in parts)))


def complaint(parts: Iterable[Measured], history: Iterable[float]) -> str:
    """Return why no run can go on from these tensors; empty if it can.

    Args:
        parts: Of all ranks.
        history: Root mean squares of the last good checkpoints.
    """
    parts, history = list(parts), list(history)
    if broken := sorted({name for part in parts for name in part.broken}):
        return f"{', '.join(broken[:3])} {'is' if len(broken) == 1 else 'are'} not finite"
    size = rms(parts)
    if size > LARGEST_RMS:
        return f"the weights' root mean square is {size:.3g}"
    if history and not min(history) / LIMIT <= size <= max(history) * LIMIT:
        before = f"{min(history):.3g} to {max(history):.3g}"
        return f"the weights' root mean square is {size:.3g}, and was {before} in the checkpoints before"
    return ""


def _copies(tensor: Tensor) -> int:
    """Return the number of ranks of the tensor's mesh that hold each of its elements."""
    if not isinstance(tensor, DTensor):
        return 1
    mesh = tensor.device_mesh
    return math.prod(mesh.size(axis) for axis, placement in enumerate(tensor.placements) if placement.is_replicate())
