"""Expert parallelism: ranks hold different experts of a block and exchange the tokens routed to them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from podwright_training.model import experts
from podwright_training.model.recomputation import once


def divide_experts(module: nn.Module, expert: DeviceMesh) -> None:
    """Keep each rank's own experts, and route the rows of all ranks to them.

    Args:
        module: stacked matrices ``[E, …]``; called with rows sorted by expert, and counts per expert.
        expert: the ranks that share them; their number divides E.
    """
    for name, parameter in list(module.named_parameters(recurse=False)):
        module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, expert, [Shard(0)])))
    exchange = _Exchange(expert)
    uncompiled: Any = torch.compiler.disable  # the exchange reads numbers of rows
    module.register_forward_pre_hook(uncompiled(exchange.dispatch))
    module.register_forward_hook(uncompiled(exchange.combine))


class SumOverRanks:
    """Add up a tensor over the ranks of a mesh. On a GPU the host does not wait; the device does when it is read."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._groups = [mesh.get_group(name) for name in mesh.mesh_dim_names or ()]

    def __call__(self, values: Tensor) -> Tensor:
        """Return the sum."""
        for group in self._groups:
            values = all_reduce(values, "sum", group)
        return values


class _Exchange:
    """Send rows to their experts' ranks and the results back. E experts, R ranks, L = E / R."""

    def __init__(self, expert: DeviceMesh) -> None:
        self._group = expert.get_group()
        self._size = expert.size()

    def dispatch(self, _: nn.Module, arguments: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Send rows ``[P, D]`` and counts ``[E]``; return all ranks' rows and counts ``[L]`` of this rank's experts."""
        x_PD, counts_E = arguments
        arriving_E = torch.empty_like(counts_E)
        dist.all_to_all_single(arriving_E, counts_E, group=self._group)
        arriving_RL = arriving_E.view(self._size, -1)
        rows = torch.cat([counts_E.view(self._size, -1).sum(dim=1), arriving_RL.sum(dim=1)])
        total = 2 * len(x_PD)
        numbers = once(self, lambda: experts.to_host(rows, total))  # One wait of the host for the device serves all.
        self._sent, self._arrived = numbers[: self._size], numbers[self._size :]
        rows_PD = all_to_all_single_autograd(x_PD, self._arrived, self._sent, self._group)
        expert_of_row = torch.arange(arriving_RL.shape[1], device=x_PD.device).repeat(self._size)
        # the number of rows is known here: counting them again would wait for the device
        expert_of_row = expert_of_row.repeat_interleave(arriving_E, output_size=len(rows_PD))
        self._order = expert_of_row.argsort(stable=True)
        sorted_PD: Tensor = _Permute.apply(rows_PD, self._order)  # type: ignore[no-untyped-call]
        return sorted_PD, arriving_RL.sum(dim=0)

    def combine(self, _: nn.Module, _arguments: Any, y: Tensor) -> Tensor:
        """Return the experts' results to the ranks and in the order that the rows came from."""
        rows = _Permute.apply(y, self._order.argsort())  # type: ignore[no-untyped-call]
        return all_to_all_single_autograd(rows, self._sent, self._arrived, self._group)


class _Permute(torch.autograd.Function):
    """Reorder rows. The backward pass reorders them back; unlike of ``index_copy``, it needs no copy of the rows."""

    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, order_P: Tensor) -> Tensor:
        ctx.save_for_backward(order_P)
        return x_PD[order_P]

    @staticmethod
    def backward(ctx: Any, gradient_PD: Tensor) -> tuple[Tensor, None]:
        (order_P,) = ctx.saved_tensors
        return gradient_PD[order_P.argsort()], None
