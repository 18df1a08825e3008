"""Build a mixture of experts: each token uses a few of many feed-forward layers (Mixtral, arXiv:2401.04088).

The matrices of a block's experts are stacked in memory; an export splits them, as transformers names each expert's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from podwright_training.config.architecture import ModelConfig
from podwright_training.config.families import ARCHITECTURES
from podwright_training.hardware import GPUS
from podwright_training.local_tensor import local_tensor


class MixtureOfExperts(nn.Module):
    """Route each token to its highest-scoring experts and mix their outputs.

    In backward this layer adds the gradient of its own load-balancing loss, so that no caller has to pass that loss on.
    The whole gradient is that of the trainer's summed cross-entropy plus ``router_aux_loss_coef`` · tokens · the mean
    over all blocks of E · sum over the experts of (share of the tokens · mean probability): equations 4 to 6 of Switch
    Transformer (arXiv:2101.03961). transformers computes one loss over the counts and probabilities of all blocks: the
    same for one block.

    Attributes:
        sum_counts: adds up the tokens per expert of all ranks that compute at the same time. A share of its own tokens
            alone would make each rank, and not the batch, use its experts evenly (arXiv:2501.11873).
    """

    loss_weight: Tensor  # the caller's factor of the summed loss before backward

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = BiasedRouter(config) if config.biased_router else Router(config)
        self.experts = Experts(config)
        self.shared_experts = FeedForward(config, config.n_shared_experts) if config.n_shared_experts else None
        self.coefficient = config.router_aux_loss_coef / config.num_hidden_layers
        self.register_buffer("loss_weight", torch.ones(()), persistent=False)
        self.sum_counts: Callable[[Tensor], Tensor] = lambda counts_E: counts_E

    def forward(self, x_BTD: Tensor) -> Tensor:
        """``[B, T, D]`` → ``[B, T, D]``."""
        x_SD = x_BTD.flatten(0, 1)
        probability_SE, weight_SA, expert_SA = self.gate(x_SD)
        counts_E = _counts(expert_SA, probability_SE.shape[1])
        balances = self.coefficient and torch.is_grad_enabled()
        counts_of_all_E = self.sum_counts(counts_E) if balances else counts_E  # while the experts compute
        order = expert_SA.flatten().argsort(stable=True)  # pairs of a token and an expert, by expert
        token = order // expert_SA.shape[1]
        y_PD = self.experts(x_SD[token], counts_E) * weight_SA.flatten()[order].unsqueeze(-1).to(x_SD.dtype)
        y_SD = torch.zeros_like(x_SD).index_add(0, token, y_PD)
        if balances:
            share_E = counts_of_all_E / counts_of_all_E.sum() * expert_SA.shape[1]
            slope_E = self.coefficient * len(share_E) * share_E
            y_SD = _Balance.apply(y_SD, probability_SE, slope_E, self.loss_weight)  # type: ignore[no-untyped-call]
        y_BTD = y_SD.view_as(x_BTD)
        return y_BTD if self.shared_experts is None else y_BTD + self.shared_experts(x_BTD)


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


class BiasedRouter(Router):
    """Choose experts by score and bias, mix them by score alone (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    Weight, bias and scores are in fp32, as in transformers: bf16 rounds a bias of 0.5 to 0.004, four steps or so.

    In backward the bias gets, as its gradient, how many tokens more than the mean each expert had. So gradients of all
    ranks and micro-batches add up to the load of the step, by which ``optim.BiasDescent`` moves it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.e_score_correction_bias = nn.Parameter(torch.empty(config.num_local_experts or 1))

    def forward(self, x_SD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores ``[S, E]``, and weights and indices of the chosen experts ``[S, A]``, as ``Router``."""
        score_SE = F.linear(x_SD.float(), self.weight.float()).sigmoid()
        expert_SA = (score_SE + self.e_score_correction_bias).topk(self.active, dim=-1).indices
        weight_SA = score_SE.gather(1, expert_SA)
        weight_SA = weight_SA / (weight_SA.sum(dim=-1, keepdim=True) + 1e-20)
        weight_SA = _Count.apply(weight_SA, self.e_score_correction_bias, expert_SA)  # type: ignore[no-untyped-call]
        return score_SE, weight_SA, expert_SA


def is_router_bias(name: str) -> bool:
    """Return whether a parameter of this name follows the experts' load, not the loss."""
    return name.endswith("e_score_correction_bias")


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202), ``widths`` times as wide as configured."""

    def __init__(self, config: ModelConfig, widths: int = 1) -> None:
        super().__init__()
        width = widths * config.intermediate_size
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """``[B, T, D]`` → ``[B, T, D]``."""
        y_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return y_BTD


class Experts(nn.Module):
    """SwiGLU layers with stacked matrices; rows of the input are sorted by expert.

    Names and shapes are those of transformers 5 in memory; on disk each expert is separate (``from_hugging_face``).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, width = config.num_local_experts or 1, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, config.hidden_size, width))

    def forward(self, x_PD: Tensor, counts_E: Tensor) -> Tensor:
        """``[P, D]`` → ``[P, D]``; the first ``counts_E[0]`` rows pass the first expert, and so on."""
        gate_PF, up_PF = _multiply(x_PD, local_tensor(self.gate_up_proj), counts_E).chunk(2, dim=-1)
        return _multiply(F.silu(gate_PF) * up_PF, local_tensor(self.down_proj), counts_E)


