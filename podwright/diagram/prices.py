"""Hourly prices of parts, where AWS publishes them.

HyperPod's own price is not public: nodes are counted at EC2's on-demand price, and every sum is labelled so. Nodes cost
what they do in their region where that is known; everything else has the price of us-east-1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from podwright.list_prices import (
    ADDRESS_USD_PER_HOUR,
    DATABASE_USD_PER_GIB_MONTH,
    DATABASE_USD_PER_HOUR,
    EBS_USD_PER_GIB_MONTH,
    ENDPOINT_USD_PER_HOUR,
    KEY_USD_PER_MONTH,
    LUSTRE_SCRATCH_USD_PER_GIB_MONTH,
    LUSTRE_USD_PER_GIB_MONTH,
    MONTH_H,
    NAT_USD_PER_HOUR,
    OPENZFS_IOPS_INCLUDED_PER_GIB,
    OPENZFS_USD_PER_GIB_MONTH,
    OPENZFS_USD_PER_IOPS_MONTH,
    OPENZFS_USD_PER_MB_S_MONTH,
)
from podwright.planning.on_demand import on_demand, source_of
from podwright.resource_types import resource_type


def label(region: str, instance_types: Iterable[str]) -> str:
    """Return the basis of a sum: on-demand prices, and the region that they come from.

    Args:
        region: The region of the nodes.
        instance_types: The types in the sum.
    """
    return f"EC2 on-demand based, {source_of(region, instance_types)}"


def nodes(instance_type: str, count: int, volume_gib: int, *, region: str) -> float | None:
    """Return the price of nodes with their additional volumes; None where EC2 publishes no price of the type."""
    price = on_demand(instance_type, region)
    return None if price is None else count * (price.usd_per_hour + volume_gib * EBS_USD_PER_GIB_MONTH / MONTH_H)


def of(kind: str, arguments: Mapping[str, Any]) -> float | None:
    """Return the price of a resource: 0 where only use is paid, None where an hourly price is unknown."""
    if kind == "aws_fsx_lustre_file_system":
        return _lustre(arguments)
    if kind == "aws_fsx_openzfs_file_system":
        return _openzfs(arguments)
    if kind == "aws_db_instance":
        return _database(arguments)
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


def _openzfs(arguments: Mapping[str, Any]) -> float | None:
    """Return the price of one server without a standby, the one kind whose price was found."""
    capacity_gib, throughput_mb_s = arguments.get("storage_capacity"), arguments.get("throughput_capacity")
    if arguments.get("deployment_type") != "SINGLE_AZ_1" or capacity_gib is None or throughput_mb_s is None:
        return None
    included = OPENZFS_IOPS_INCLUDED_PER_GIB * capacity_gib
    more_iops = max(0, arguments.get("iops", 0) - included)
    monthly = capacity_gib * OPENZFS_USD_PER_GIB_MONTH + throughput_mb_s * OPENZFS_USD_PER_MB_S_MONTH
    return float((monthly + more_iops * OPENZFS_USD_PER_IOPS_MONTH) / MONTH_H)


def _database(arguments: Mapping[str, Any]) -> float | None:
    per_hour = DATABASE_USD_PER_HOUR.get(arguments["instance_class"])
    if per_hour is None:
        return None
    zones = 2 if arguments.get("multi_az") else 1
    return float(zones * (per_hour + arguments["allocated_storage"] * DATABASE_USD_PER_GIB_MONTH / MONTH_H))
