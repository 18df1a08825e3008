"""The JSON Schema of a command's JSON document, from the dataclass that the command prints."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import DataclassSchema

from podwright.json_document import JsonObject, key_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"  # pydantic's


def document_schema(document: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type: a ``JsonObject``, or another type annotated with its description."""
    schema = TypeAdapter(document).json_schema(schema_generator=_Generator)
    if get_origin(document) is Annotated:  # One of several documents, or a mapping, with its description.
        schema = dict(sorted({**schema, "description": get_args(document)[1]}.items()))
    described: dict[str, Any] = _open({"$schema": DIALECT, **schema})
    return described


class _Generator(GenerateJsonSchema):
    """Describes a ``JsonObject`` with the keys that are printed."""

    def dataclass_schema(self, schema: DataclassSchema) -> JsonSchemaValue:
        described = super().dataclass_schema(schema)
        if not issubclass(schema["cls"], JsonObject):
            return described
        properties, required = described["properties"], described.get("required", [])
        _inherit_descriptions(properties, schema["cls"])
        for item in fields(schema["cls"]):
            if "const" in properties[item.name] and properties[item.name].pop("default", None):
                required = [item.name, *required]  # It is always printed: no reader has to fill it in.
            if item.metadata.get("spread"):
                del properties[item.name]
                required.remove(item.name)
                described["additionalProperties"] = {"type": "string"}
        keys = {item.name: key_of(item) for item in fields(schema["cls"])}
        return {
            **described,
            "properties": {keys[name]: value for name, value in properties.items()},
            "required": [keys[name] for name in required],
        }


def _inherit_descriptions(properties: dict[str, JsonSchemaValue], kind: type[JsonObject]) -> None:
    """Describe inherited fields, because pydantic reads only the texts in the class itself."""
    for parent in kind.__mro__[1:]:
        if parent is not JsonObject and issubclass(parent, JsonObject):
            for name, inherited in TypeAdapter(parent).json_schema()["properties"].items():
                if "description" in inherited:
                    properties[name].setdefault("description", inherited["description"])


def _open(schema: Any) -> Any:
    """Return a schema that allows more keys, without titles that repeat them."""
    if isinstance(schema, list):
        return [_open(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    formatted = isinstance(schema.get("format"), str)  # JSON has only strings for dates and paths.
    titled = isinstance(schema.get("title"), str)
    removed_keys = {"additionalProperties"} if schema.get("additionalProperties") is False else set()
    return {
        key: _open(value)
        for key, value in schema.items()
        if key not in removed_keys and not (titled and key == "title") and not (formatted and key == "format")
    }
