"""What Amazon FSx accepts for a Lustre file system, and why it says no.

Read from https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html and
https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright.rehearsal.aws.account import SecurityGroup
from podwright.rehearsal.aws.errors import AwsError

LNET_PORT = 988

# Capacities: those allowed besides, then every multiple of the step, in GiB.
Capacities = tuple[tuple[int, ...], int]
SSD_CAPACITIES: Capacities = ((1200,), 2400)
SCRATCH_1_CAPACITIES: Capacities = ((1200, 2400), 3600)
HDD_CAPACITIES: dict[int, Capacities] = {12: ((), 6000), 40: ((), 1800)}  # by MB/s per TiB

SSD_THROUGHPUTS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}  # MB/s per TiB
DEPLOYMENT_TYPES = ("SCRATCH_1", "SCRATCH_2", *SSD_THROUGHPUTS)
COMPRESSIONS = ("NONE", "LZ4")
VERSIONS = ("2.10", "2.12", "2.15")


def check(request: Mapping[str, Any]) -> None:
    """Refuse what FSx refuses in a request's values.

    Raises:
        AwsError: ``BadRequest`` or ``InvalidPerUnitStorageThroughput``.
    """
    configuration = request.get("LustreConfiguration") or {}
    deployment = configuration.get("DeploymentType", "SCRATCH_1")
    storage = request.get("StorageType", "SSD")
    throughput = configuration.get("PerUnitStorageThroughput")
    _one_of("DeploymentType", deployment, DEPLOYMENT_TYPES)
    _one_of("DataCompressionType", configuration.get("DataCompressionType", "NONE"), COMPRESSIONS)
    _check_storage(deployment, storage)
    _check_version(deployment, request.get("FileSystemTypeVersion"))
    _check_throughput(deployment, storage, throughput)
    _check_capacity(deployment, storage, throughput, request.get("StorageCapacity", 0))


def check_network(groups: list[SecurityGroup]) -> None:
    """Refuse security groups through which Lustre's clients cannot reach the servers.

    Raises:
        AwsError: ``InvalidNetworkSettings``.
    """
    rules = [rule for group in groups for rule in group.rules if not rule.is_egress]
    if not any(rule.covers(protocol="tcp", port=LNET_PORT) for rule in rules):
        names = ", ".join(group.group_id for group in groups)
        raise AwsError(
            "InvalidNetworkSettings",
            f"The file system cannot be created: no ingress rule of {names} permits Lustre LNET on port {LNET_PORT}",
            InvalidSecurityGroupId=groups[0].group_id,
        )


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise AwsError("BadRequest", f"Invalid {name} {value}: it must be one of {_listing(allowed)}")


def _check_storage(deployment: str, storage: str) -> None:
    allowed = ("SSD", "HDD") if deployment == "PERSISTENT_1" else ("SSD",)
    _one_of(f"StorageType for {deployment}", storage, allowed)


def _check_version(deployment: str, version: str | None) -> None:
    if version is None:
        return
    _one_of("FileSystemTypeVersion", version, VERSIONS)
    if deployment == "PERSISTENT_2" and version == "2.10":
        raise AwsError("BadRequest", "FileSystemTypeVersion 2.10 is not supported with PERSISTENT_2: use 2.12 or 2.15")


def _check_throughput(deployment: str, storage: str, throughput: int | None) -> None:
    if deployment not in SSD_THROUGHPUTS:
        if throughput is not None:
            raise AwsError("BadRequest", f"PerUnitStorageThroughput cannot be given for {deployment}")
        return
    allowed = tuple(HDD_CAPACITIES) if storage == "HDD" else SSD_THROUGHPUTS[deployment]
    if throughput not in allowed:
        raise AwsError(
            "InvalidPerUnitStorageThroughput",
            f"Invalid PerUnitStorageThroughput {throughput} for {deployment} {storage}: "
            f"it must be one of {_listing(allowed)} MB/s per TiB",
        )


def _check_capacity(deployment: str, storage: str, throughput: int | None, capacity_gib: int) -> None:
    if storage == "HDD" and throughput is not None:
        first, step = HDD_CAPACITIES[throughput]
    else:
        first, step = SCRATCH_1_CAPACITIES if deployment == "SCRATCH_1" else SSD_CAPACITIES
    if capacity_gib in first or (capacity_gib > 0 and capacity_gib % step == 0):
        return
    allowed = _listing((*first, f"a multiple of {step}"))
    raise AwsError(
        "BadRequest",
        f"Invalid storage capacity {capacity_gib} GiB for {deployment} {storage}: it must be one of {allowed}",
    )


def _listing(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)
