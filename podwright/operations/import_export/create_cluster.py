"""The request of SageMaker's CreateCluster, checked against boto3's service model.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateCluster.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any


def problems(request: Mapping[str, Any]) -> list[str]:
    """Return everything that the service model refuses: keys, types, lengths, ranges, patterns and words."""
    import botocore.session  # it takes 0.2 s to import
    from botocore.validate import ParamValidator

    shape = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape
    report = ParamValidator().validate(dict(request), shape)
    problems = report.generate_report().splitlines() if report.has_errors() else []
    return [*problems, *_limits(request, shape, "")]


def _limits(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield broken limits, which boto3 leaves to the service."""
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for key, inner in value.items():
            if key in shape.members:
                yield from _limits(inner, shape.members[key], f"{path}.{key}".lstrip("."))
    elif shape.type_name == "list" and isinstance(value, list):
        yield from _range(len(value), shape, path, "items")
        for number, item in enumerate(value):
            yield from _limits(item, shape.member, f"{path}[{number}]")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _range(len(value), shape, path, "characters")
        pattern, words = shape.metadata.get("pattern"), shape.metadata.get("enum")
        if pattern and not _matches(pattern, value):
            yield f"{path}: got {value}, need {pattern}"
        if words and value not in words:
            yield f"{path}: got {value}, need {' or '.join(words) if len(words) < 5 else 'a word of the API'}"  # noqa: PLR2004 -- 200 instance types
    elif shape.type_name == "integer" and isinstance(value, int):
        yield from _range(value, shape, path, "")


def _matches(pattern: str, value: str) -> bool:
    """Return whether a text matches a pattern in Java's syntax; True where Python has no such class."""
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True


def _range(number: int, shape: Any, path: str, unit: str) -> Iterator[str]:
    minimum, maximum = shape.metadata.get("min"), shape.metadata.get("max")
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        allowed = f"{minimum if minimum is not None else 0} to {maximum if maximum is not None else 'any number'}"
        yield f"{path}: got {number} {unit}".rstrip() + f", need {allowed}"
