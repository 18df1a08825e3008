"""Check the arguments of a Lustre file system against FSx's limits.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePosixPath
from typing import NamedTuple

from podwright_constructs import facts
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.checks.file_system import file_system_problems
from podwright_constructs.checks.words import (
    bucket_name_problems,
    choice,
    counted,
    is_reference,
    matches,
    mount_path_problems,
    one_of,
)
from podwright_constructs.problems import Path, Problem

TIERING = "INTELLIGENT_TIERING"
IPV4_PARTS, MAX_PART = 4, 255
_PART = re.compile(r"(?P<only>\d{1,3})|\[(?P<first>\d{1,3})-(?P<last>\d{1,3})\]")


class Capacities(NamedTuple):
    """The capacities that FSx sells: the smallest one and the multiples of a step, in GiB."""

    minimum: int
    step: int

    def __contains__(self, capacity_gib: object) -> bool:
        """Return whether FSx sells a file system of this size."""
        is_multiple = isinstance(capacity_gib, int) and capacity_gib > 0 and capacity_gib % self.step == 0
        return capacity_gib == self.minimum or is_multiple

    def __str__(self) -> str:
        return (
            f"a multiple of {self.step}"
            if self.minimum == self.step
            else f"{self.minimum} or a multiple of {self.step}"
        )

    def closest(self, capacity_gib: int) -> int:
        """Return the offered capacity that is nearest to a given one."""
        below = max(self.step, capacity_gib // self.step * self.step)
        return min((self.minimum, below, below + self.step), key=lambda size: abs(size - capacity_gib))


def lustre_file_system(lustre: LustreArguments) -> list[Problem]:
    """Check a new file system."""
    problems = list(mount_path_problems(lustre.mount_path))
    if lustre.deployment_type not in facts.LUSTRE_STORAGE_TYPES:
        return [*problems, *choice("deployment_type", lustre.deployment_type, tuple(facts.LUSTRE_STORAGE_TYPES))]
    storage_types = facts.LUSTRE_STORAGE_TYPES[lustre.deployment_type]
    if lustre.storage_type not in storage_types:
        context = f" with {lustre.deployment_type}"
        return [*problems, *choice("storage_type", lustre.storage_type, storage_types, context)]
    return [
        *problems,
        *_throughput(lustre),
        *_capacity(lustre),
        *_read_cache(lustre),
        *choice("data_compression_type", lustre.data_compression_type, facts.LUSTRE_COMPRESSIONS),
        *_version(lustre),
        *_metadata(lustre),
        *_efa(lustre),
        *file_system_problems(lustre),
        *_backups(lustre),
        *_data_repositories(lustre.data_repositories),
        *_links_of_tiering(lustre),
        *_root_squash(lustre),
        *_logging(lustre),
    ]


def existing_lustre(lustre: ExistingLustreArguments) -> list[Problem]:
    """Check the names of an existing file system."""
    need = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [
        *matches("dns_name", lustre.dns_name, facts.FSX_DNS_NAME_PATTERN, need),
        *matches("mount_name", lustre.mount_name, facts.LUSTRE_MOUNT_NAME_PATTERN, "up to 8 letters, digits, _ and -"),
        *mount_path_problems(lustre.mount_path),
    ]


def lustre_throughput(lustre: LustreArguments) -> int | None:
    """Return the given throughput for each TiB, else the default of the type; None if it has no such throughput."""
    choices = facts.LUSTRE_THROUGHPUTS.get((lustre.deployment_type, lustre.storage_type))
    return choices[0] if choices and lustre.throughput_mbps_per_tib is None else lustre.throughput_mbps_per_tib


def lustre_capacities(lustre: LustreArguments) -> Capacities | None:
    """Return the capacities that FSx offers for a type; None if capacity is elastic, or for an unknown throughput."""
    if lustre.storage_type == TIERING:
        return None
    if lustre.storage_type != "HDD" and not lustre.efa:
        return Capacities(facts.MIN_LUSTRE_CAPACITY_GIB, facts.LUSTRE_CAPACITY_STEP_GIB)
    hdd = lustre.storage_type == "HDD"
    steps = facts.LUSTRE_HDD_CAPACITY_STEPS_GIB if hdd else facts.LUSTRE_EFA_CAPACITY_STEPS_GIB
    step = steps.get(lustre_throughput(lustre) or 0)
    return Capacities(step, step) if step else None


def _throughput(lustre: LustreArguments) -> Iterator[Problem]:
    choices = facts.LUSTRE_THROUGHPUTS.get((lustre.deployment_type, lustre.storage_type))
    per_tib, total, tiering = lustre.throughput_mbps_per_tib, lustre.throughput_mbps, lustre.storage_type == TIERING
    kind = f"{lustre.deployment_type} on {lustre.storage_type}"
    if choices:
        yield from choice("throughput_mbps_per_tib", per_tib, sorted(choices), f" for {kind}")
    elif per_tib is not None:
        hint = "Set throughput_mbps instead." if tiering else "Its throughput follows from its capacity."
        yield Problem("conflict", ("throughput_mbps_per_tib",), per_tib, f"no value for {kind}", hint)
    if total is None:
        return
    step, max_mbps = facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS, facts.MAX_LUSTRE_TIERING_THROUGHPUT_MBPS
    if not tiering:
        yield Problem("conflict", ("throughput_mbps",), total, f"no value for {kind}", f"Only {TIERING} takes it.")
    elif not 0 < total <= max_mbps or total % step:
        yield Problem("range", ("throughput_mbps",), total, f"a multiple of {step} up to {max_mbps}")


def _capacity(lustre: LustreArguments) -> Iterator[Problem]:
    capacity_gib = lustre.capacity_gib
    if capacity_gib is None:
        return
    if lustre.storage_type == TIERING:
        hint = "It grows and shrinks with its contents."
        yield Problem("conflict", ("capacity_gib",), capacity_gib, f"no value for {TIERING}", hint)
        return
    sold = lustre_capacities(lustre)
    if sold is None or capacity_gib in sold:
        return
    need = f"{sold} with EFA at this throughput" if lustre.efa else str(sold)
    yield Problem("range", ("capacity_gib",), capacity_gib, need, f"The closest is {sold.closest(capacity_gib)}.")


def _read_cache(lustre: LustreArguments) -> Iterator[Problem]:
    if lustre.read_cache and lustre.storage_type == "SSD":
        hint = "The cache is an SSD in front of HDD or INTELLIGENT_TIERING."
        yield Problem("conflict", ("read_cache",), lustre.read_cache, "false on SSD", hint)


def _version(lustre: LustreArguments) -> list[Problem]:
    """2.10 is older than PERSISTENT_2 and data repositories; 2.12 than metadata, which EFA and tiering need.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/overview-dra-data-repo.html
    """
    persistent_2, linked = lustre.deployment_type == "PERSISTENT_2", bool(lustre.data_repositories)
    has_metadata = lustre.metadata_iops is not None or lustre.efa or lustre.storage_type == TIERING
    if persistent_2 and has_metadata:
        oldest, reason = "2.15", " with metadata_iops, efa or INTELLIGENT_TIERING"
    else:
        oldest, reason = "2.12" if persistent_2 or linked else "2.10", " with data_repositories" if linked else ""
    allowed = facts.LUSTRE_VERSIONS[: facts.LUSTRE_VERSIONS.index(oldest) + 1]
    context = f" for {lustre.deployment_type}{reason}"
    return choice("file_system_type_version", lustre.file_system_type_version, allowed, context)


def _metadata(lustre: LustreArguments) -> Iterator[Problem]:
    metadata_iops, tiering = lustre.metadata_iops, lustre.storage_type == TIERING
    if metadata_iops is None:
        return
    if lustre.deployment_type != "PERSISTENT_2":
        yield _only_persistent_2("metadata_iops", value=metadata_iops)
        return
    choices = facts.LUSTRE_TIERING_METADATA_IOPS if tiering else facts.LUSTRE_METADATA_IOPS
    if metadata_iops not in choices:
        (*few, highest), step = choices, facts.LUSTRE_METADATA_IOPS_STEP
        need = one_of(choices) if tiering else f"{', '.join(map(str, few[:4]))} … {highest} in steps of {step}"
        yield Problem("choice", ("metadata_iops",), metadata_iops, need)


def _efa(lustre: LustreArguments) -> Iterator[Problem]:
    if lustre.efa and lustre.deployment_type != "PERSISTENT_2":
        yield _only_persistent_2("efa", value=lustre.efa)


def _only_persistent_2(argument: str, *, value: object) -> Problem:
    return Problem("conflict", (argument,), value, "deployment_type PERSISTENT_2")


def _backups(lustre: LustreArguments) -> Iterator[Problem]:
    """FSx backs up neither scratch file systems nor those linked with S3.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
    """
    if lustre.deployment_type == "SCRATCH_2":
        refused, context = "scratch file systems", " with SCRATCH_2"
    elif lustre.data_repositories:
        refused, context = "file systems that are linked with S3", " with data_repositories"
    else:
        return
    hint, days = f"FSx does not back up {refused}.", lustre.automatic_backup_retention_days
    if days:
        yield Problem("conflict", ("automatic_backup_retention_days",), days, f"0{context}", hint)
    if lustre.on_destroy == "backup":
        yield Problem("conflict", ("on_destroy",), lustre.on_destroy, f"retain or destroy{context}", hint)
    if lustre.backup_id and lustre.deployment_type == "SCRATCH_2":
        yield Problem("conflict", ("backup_id",), lustre.backup_id, f"no value{context}", hint)


def _data_repositories(repositories: Sequence[DataRepository]) -> Iterator[Problem]:
    if len(repositories) > facts.MAX_DATA_REPOSITORIES:
        value = f"{len(repositories)} repositories"
        yield Problem("size", ("data_repositories",), value, f"at most {facts.MAX_DATA_REPOSITORIES}")
    for index, repository in enumerate(repositories):
        item: Path = ("data_repositories", index)
        need = "an absolute path like /data"
        yield from matches((*item, "path"), repository.path, facts.MOUNT_PATH_PATTERN, need)
        need = "s3://BUCKET or s3://BUCKET/PREFIX, with a bucket name of 3 to 63 characters"
        yield from _s3_uri((*item, "s3_uri"), repository.s3_uri, need)
    for (_, earlier), (index, later) in combinations(enumerate(repositories), 2):
        if earlier.s3_uri.rstrip("/") == later.s3_uri.rstrip("/"):
            need, hint = "a bucket or prefix of its own", "FSx links each one with one folder."
            yield Problem("duplicate", ("data_repositories", index, "s3_uri"), later.s3_uri, need, hint)
        if _overlap(earlier.path, later.path):
            need = f"a folder apart from {earlier.path}"
            yield Problem("overlap", ("data_repositories", index, "path"), later.path, need)


def _links_of_tiering(lustre: LustreArguments) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/fsx/latest/APIReference/API_DataRepositoryAssociation.html."""
    if lustre.storage_type == TIERING and lustre.data_repositories:
        value = counted(len(lustre.data_repositories), "link")
        yield Problem("conflict", ("data_repositories",), value, f"no links with {TIERING}", "FSx links SSD and HDD.")


