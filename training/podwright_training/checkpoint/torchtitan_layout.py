"""Name the parameters of a model as torchtitan does, and order the rows of their matrices as it does.

The names are those of torchtitan's state dict adapters. Its Llama 3 rotates neighbouring elements of a head, while this
model, like transformers, rotates elements that are half a head apart: the rows of queries and keys have another order.
Since release 0.3 the optimizer sees queries, keys and values as one matrix, the rows of each key-value head together;
the weights are saved apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from podwright_training.checkpoint import fused_qkv
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.fused_qkv import PROJECTIONS
from podwright_training.config.architecture import ModelConfig

RELEASES = ("0.3", "0.2")
MODULES = {  # The values are torchtitan's names, within a block.
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


@dataclass(frozen=True)
class TorchtitanLayout:
    """The names and the order of rows in torchtitan's checkpoints of one model.

    Attributes:
        model: The model.
        release: Release of torchtitan.
        fuses_qkv: Whether the optimizer sees queries, keys and values as one matrix.
    """

    model: ModelConfig
    release: str = "0.3"
    fuses_qkv: bool = True

    @classmethod
    def detect(cls, names: Collection[str], model: ModelConfig) -> TorchtitanLayout:
        """Return the layout of a checkpoint that has tensors of these names."""
        release = "0.2" if "output.weight" in names else "0.3"
        return cls(model, release, any(".wqkv.weight." in name for name in names))

    def check_model(self) -> None:
        """Raise ``CheckpointError`` for a model that torchtitan lacks or trains in another way."""
        if self.model.num_local_experts:
            raise CheckpointError(
                "a model with experts cannot move to or from torchtitan, which balances their load in another way"
            )
        if self.model.sliding_window:
            raise CheckpointError(
                f"sliding_window {self.model.sliding_window}: torchtitan's models attend to all preceding tokens"
            )
        if self.model.qk_norm and self.release == "0.2":
            raise CheckpointError("qk_norm: Qwen3 moves to and from torchtitan 0.3, not 0.2")

    def name(self, parameter: str) -> str:
        """Return torchtitan's name of a parameter, as in its weights."""
        top_level = {
            "model.embed_tokens.weight": "tok_embeddings.weight",
            "model.norm.weight": "norm.weight",
            "lm_head.weight": self.head,
        }
        if parameter in top_level:
            return top_level[parameter]
        _, _, layer, module = parameter.removesuffix(".weight").split(".", maxsplit=3)
        return f"layers.{layer}.{self._module(module)}.weight"

    def optimized_name(self, parameter: str) -> str:
        """Return torchtitan's name of a parameter, as in its optimizer."""
        name = self.name(parameter)
        return f"{name.removesuffix('.weight').rpartition('.')[0]}.wqkv.weight" if self.is_fused(parameter) else name

    @property
    def head(self) -> str:
        """Return the name of the weights of the head, which torchtitan saves for a tied head too."""
        return "output.weight" if self.release == "0.2" else "lm_head.weight"

    def is_fused(self, parameter: str) -> bool:
        """Return whether the optimizer sees a parameter as a part of another matrix."""
        return self.fuses_qkv and _projection(parameter) in PROJECTIONS

    def to_torchtitan(self, parameter: str, tensor: Tensor) -> Tensor:
        """Return a parameter, or its moment, with torchtitan's order of rows."""
        heads = self._rotated_heads(parameter)
        if not heads:
            return tensor
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def from_torchtitan(self, parameter: str, tensor: Tensor) -> Tensor:
        """Return a parameter, or its moment, with this model's order of rows."""
        heads = self._rotated_heads(parameter)
        if not heads:
            return tensor
        return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)

    def fuse(self, projections: list[Tensor]) -> Tensor:
        """Return the matrix of queries, keys and values, each in torchtitan's order of rows."""
        return fused_qkv.fuse(self.model, projections)

    def split(self, parameter: str, fused: Tensor) -> Tensor:
        """Return queries, keys or values from their common matrix."""
        return fused_qkv.split(self.model, _projection(parameter), fused)

    def _module(self, module: str) -> str:
        projection = module.removeprefix("self_attn.")
        if projection in PROJECTIONS:
            fused = "" if self.release == "0.2" else "qkv_linear."
            return f"attention.{fused}w{projection[0]}"
        return MODULES[module]

    def _rotated_heads(self, parameter: str) -> int:
        """Return the number of heads whose rows torchtitan orders in another way; 0 for other parameters."""
        if self.model.qk_norm:  # torchtitan's Qwen3 rotates as this model does.
            return 0
        heads = {"q_proj": self.model.num_attention_heads, "k_proj": self.model.num_key_value_heads}
        return heads.get(_projection(parameter), 0)


def _projection(parameter: str) -> str:
    return parameter.removesuffix(".weight").rpartition(".")[2]
