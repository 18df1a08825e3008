"""Read the metrics of a run as its file has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from podwright_training.run_folder import RunFolder


def logged(run: RunFolder, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of a run's lines, without fields that are null, optionally only events of one kind."""
    return (event.to_dict() for event in run.events() if kind in (None, event.kind))
