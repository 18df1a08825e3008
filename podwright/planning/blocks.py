"""Predict the time of one block of a model for one micro-batch, by kind of block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from podwright.planning.calibration import Calibration
from podwright.planning.kernels import Kernels
from podwright.planning.layout import Layout
from podwright.planning.model import Model
from podwright.planning.trainer_software import Software


@dataclass
class Block:
    """Seconds that one block takes for one micro-batch."""

    forward: float = 0.0
    backward: float = 0.0
    attention: float = 0.0  # forward pass of the attention core, which selective recomputation repeats
    traffic: float = 0.0  # both passes, element by element
    tensor: float = 0.0  # both passes, exposed
    expert: float = 0.0
    core: float = 0.0  # both passes


class Blocks:
    """Times the blocks of a model on one accelerator of a layout."""

    block_type: ClassVar[type[Block]] = Block
    quantised_precisions: ClassVar[tuple[str, ...]] = ("fp8",)  # Tensors are cast before each product.

    def __init__(
        self, model: Model, layout: Layout, kernels: Kernels, software: Software, constants: Calibration
    ) -> None:
        self.model, self.layout, self.kernels, self.software, self.constants = (
            model,
            layout,
            kernels,
            software,
            constants,
        )
        self.tokens = layout.tokens_per_micro_batch

    def kinds(self) -> list[tuple[float, Block]]:
        """Return each kind of block: how many the model has, and the times of one."""
        model = self.model
        if model.hybrid:
            return [
                (model.attention_blocks, self._attention()),
                (model.mamba_layers, self._mamba()),
                (model.expert_blocks, self._experts()),
            ]
        blocks = []
        if model.mlp_blocks:
            blocks.append((float(model.mlp_blocks), self._add(self._attention(), self._mlp())))
        if model.expert_blocks:
            blocks.append((float(model.expert_blocks), self._add(self._attention(), self._experts())))
        return blocks

    def kernels_of(self, part: str, kernels: Kernels | None = None) -> Kernels:
        """Return the kernels of a part, in bf16 if the software does not compute it in 8 bits as linear layers."""
        kernels = kernels or self.kernels
        if kernels.precision in self.quantised_precisions and not self.constants(f"fp8_{part}", self.software.name):
            return replace(kernels, precision="bf16")
        return kernels

    def _attention(self) -> Block:
        model, tensor = self.model, self.layout.tensor
        width = model.heads * model.head_dim
        block = self.block_type()
        if model.kv_rank:
            self._linear(block, model.hidden_size, model.q_rank + model.kv_rank + model.rope_dim)
            self._up_projections(block)
            self._linear(block, model.heads * model.value_dim / tensor, model.hidden_size)
        else:
            self._linear(block, model.hidden_size, (model.heads + 2 * model.kv_heads) * model.head_dim / tensor)
            self._linear(block, width / tensor, model.hidden_size)
        forward, backward = self._attention_core()
        block.forward += forward
        block.backward += backward
        block.attention = forward
        block.core = forward + backward
        self._elementwise(
            block, replicated=5 * model.hidden_size, split=2 * (model.heads + 2 * model.kv_heads) * model.head_dim
        )
        block.tensor = self._tensor_communication()
        return block

    def _up_projections(self, block: Block) -> None:
        """Add the products of multi-head latent attention from the latent widths to the heads."""
        model, tensor = self.model, self.layout.tensor
        self._linear(block, model.q_rank or model.hidden_size, model.heads * model.head_dim / tensor)
        heads = model.heads * (model.head_dim - model.rope_dim + model.value_dim)
        self._linear(block, model.kv_rank, heads / tensor)

    def _attention_core(self) -> tuple[float, float]:
        """Return the times of scores and values, forward and backward."""
        model, layout, kernels = self.model, self.layout, self.kernels
        per_block = model.attention_flops_per_token(layout.sequence) / max(1, model.attention_blocks)
        return kernels.fused_attention(
            per_block * self.tokens / layout.tensor,
            sequence=layout.sequence,
            head_dim=model.head_dim,
            share=self.constants("attention_share", self.software.name, kernels.accelerator.generation),
        )

    def _mlp(self) -> Block:
        model, tensor = self.model, self.layout.tensor
        block = self.block_type()
        self._linear(block, model.hidden_size, (model.matrices_of_mlp - 1) * model.ffn / tensor)
        self._linear(block, model.ffn / tensor, model.hidden_size)
        self._elementwise(block, replicated=5 * model.hidden_size, split=model.matrices_of_mlp * model.ffn)
        block.tensor = self._tensor_communication()
        return block

    def _mamba(self) -> Block:
        model = self.model
        inner = model.mamba_inner / self.layout.tensor
        block = self.block_type()
        self._linear(block, model.hidden_size, 2 * inner + 16 * model.mamba_state)
        self._linear(block, inner, model.hidden_size)
        scan = 6.0 * model.mamba_inner * model.mamba_state * self.tokens / self.layout.tensor
        time = scan / (self.constants("scan") * self.kernels.accelerator.peak_flops("bf16"))
        block.forward, block.backward = block.forward + time, block.backward + 2 * time
        self._elementwise(block, replicated=5 * model.hidden_size, split=8 * model.mamba_inner)
        block.tensor = self._tensor_communication()
        return block

    def _experts(self) -> Block:
        """Time the routed experts (grouped products), the shared experts, and the all-to-all there and back."""
        model, layout = self.model, self.layout
        width, inputs = model.latent or model.hidden_size, model.matrices_of_mlp - 1
        block = self.block_type()
        rows = self.tokens / layout.tensor * model.experts_per_token * layout.expert / model.experts
        share = self.constants("grouped_products")
        kernels = self._expert_kernels()
        for columns, depth in ((inputs * model.expert_ffn, width), (width, model.expert_ffn)):
            forward, backward = kernels.product_and_gradients(
                rows,
                columns,
                depth,
                groups=model.experts / layout.expert,
                of_weight=self.kernels_of("weight_gradients", kernels),
            )
            if kernels.precision in self.quantised_precisions:
                copies = self.tokens / layout.tensor * model.experts_per_token
                self._stream(block, copies * self._quantised_bytes(depth, columns), backward_share=0.5)
            block.forward += forward / share
            block.backward += backward / share
        if model.shared_ffn:
            self._linear(block, model.hidden_size, inputs * model.shared_ffn / layout.tensor)
            self._linear(block, model.shared_ffn / layout.tensor, model.hidden_size)
        if model.latent:
            self._linear(block, model.hidden_size, model.latent)
            self._linear(block, model.latent, model.hidden_size)
        self._elementwise(block, replicated=5 * model.hidden_size, split=0)
        self._route(block, width)
        return block

    def _expert_kernels(self) -> Kernels:
        return self.kernels_of("experts")

    def _route(self, block: Block, width: int) -> None:
        """Add the permutation of tokens, the activations, and the all-to-all to the ranks with the experts."""
        layout = self.layout
        copies = self.tokens * self.model.experts_per_token / layout.tensor
        elements = self._expert_passes() * 6 * width + self._activation_elements()
        self._stream(block, copies * elements * 2.0 * 3.0, backward_share=2 / 3)
        token_bytes = self.tokens / layout.tensor * width * 2.0
        once = self.kernels.dispatch(token_bytes, self.model.experts_per_token, layout.expert)
        times = 4 + (2 if layout.recompute == "full" else 0)  # there and back, forward and backward
        block.expert = times * once * (1 - self._hidden_share_of_dispatch())

    def _expert_passes(self) -> float:
        """Return the passes over the experts' elements, relative to one read and one write of each."""
        return self.constants("experts", self.software.name)

    def _activation_elements(self) -> float:
        """Return the elements that the experts' activation reads and writes for each copy of a token."""
        model = self.model
        elements = self._expert_passes() * 3 * model.expert_ffn
        if model.bias == "all":  # biases and a clamped activation, each operation a kernel of its own
            elements += self.constants("unfused_experts") * model.expert_ffn
        return elements

    def _hidden_share_of_dispatch(self) -> float:
        """Return the share of the experts' all-to-all that computation hides."""
        return self.constants("overlap_expert", self.software.name)

    def _add(self, block: Block, summand: Block) -> Block:
        return self.block_type(**{name: getattr(block, name) + getattr(summand, name) for name in vars(block)})

    def _linear(self, block: Block, depth: float, columns: float) -> None:
        of_weight = self.kernels_of("weight_gradients")
        forward, backward = self.kernels.product_and_gradients(self.tokens, columns, depth, of_weight=of_weight)
        block.forward += forward
        block.backward += backward
        self._stream(block, self.tokens * self._quantised_bytes(depth, columns), backward_share=0.5)

    def _quantised_bytes(self, depth: float, columns: float) -> float:
        """Return the bytes per token to cast a linear layer's input and its output's gradient.

        Each is read in bf16 and written in two orientations.
        """
        if self.layout.precision not in self.quantised_precisions:
            return 0.0
        return self.constants("quantising", self.layout.precision) * (depth + columns)

    def _elementwise(self, block: Block, *, replicated: float, split: float) -> None:
        """Add norms, residuals and activations: read and written in bf16, three times with the backward pass."""
        elements = replicated / self._sequence_shards() + split / self.layout.tensor
        passes = self.constants("elementwise", self.software.name)
        self._stream(block, passes * self.tokens * elements * 2.0 * 3.0, backward_share=2 / 3)

    def _sequence_shards(self) -> int:
        """Return the ranks that divide norms and residuals among them, which is sequence parallelism."""
        return self.layout.tensor

    def _stream(self, block: Block, size: float, *, backward_share: float) -> None:
        """Add ``size`` bytes of memory traffic, the sum of both passes."""
        time = self.kernels.stream(size)
        block.forward += time * (1 - backward_share)
        block.backward += time * backward_share
        block.traffic += time

    def _tensor_communication(self) -> float:
        """Return the exposed time of one all-reduce (or gather and scatter) per pass and per recomputation."""
        layout = self.layout
        if layout.tensor == 1:
            return 0.0
        once = 2 * self.kernels.gather(self.tokens * self.model.hidden_size * 2.0, layout.tensor)
        passes = 2.0 + (1.0 if layout.recompute == "full" else 0.0)
        return once * passes * (1 - self.constants("overlap_tensor", self.software.name))
