"""Compare the JSON documents that commands print with their published schemas."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from podwright.operations.json_documents.documents import DOCUMENTS, document_text

OF_OTHERS = {"log-streams": "logs"}  # documents that have not the name of their command


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(document_text(command)))


def as_described(document: dict[str, Any], command: str = "") -> None:
    """Refuse a document that its command's schema does not describe, or that has keys which the schema lacks."""
    name = command or document["schema"].removeprefix("podwright.").partition("/")[0].partition(".")[0]
    command = OF_OTHERS.get(name, name)
    _validator(command).validate(document)
    DOCUMENTS[command].model_validate(document)
