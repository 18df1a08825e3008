"""Hourly prices of parts, where AWS publishes them.

HyperPod's own price is not public: nodes are counted at EC2's on-demand price, and every sum is labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright.planning.hardware import usd_per_hour
from podwright.prices import (
    ADDRESS_USD_PER_HOUR,
    EBS_USD_PER_GIB_MONTH,
    ENDPOINT_USD_PER_HOUR,
    KEY_USD_PER_MONTH,
    LUSTRE_SCRATCH_USD_PER_GIB_MONTH,
    LUSTRE_USD_PER_GIB_MONTH,
    MONTH_H,
    NAT_USD_PER_HOUR,
)
from podwright.resource_types import resource_type

LABEL = "EC2 on-demand based"


def nodes(instance_type: str, count: int, volume_gib: int) -> float | None:
    """Nodes with their additional volumes; None where EC2 prints no price of the type."""
    price = usd_per_hour(instance_type)
    return None if price is None else count * (price + volume_gib * EBS_USD_PER_GIB_MONTH / MONTH_H)


def of(kind: str, arguments: Mapping[str, Any]) -> float | None:
    """Return the price of a resource: 0 where only use is paid, None where an hourly price is unknown."""
    if kind == "aws_fsx_lustre_file_system":
        return _lustre(arguments)
    if kind == "aws_vpc_endpoint":
        interface = arguments.get("vpc_endpoint_type") == "Interface"
        return ENDPOINT_USD_PER_HOUR * len(arguments["subnet_ids"]) if interface else 0.0
    fixed = {
        "aws_nat_gateway": NAT_USD_PER_HOUR + ADDRESS_USD_PER_HOUR,
        "aws_kms_key": KEY_USD_PER_MONTH / MONTH_H,
    }
    return fixed.get(kind, None if resource_type(kind).hourly else 0.0)


def _lustre(arguments: Mapping[str, Any]) -> float | None:
    kind, capacity_gib = arguments["deployment_type"], arguments.get("storage_capacity")
    per_gib = LUSTRE_USD_PER_GIB_MONTH.get(arguments.get("per_unit_storage_throughput", 0))
    if kind == "SCRATCH_2":
        per_gib = LUSTRE_SCRATCH_USD_PER_GIB_MONTH
    if per_gib is None or capacity_gib is None or kind == "PERSISTENT_1":
        return None
    return float(capacity_gib * per_gib / MONTH_H)
