"""Describe run.yaml as a JSON Schema, for editors, from the options themselves. Imports no torch."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any, get_args, get_type_hints

from podwright_training.config.sources import preset_names
from podwright_training.config.train_config import SECTIONS, TrainConfig

DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that all editors read
# Text as YAML readers hand it over: 1e-4 is text for some of them, and `none` is how an option is unset.
_NONE = "[Nn][Oo][Nn][Ee]|[Nn][Uu][Ll][Ll]"
_BOOLEAN = "[01]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF"
INTEGER = r"\s*[+-]?[0-9]+(_[0-9]+)*\s*"
NUMBER = r"\s*[+-]?([0-9_]+\.?[0-9_]*|\.[0-9_]+)([eE][+-]?[0-9]+)?\s*"
_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": ["boolean", "integer", "string"], "pattern": _BOOLEAN, "minimum": 0, "maximum": 1},
    int: {"type": ["integer", "string"], "pattern": INTEGER},
    float: {"type": ["number", "string"], "pattern": NUMBER},
    str: {"type": ["string", "number", "boolean"]},
}
_LIMITS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum", "below": "exclusiveMaximum"}


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema of run.yaml: each option with its help, type, limits and default.

    Options that exclude each other, and files that must exist, stay with ``podwright-train``.
    """
    hints = get_type_hints(TrainConfig)
    options: dict[str, Any] = {}
    for title, section in SECTIONS.items():
        for item in fields(section):
            described = _option(item, get_args(hints[item.name]) or (hints[item.name],), title)
            options |= {name: described for name in (item.name, item.metadata["alias"]) if name}
    about = "One run of podwright-train. `podwright-train train --help` groups the same options."
    kind = {"type": ["object", "null"], "properties": options, "additionalProperties": False}
    return {"$schema": DIALECT, "title": "podwright-train's run.yaml", "description": about, **kind}


def _option(item: Field[Any], kinds: tuple[type, ...], section: str) -> dict[str, Any]:
    """Return the schema of one option."""
    optional = type(None) in kinds
    schema = dict(_TYPES[kinds[0]])
    choices = item.metadata["choices"] or (preset_names() if item.name == "preset" else ())
    if choices:
        schema["pattern"] = "|".join(choices)
    if words := item.metadata["words"]:
        schema["pattern"] = "|".join([schema["pattern"], *words])
    if optional:
        schema["type"] = [*schema["type"], "null"]
    if "pattern" in schema:
        schema["pattern"] = f"^({schema['pattern']}{f'|{_NONE}' if optional else ''})$"
    schema |= {word: limit for name, word in _LIMITS.items() if (limit := item.metadata[name]) is not None}
    default = {} if item.default is None else {"default": item.default}
    suggested = {"examples": list(choices or words)} if choices or words else {}
    return {"description": f"{item.metadata['text']} ({section})", **schema, **default, **suggested}
