"""Count FLOPs per token by the conventions of published tables, which differ by a fifth for one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from podwright.planning.model import Model


@dataclass(frozen=True)
class Convention:
    """A way to count FLOPs, found by ``key`` in a table's text. ``hardware`` ones count recomputation."""

    key: str
    name: str
    hardware: bool
    per_token: Callable[[Model, int], float]


def _all_parameters(model: Model, sequence: int) -> float:
    return 6.0 * model.active_parameters + 12.0 * model.layers * model.hidden_size * sequence


def _megatron_core(model: Model, sequence: int) -> float:
    """Count like Megatron-Bridge's ``flop_utils.py``.

    A state-space block is taken to be twice as wide as the model and its scan to cost 7 FLOPs an element; a hybrid's
    router is left out.
    """
    if not model.hybrid:
        return model.training_flops_per_token(sequence, causal=True)
    shape = replace(model, mamba_inner=2 * model.hidden_size if model.mamba_layers else 0)
    router = 6.0 * shape.expert_blocks * shape.hidden_size * shape.experts
    scan = 3.0 * shape.mamba_layers * shape.mamba_inner * shape.mamba_state
    return shape.training_flops_per_token(sequence, causal=True) - router + scan


def _megatron_core_before_26_06(model: Model, sequence: int) -> float:
    """Count like Megatron-Bridge before 26.06: only SiLU as gated, windows as whole sequences."""
    gated = model.gated and model.activation == "silu"
    return _megatron_core(replace(model, windowed_layers=0, gated=gated), sequence)


def _full_square(model: Model, sequence: int) -> float:
    return model.training_flops_per_token(sequence, causal=False)


def _megatron_2021(model: Model, sequence: int) -> float:
    layers, hidden_size = model.layers, model.hidden_size
    head = model.vocab / (16 * layers * hidden_size)
    return 96.0 * layers * hidden_size**2 * (1 + sequence / (6 * hidden_size) + head)


def _megatron_2020(model: Model, _sequence: int) -> float:
    return 96.0 * model.layers * model.hidden_size**2


def _products_only(model: Model, _sequence: int) -> float:
    return 6.0 * (model.active_parameters - model.embedding)


def _adapters(model: Model, _sequence: int) -> float:
    return 4.0 * (model.active_parameters - model.embedding)


CONVENTIONS = (
    Convention(
        "6N+12Lhs per token", "6N + 12 L h s, N all parameters (llm-foundry)", hardware=False, per_token=_all_parameters
    ),
    Convention(
        "6(N-Vh)+6Lhs",
        "6 (N - V h) + 6 L h s, causal, input embedding excluded (Megatron-Core)",
        hardware=False,
        per_token=_megatron_core,
    ),
    Convention("6(N-Vh)+12Lhs", "6 (N - V h) + 12 L h s (PaLM)", hardware=False, per_token=_full_square),
    Convention(
        "hardware",
        "96 L h^2 (1 + s/6h + V/16Lh), full recomputation included (arXiv:2104.04473)",
        hardware=True,
        per_token=_megatron_2021,
    ),
)
DEFAULT = CONVENTIONS[2]
ADAPTERS = Convention(
    "lora", "4 (N - V h): frozen weights have no gradient, attention not counted", hardware=False, per_token=_adapters
)
BEFORE_26_06 = Convention(
    "25.* and 26.0[1-5]",
    "6 (N - V h) + 6 L h s, causal, windows and gates other than SiLU ignored (Megatron-Bridge before 26.06)",
    hardware=False,
    per_token=_megatron_core_before_26_06,
)
PACKED = Convention(
    "sft", "6 (N - V h): attention inside short packed examples not counted", hardware=False, per_token=_products_only
)
WITHOUT_ATTENTION = Convention(
    "old",
    "96 L h^2, attention and head not counted, full recomputation included",
    hardware=True,
    per_token=_megatron_2020,
)
BY_MODEL = "for Llama rows; 6N+12Lhs for GPT3 rows"


def convention(words: str, row: Mapping[str, str]) -> Convention:
    """Return the convention that a table names for a row. Default: PaLM's."""
    if "lora" in row.get("task", "") and words.startswith("6(N"):
        return ADAPTERS
    if BY_MODEL in words and "sft" in row.get("task", ""):
        return PACKED
    if BY_MODEL in words and "gpt" in row.get("model", "").lower():
        return CONVENTIONS[0]
    if "old under-reporting formula" in row.get("notes", ""):
        return WITHOUT_ATTENTION
    counted_by = next((item for item in CONVENTIONS if item.key in words), DEFAULT)
    if counted_by is CONVENTIONS[1] and re.match(r"25\.\d\d|26\.0[1-5]", row.get("notes", "")):
        return BEFORE_26_06
    return counted_by
