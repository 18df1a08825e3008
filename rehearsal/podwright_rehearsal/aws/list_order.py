"""Return lists in the service's own order, as AWS does if the schema says ``insertionOrder: false``.

https://docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-schema.html
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

ORDERED = ("InstanceTypes",)  # the one list of AWS::SageMaker::Cluster whose order counts
IDENTIFIERS = ("InstanceGroupName", "Key")


def reordered(model: Any, seed: int | None) -> Any:
    """Return a copy of a model with its lists in the order of a seed; items keep their places from read to read.

    Without a seed the order stays as it was written.
    """
    if seed is None:
        return model
    if isinstance(model, dict):
        return {
            name: value if name in ORDERED and isinstance(value, list) else reordered(value, seed)
            for name, value in model.items()
        }
    if isinstance(model, list):
        return sorted((reordered(item, seed) for item in model), key=lambda item: _rank(item, seed))
    return model


def _rank(item: Any, seed: int) -> str:
    """Return the place of an item among others: chance, but the same for the same name."""
    names = [str(item[name]) for name in IDENTIFIERS if name in item] if isinstance(item, dict) else []
    text = names[0] if names else json.dumps(item, sort_keys=True)
    return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()
