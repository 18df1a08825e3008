"""Properties of a cluster by their path in its CloudFormation schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright_constructs import facts


def create_only(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that only a new cluster can have, by path; None for one that the model lacks.

    Args:
        model: the cluster as Cloud Control's desired state has it.
    """
    return {path: _value(model, path) for path in facts.CLUSTER_CREATE_ONLY}


def _value(model: Mapping[str, Any], path: str) -> Any:
    value: Any = model
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
