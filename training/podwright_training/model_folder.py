"""Check the files of a published model before a library reads them: anybody may have written them.

Libraries meet an odd value with any exception, or with a loop over a billion layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from podwright_common.regular_file import open_regular, read_text
from podwright_training.errors import UserError, shortened
from podwright_training.json_values import loads
from podwright_training.run_folder import ORIGIN

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
ADDS_BOS = "add_bos"  # key of an export's record: each document began with BOS in training
LIMIT_BYTES = 64 << 20  # The index of a model with a million tensors is smaller.
TEXTS = (".json", ".txt", ".model", ".jinja")  # Tokenizers and configurations have files of these types.
LARGEST_NUMBER = 1e30


class Bounds(NamedTuple):
    """Values that a number of config.json may have."""

    lowest: float
    highest: float
    is_whole: bool = True


_WIDTH, _COUNT, _POSITION = Bounds(1, 1 << 24), Bounds(1, 1 << 16), Bounds(1, 1 << 40)
_POSITIVE = Bounds(math.ulp(0.0), LARGEST_NUMBER, is_whole=False)
_FRACTION = Bounds(0, 1, is_whole=False)
NUMBERS = {
    "vocab_size": Bounds(1, 1 << 28),
    "hidden_size": _WIDTH,
    "intermediate_size": _WIDTH,
    "moe_intermediate_size": _WIDTH,
    "head_dim": _WIDTH,
    "num_hidden_layers": _COUNT,
    "num_attention_heads": _COUNT,
    "num_key_value_heads": _COUNT,
    "num_local_experts": _COUNT,
    "num_experts": _COUNT,
    "n_routed_experts": _COUNT,
    "num_experts_per_tok": _COUNT,
    "n_shared_experts": Bounds(0, 1 << 16),
    "max_position_embeddings": _POSITION,
    "sliding_window": Bounds(0, 1 << 40),
    "rms_norm_eps": _POSITIVE,
    "initializer_range": Bounds(0, LARGEST_NUMBER, is_whole=False),
    "router_aux_loss_coef": Bounds(0, LARGEST_NUMBER, is_whole=False),
    "attention_dropout": _FRACTION,
    "rope_theta": _POSITIVE,
}
ROTATION = {  # Keys of rope_parameters and rope_scaling.
    "rope_theta": _POSITIVE,
    "factor": _POSITIVE,
    "low_freq_factor": _POSITIVE,
    "high_freq_factor": _POSITIVE,
    "original_max_position_embeddings": _POSITION,
    "partial_rotary_factor": _FRACTION,
}
TRUTHS = ("tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias", "use_sliding_window")
WORDS = ("model_type", "hidden_act", "rope_type", "type")


def check(folder: Path) -> None:
    """Refuse a folder of which a file cannot be read, or whose configuration no model can have.

    Raises:
        UserError: With all problems; each names the file, the key, its value and what is allowed.
    """
    refuse_special(folder)
    path = folder / CONFIG
    if path.exists() and (problems := list(_problems(read_object(path)))):
        raise UserError(f"{path}: {'; '.join(problems)}")


def refuse_special(folder: Path) -> None:
    """Refuse a folder of a model or tokenizer in which a pipe, a device or a folder has the name of a text.

    Raises:
        UserError: One has; a library that opens a pipe would wait for its writer.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in TEXTS and path.exists():
            try:
                open_regular(path, follow_links=True).close()
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error


def adds_bos(folder: Path) -> bool | None:
    """Return whether each document began with BOS in the training of a model; ``None`` if another program trained it.

    Raises:
        UserError: The record of the export is not readable.
    """
    origin = folder / ORIGIN
    return bool(read_object(origin).get(ADDS_BOS, False)) if origin.exists() else None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
        UserError: It is none; the message names the file.
    """
    try:
        content = loads(read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: no JSON: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: got {shortened(content)}, need an object")
    return content


def _problems(config: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key, value in config.items():
        if value is None:
            continue  # the library's default
        if key in {"rope_parameters", "rope_scaling"}:
            yield from _problems_of_rotation(f"{place}{key}", value)
        elif key in NUMBERS:
            yield from _problems_of_number(f"{place}{key}", value, NUMBERS[key])
        elif key in TRUTHS and type(value) is not bool:
            yield f"{place}{key}: got {shortened(value)}, need true or false"
        elif key in WORDS and type(value) is not str:
            yield f"{place}{key}: got {shortened(value)}, need a text"
        elif key == "architectures" and not _are_texts(value):
            yield f"{place}{key}: got {shortened(value)}, need a list of texts"
        elif key.endswith("_config") and isinstance(value, dict):
            yield from _problems(value, f"{place}{key}.")


def _problems_of_number(place: str, value: Any, bounds: Bounds) -> Iterator[str]:
    kinds = (int,) if bounds.is_whole else (int, float)
    if type(value) not in kinds or not bounds.lowest <= value <= bounds.highest:
        noun = "a whole number" if bounds.is_whole else "a number"
        low = "above 0" if bounds is _POSITIVE else f"from {bounds.lowest:g}"
        high = "" if bounds.highest == LARGEST_NUMBER else f" to {bounds.highest:,}"
        yield f"{place}: got {shortened(value)}, need {noun} {low}{high}"


def _problems_of_rotation(place: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: got {shortened(value)}, need an object"
        return
    for key, item in value.items():
        if key in ROTATION and item is not None:
            yield from _problems_of_number(f"{place}.{key}", item, ROTATION[key])
        elif key in WORDS and type(item) is not str:
            yield f"{place}.{key}: got {shortened(item)}, need a text"
        elif isinstance(item, dict):  # There is an object for each kind of layer.
            yield from _problems_of_rotation(f"{place}.{key}", item)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
