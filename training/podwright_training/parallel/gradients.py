"""Compute the norm of a gradient that is spread over ranks and meshes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

IN_STAGES = "podwright_in_stages"  # attribute of a parameter: pipeline stages that have it. Default: 1


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradient to a global norm of ``max_norm``; return the norm before, on all ranks."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    norm = squared_norm(with_gradient).sqrt()
    multiply(with_gradient, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def multiply(parameters: Iterable[nn.Parameter], factor: Tensor | float) -> None:
    """Multiply the gradient by a number."""
    gradients = [local(parameter) for parameter in parameters if parameter.grad is not None]
    torch._foreach_mul_(gradients, factor)


def squared_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the squared global norm of the gradient, a scalar in fp32, on all ranks.

    Each element of the gradient is on as many ranks as its parameter has replicas: each rank adds the square divided by
    their number, so that one sum over all ranks is correct for any mesh. Nothing waits for the device.
    """
    by_copies = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            by_copies[_copies(parameter)].append(local(parameter))
    squares = [_squared_norm(gradients) / copies for copies, gradients in by_copies.items()]
    total = torch.stack(squares).sum()
    if dist.is_initialized():  # A single rank without a process group has the whole gradient.
        dist.all_reduce(total)
    return total


def _squared_norm(gradients: list[Tensor]) -> Tensor:
    if gradients[0].device.type == "cpu":  # adds up one number after the other: of 65 million, 1 % is lost in fp32
        gradients = [torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32) for gradient in gradients]
    return torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).square().sum()  # noqa: SLF001 - as torch.nn.utils does


def local(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a parameter's gradient."""
    gradient = parameter.grad
    return cast("Tensor", gradient.to_local() if isinstance(gradient, DTensor) else gradient)


def _copies(parameter: nn.Parameter) -> int:
    """Return the number of ranks that hold each element of a parameter: of its mesh, times its pipeline stages."""
    stages: int = getattr(parameter, IN_STAGES, 1)
    if not isinstance(parameter, DTensor):
        return stages
    mesh, placements = parameter.device_mesh, parameter.placements
    return stages * prod(
        mesh.size(number) for number, placement in enumerate(placements) if isinstance(placement, Replicate)
    )
