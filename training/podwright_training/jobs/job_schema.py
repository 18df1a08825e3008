"""Describe job.yaml as a JSON Schema, for editors, from the dataclasses that read it. Imports no torch."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from podwright_training.config.run_schema import DIALECT, INTEGER, NUMBER
from podwright_training.jobs.patterns import VALUES
from podwright_training.jobs.spec import KINDS, SECTIONS, JobSpec

_WORD = {"type": ["string", "number"]}
_TYPES: dict[str, dict[str, Any]] = {
    "words": {"type": ["string", "array", "null"], "items": _WORD},
    "texts": {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
    "files": {"type": ["object", "null"]},
    "int": {"type": ["integer", "string", "null"], "pattern": f"^{INTEGER}$"},
    "float": {"type": ["number", "string", "null"], "pattern": f"^{NUMBER}$"},
    "text": {"type": ["string", "number", "null"]},
}


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of job.yaml: each key with its help, type, limits and default.

    Places, regular expressions and names of files stay with ``podwright-train launch --job``.
    """
    about = "A job of any trainer, for `podwright submit` and `podwright-train launch --job`."
    title = {"$schema": DIALECT, "title": "podwright's job.yaml", "description": about}
    return {**title, **_section(JobSpec), "required": ["command"]}


def _section(cls: type) -> dict[str, Any]:
    """Return the schema of a mapping whose keys are the fields of a dataclass."""
    described = {item.name: _key(item) for item in fields(cls)}
    return {"type": "object", "properties": described, "additionalProperties": False}


def _key(item: Field[Any]) -> dict[str, Any]:
    described = {"description": item.metadata["text"]}
    if item.name in SECTIONS:
        return {**described, **_section(SECTIONS[item.name])}
    schema = dict(_TYPES[KINDS.get(item.name, "text")])
    if item.name == "patterns":
        keys = {name: {"type": "string", "description": text} for name, text in VALUES.items()}
        schema = {"type": ["object", "null"], "properties": keys, "additionalProperties": False}
    if item.metadata["choices"]:
        schema = {"enum": [None, *item.metadata["choices"]]}
    if (minimum := item.metadata["at_least"]) is not None:
        schema["minimum"], schema["maximum"] = minimum, item.metadata["at_most"]
    default = {} if item.default in (MISSING, None, "", ()) else {"default": item.default}
    return {**described, **schema, **default}
