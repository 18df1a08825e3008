"""AWS's Service Authorization Reference, from the cfn-lint package: each action and the ARNs of its resource types.

https://docs.aws.amazon.com/service-authorization/latest/reference/reference.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

REFERENCE = Path("cfnlint/data/AdditionalSpecs/Policies.json")
ANY = ".*"  # In the reference's ARNs, which are regular expressions.


def is_action(action: str) -> bool:
    """Return True if IAM has the action, such as ``ec2:CreateVpc``."""
    service, _, name = action.partition(":")
    return name.lower() in _services().get(service, {}).get("Actions", {})


def resource_types(action: str) -> list[str]:
    """Return the types of resources that the action is on; none if policies allow it for ``*`` alone."""
    service, _, name = action.partition(":")
    return list(_services().get(service, {}).get("Actions", {}).get(name.lower(), {}).get("Resources", ()))


def arn_format(service: str, resource_type: str, *, partition: str, region: str, account: str) -> str:
    """Return the ARN of resources of a type, with ``*`` in place of their names."""
    formats = {name.lower(): kind["ARNFormats"] for name, kind in _services()[service]["Resources"].items()}
    text: str = formats[resource_type.lower()][0]  # The reference writes some types in two ways.
    names = {"${Partition}": partition, "${Region}": region, "${Account}": account, ANY: "*"}
    for name, value in names.items():
        text = text.replace(name, value)
    return text


@lru_cache
def _services() -> Mapping[str, Any]:
    package = distribution("cfn-lint")  # It is located, not imported: importing cfn-lint takes seconds.
    reference: Mapping[str, Any] = json.loads(Path(str(package.locate_file(REFERENCE))).read_text(encoding="utf-8"))
    return reference
