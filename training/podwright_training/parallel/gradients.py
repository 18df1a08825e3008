"""The norm of a gradient that is spread over ranks and meshes."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradient down to a global norm of ``max_norm`` if it is larger; the norm before that, on all ranks."""
    given = [parameter for parameter in parameters if parameter.grad is not None]
    norm = squared_norm(given).sqrt()
    multiply(given, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def multiply(parameters: Iterable[nn.Parameter], factor: Tensor | float) -> None:
    """Multiply the gradient with a number."""
    gradients = [_gradient(parameter) for parameter in parameters if parameter.grad is not None]
    torch._foreach_mul_(gradients, factor)


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Square of the global norm of the gradient, a scalar in fp32, on all ranks.

    Every element of the gradient lies on as many ranks as its parameter has copies: each contributes its square divided
    by their number, so that one sum over all ranks is right, whatever meshes the parameters live on.
    """
    given = [parameter for parameter in parameters if parameter.grad is not None]
    norms = torch.stack(torch._foreach_norm([_gradient(item) for item in given], dtype=torch.float32))  # noqa: SLF001 - as torch.nn.utils does
    copies = torch.tensor([_copies(item) for item in given], dtype=torch.float32, device=norms.device)
    total = (norms.square() / copies).sum()
    if dist.is_initialized():  # without a process group, this rank has it all
        dist.all_reduce(total)
    return total


def _gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of it."""
    gradient = parameter.grad
    return cast("Tensor", gradient.to_local() if isinstance(gradient, DTensor) else gradient)


def _copies(parameter: nn.Parameter) -> int:
    """On how many ranks of its mesh each element of a parameter lies."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements
    return prod(mesh.size(number) for number, placement in enumerate(placements) if isinstance(placement, Replicate))
