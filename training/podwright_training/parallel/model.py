"""Wrap a model that is divided among the ranks of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from podwright_training.batch import Batch
from podwright_training.config.parallel_dims import ParallelDims, accumulates_whole_gradients
from podwright_training.config.train_config import TrainConfig
from podwright_training.model import DTYPES, is_router_bias
from podwright_training.parallel import gradients
from podwright_training.parallel.divide import stages_of
from podwright_training.parallel.meshes import Meshes
from podwright_training.parallel.pipeline import Pipeline
from podwright_training.parallel.stage import Stage
from podwright_training.ranks import Ranks


class ParallelModel:
    """Model divided among the ranks of a job; only ``parallel/`` knows how.

    Each rank computes the loss of its own tokens only: its share is the sum over these, and the shares of all ranks of
    the job add up, for all parallel dimensions.

    Attributes:
        parts: this rank's modules, names of parameters as in the whole model.
        data_rank: the share of a global batch that this rank reads, of ``data_size`` shares.
        data_size: shares of a global batch; ranks that share one sequence read the same share.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        device: torch.device,
        *,
        meshes: Meshes | None = None,
        initialize: bool = True,
    ) -> None:
        """Build this rank's part; called by all ranks of the job.

        Args:
            config: The run's configuration.
            ranks: This process among the job's.
            device: The device that computes.
            meshes: The job's meshes. Default: built here.
            initialize: Draw the weights too; else they are garbage until ``init_weights``, or until all are loaded.
        """
        self.device = device
        dims = ParallelDims.of(config, world_size=ranks.world_size, nodes=ranks.nodes)
        self.data_rank, self.data_size = dims.data_rank(ranks.rank), dims.data_size
        meshes = meshes or Meshes.of(dims, device.type)
        self._stages = stages_of(config, meshes)
        for stage in self._stages:
            _allocate(stage, config, device)
        self._seed = config.seed
        self._pipeline = _pipeline(config, self._stages, meshes)
        if self._pipeline and (weight := self._pipeline.tied_weight) is not None:
            setattr(weight, gradients.IN_STAGES, 2)
        self._keeps_whole_gradients = accumulates_whole_gradients(config)
        self._pieces = config.pipeline_micro_batches or config.train_batch_size
        self.parts = [stage.model for stage in self._stages]
        if initialize:
            self.init_weights()

    def init_weights(self) -> None:
        """Draw the initial weights, the same for every layout: each rank draws every whole parameter of its stages."""
        for part in self.parts:
            part.init_weights(seed=self._seed)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters with their names in the whole model."""
        for part in self.parts:
            yield from part.named_parameters()

    def learned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradient comes from the loss: not the biases of routers, which count tokens."""
        return [parameter for name, parameter in self.named_parameters() if not is_router_bias(name)]

    def forward_backward(self, micro_batches: Sequence[Batch], *, tokens: int, loss_scale: float = 1.0) -> Tensor:
        """Accumulate the gradient of the mean loss of a global batch; it is complete after the last micro-batch.

        Args:
            micro_batches: This rank's share of the global batch.
            tokens: Labels that count in the global batch, of all ranks.
            loss_scale: Factor of the gradient until ``unscale_gradient``.

        Returns:
            This rank's share of the loss, a scalar in fp32: the shares of all ranks add up to the loss (``total``).
        """
        batches = [batch.to(self.device) for batch in micro_batches]
        divisor = tokens / loss_scale
        for part in self.parts:
            part.weigh_loss(1 / divisor)
        if self._pipeline:
            pieces = self._pieces * len(batches)
            return self._pipeline.forward_backward(_joined(batches), pieces=pieces, divisor=divisor) / loss_scale
        loss = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            self._synchronise(is_last=number == len(batches))
            share = self._summed_loss(batch) / divisor
            torch.autograd.backward(share)
            loss += share.detach()
        return loss / loss_scale

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Return the summed fp32 loss of this rank's own tokens; call ``finish_evaluation`` after the last batch."""
        batch = batch.to(self.device)
        return self._pipeline.evaluate(batch) if self._pipeline else self._summed_loss(batch)

    @torch.no_grad()
    def next_tokens(self, tokens_BS: Tensor, last_B: Tensor) -> Tensor:
        """Return the likeliest token after each sequence's last one, on all ranks; call ``finish_evaluation`` after it.

        Args:
            tokens_BS: The same on all ranks. What follows a sequence's last token does not matter.
            last_B: Index of each sequence's last token.
        """
        batch, last_B = Batch(tokens_BS, tokens_BS).to(self.device), last_B.to(self.device)
        with torch.compiler.set_stance("force_eager"):  # texts have any length: each would compile the blocks again
            if self._pipeline:
                tokens_B = self._pipeline.next_tokens(batch, last_B)
            else:
                (stage,) = self._stages
                tokens_B = stage(batch.tokens_BT, batch.labels_BT, last_B=last_B)
        dist.all_reduce(tokens_B, dist.ReduceOp.MAX)
        return tokens_B.cpu()

    def finish_evaluation(self) -> None:
        """Reshard the weights that a forward without a backward leaves gathered.

        Until then the parameters are not the optimizer's.
        """
        for stage in self._stages:
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def unscale_gradient(self, loss_scale: float) -> None:
        """Divide the gradient by the loss scale."""
        if loss_scale != 1:
            gradients.multiply((parameter for _, parameter in self.named_parameters()), 1 / loss_scale)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the gradient to a global norm of ``max_norm``; return the norm before."""
        return gradients.clip_grad_norm(self.learned_parameters(), max_norm)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of all ranks' shares, on all ranks, without changing ``value``."""
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def _summed_loss(self, batch: Batch) -> Tensor:
        (stage,) = self._stages
        loss: Tensor = stage(batch.tokens_BT, batch.labels_BT, batch.positions_BT)
        return loss

    def _synchronise(self, *, is_last: bool) -> None:
        """Choose whether the next backward reduces: replicas always add up their gradients after the last one only."""
        for stage in self._stages:
            if isinstance(stage, FSDPModule):
                stage.set_requires_gradient_sync(is_last or not self._keeps_whole_gradients)
                stage.set_requires_all_reduce(is_last)


def _pipeline(config: TrainConfig, stages: list[Stage], meshes: Meshes) -> Pipeline | None:
    if config.pipeline_parallel == 1:
        return None
    return Pipeline(
        stages,
        schedule=config.pipeline_schedule,
        ranks=meshes.ranks,
        dtype=DTYPES[config.compute_precision],
        whole_gradients=accumulates_whole_gradients(config),
        reshard=config.reshard_after_forward == "always",
    )


def _allocate(stage: Stage, config: TrainConfig, device: torch.device) -> None:
    """Allocate weights where FSDP wants them, and compute buffers where they are used."""
    stage.to_empty(device=torch.device("cpu") if config.cpu_offload else device)
    for module in stage.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    stage.model.reset_buffers()


def _joined(batches: Sequence[Batch]) -> Batch:
    positions = [batch.positions_BT for batch in batches if batch.positions_BT is not None]
    return Batch(
        torch.cat([batch.tokens_BT for batch in batches]),
        torch.cat([batch.labels_BT for batch in batches]),
        torch.cat(positions) if positions else None,
    )
