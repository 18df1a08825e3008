"""Multiply matrices in float8 with a scale per row: torch's own ``_scaled_mm``, on GPUs and, slowly, on CPUs.

Of a matrix's three products, the output and the gradient of the input are computed in float8 (e4m3). The gradient of
the weight sums over all tokens and stays in bf16. So do the matrices of routed experts, which no linear layer has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Shard

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
MULTIPLE = 16  # The kernels need multiples of it, of rows and columns.


class Float8Linear(nn.Linear):
    """A linear layer without bias; parameters and checkpoints are those of ``nn.Linear``.

    Tensor parallelism divides its weight by output or by input. Each rank then scales its own part of a row.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[..., I]`` → ``[..., O]``."""
        weight_OI = self.weight
        if not isinstance(weight_OI, DTensor) or not isinstance(x, DTensor):
            return _product(x, weight_OI)
        by_output = weight_OI.placements == (Shard(0),)
        gradient: Placement = Partial() if by_output else Shard(x.ndim - 1)
        y = _product(x.to_local(grad_placements=[gradient]), weight_OI.to_local())
        result: Placement = Shard(y.ndim - 1) if by_output else Partial()
        return DTensor.from_local(y, weight_OI.device_mesh, [result], run_check=False)


def use_float8(module: nn.Module, *, parts: int = 1) -> None:
    """Replace the matrices within a module whose sizes, in so many parts, are multiples of ``MULTIPLE``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if not isinstance(child, nn.Linear):
                continue
            sizes = child.in_features, child.out_features
            if not any(size % (MULTIPLE * parts) for size in sizes):
                weight = child.weight
                layer = Float8Linear(*sizes, bias=False, device=weight.device, dtype=weight.dtype)
                layer.weight = weight
                setattr(parent, name, layer)


def _product(x: Tensor, weight_OI: Tensor) -> Tensor:
    y_SO: Tensor = _Product.apply(x.flatten(0, -2), weight_OI)  # type: ignore[no-untyped-call]
    return y_SO.view(*x.shape[:-1], -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_SI, weight_OI)
        return _multiply(x_SI, weight_OI)

    @staticmethod
    def backward(ctx: Any, y_SO: Tensor) -> tuple[Tensor, Tensor]:
        x_SI, weight_OI = ctx.saved_tensors
        return _multiply(y_SO, weight_OI.t()), y_SO.t() @ x_SI


def _multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return ``a_MK @ b_NK.t()`` in bf16, computed in float8."""
    a8_MK, a_M1 = _scaled(a_MK)
    b8_NK, b_N1 = _scaled(b_NK)
    # torch.compile of PyTorch 2.11 and 2.12 breaks the graph at torch.nn.functional.scaled_mm
    product_MN: Tensor = torch._scaled_mm(  # noqa: SLF001 - the public function computes the same
        a8_MK, b8_NK.t(), scale_a=a_M1, scale_b=b_N1.t(), out_dtype=torch.bfloat16
    )
    return product_MN


def _scaled(a_MK: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in float8, contiguous, and each row's scale in fp32: the matrix is about their product."""
    scale_M1 = a_MK.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (a_MK.float() / scale_M1).to(FLOAT8).contiguous(), scale_M1
