"""Describe job.yaml as a JSON Schema, for editors, from the dataclasses that read it. Imports no torch."""

from __future__ import annotations

from typing import Any

from podwright_training.config.field_schema import DIALECT, described_fields
from podwright_training.jobs.patterns import VALUES
from podwright_training.jobs.spec import JobSpec


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of job.yaml: each key with its help, type, limits and default.

    Places, regular expressions and names of files stay with ``podwright-train launch --job``.
    """
    about = "A job of any trainer, for `podwright submit` and `podwright-train launch --job`."
    schema = {**described_fields(JobSpec, null_is_default=True), "required": ["command"]}
    patterns = schema["properties"]["log"]["properties"]["patterns"]
    patterns["properties"] = {name: {"type": "string", "description": text} for name, text in VALUES.items()}
    patterns["additionalProperties"] = False
    return {"$schema": DIALECT, "title": "podwright's job.yaml", "description": about, **schema}
