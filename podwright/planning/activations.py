"""Size the activations that blocks keep for the backward pass, and those of the block being computed, in bytes."""

from __future__ import annotations

from typing import Literal

from podwright.planning.calibration import Calibration
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.trainer_software import Software

BlockPart = Literal["attention", "mlp", "mamba", "experts"]


class Activations:
    """Size the activations of the first stage of a layout (arXiv:2205.05198)."""

    def __init__(self, model: Model, layout: Layout, software: Software, constants: Calibration) -> None:
        self.model, self.layout, self.software, self.constants = model, layout, software, constants
        self.tokens = layout.tokens_per_micro_batch

    @property
    def sequence_shards(self) -> int:
        """Ranks that split the parts outside attention and MLP among them, which is sequence parallelism."""
        return self.layout.tensor

    # ---- of all blocks -----------------------------------------------------------------------------

    def kept_bytes(self) -> float:
        """Return the bytes that the blocks of the first stage keep for the backward pass."""
        layout = self.layout
        counts = self._block_parts().items()
        bytes_per_token = sum(count * self._kept(part) for part, count in counts) / layout.pipeline
        if layout.offload_activations:
            bytes_per_token = 2.0 * self.input_bytes
        return self.tokens * bytes_per_token * self.micro_batches_in_flight

    def working_bytes(self) -> float:
        """Return the bytes that the block being computed adds."""
        bytes_by_part = {part: self._whole(part) for part, count in self._block_parts().items() if count}
        if self.layout.recompute == "none":  # Only gradients come on top of the activations that are kept.
            working = max(bytes_by_part.values()) / 2
        else:
            working = max(size + self._gate_gradients(part) for part, size in bytes_by_part.items())
        return self.tokens * working * self.constants("working_set")

    @property
    def micro_batches_in_flight(self) -> float:
        """Micro-batches that the first stage keeps in flight.

        1F1B keeps as many as there are stages, interleaved 1F1B a few more (arXiv:2104.04473).
        """
        layout = self.layout
        if layout.pipeline == 1:
            return 1.0
        extra = (layout.pipeline - 1) / layout.virtual_stages if layout.virtual_stages > 1 else 0.0
        return min(float(layout.micro_batches), layout.pipeline + extra)

    def _block_parts(self) -> dict[BlockPart, int]:
        """Return how many blocks have each part."""
        model = self.model
        return {
            "attention": model.attention_blocks,
            "mlp": model.mlp_blocks,
            "mamba": model.mamba_layers,
            "experts": model.expert_blocks,
        }

    # ---- of one block ------------------------------------------------------------------------------

    def kept_bytes_per_block(self) -> float:
        """Return the bytes that a block keeps of a micro-batch from its forward pass on."""
        return self.kept_bytes() / self.micro_batches_in_flight * self.layout.pipeline / self.model.layers

    def split_bytes_per_block(self) -> float:
        """Return the bytes that a block keeps between the gradients of its input and of its weights."""
        model, layout = self.model, self.layout
        block_bytes = sum(count * self._whole(part) for part, count in self._block_parts().items()) / model.layers
        results = (model.heads + 2 * model.kv_heads) * model.head_dim + model.matrices_of_mlp * model.ffn
        return self.tokens * (block_bytes + 2.0 * results / layout.tensor)

    @property
    def input_bytes(self) -> float:
        """Bytes per token of a block's input on one rank."""
        return 2.0 * self.model.hidden_size / self.sequence_shards

    def _kept(self, part: BlockPart) -> float:
        """Return the bytes per token that a part keeps for its backward pass."""
        if self._repeats(part):
            return self.input_bytes if self.model.hybrid else self.input_bytes / 2
        if self.layout.recompute == "selective":
            return self._whole(part) * self.constants("selective_kept", self.software.name)
        return self._whole(part)

    def _repeats(self, _part: BlockPart) -> bool:
        """Return whether the backward pass computes all of a part again, from its input."""
        return self.layout.recompute == "full"

    def _whole(self, part: BlockPart) -> float:
        """Return the bytes per token of a part's activations.

        Inputs of linear layers have the products' precision if the software keeps them so, the rest is bf16, and eager
        norms are fp32.
        """
        model, tensor = self.model, self.layout.tensor
        linear = self._linear_bytes()
        if part == "attention":
            return self._norm_bytes() * model.norm_vectors_kept + self._attention_bytes(linear) / tensor
        if part == "mamba":
            return self._norm_bytes() + (8.0 if self.software.compiled else 12.0) * model.mamba_inner / tensor
        if part == "mlp":
            return self._norm_bytes() * model.norm_vectors_kept + self._ffn(model.ffn, linear) / tensor
        return self._norm_bytes() + self._expert_bytes(linear) / tensor

    def _linear_bytes(self) -> float:
        """Return the bytes of each element that a linear layer keeps of its input."""
        precision_bytes = {"bf16": 2.0, "fp32": 4.0}.get(self.layout.precision)
        return precision_bytes or self.constants("fp8_kept", self.software.name)

    def _norm_bytes(self) -> float:
        software = self.software
        element = 2.0 + self._linear_bytes() if software.compiled else self.constants("norm_bytes", software.name)
        return element * self.model.hidden_size / self.sequence_shards

    def _attention_bytes(self, linear: float) -> float:
        model = self.model
        heads = (model.heads + 2 * model.kv_heads) * model.head_dim
        width = model.heads * (model.value_dim or model.head_dim)
        copy = linear if linear < 2.0 else 0.0  # noqa: PLR2004 - in bf16 it is the output itself
        output = 0.0 if copy and self._repeats_only_core() else 2.0
        return 2.0 * heads + (output + copy) * width

    def _repeats_only_core(self) -> bool:
        """Return whether only attention's core is repeated: its output is then kept in the product's precision."""
        return self.layout.recompute == "selective"

    def _expert_bytes(self, linear: float) -> float:
        model = self.model
        element = linear if self.constants("fp8_experts", self.software.name) else max(linear, 2.0)
        routed = model.experts_per_token * (
            element * (model.latent or model.hidden_size) + self._ffn(model.expert_ffn, element)
        )
        if not self.software.compiled:  # The experts' results, for the gradients of the weights that mix them.
            routed += 2.0 * model.experts_per_token * model.hidden_size
        return routed + self._ffn(model.shared_ffn, linear)

    def _ffn(self, width: int, linear: float) -> float:
        """Return the bytes of the activation function's inputs (two if gated) and output."""
        model = self.model
        if self.software.compiled:
            return (2.0 * (model.matrices_of_mlp - 1) + linear) * width
        return (8.0 if model.gated else 4.0) * width

    def _gate_gradients(self, part: BlockPart) -> float:
        """Return the bytes per token by which a gated activation's gradients exceed the products that they replace.

        Without fusion, gate, up, the activation and the gradients of it, of up and of their product are there at once:
        six, beside the four that ``_ffn`` counts. Counted with ``podwright-train dry-run``.
        """
        model = self.model
        widths = {"mlp": model.ffn, "experts": model.experts_per_token * model.expert_ffn + model.shared_ffn}
        if self.software.compiled or not model.gated:
            return 0.0
        return 2 * 2.0 * widths.get(part, 0) / self.layout.tensor