def _root_squash(lustre: LustreArguments) -> Iterator[Problem]:
    maximum, root_squash, nids = facts.MAX_ROOT_SQUASH_ID, lustre.root_squash, lustre.no_squash_nids
    if nids and root_squash is None:
        value = counted(len(nids), "client")
        yield Problem("conflict", ("no_squash_nids",), value, "root_squash too, from which they are exempt")
    need = f"UID:GID, each 1 to {maximum}, or 0:0"
    malformed = matches("root_squash", root_squash, facts.ROOT_SQUASH_PATTERN, need)
    yield from malformed
    ids = root_squash.split(":") if root_squash and not malformed and not is_reference(root_squash) else ()
    if any(int(id_) > maximum for id_ in ids):
        yield Problem("range", ("root_squash",), root_squash, need)
    if len(nids) > facts.MAX_NO_SQUASH_NIDS:
        yield Problem("size", ("no_squash_nids",), f"{len(nids)} clients", f"at most {facts.MAX_NO_SQUASH_NIDS}")
    for index, nid in enumerate(nids):
        if not is_reference(nid) and nid_ranges(nid) is None:
            need = "an address like 10.0.1.6@tcp or a range like 10.0.[16-31].[0-255]@tcp"
            yield Problem("malformed", ("no_squash_nids", index), nid, need)


