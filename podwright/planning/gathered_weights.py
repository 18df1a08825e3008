"""Size the weights that FSDP gathers from all ranks, and the gradients that it reduces, in bytes."""

from __future__ import annotations

from podwright.planning.layout import Layout
from podwright.planning.model import Model

BF16_BYTES = 2.0


class GatheredWeights:
    """Size the gathered weights of a rank of a layout."""

    def __init__(self, model: Model, layout: Layout) -> None:
        self.model, self.layout = model, layout

    @property
    def fully_sharded(self) -> bool:
        """True if ranks share all states, as with FSDP."""
        return self.layout.sharding == "full"

    @property
    def gathered_once(self) -> bool:
        """True if FSDP gathers weights once: for a micro-batch, or in a pipeline for all of a step."""
        layout = self.layout
        return self.fully_sharded and (layout.reshard == "never" or (layout.reshard == "auto" and layout.pipeline > 1))

    @property
    def gathers(self) -> bool:
        """True if ranks gather the weights of one block after another."""
        return self.layout.sharding in ("full", "gradients") and self.layout.sharding_ranks > 1

    @property
    def block_parameters(self) -> float:
        """Parameters of a block's matrices that a rank gathers."""
        model, layout = self.model, self.layout
        matrices = model.block_matrices - model.expert_parameters * (1 - 1 / layout.expert)
        return matrices / max(1, model.layers) / layout.tensor

    @property
    def vocabulary_shards(self) -> int:
        """Ranks of tensor parallelism that divide embedding and head by words."""
        model, tensor = self.model, self.layout.tensor
        return 1 if model.tied or model.vocab % tensor else tensor

    @property
    def end_parameters(self) -> float:
        """Parameters of the embedding, or of the head, on one rank."""
        return self.model.embedding / self.vocabulary_shards

    def blocks_bytes(self, *, gradient_bytes: float = BF16_BYTES) -> float:
        """Size the two blocks that full sharding gathers, and one's gradient of so many bytes for each parameter."""
        if not self.gathers:
            return 0.0
        if self.layout.sharding == "gradients":
            return BF16_BYTES * self.block_parameters * max(1, self.model.layers)
        return (2 * BF16_BYTES + gradient_bytes) * self.block_parameters

    def end_bytes(self) -> float:
        """Size embedding or head, with the gradient."""
        return 2 * BF16_BYTES * self.model.embedding / self.layout.tensor if self.gathers else 0.0
