"""Write JSON that every reader takes: NaN and infinity, which JSON lacks, become null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def to_json(
    value: Any,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return a value as JSON; the arguments are those of ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent, separators=separators, default=default)
    except ValueError:
        finite = _finite(value)
        return json.dumps(finite, allow_nan=False, indent=indent, separators=separators, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {_finite_key(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _finite_key(key: Any) -> Any:
    return str(key) if isinstance(key, float) and not math.isfinite(key) else key
