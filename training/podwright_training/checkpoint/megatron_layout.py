"""Name the parameters of a model as Megatron-Core does, and fuse their matrices as it does.

The names are those of ``GPTModel`` in the format ``torch_dist``. One matrix has queries, keys and values, another gate
and up. A layer norm is named after the linear layer that follows it, as in the specification of Transformer Engine;
the local specification saves the same names. Tensors of all layers are one, with a leading axis, or each layer has its
own (``non_homogeneous_layers``); then gate and up may be apart (``singleton_local_shards``). Rotation and the order of
rows within a head are those of this model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from podwright_training.checkpoint import fused_qkv
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.fused_qkv import PROJECTIONS
from podwright_training.config.architecture import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
TOP_LEVEL = {
    EMBEDDING: "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
    HEAD: "output_layer.weight",
}
LAYERS = "decoder.layers"
GATE_AND_UP = ("gate_proj", "up_proj")
QKV, FC1 = "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"
MODULES = {  # The values are Megatron's names, within a layer.
    "input_layernorm": "self_attention.linear_qkv.layer_norm_weight",
    "post_attention_layernorm": "mlp.linear_fc1.layer_norm_weight",
    "self_attn.q_norm": "self_attention.q_layernorm.weight",
    "self_attn.k_norm": "self_attention.k_layernorm.weight",
    "self_attn.o_proj": "self_attention.linear_proj.weight",
    "mlp.down_proj": "mlp.linear_fc2.weight",
    **{f"self_attn.{projection}": QKV for projection in PROJECTIONS},
    **{f"mlp.{projection}": FC1 for projection in GATE_AND_UP},
}
UNFUSED_NORMS = {
    "input_layernorm": "input_layernorm.weight",
    "post_attention_layernorm": "pre_mlp_layernorm.weight",
}


class Place(NamedTuple):
    """The tensor of Megatron that contains a parameter.

    Attributes:
        key: Name of the tensor.
        layer: Index of the layer in a tensor of all layers; ``None`` in another.
    """

    key: str
    layer: int | None


@dataclass(frozen=True)
class MegatronLayout:
    """The names and the fused matrices in Megatron's checkpoints of one model.

    Attributes:
        model: The model.
        stacks_layers: Whether one tensor has all layers.
        splits_gate: Whether gate and up are apart.
        fuses_norms: Whether a layer norm is named after the linear layer that follows it.
    """

    model: ModelConfig
    stacks_layers: bool = True
    splits_gate: bool = False
    fuses_norms: bool = True

    @classmethod
    def detect(cls, names: Collection[str], model: ModelConfig) -> MegatronLayout:
        """Return the layout of a checkpoint that has tensors of these names."""
        layout = cls(model, stacks_layers=f"{LAYERS}.{QKV}" in names)
        prefix = LAYERS if layout.stacks_layers else f"{LAYERS}.0"
        return replace(
            layout,
            splits_gate=f"{prefix}.{FC1}_w" in names,
            fuses_norms=f"{prefix}.{UNFUSED_NORMS['input_layernorm']}" not in names,
        )

    def check_model(self) -> None:
        """Raise ``CheckpointError`` for a model that cannot move."""
        if self.model.num_local_experts:
            raise CheckpointError(
                "a model with experts cannot move to or from Megatron with the states of its optimizer; move its "
                "weights as a Hugging Face model"
            )
        if self.model.sliding_window:
            raise CheckpointError(
                f"sliding_window {self.model.sliding_window}: only models that attend to all preceding tokens move "
                "to or from Megatron"
            )

    def place(self, parameter: str) -> Place:
        """Return where Megatron has a parameter."""
        if parameter in TOP_LEVEL:
            return Place(TOP_LEVEL[parameter], None)
        layer, module = layer_and_module(parameter)
        name = MODULES[module]
        if module in UNFUSED_NORMS and not self.fuses_norms:
            name = UNFUSED_NORMS[module]
        if name == FC1 and self.splits_gate:
            name += "_w" if module.endswith(GATE_AND_UP[0]) else "_v"
        if self.stacks_layers:
            return Place(f"{LAYERS}.{name}", layer)
        return Place(f"{LAYERS}.{layer}.{name}", None)

    def shape(self, parameter: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of Megatron's tensor that has a parameter of this shape, of one layer."""
        projection = _projection(parameter)
        if projection in PROJECTIONS:
            heads = self.model.num_attention_heads + 2 * self.model.num_key_value_heads
            return (heads * self.model.head_dim, *shape[1:])
        if projection in GATE_AND_UP and not self.splits_gate:
            return (2 * shape[0], *shape[1:])
        return shape

    def fuse(self, tensors: list[Tensor]) -> Tensor:
        """Return Megatron's tensor: queries, keys and values, or gate and up, or a tensor alone."""
        if len(tensors) == len(PROJECTIONS):
            return fused_qkv.fuse(self.model, tensors)
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def split(self, parameter: str, fused: Tensor) -> Tensor:
        """Return a parameter from Megatron's tensor; rows that pad the vocabulary are left out."""
        projection = _projection(parameter)
        if projection in PROJECTIONS:
            return fused_qkv.split(self.model, projection, fused)
        if projection in GATE_AND_UP and not self.splits_gate:
            return fused.chunk(2)[GATE_AND_UP.index(projection)]
        if parameter in (EMBEDDING, HEAD):
            return fused[: self.model.vocab_size]
        return fused


def layer_and_module(parameter: str) -> tuple[int, str]:
    """Return the index of a parameter's layer, and its name there."""
    _, _, layer, module = parameter.removesuffix(".weight").split(".", maxsplit=3)
    return int(layer), module


def unflatten(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of this shape that was saved as ``[*grid, elements of a block]``.

    The distributed optimizer's format ``fully_sharded_model_space`` cuts a tensor into a grid of blocks, one for each
    rank of tensor parallelism, and saves each block's elements in a row.
    """
    grid = tensor.shape[:-1]
    block = [length // blocks for length, blocks in zip(shape, grid, strict=True)]
    axes = [axis for pair in zip(range(len(grid)), range(len(grid), 2 * len(grid)), strict=True) for axis in pair]
    return tensor.reshape(*grid, *block).permute(axes).reshape(shape)


def _projection(parameter: str) -> str:
    return parameter.removesuffix(".weight").rpartition(".")[2]
