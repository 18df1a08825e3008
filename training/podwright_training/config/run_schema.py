"""Describe run.yaml as a JSON Schema, for editors, from the options themselves. Imports no torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from podwright_training.config.field_schema import DIALECT, described_field
from podwright_training.config.sources import preset_names
from podwright_training.config.train_config import SECTIONS, TrainConfig


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of run.yaml: each option with its help, type, limits and default.

    Options that exclude each other, and files that must exist, stay with ``podwright-train``.
    """
    options: dict[str, Any] = {}
    for title, section in SECTIONS.items():
        for item in fields(section):
            described = described_field(TrainConfig, item, preset_names() if item.name == "preset" else ())
            described["description"] += f" ({title})"
            options |= {name: described for name in (item.name, item.metadata["alias"]) if name}
    about = "One run of podwright-train. `podwright-train train --help` groups the same options."
    kind = {"type": ["object", "null"], "properties": options, "additionalProperties": False}
    return {"$schema": DIALECT, "title": "podwright-train's run.yaml", "description": about, **kind}
