"""Pipeline parallelism: stages pass activations on, in the order of a schedule of ``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining._backward import stage_backward

from podwright_training.batch import Batch
from podwright_training.config.parallel_dims import rank_of_stage
from podwright_training.parallel import gradients
from podwright_training.parallel.stage import NOT_HERE, Stage

SCHEDULES = {
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,  # arXiv:2104.04473
    "zero_bubble": ScheduleInterleavedZeroBubble,  # arXiv:2401.10241
    "zero_bubble_v": ScheduleZBVZeroBubble,  # arXiv:2401.10241, section 6
}
SCHEDULES_KEPT = 3  # One for a whole batch, and one for each part from which the noise scale is estimated.


class Pipeline:
    """Stages of this rank and their communication with the previous and next rank.

    Attributes:
        tied_weight: the embedding that is the head too, on the ranks of the first and the last stage, which both have
            it; else ``None``.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        schedule: str,
        ranks: DeviceMesh,
        dtype: torch.dtype,
        whole_gradients: bool,
        reshard: bool,
    ) -> None:
        """Prepare this rank's stages; a schedule is built for the first batch.

        Args:
            stages: This rank's.
            schedule: A key of ``SCHEDULES``.
            ranks: The job's mesh.
            dtype: Of what stages send.
            whole_gradients: Keep whole gradients until the last micro-batch; else reduce them after each.
            reshard: Free gathered weights after each backward, where gradients are reduced then.
        """
        self._stages = stages
        self._whole_gradients, self._reshard = whole_gradients, reshard
        self._name, self._schedule = schedule, SCHEDULES[schedule]
        self._group = ranks.get_group("pipeline")
        self._rank, self._size = ranks.get_local_rank("pipeline"), ranks["pipeline"].size()
        self._own_part = ranks["context"].size() * ranks["tensor"].size()
        self._dtype = dtype
        self._connected: list[PipelineStage] = []  # the stages for all schedules, with what they receive into
        self._schedules: dict[int, Any] = {}  # Keyed by number of pieces, the last used one last.
        self._divisor = 1.0
        self.tied_weight = _tied_weight(stages)

    def forward_backward(self, batch: Batch, *, pieces: int, divisor: float) -> Tensor:
        """Accumulate the gradient in micro-batches; return this rank's share of the summed loss over ``divisor``."""
        shares: list[Tensor] = []
        self._divisor = divisor
        if self.tied_weight is not None and self._rank:
            self.tied_weight.grad = None  # the first stage has it added already
        schedule = self._schedule_of(batch, pieces)
        schedule.step(
            *([batch.tokens_BT] if self._rank == 0 else []),
            target=batch.labels_BT,
            losses=shares,
            return_outputs=False,
            **_labels_and_positions(batch),
        )
        self._add_tied_gradients()
        return torch.stack(shares).sum().detach() if shares else torch.zeros((), device=batch.tokens_BT.device)

    def evaluate(self, batch: Batch) -> Tensor:
        """Return the summed loss of this rank's own tokens: zero except on the last stage."""
        loss = self._forward(batch)
        return torch.zeros((), device=batch.tokens_BT.device) if loss is None else loss

    def next_tokens(self, batch: Batch, last_B: Tensor) -> Tensor:
        """Return the likeliest token after each last one, as ``Stage.forward``, on the last stage."""
        tokens_B = self._forward(batch, last_B=last_B)
        return torch.full_like(last_B, NOT_HERE) if tokens_B is None else tokens_B

    def _forward(self, batch: Batch, **more: Tensor) -> Tensor | None:
        """Return the result of the last stage; ``None`` if another rank has it."""
        x = batch.tokens_BT
        for stage in self._stages:
            before, after = (rank_of_stage(stage.number + step, self._size, self._name) for step in (-1, 1))
            if not stage.is_first and before != self._rank:
                x = self._receive(batch, before)
            x = cast("Tensor", stage(x, **_labels_and_positions(batch), **more))
            if stage.is_last:
                return x
            if after != self._rank:
                dist.send(x, group=self._group, group_dst=after)
        return None

    def _add_tied_gradients(self) -> None:
        """Add up the gradients of embedding and head; both then take the same step."""
        if self.tied_weight is None:
            return
        gradient = gradients.local(self.tied_weight)
        peer_gradient = torch.empty_like(gradient)
        peer = self._size - 1 - self._rank
        sent = dist.P2POp(dist.isend, gradient, group=self._group, group_peer=peer)
        received = dist.P2POp(dist.irecv, peer_gradient, group=self._group, group_peer=peer)
        for work in dist.batch_isend_irecv([sent, received]):
            work.wait()
        gradient.add_(peer_gradient)

    def _receive(self, batch: Batch, rank: int) -> Tensor:
        x = torch.empty(self._shape(*batch.tokens_BT.shape), dtype=self._dtype, device=batch.tokens_BT.device)
        dist.recv(x, group=self._group, group_src=rank)
        return x

    def _schedule_of(self, batch: Batch, pieces: int) -> Any:
        """Return the schedule of so many pieces, all of one size; a new one waits until its ranks are connected."""
        self._connected = self._connected or self._make_stages(batch, pieces)
        schedule = self._schedules.pop(pieces, None) or self._make_schedule(pieces)
        self._schedules[pieces] = schedule
        if len(self._schedules) > SCHEDULES_KEPT:
            del self._schedules[next(iter(self._schedules))]
        for stage in self._connected:
            stage.chunks = pieces
        return schedule

    def _share(self, summed_loss: Tensor, _: Tensor) -> Tensor:
        return summed_loss / self._divisor

    def _make_schedule(self, pieces: int) -> Any:
        stages = self._connected[0] if self._schedule is Schedule1F1B else self._connected
        return self._schedule(stages, pieces, loss_fn=self._share, scale_grads=False)

    def _make_stages(self, batch: Batch, pieces: int) -> list[PipelineStage]:
        """Build the library's stages; shapes are passed in, so that they run nothing to infer them."""
        sequences, length = batch.tokens_BT.shape[0] // pieces, batch.tokens_BT.shape[1]
        tokens = torch.empty(sequences, length, dtype=torch.int64, device="meta")
        hidden = torch.empty(self._shape(sequences, length), dtype=self._dtype, device="meta", requires_grad=True)
        reducing: Callable[..., PipelineStage] = partial(_ReducingStage, reshard=self._reshard)
        kind = _KeepingStage if self._whole_gradients else reducing
        return [
            kind(
                stage,
                stage.number,
                self._size * len(self._stages),
                batch.tokens_BT.device,
                input_args=tokens if stage.is_first else hidden,
                output_args=torch.empty((), device="meta", requires_grad=True) if stage.is_last else hidden,
                group=self._group,
            )
            for stage in self._stages
        ]

    def _shape(self, sequences: int, length: int) -> tuple[int, int, int]:
        """Return the shape of the residual stream of a rank's own tokens."""
        return sequences, length // self._own_part, self._stages[0].model.config.hidden_size


