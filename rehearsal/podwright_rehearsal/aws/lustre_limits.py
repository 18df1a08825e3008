"""Refuse the Lustre file systems that Amazon FSx refuses.

Read from https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystem.html and
https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright_rehearsal.aws.account import SecurityGroup
from podwright_rehearsal.aws.aws_errors import AwsError

LNET_PORT = 988

# Capacities: those allowed besides, then every multiple of the step, in GiB.
Capacities = tuple[tuple[int, ...], int]
SSD_CAPACITIES: Capacities = ((1200,), 2400)
SCRATCH_1_CAPACITIES: Capacities = ((1200, 2400), 3600)
HDD_CAPACITIES: dict[int, Capacities] = {12: ((), 6000), 40: ((), 1800)}  # MB/s per TiB: capacities
# By MB/s per TiB: https://docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html
EFA_CAPACITIES: dict[int, Capacities] = {125: ((), 38400), 250: ((), 19200), 500: ((), 9600), 1000: ((), 4800)}

SSD_THROUGHPUTS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}  # MB/s per TiB
DEPLOYMENT_TYPES = ("SCRATCH_1", "SCRATCH_2", *SSD_THROUGHPUTS)
STORAGE_TYPES = {"PERSISTENT_1": ("SSD", "HDD"), "PERSISTENT_2": ("SSD", "INTELLIGENT_TIERING")}
COMPRESSIONS = ("NONE", "LZ4")
VERSIONS = ("2.10", "2.12", "2.15")
TIERING = "INTELLIGENT_TIERING"
TIERING_STEP_MBPS, TIERING_MOST_MBPS = 4000, 2000000
TIERING_CACHES = ("NO_CACHE", "USER_PROVISIONED", "PROPORTIONAL_TO_THROUGHPUT_CAPACITY")
LONGEST_RETENTION_DAYS = 90
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/root-squash.html
LARGEST_ID, MOST_CLIENTS, LARGEST_PART = 2**32 - 2, 64, 255
LOG_LEVELS = ("DISABLED", "WARN_ONLY", "ERROR_ONLY", "WARN_ERROR")


def check(request: Mapping[str, Any]) -> None:
    """Check the values of a request.

    Raises:
        AwsError: ``BadRequest`` or ``InvalidPerUnitStorageThroughput``.
    """
    configuration = request.get("LustreConfiguration") or {}
    deployment = configuration.get("DeploymentType", "SCRATCH_1")
    storage = request.get("StorageType", "SSD")
    throughput = configuration.get("PerUnitStorageThroughput")
    _one_of("DeploymentType", deployment, DEPLOYMENT_TYPES)
    _one_of("DataCompressionType", configuration.get("DataCompressionType", "NONE"), COMPRESSIONS)
    _one_of(f"StorageType for {deployment}", storage, STORAGE_TYPES.get(deployment, ("SSD",)))
    _check_metadata(deployment, storage, configuration.get("MetadataConfiguration"))
    _check_version(deployment, request.get("FileSystemTypeVersion"), configuration.get("MetadataConfiguration"))
    _check_cache(storage, configuration)
    _check_keeping(deployment, request, configuration)
    check_maintenance(configuration)
    _check_root_squash(configuration.get("RootSquashConfiguration"))
    _check_logging(configuration.get("LogConfiguration"))
    if storage == TIERING:
        _check_tiering(request, configuration)
        return
    _check_throughput(deployment, storage, throughput)
    _check_efa(deployment, configuration)
    _check_capacity(
        deployment, storage, throughput, request.get("StorageCapacity", 0), efa=configuration.get("EfaEnabled", False)
    )


def metadata_iops(capacity_gib: int) -> int:
    """Return the IOPS of AUTOMATIC mode: https://docs.aws.amazon.com/fsx/latest/LustreGuide/metadata-performance.html."""
    for max_gib, iops in ((1200, 1500), (2400, 3000), (9600, 6000), (45600, 12000)):
        if capacity_gib <= max_gib:
            return iops
    return 12000 * (capacity_gib // 24000)


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


def _check_metadata(deployment: str, storage: str, metadata: Mapping[str, Any] | None) -> None:
    if metadata is None:
        return
    if deployment != "PERSISTENT_2":
        raise AwsError("BadRequest", f"MetadataConfiguration cannot be given for {deployment}")
    mode, iops = metadata.get("Mode"), metadata.get("Iops")
    _one_of("metadata Mode", mode, ("USER_PROVISIONED",) if storage == TIERING else ("AUTOMATIC", "USER_PROVISIONED"))
    if mode == "AUTOMATIC":
        return
    if iops not in ({6000, 12000} if storage == TIERING else {1500, 3000, 6000, *range(12000, 192001, 12000)}):
        raise AwsError("BadRequest", f"Invalid metadata Iops {iops} for {storage}")


def _check_version(deployment: str, version: str | None, metadata: Mapping[str, Any] | None) -> None:
    if version is None:
        return
    _one_of("FileSystemTypeVersion", version, VERSIONS)
    if deployment == "PERSISTENT_2" and version == "2.10":
        raise AwsError("BadRequest", "FileSystemTypeVersion 2.10 is not supported with PERSISTENT_2: use 2.12 or 2.15")
    if metadata is not None and version != "2.15":
        raise AwsError("BadRequest", f"FileSystemTypeVersion {version} is not supported with a metadata configuration")


def _check_cache(storage: str, configuration: Mapping[str, Any]) -> None:
    drive = configuration.get("DriveCacheType")
    if (drive is not None) is not (storage == "HDD"):
        raise AwsError("BadRequest", f"DriveCacheType {drive} is not supported with {storage}: only HDD needs one")
    for member in ("DataReadCacheConfiguration", "ThroughputCapacity"):
        if member in configuration and storage != TIERING:
            raise AwsError("BadRequest", f"{member} is not supported with {storage}")


def _check_keeping(deployment: str, request: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
    """Refuse backups and customer keys of scratch file systems."""
    days = configuration.get("AutomaticBackupRetentionDays", 0)
    if not 0 <= days <= LONGEST_RETENTION_DAYS:
        raise AwsError("BadRequest", f"AutomaticBackupRetentionDays must be 0 to {LONGEST_RETENTION_DAYS}, not {days}")
    if deployment.startswith("SCRATCH") and (days or request.get("KmsKeyId")):
        raise AwsError("BadRequest", f"{deployment} has no automatic backups and no KmsKeyId")


def check_maintenance(configuration: Mapping[str, Any]) -> None:
    """Refuse a start of the weekly maintenance that is no time of a week, of any file system.

    Raises:
        AwsError: ``BadRequest``.
    """
    start = configuration.get("WeeklyMaintenanceStartTime", "1:00:00")
    day, _, time = start.partition(":")
    hour, _, minute = time.partition(":")
    is_time = len(start) == len("1:00:00") and all(part.isdecimal() for part in (day, hour, minute))
    if not is_time or not 1 <= int(day) <= 7 or int(hour) > 23 or int(minute) > 59:  # noqa: PLR2004 -- of a week
        raise AwsError("BadRequest", f"Invalid WeeklyMaintenanceStartTime {start}")


def _check_root_squash(squash: Mapping[str, Any] | None) -> None:
    if squash is None:
        return
    ids, clients = str(squash.get("RootSquash", "0:0")), squash.get("NoSquashNids") or []
    user, _, group = ids.partition(":")
    are_numbers = all(part.isdecimal() and (part == "0" or not part.startswith("0")) for part in (user, group))
    if not are_numbers or max(int(user), int(group)) > LARGEST_ID or (user == "0") is not (group == "0"):
        raise AwsError("BadRequest", f"Invalid RootSquash {ids}")
    if len(clients) > MOST_CLIENTS:
        raise AwsError("BadRequest", f"NoSquashNids has {len(clients)} clients, more than {MOST_CLIENTS}")
    for client in clients:
        address = client.removesuffix("@tcp")
        parts = address.split(".")
        if address == client or len(parts) != len("IPv4") or not all(map(_is_part, parts)):
            raise AwsError("BadRequest", f"Invalid NoSquashNids {client}")


def _is_part(part: str) -> bool:
    """Return whether a part of a client's address is a number or, in brackets, a range."""
    if part.startswith("["):
        bounds = part.removeprefix("[").removesuffix("]").split("-")
        has_form = part.endswith("]") and len(bounds) == len(("lower", "upper"))
    else:
        bounds, has_form = [part], True
    if not has_form or not all(bound.isdecimal() for bound in bounds):
        return False
    numbers = [int(bound) for bound in bounds]
    return numbers == sorted(numbers) and numbers[-1] <= LARGEST_PART


def _check_logging(logging: Mapping[str, Any] | None) -> None:
    if logging is None:
        return
    _one_of("LogConfiguration Level", logging.get("Level"), LOG_LEVELS)
    destination = logging.get("Destination")
    if destination is not None and ":log-group:/aws/fsx" not in destination:
        raise AwsError("BadRequest", f"Invalid LogConfiguration Destination {destination}: a group /aws/fsx…")


def _check_tiering(request: Mapping[str, Any], configuration: Mapping[str, Any]) -> None:
    if "StorageCapacity" in request or "PerUnitStorageThroughput" in configuration:
        raise AwsError("BadRequest", f"{TIERING} takes neither StorageCapacity nor PerUnitStorageThroughput")
    throughput = configuration.get("ThroughputCapacity", 0)
    if not 0 < throughput <= TIERING_MOST_MBPS or throughput % TIERING_STEP_MBPS:
        raise AwsError("BadRequest", f"Invalid ThroughputCapacity {throughput}: a multiple of {TIERING_STEP_MBPS}")
    cache = (configuration.get("DataReadCacheConfiguration") or {}).get("SizingMode")
    _one_of("DataReadCacheConfiguration SizingMode", cache, TIERING_CACHES)
    if configuration.get("MetadataConfiguration") is None:
        raise AwsError("BadRequest", f"{TIERING} needs a MetadataConfiguration")


def _check_efa(deployment: str, configuration: Mapping[str, Any]) -> None:
    if not configuration.get("EfaEnabled"):
        return
    if deployment != "PERSISTENT_2" or configuration.get("MetadataConfiguration") is None:
        raise AwsError("BadRequest", "EfaEnabled needs PERSISTENT_2 with a metadata configuration")


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


def _check_capacity(deployment: str, storage: str, throughput: int | None, capacity_gib: int, *, efa: bool) -> None:
    if storage == "HDD" and throughput is not None:
        smallest, step = HDD_CAPACITIES[throughput]
    elif efa and throughput is not None:
        smallest, step = EFA_CAPACITIES[throughput]
    else:
        smallest, step = SCRATCH_1_CAPACITIES if deployment == "SCRATCH_1" else SSD_CAPACITIES
    if capacity_gib in smallest or (capacity_gib > 0 and capacity_gib % step == 0):
        return
    allowed = _listing((*smallest, f"a multiple of {step}"))
    raise AwsError(
        "BadRequest",
        f"Invalid storage capacity {capacity_gib} GiB for {deployment} {storage}: it must be one of {allowed}",
    )


def _listing(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)
