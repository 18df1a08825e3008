"""Describe cluster.yaml as a JSON Schema, for editors: keys, types, allowed values, defaults and examples.

``podwright check`` reads every scalar as the text that was written; an editor's YAML reader has made it a number or a
boolean already. So the schema admits each form in which such a reader may hand over a value that the check accepts.
Limits of AWS and rules between keys stay with the check.

The schema is derived from the same types as the settings. ``schemas/cluster.json`` is a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from podwright.check.document import Document
from podwright.settings.root import Settings

DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that all editors read
MAX_EXAMPLES = 3  # an editor shows all of them above a key
INTEGER = r"^\s*[+-]?[0-9]+(_[0-9]+)*(\.0+)?\s*$"  # Pydantic reads such texts as whole numbers, also 1_200.
_WORDS = ("0", "1", "t", "true", "f", "false", "y", "yes", "n", "no", "on", "off")  # in any case
# Python lets `$` match before a last newline, JavaScript does not.
BOOLEAN = f"^({'|'.join(''.join(f'[{c.upper()}{c}]' if c.isalpha() else c for c in word) for word in _WORDS)})$(?!\\n)"


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with the scalars of YAML readers, and without titles that repeat the keys."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        """Admit numbers and booleans, as in a tag ``0042`` or a name ``true``."""
        return super().str_schema(schema) | {"type": ["string", "number", "boolean"]}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """Admit digits in quotes."""
        return super().int_schema(schema) | {"type": ["integer", "string"], "pattern": INTEGER}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        """Admit the words for true and false, and 0 and 1."""
        words = {"type": ["boolean", "string", "integer"], "pattern": BOOLEAN, "minimum": 0, "maximum": 1}
        return super().bool_schema(schema) | words

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Also allow a text as a number, because YAML readers parse texts such as the version 2.15 as numbers."""
        expected = schema["expected"]
        return {"enum": [*expected, *(number for text in expected if (number := _number(text)) is not None)]}

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 — the base class's signature
        """Leave titles out."""
        return False

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """Return the schema; sections have no title either: the keys that hold them have descriptions."""
        generated = super().generate(schema, mode)
        for section in (generated, *generated.get("$defs", {}).values()):
            section.pop("title", None)
        return generated


def cluster_schema(examples: Path | None = None) -> dict[str, Any]:
    """Return the JSON Schema of cluster.yaml.

    Args:
        examples: folder of settings files whose values are each key's examples. Default: no examples.
    """
    schema = Settings.model_json_schema(schema_generator=_Generator)
    for file in sorted(examples.glob("*/cluster.yaml")) if examples else ():
        _add_examples(schema, schema, Document.read(file).data)
    about = "One SageMaker HyperPod cluster. `podwright check` also knows AWS's limits and rules between keys."
    anything = {f"^{Document.extension_prefix}": {"description": "Values that anchors name, for aliases elsewhere."}}
    head = {"$schema": DIALECT, "title": "podwright's cluster.yaml"}
    return {**head, **schema, "patternProperties": anything, "description": about}


def _add_examples(schema: dict[str, Any], root: dict[str, Any], data: Any) -> None:
    """Add the scalars of a settings file to the keys that hold them."""
    for key, value in data.items():
        for section in _sections(schema, root, data):
            described = section.get("properties", {}).get(key)
            if described is None:
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    _add_examples(described, root, item)
                elif item is not None and not isinstance(value, list):
                    _remember(described, item)


def _remember(described: dict[str, Any], text: str) -> None:
    examples, number = described.get("examples", []), _number(text)
    value = number if "integer" in str(described) and number is not None else text
    if value not in examples and len(examples) < MAX_EXAMPLES and "enum" not in described:
        described["examples"] = [*examples, value]


def _sections(schema: dict[str, Any], root: dict[str, Any], data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the mappings that a schema describes, of several variants the one with the data's ``source``."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        source = schema["properties"].get("source", {}).get("enum")
        if source is None or data.get("source") in source:
            yield schema
    variants = [*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())]
    for variant in [*variants, *filter(None, [schema.get("items")])]:
        yield from _sections(variant, root, data)


def _number(text: object) -> int | float | None:
    """Return the number that YAML reads the text as, or None."""
    for kind in (int, float):
        try:
            return kind(str(text))
        except ValueError:
            continue
    return None
