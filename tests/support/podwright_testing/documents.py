"""Compare the JSON documents that commands print with their published schemas."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from podwright.operations.settings_file.schema import document_text

OF_OTHERS = {"log-streams": "logs"}  # documents that have not the name of their command


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(_closed(json.loads(document_text(command))))


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no keys but those that it names."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    has_names = isinstance(schema.get("properties"), dict) and "type" in schema
    return {"additionalProperties": False, **closed} if has_names else closed


def as_described(document: dict[str, Any], command: str = "") -> None:
    """Refuse a document that its command's schema does not describe, or that has keys which the schema lacks."""
    schema = document.get("schema", "podwright.check/1")  # The one printed document that has no such key.
    name = command or schema.removeprefix("podwright.").partition("/")[0].partition(".")[0]
    command = OF_OTHERS.get(name, name)
    _validator(command).validate(document)