class _KeepingStage(PipelineStage):
    """A stage that keeps its gradients while a schedule is built: a batch may be taken in two parts."""

    def _post_metadata_inference_cleanup(self) -> None:
        """Clear nothing: the library clears what it ran to infer shapes, which it was given."""


class _ReducingStage(_KeepingStage):
    """A stage that reduces the gradient of each micro-batch, so that a rank keeps its shard alone.

    The library's keeps the whole gradient until the last micro-batch. Its schedules that split the backward pass need
    that: hooks of FSDP reduce when the gradient of the inputs is complete, before those of weights.
    """

    def __init__(self, *args: Any, reshard: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reshard = reshard

    def backward_maybe_with_nosync(
        self,
        backward_type: str,  # noqa: ARG002 - full in all schedules that get such stages
        bwd_kwargs: dict[str, Any],
        last_backward: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> tuple[tuple[Tensor | None, ...], None]:
        """Compute and reduce all gradients of a micro-batch; replicas add theirs up after the last one only."""
        module = cast("FSDPModule", self.submod)
        module.set_is_last_backward(False)  # waiting for what is sent, and cleaning up, is left to perform_reduce_grad
        module.set_reshard_after_backward(self._reshard)
        module.set_requires_all_reduce(last_backward)
        return stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"]), None


def _tied_weight(stages: Sequence[Stage]) -> nn.Parameter | None:
    ends = [stage for stage in stages if stage.is_first or stage.is_last]
    if not ends or not ends[0].model.config.tie_word_embeddings:
        return None
    return ends[0].model.model.embed_tokens.weight


def _labels_and_positions(batch: Batch) -> dict[str, Tensor]:
    positions = {} if batch.positions_BT is None else {"positions_BS": batch.positions_BT}
    return {"labels_BS": batch.labels_BT, **positions}
