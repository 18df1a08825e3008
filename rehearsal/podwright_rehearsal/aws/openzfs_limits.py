"""Refuse the OpenZFS file systems that Amazon FSx refuses.

Read from https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemOpenZFSConfiguration.html and
https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/performance.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright_rehearsal.aws.account import Subnet
from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.lustre_limits import check_maintenance

SINGLE_AZ_1_MBPS = {64, 128, 256, 512, 1024, 2048, 3072, 4096}
WITH_CACHE_MBPS = {160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240}
SMALLEST_GIB, LARGEST_GIB = 64, 512 * 1024
COMPRESSIONS = {"NONE", "ZSTD", "LZ4"}
LONGEST_RETENTION_DAYS = 90


def check(request: Mapping[str, Any]) -> None:
    """Check the values of a request.

    Raises:
        AwsError: ``BadRequest``.
    """
    configuration = request.get("OpenZFSConfiguration") or {}
    deployment = str(configuration.get("DeploymentType"))
    allowed = throughputs_mbps(deployment)
    throughput = configuration.get("ThroughputCapacity")
    if throughput not in allowed:
        listing = ", ".join(map(str, sorted(allowed)))
        raise AwsError("BadRequest", f"Invalid ThroughputCapacity {throughput} for {deployment}: one of {listing}")
    capacity = request.get("StorageCapacity", 0)
    if not SMALLEST_GIB <= capacity <= LARGEST_GIB:
        raise AwsError("BadRequest", f"Invalid storage capacity {capacity} GiB: {SMALLEST_GIB} to {LARGEST_GIB} GiB")
    compression = (configuration.get("RootVolumeConfiguration") or {}).get("DataCompressionType", "NONE")
    if compression not in COMPRESSIONS:
        raise AwsError("BadRequest", f"Invalid DataCompressionType {compression}")
    check_maintenance(configuration)
    if not 0 <= configuration.get("AutomaticBackupRetentionDays", 0) <= LONGEST_RETENTION_DAYS:
        raise AwsError("BadRequest", f"AutomaticBackupRetentionDays must be 0 to {LONGEST_RETENTION_DAYS}")


def check_subnets(request: Mapping[str, Any], subnets: list[Subnet]) -> None:
    """Refuse subnets that are too many, too few or in one zone.

    Raises:
        AwsError: ``BadRequest``.
    """
    configuration = request.get("OpenZFSConfiguration") or {}
    if configuration.get("DeploymentType") != "MULTI_AZ_1":
        if len(subnets) != 1:
            raise AwsError("BadRequest", f"A single-AZ file system needs exactly one subnet, not {len(subnets)}")
        return
    zones = {subnet.availability_zone_id for subnet in subnets}
    if (len(subnets), len(zones)) != (2, 2):
        raise AwsError("BadRequest", f"MULTI_AZ_1 needs two subnets in two Availability Zones, not {len(subnets)}")
    preferred = configuration.get("PreferredSubnetId")
    if preferred not in {subnet.subnet_id for subnet in subnets}:
        raise AwsError("BadRequest", f"PreferredSubnetId {preferred} is not one of the file system's subnets")


def throughputs_mbps(deployment: str) -> set[int]:
    """Return the throughputs of a deployment type."""
    if deployment in {"SINGLE_AZ_1", "SINGLE_AZ_HA_1"}:
        return SINGLE_AZ_1_MBPS
    if deployment in {"SINGLE_AZ_2", "SINGLE_AZ_HA_2", "MULTI_AZ_1"}:
        return WITH_CACHE_MBPS
    raise AwsError("BadRequest", f"Invalid DeploymentType {deployment}")
