"""The shape of a language model, its number of parameters and its FLOPs."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from podwright.errors import PodwrightError
from podwright_common.similar_names import question, similar_names


class UnknownModelError(PodwrightError, ValueError):
    """The catalog has no model of that name. The message lists the closest names."""

    def __init__(self, name: str) -> None:
        keys = similar_names(model_key(name), _catalog(), limit=3)
        hint = question(dict.fromkeys(_catalog()[key].name for key in keys)) or f"use one of {', '.join(model_names())}"
        super().__init__(f"{name!r} is not in the catalog of models: {hint}")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder of ``layers`` blocks. Zero means that the model does not have the part.

    Widths are in elements. ``experts`` is the number of routed experts of a mixture-of-experts block, ``expert_ffn``
    the width of each, ``shared_ffn`` the width of what every token passes, ``dense_layers`` how many blocks have an
    ordinary MLP instead, ``latent`` the width that experts work in where it is not ``hidden_size``. ``q_rank``,
    ``kv_rank``, ``rope_dim`` and ``value_dim`` describe multi-head latent attention (arXiv:2405.04434). In a hybrid,
    ``attention_layers`` and ``mamba_layers`` are blocks of their own and the rest of ``layers`` are expert blocks.
    """

    name: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    gated: bool = True
    activation: str = "silu"
    bias: str = "none"  # "none" | "qkv" | "all"
    norm_vectors: int = 1  # RMSNorm has a weight, LayerNorm a weight and a bias
    qk_norm: bool = False
    learned_positions: int = 0
    window: int = 0
    windowed_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    latent: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    attention_layers: int = -1  # -1: every block has attention
    mamba_layers: int = 0
    mamba_inner: int = 0
    mamba_state: int = 0
    extra_predictions: int = 0  # further blocks, each with a projection and the head again (arXiv:2412.19437)
    published_billions: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, name: str) -> Model:
        """Return the published model of that name (``Llama-3.1-8B`` or ``llama3_1_8b``).

        Raises:
            UnknownModelError: The message lists the closest names.
        """
        try:
            return _catalog()[model_key(name)]
        except KeyError:
            raise UnknownModelError(name) from None

    # ---- blocks --------------------------------------------------------------------------------

    @property
    def hybrid(self) -> bool:
        """True if attention, state-space and expert parts are separate blocks."""
        return self.attention_layers >= 0

    @property
    def attention_blocks(self) -> int:
        """Blocks with attention."""
        return self.attention_layers if self.hybrid else self.layers

    @property
    def expert_blocks(self) -> int:
        """Blocks with routed experts."""
        if not self.experts:
            return 0
        blocks_without_experts = self.attention_layers + self.mamba_layers if self.hybrid else self.dense_layers
        return self.layers - blocks_without_experts

    @property
    def mlp_blocks(self) -> int:
        """Blocks with an ordinary MLP."""
        return 0 if self.hybrid else self.layers - self.expert_blocks

    @property
    def norm_vectors_kept(self) -> int:
        """Norms around each part: Gemma 2 has one before and one after."""
        return 2 if self.name.startswith("gemma2") else 1

    # ---- parameters ----------------------------------------------------------------------------

    @property
    def matrices_of_mlp(self) -> int:
        """Matrices of one MLP: three if gated, otherwise two."""
        return 3 if self.gated else 2

    @property
    def attention_matrices(self) -> int:
        """Parameters of one attention's matrices."""
        if self.kv_rank:
            query = (
                self.q_rank * (self.hidden_size + self.heads * self.head_dim)
                if self.q_rank
                else self.hidden_size * self.heads * self.head_dim
            )
            down = self.hidden_size * (self.kv_rank + self.rope_dim)
            up = self.kv_rank * self.heads * (self.head_dim - self.rope_dim + self.value_dim)
            return query + down + up + self.heads * self.value_dim * self.hidden_size
        return 2 * (self.heads + self.kv_heads) * self.head_dim * self.hidden_size

    @property
    def mlp_matrices(self) -> int:
        """Parameters of one ordinary MLP."""
        return self.matrices_of_mlp * self.hidden_size * self.ffn

    @property
    def one_expert_matrices(self) -> int:
        """Parameters of one routed expert."""
        return self.matrices_of_mlp * (self.latent or self.hidden_size) * self.expert_ffn

    @property
    def shared_expert_matrices(self) -> int:
        """Parameters of shared experts, router and latent projections: every token uses them."""
        return (
            self.matrices_of_mlp * self.hidden_size * self.shared_ffn
            + self.hidden_size * self.experts
            + 2 * self.latent * self.hidden_size
        )

    @property
    def mamba_matrices(self) -> int:
        """Parameters of one Mamba-2 block: projections in (values, gate, B, C of eight groups, steps) and out."""
        inner = self.mamba_inner
        return self.hidden_size * (2 * inner + 16 * self.mamba_state + inner // 64) + inner * self.hidden_size

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts: the part that expert parallelism shards."""
        return self.expert_blocks * self.experts * self.one_expert_matrices

    @cached_property
    def block_matrices(self) -> int:
        """Parameters of all blocks' matrices."""
        return (
            self.active_block_matrices
            - self.expert_blocks * self.experts_per_token * self.one_expert_matrices
            + self.expert_parameters
        )

    @cached_property
    def active_block_matrices(self) -> int:
        """Parameters of all blocks' matrices, with only the experts that one token uses."""
        return (
            self.attention_blocks * self.attention_matrices
            + self.mlp_blocks * self.mlp_matrices
            + self.mamba_layers * self.mamba_matrices
            + self.expert_blocks * (self.shared_expert_matrices + self.experts_per_token * self.one_expert_matrices)
        )

    @cached_property
    def vectors(self) -> int:
        """Parameters in vectors: norms, biases and learned positions."""
        norms_per_block = 1 if self.hybrid else 2
        norms = (norms_per_block * self.layers + 1) * self.norm_vectors * self.hidden_size
        norms += self.attention_blocks * (2 * self.head_dim if self.qk_norm else 0)
        norms += self.attention_blocks * (self.q_rank + self.kv_rank)
        return norms + self._biases + self.learned_positions * self.hidden_size

    @cached_property
    def parameters(self) -> int:
        """All trained parameters; a tied head counts once."""
        return self.block_matrices + self.vectors + self.embedding * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, embedding included."""
        return self.parameters - self.block_matrices + self.active_block_matrices

    @property
    def _biases(self) -> int:
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.bias == "none":
            return 0
        if self.bias == "qkv":
            return self.attention_blocks * qkv
        mlp_biases = self.ffn if not self.gated else 2 * self.ffn
        expert = (2 * self.expert_ffn if self.gated else self.expert_ffn) + self.hidden_size
        return (
            self.attention_blocks * (qkv + self.hidden_size)
            + self.mlp_blocks * (mlp_biases + self.hidden_size)
            + self.expert_blocks * self.experts * (expert + 1)
        )

    # ---- FLOPs ---------------------------------------------------------------------------------

    @property
    def matrix_flops_per_token(self) -> float:
        """Forward FLOPs per token of all products: ``2 N``, with the head, without the embedding look-up."""
        return 2.0 * (self.active_block_matrices + self.embedding + self.extra_predictions * self._extra_prediction)

    @property
    def _extra_prediction(self) -> int:
        experts = (
            self.shared_expert_matrices + self.experts_per_token * self.one_expert_matrices
            if self.experts
            else self.mlp_matrices
        )
        return self.attention_matrices + experts + 2 * self.hidden_size**2 + self.embedding

    def attention_flops_per_token(self, sequence: int, *, causal: bool = True) -> float:
        """Return forward FLOPs per token of scores and values.

        ``4 L a d s``, or half of it with a causal mask. Mamba's scan is ``6 n d``.
        """
        full = self.attention_blocks - self.windowed_layers
        values = self.value_dim or self.head_dim
        per_position = 2.0 * self.heads * (self.head_dim + values)
        reach = full * sequence * (0.5 if causal else 1.0)
        if self.windowed_layers:
            reach += self.windowed_layers * _mean_reach(sequence, self.window, causal=causal)
        return per_position * reach + self.mamba_layers * 6.0 * self.mamba_inner * self.mamba_state

    def training_flops_per_token(self, sequence: int, *, causal: bool = True) -> float:
        """Return FLOPs per token of forward and backward without recomputation: three times forward."""
        return 3 * (self.matrix_flops_per_token + self.attention_flops_per_token(sequence, causal=causal))


def model_names() -> tuple[str, ...]:
    """Return the names in the catalog."""
    return tuple(dict.fromkeys(model.name for model in _catalog().values()))


def _mean_reach(sequence: int, window: int, *, causal: bool) -> float:
    if sequence <= window:
        return sequence * (0.5 if causal else 1.0)
    return window - window * window / (2.0 * sequence) if causal else float(window)


def model_key(name: str) -> str:
    """Return the name in lower case without owner, brackets, punctuation and ``-instruct`` or ``-chat``."""
    text = re.sub(r"\(.*?\)", " ", name.lower()).rsplit("/", 1)[-1]
    text = re.sub(r"^\W*meta\W|[-_ ](instruct|chat|hf|base|it)\W*$", "", text)
    return "".join(letter for letter in text if letter.isalnum())


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Model]:
    return read_models(files(__package__).joinpath("data/models.csv").read_text(encoding="utf-8"))


def read_models(text: str) -> dict[str, Model]:
    """Return the models of a CSV table by the keys of their names and aliases."""
    models = {}
    for row in csv.DictReader(text.splitlines()):
        model = _model(row)
        for name in [row["name"], *row["aliases"].split(";")]:
            if name:
                models[model_key(name)] = model
    return models


def _model(row: Mapping[str, str]) -> Model:
    values: dict[str, Any] = {}
    for item in fields(Model):
        text = row.get(item.name, "")
        if text == "":
            continue
        match item.type:
            case "bool":
                values[item.name] = text == "1"
            case "int":
                values[item.name] = int(text)
            case "float":
                values[item.name] = float(text)
            case _:
                values[item.name] = text
    return Model(**values)
