"""AWS's CloudFormation schema of the HyperPod cluster, from the cfn-lint package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import regex

CLUSTER_TYPE = "AWS::SageMaker::Cluster"
SCHEMAS = Path("cfnlint/data/schemas")  # providers/<region>.json: type name → file name below resources/


@lru_cache
def schema(region: str) -> dict[str, Any]:
    """Return the resource provider schema that AWS publishes for this region.

    Raises:
        LookupError: HyperPod is not offered there.
    """
    package = distribution("cfn-lint")  # located, not imported: importing cfn-lint takes seconds
    catalogue_file = Path(str(package.locate_file(SCHEMAS / "providers" / f"{region}.json")))
    catalogue = json.loads(catalogue_file.read_text(encoding="utf-8")) if catalogue_file.is_file() else {}
    if CLUSTER_TYPE not in catalogue:
        raise LookupError(f"cfn-lint {package.version} has no schema of {CLUSTER_TYPE} for region {region}")
    resource_file = Path(str(package.locate_file(SCHEMAS / "resources" / f"{catalogue[CLUSTER_TYPE]}.json")))
    content: dict[str, Any] = json.loads(resource_file.read_text(encoding="utf-8"))
    return content


def problems(model: object, *, region: str) -> list[str]:
    """Return every violation of the schema in CloudFormation's words: ``#/path: problem``."""
    errors = _Validator(schema(region)).iter_errors(model)
    return [f"#{'/'.join(['', *map(str, error.absolute_path)])}: {error.message}" for error in errors]


def touched(paths: list[str], *, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the property paths (``/properties/A/*/B``) whose values differ between two models."""
    return [path for path in paths if list(_values(old, path)) != list(_values(new, path))]


def _values(model: object, path: str) -> Iterator[object]:
    return _descend(model, path.removeprefix("/properties/").split("/"))


def _descend(node: object, keys: list[str]) -> Iterator[Any]:
    if not keys:
        yield node
    elif keys[0] == "*" and isinstance(node, list):
        for item in node:
            yield from _descend(item, keys[1:])
    elif isinstance(node, dict) and keys[0] in node:
        yield from _descend(node[keys[0]], keys[1:])


def _pattern(
    _validator: object, pattern: str, instance: object, _schema: object
) -> Iterator[jsonschema.ValidationError]:
    """Check the keyword ``pattern`` with Unicode properties (letters, separators), which Python's re lacks."""
    if isinstance(instance, str) and not regex.search(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]  # its stubs say nothing of extend
    jsonschema.Draft7Validator, {"pattern": _pattern}
)
