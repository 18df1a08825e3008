"""Describe how a run is laid out over accelerators, and refuse layouts that do not work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from podwright.errors import PodwrightError
from podwright.planning.model import Model
from podwright.planning.trainer_software import Sharding
from podwright.planning.zero_bubble import Action, Schedule, actions

Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
Precision = Literal["bf16", "fp8", "fp32"]
Optimizer = Literal["adamw", "muon"]
Reshard = Literal["auto", "always", "never"]
ENDS = 2  # embedding and head can be parts of a pipeline, as in Llama 3 405B (arXiv:2407.21783, section 3.3.2)
_DEGREES = (
    "gpus",
    "micro_batch",
    "sequence",
    "micro_batches",
    "tensor",
    "pipeline",
    "virtual_stages",
    "context",
    "expert",
)


class LayoutError(PodwrightError, ValueError):
    """The layout does not work. The message lists every reason with the values that do."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of parallelism, batch, recomputation, precision and optimizer of a run.

    ``gpus = tensor * pipeline * context * data``; experts are spread over ``expert`` of the ``context * data`` ranks.
    ``shards`` is the number of ranks that states are sharded over: all of them (FSDP), or those of one node (HSDP).
    ``micro_batches`` are those of one step and rank, ``micro_batch`` the sequences in each.
    """

    gpus: int
    micro_batch: int
    sequence: int
    micro_batches: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    schedule: Schedule = "1f1b"  # interleaved, with several virtual stages
    context: int = 1
    expert: int = 1
    sharding: Sharding = "full"
    shards: int = 0  # 0: all data-parallel ranks
    recompute: Recompute = "none"
    precision: Precision = "bf16"
    optimizer: Optimizer = "adamw"
    offload_activations: bool = False
    offload_optimizer: bool = False
    whole_gradients: bool = False  # kept in full between micro-batches, with FSDP or in a pipeline of it
    reshard: Reshard = "auto"  # Free gathered weights after a forward pass; auto: not in a pipeline.
    eager: bool = False  # Operations run one by one, without torch.compile.
    loss_chunk_tokens: int = 0  # tokens whose logits are in memory at a time; 0: the whole micro-batch

    @cached_property
    def data(self) -> int:
        """Data-parallel ranks: accelerators that hold different sequences."""
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @cached_property
    def sharding_ranks(self) -> int:
        """Ranks that share the states of the parameters which are not experts."""
        return self.shards or self.data * self.context

    @property
    def splits_backward(self) -> bool:
        """True for a pipeline that computes the gradients of weights after those of inputs."""
        return self.pipeline > 1 and self.schedule != "1f1b"

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield the passes of a rank of a pipeline that splits the backward pass."""
        return actions(
            self.schedule,
            rank,
            ranks=self.pipeline,
            stages_per_rank=self.virtual_stages,
            micro_batches=self.micro_batches,
        )

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens that one rank sees at a time: ``b * s / context``."""
        return self.micro_batch * self.sequence // self.context

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step."""
        return self.micro_batch * self.micro_batches * self.data

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, summed over all ranks."""
        return self.global_batch * self.sequence


def check(layout: Layout, model: Model) -> None:
    """Refuse a layout that does not work.

    Raises:
        LayoutError: The message lists every reason with the values that work.
    """
    problems = list(_problems(layout, model))
    if problems:
        raise LayoutError("\n".join(problems))


def _problems(layout: Layout, model: Model) -> Iterator[str]:
    for name in _DEGREES:
        if getattr(layout, name) < 1:
            yield f"{name}: got {getattr(layout, name)}, need at least 1"
            return
    if model.head_dim < 1 or model.layers < 1:
        shape = f"{model.layers} layers, {model.heads} heads and a hidden size of {model.hidden_size}"
        yield f"{model.name} has {shape}: need at least 1 layer and a hidden size of at least the number of heads"
        return
    gpus, product = layout.gpus, layout.tensor * layout.pipeline * layout.context
    if gpus % product:
        degrees = f"tensor {layout.tensor} x pipeline {layout.pipeline} x context {layout.context} = {product}"
        near = f"{max(product, gpus // product * product)} or {(gpus // product + 1) * product}"
        yield f"{gpus} accelerators are not a multiple of {degrees}: use {near} accelerators"
        return
    if model.heads % layout.tensor:
        possible = _divisors(model.heads)
        yield f"{model.heads} attention heads are not a multiple of tensor {layout.tensor}: use one of {possible}"
    parts = model.layers + ENDS
    if layout.pipeline * layout.virtual_stages > parts:
        stages = f"{layout.pipeline} pipeline stages of {layout.virtual_stages} parts"
        yield f"{model.layers} layers, embedding and head are too few for {stages}: use at most {parts} parts in total"
    if layout.expert > 1 and not model.experts:
        yield f"expert is {layout.expert}, but {model.name} has no experts: use 1"
    elif model.experts and model.experts % layout.expert:
        possible = _divisors(model.experts)
        yield f"{model.experts} experts are not a multiple of expert {layout.expert}: use one of {possible}"
    if layout.sequence % layout.context:
        yield f"sequence length {layout.sequence} is not a multiple of context {layout.context}"


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
