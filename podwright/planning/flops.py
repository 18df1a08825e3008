"""FLOPs per token as published tables count them: the same run differs by a fifth between conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podwright.planning.model import Model


@dataclass(frozen=True)
class Convention:
    """A way to count, recognised by a ``key`` in a table's own words; ``hardware`` ones count recomputation."""

    key: str
    name: str
    hardware: bool
    per_token: Callable[[Model, int], float]


def _all_parameters(model: Model, sequence: int) -> float:
    return 6.0 * model.active_parameters + 12.0 * model.layers * model.hidden * sequence


def _causal(model: Model, sequence: int) -> float:
    return model.training_flops_per_token(sequence, causal=True)


def _full_square(model: Model, sequence: int) -> float:
    return model.training_flops_per_token(sequence, causal=False)


def _megatron_2021(model: Model, sequence: int) -> float:
    layers, hidden = model.layers, model.hidden
    return 96.0 * layers * hidden**2 * (1 + sequence / (6 * hidden) + model.vocab / (16 * layers * hidden))


def _megatron_2020(model: Model, _sequence: int) -> float:
    return 96.0 * model.layers * model.hidden**2


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
        per_token=_causal,
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
WITHOUT_ATTENTION = Convention(
    "old",
    "96 L h^2, attention and head not counted, full recomputation included",
    hardware=True,
    per_token=_megatron_2020,
)
BY_MODEL = "for Llama rows; 6N+12Lhs for GPT3 rows"


def convention(words: str, row: Mapping[str, str]) -> Convention:
    """The convention a table names for a row of it; PaLM's if it names none."""
    if "lora" in row.get("task", "") and words.startswith("6(N"):
        return ADAPTERS
    if BY_MODEL in words and "llama" not in row.get("model", "").lower():
        return CONVENTIONS[0]
    if "old under-reporting formula" in row.get("notes", ""):
        return WITHOUT_ATTENTION
    return next((item for item in CONVENTIONS if item.key in words), DEFAULT)
