"""Compare the JSON documents of podwright-train with their published schemas."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from podwright_training.commands.schema import schema_of_command


def as_described(command: str, document: dict[str, Any]) -> None:
    """Refuse a document that its command's schema does not describe, or that has keys which the schema lacks."""
    Draft202012Validator(_closed(schema_of_command(command))).validate(document)


def _closed(schema: Any) -> Any:
    """Return a schema that allows no other keys."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if "required" in schema else closed