@dataclass(frozen=True)
class HuggingFacePart:
    """A tensor of a Hugging Face model, and its place in a parameter of ours.

    Attributes:
        name: of the tensor.
        begin: of its first element in the parameter.
        shape: in the parameter; a dimension of one that the tensor lacks comes first.
    """

    name: str
    begin: tuple[int, ...]
    shape: tuple[int, ...]


def from_hugging_face(name: str, shape: Sequence[int], *, model_type: str) -> Iterator[HuggingFacePart]:
    """Yield the tensors on disk that make up a parameter of ours: experts one by one, everything else unchanged.

    Args:
        name: Name of the parameter in our model.
        shape: Its shape.
        model_type: ``ModelConfig.model_type``.
    """
    block, separator, parameter = name.partition(".mlp.")
    on_disk = ARCHITECTURES[model_type].expert_names
    if on_disk and parameter == "gate.weight":
        yield HuggingFacePart(f"{block}.{on_disk.module}.{parameter}", (0, 0), tuple(shape))
    elif on_disk and separator and parameter.startswith("experts."):
        names = (on_disk.gate, on_disk.up) if parameter == "experts.gate_up_proj" else (on_disk.down,)
        rows = shape[1] // len(names)
        for index in range(shape[0]):
            for number, matrix_name in enumerate(names):
                hf_name = f"{block}.{on_disk.module}.experts.{index}.{matrix_name}.weight"
                yield HuggingFacePart(hf_name, (index, number * rows, 0), (1, rows, shape[2]))
    else:
        yield HuggingFacePart(name, (0,) * len(shape), tuple(shape))


def _counts(expert_SA: Tensor, experts: int) -> Tensor:
    """Count how often each expert was chosen, ``[E]``; unlike ``bincount``, without synchronizing with the GPU."""
    return (expert_SA.flatten().unsqueeze(-1) == torch.arange(experts, device=expert_SA.device)).sum(dim=0)


def to_host(counts: Tensor, _total: int) -> list[int]:
    """Return counts that add up to ``_total`` as numbers; on a GPU this waits for them."""
    numbers: list[int] = counts.tolist()
    return numbers


def _multiply(x_PD: Tensor, weight_EFD: Tensor, counts_E: Tensor) -> Tensor:
    if x_PD.device.type in GPUS and x_PD.dtype == torch.bfloat16:  # PyTorch 2.13 has no gradient for others.
        ends_E = counts_E.cumsum(0).to(torch.int32)
        return F.grouped_mm(x_PD, weight_EFD.mT, offs=ends_E)
    parts = zip(torch.split(x_PD, to_host(counts_E, len(x_PD))), weight_EFD.unbind(), strict=True)
    return torch.cat([F.linear(part_PD, weight_FD) for part_PD, weight_FD in parts])


class _Balance(torch.autograd.Function):
    """Pass activations through; in backward, give each probability of an expert its ``slope``, times ``weight``."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, probability_SE: Tensor, slope_E: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(slope_E, weight)
        ctx.shape = probability_SE.shape
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        slope_E, weight = ctx.saved_tensors
        return gradient, (slope_E * weight).expand(ctx.shape), None, None


class _Count(torch.autograd.Function):
    """Pass weights through; in backward, give the bias of each expert its tokens above the mean."""

    @staticmethod
    def forward(ctx: Any, weight_SA: Tensor, bias_E: Tensor, expert_SA: Tensor) -> Tensor:
        ctx.save_for_backward(expert_SA)
        ctx.experts = len(bias_E)
        return weight_SA.view_as(weight_SA)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (expert_SA,) = ctx.saved_tensors
        counts_E = _counts(expert_SA, ctx.experts).float()
        return gradient, counts_E - counts_E.mean(), None