def nid_ranges(nid: str) -> tuple[range, ...] | None:
    """Return the values of each of the four parts of a client's address; None if the NID is malformed."""
    address, at, network = nid.partition("@")
    parts = [_PART.fullmatch(part) for part in address.split(".")]
    if (at, network) != ("@", "tcp") or len(parts) != IPV4_PARTS:
        return None
    ranges = []
    for part in parts:
        if part is None:
            return None
        minimum, maximum = int(part["first"] or part["only"]), int(part["last"] or part["only"])
        if not minimum <= maximum <= MAX_PART:
            return None
        ranges.append(range(minimum, maximum + 1))
    return tuple(ranges)


def _logging(lustre: LustreArguments) -> Iterator[Problem]:
    """https://docs.aws.amazon.com/fsx/latest/LustreGuide/cw-event-logging.html."""
    yield from choice("log_level", lustre.log_level, facts.LUSTRE_LOG_LEVELS)
    arn = lustre.log_group_arn
    if arn is not None and lustre.log_level in {None, "DISABLED"}:
        yield Problem("conflict", ("log_group_arn",), arn, "log_level, which says what FSx writes there")
    need = "an ARN like arn:aws:logs:us-west-2:123456789012:log-group:/aws/fsx/research"
    yield from matches("log_group_arn", arn, facts.FSX_LOG_GROUP_ARN_PATTERN, need)


def _s3_uri(path: Path, uri: str, need: str) -> list[Problem]:
    """Check the URI of a bucket and prefix, without a folder called . or .. in the prefix."""
    match = facts.DATA_REPOSITORY_PATTERN.fullmatch(uri)
    if match is None:
        return matches(path, uri, facts.DATA_REPOSITORY_PATTERN, need)
    return [replace(problem, value=uri) for problem in bucket_name_problems(path, match["bucket"], need)]


def _overlap(folder: str, other_folder: str) -> bool:
    shorter, longer = sorted((PurePosixPath(folder), PurePosixPath(other_folder)), key=lambda path: len(path.parts))
    return longer.is_relative_to(shorter)
