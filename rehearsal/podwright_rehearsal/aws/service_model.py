"""SageMaker's service model, which botocore ships, and requests validated by it as the service does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, wraps
from typing import Any

import botocore.session
import regex
from botocore.model import ServiceModel, Shape
from botocore.validate import ParamValidator

from podwright_rehearsal.aws.aws_errors import AwsError

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]


@lru_cache
def sagemaker() -> ServiceModel:
    """Return the newest model of SageMaker's API that is installed."""
    return botocore.session.Session().get_service_model("sagemaker")


def validated(operation: str, handle: Handler) -> Handler:
    """Return the handler of an operation, which then gets valid requests only.

    botocore's client tests types, required members and minima before it sends; AWS alone tests the other constraints.
    """

    @wraps(handle)
    def handle_valid(request: Mapping[str, Any]) -> dict[str, Any]:
        shape = sagemaker().operation_model(operation).input_shape
        if violations := problems(shape, request):
            count = len(violations)
            raise AwsError("ValidationException", f"{count} validation errors detected: {'; '.join(violations)}")
        return handle(request)

    return handle_valid


def problems(shape: Shape, value: object) -> list[str]:
    """Return every violation of a shape."""
    report = ParamValidator().validate(value, shape)
    return [report.generate_report()] if report.has_errors() else list(_violations(shape, value, ""))


def _violations(shape: Shape, value: Any, path: str) -> Iterator[str]:
    """Yield the violations of lengths, ranges, patterns and enumerations, in AWS's words."""
    violation = f"Value {value!r} at '{path}' failed to satisfy constraint: Member must"
    limits = shape.metadata
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from _violations(shape.members[name], member, f"{path}.{name}".lstrip("."))
    elif shape.type_name == "list":
        for number, member in enumerate(value, 1):
            yield from _violations(shape.member, member, f"{path}.{number}.member")
    size = value if shape.type_name in {"integer", "long"} else len(value) if hasattr(value, "__len__") else 0
    if size > limits.get("max", size) or size < limits.get("min", size):
        yield f"{violation} have a size or value of {limits.get('min', 0)} to {limits.get('max', 'any')}"
    if shape.type_name == "string" and "pattern" in limits and not regex.fullmatch(limits["pattern"], value):
        yield f"{violation} satisfy regular expression pattern: {limits['pattern']}"
    if "enum" in limits and value not in limits["enum"]:
        yield f"{violation} satisfy enum value set: [{', '.join(limits['enum'])}]"
