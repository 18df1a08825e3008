"""Build a mixture of experts: each token uses a few of many feed-forward layers (Mixtral, arXiv:2401.04088)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from podwright_training.config.architecture import ModelConfig
from podwright_training.config.families import ARCHITECTURES

GPUS = ("cuda", "gpu")  # gpu: of a dry run


class MixtureOfExperts(nn.Module):
    """Route each token to its highest-scoring experts and mix their outputs.

    In backward this layer adds the gradient of its own load-balancing loss, so that no caller has to pass that loss on.
    The whole gradient is that of the trainer's summed cross-entropy plus ``router_aux_loss_coef`` · tokens · the mean
    over all blocks of ``load_balancing_loss``. transformers computes one loss over the counts and probabilities of all
    blocks: the same for one block. Here each block is balanced separately, as in Switch Transformer (arXiv:2101.03961).
    """

    loss_weight: Tensor  # the caller's factor of the summed loss before backward

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.coefficient = config.router_aux_loss_coef / config.num_hidden_layers
        self.register_buffer("loss_weight", torch.ones(()), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """``[B, T, D]`` → ``[B, T, D]``."""
        x_SD = x_BTD.flatten(0, 1)
        probability_SE, weight_SA, expert_SA = self.gate(x_SD)
        if self.coefficient and torch.is_grad_enabled():
            loss = load_balancing_loss(probability_SE, expert_SA) * self.coefficient * len(x_SD)
            x_SD = _AddGradient.apply(x_SD, loss, self.loss_weight)  # type: ignore[no-untyped-call]
        order = expert_SA.flatten().argsort(stable=True)  # pairs of a token and an expert, by expert
        token = order // expert_SA.shape[1]
        counts_E = _counts(expert_SA, probability_SE.shape[1])
        y_PD = self.experts(x_SD[token], counts_E) * weight_SA.flatten()[order].unsqueeze(-1).to(x_SD.dtype)
        return torch.zeros_like(x_SD).index_add(0, token, y_PD).view_as(x_BTD)


class Router(nn.Module):
    """Score each expert for each token; normalize the softmax of the A highest."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts = config.num_local_experts or 1
        self.active = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))

    def forward(self, x_SD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return fp32 probabilities ``[S, E]``, and fp32 weights and indices of the chosen experts ``[S, A]``."""
        probability_SE = F.linear(x_SD, self.weight).softmax(dim=-1, dtype=torch.float32)
        weight_SA, expert_SA = probability_SE.topk(self.active, dim=-1)
        return probability_SE, weight_SA / weight_SA.sum(dim=-1, keepdim=True), expert_SA


class Experts(nn.Module):
    """SwiGLU layers with stacked matrices; rows of the input are sorted by expert.

    Names and shapes are those of transformers 5 in memory; on disk each expert is separate (``to_hugging_face``).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, width = config.num_local_experts or 1, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, config.hidden_size, width))

    def forward(self, x_PD: Tensor, counts_E: Tensor) -> Tensor:
        """``[P, D]`` → ``[P, D]``; the first ``counts_E[0]`` rows pass the first expert, and so on."""
        gate_PF, up_PF = _multiply(x_PD, _own(self.gate_up_proj), counts_E).chunk(2, dim=-1)
        return _multiply(F.silu(gate_PF) * up_PF, _own(self.down_proj), counts_E)


def load_balancing_loss(probability_SE: Tensor, expert_SA: Tensor) -> Tensor:
    """Return the load-balancing loss, A when experts are used evenly: equations 4 to 6 of Switch Transformer.

    Args:
        probability_SE: the router's softmax, ``[S, E]``.
        expert_SA: the experts chosen for each token.
    """
    tokens, experts = probability_SE.shape
    share_E = _counts(expert_SA, experts) / tokens
    return experts * (share_E * probability_SE.mean(dim=0)).sum()


def to_hugging_face(name: str, tensor: Tensor, *, model_type: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a parameter under the names transformers uses on disk: experts one by one, everything else unchanged.

    Args:
        name: Name of the parameter in our model.
        tensor: Its value.
        model_type: ``ModelConfig.model_type``.
    """
    block, found, last = name.partition(".mlp.")
    on_disk = ARCHITECTURES[model_type].expert_names
    if on_disk and last == "gate.weight":
        yield f"{block}.{on_disk.module}.{last}", tensor
    elif on_disk and found and last.startswith("experts."):
        names = (on_disk.gate, on_disk.up) if last == "experts.gate_up_proj" else (on_disk.down,)
        for index, expert in enumerate(tensor):
            for matrix_name, matrix in zip(names, expert.chunk(len(names)), strict=True):
                yield f"{block}.{on_disk.module}.experts.{index}.{matrix_name}.weight", matrix.contiguous()
    else:
        yield name, tensor


def _counts(expert_SA: Tensor, experts: int) -> Tensor:
    """Count how often each expert was chosen, ``[E]``; unlike ``bincount``, without synchronizing with the GPU."""
    return (expert_SA.flatten().unsqueeze(-1) == torch.arange(experts, device=expert_SA.device)).sum(dim=0)


def to_host(counts: Tensor, _total: int) -> list[int]:
    """Return counts that add up to ``_total`` as numbers; on a GPU this waits for them."""
    numbers: list[int] = counts.tolist()
    return numbers


def _own(weight_EFD: Tensor) -> Tensor:
    """Return this rank's experts, where expert parallelism divides them."""
    return weight_EFD.to_local() if isinstance(weight_EFD, DTensor) else weight_EFD


def _multiply(x_PD: Tensor, weight_EFD: Tensor, counts_E: Tensor) -> Tensor:
    if x_PD.device.type in GPUS and x_PD.dtype == torch.bfloat16:  # of other kinds, PyTorch 2.13 has no gradient
        ends_E = counts_E.cumsum(0).to(torch.int32)
        return F.grouped_mm(x_PD, weight_EFD.mT, offs=ends_E)
    parts = zip(torch.split(x_PD, to_host(counts_E, len(x_PD))), weight_EFD.unbind(), strict=True)
    return torch.cat([F.linear(part_PD, weight_FD) for part_PD, weight_FD in parts])


class _AddGradient(torch.autograd.Function):
    """Pass activations through; in backward, give ``loss`` the gradient ``weight``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _loss: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (weight,) = ctx.saved_tensors
        return gradient, weight, None
