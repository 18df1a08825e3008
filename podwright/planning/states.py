"""Size what a rank keeps for the whole run: its share of weights, gradients and optimizer states, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from podwright.planning.layout import ENDS, Layout
from podwright.planning.model import Model
from podwright.planning.trainer_software import SHARDINGS, Software


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of each state on one rank."""

    parameters: float
    gradients: float
    master_weights: float
    optimizer: float

    @property
    def total(self) -> float:
        """The sum of all states."""
        return self.parameters + self.gradients + self.master_weights + self.optimizer


class States:
    """Size the states of the ranks of a layout."""

    def __init__(self, model: Model, layout: Layout, software: Software) -> None:
        self.model, self.layout, self.software = model, layout, software

    def of_rank(self, missing_parameters: float = 0.0) -> StateBytes:
        """Return the states of the first rank, or of a rank that lacks some of the first rank's parameters."""
        software, layout = self.software, self.layout
        optimizer, master = software.optimizer_bytes * self._moments(), software.master_bytes
        if layout.offload_optimizer:
            optimizer = master = 0.0
        level = SHARDINGS.index(layout.sharding)
        shards_optimizer = level >= SHARDINGS.index("optimizer")
        return StateBytes(
            parameters=self._share(software.weight_bytes, missing_parameters, sharded=level >= SHARDINGS.index("full")),
            gradients=self._share(software.gradient_bytes, missing_parameters, sharded=self._shards_gradients(level)),
            master_weights=self._share(master, missing_parameters, sharded=shards_optimizer),
            optimizer=self._share(optimizer, missing_parameters, sharded=shards_optimizer),
        )

    def missing_parameters(self, rank: int) -> float:
        """Return the parameters of embedding and head that the first rank of a pipeline has and this rank lacks."""
        if self.layout.schedule == "zero_bubble_v":
            ends = 0 if rank == 0 else 1 if self.model.tied else 2
        else:
            ends = 0 if rank in (0, self.layout.pipeline - 1) else 1
        return ends * self.model.embedding / self.layout.tensor

    def local_parameters(self) -> tuple[float, float]:
        """Return the first rank's parameters before data-parallel sharding: dense ones, and those of experts."""
        model, layout = self.model, self.layout
        share = self._blocks_of_first_stage() / model.layers
        dense = (model.block_matrices - model.expert_parameters) * share / layout.tensor + model.vectors * share
        # In a V-shaped schedule the first rank has both the embedding and the head.
        apart = layout.pipeline > 1 and layout.schedule != "zero_bubble_v"
        ends = 1 if apart or model.tied else 2
        dense += ends * model.embedding / layout.tensor
        return dense, model.expert_parameters * share / layout.expert

    def _shards_gradients(self, level: int) -> bool:
        layout = self.layout
        kept_whole = layout.whole_gradients and (layout.micro_batches > 1 or layout.pipeline > 1)
        return level >= SHARDINGS.index("gradients") and not kept_whole

    def _moments(self) -> float:
        """Return the optimizer's states relative to AdamW's: Muon has one moment for each block matrix, not two."""
        matrices = self.model.block_matrices / self.model.parameters
        return 1 - matrices / 2 if self.layout.optimizer == "muon" else 1.0

    def _share(self, width: float, missing_parameters: float, *, sharded: bool) -> float:
        """Return the bytes of a state that takes ``width`` bytes for each parameter."""
        dense, experts = self.local_parameters()
        dense -= missing_parameters
        ranks = self.layout.sharding_ranks
        if not sharded:
            return width * (dense + experts)
        return width * (dense / ranks + experts / max(1, ranks // self.layout.expert))

    def _blocks_of_first_stage(self) -> int:
        """Return its blocks; one less where embedding and head count as blocks so that all stages are even."""
        layers, stages = self.model.layers, self.layout.pipeline
        if stages > 1 and layers % stages and (layers + ENDS) % stages == 0:
            return max(1, (layers + ENDS) // stages - 1)
        return -(-layers // stages)
