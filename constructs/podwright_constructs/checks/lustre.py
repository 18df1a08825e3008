"""Check the arguments of a Lustre file system against FSx's limits.

https://docs.aws.amazon.com/fsx/latest/APIReference/API_CreateFileSystemLustreConfiguration.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from podwright_constructs import facts
from podwright_constructs.checks.words import backup_problems, choice, matches, mount_path_problems, one_of
from podwright_constructs.problems import Path, Problem

TIERING = "INTELLIGENT_TIERING"


class Repository(Protocol):
    """The attributes of a data repository that the checks read."""

    @property
    def path(self) -> str:
        """The folder of the file system."""

    @property
    def s3_uri(self) -> str:
        """The prefix of the bucket."""


class Capacities(NamedTuple):
    """The capacities that FSx sells: the smallest one and the multiples of a step, in GiB."""

    least: int
    step: int

    def __contains__(self, capacity_gib: object) -> bool:
        """Whether FSx sells a file system of this size."""
        is_multiple = isinstance(capacity_gib, int) and capacity_gib > 0 and capacity_gib % self.step == 0
        return capacity_gib == self.least or is_multiple

    def __str__(self) -> str:
        return f"a multiple of {self.step}" if self.least == self.step else f"{self.least} or a multiple of {self.step}"

    def closest(self, capacity_gib: int) -> int:
        """The capacity nearest to one that is not sold."""
        below = max(self.step, capacity_gib // self.step * self.step)
        return min((self.least, below, below + self.step), key=lambda size: abs(size - capacity_gib))


def lustre_file_system(
    *,
    mount_path: str,
    deployment_type: str = "PERSISTENT_2",
    storage_type: str = "SSD",
    capacity_gib: int | None = None,
    throughput_mbps_per_tib: int | None = None,
    throughput_mbps: int | None = None,
    read_cache: bool = False,
    compression: str = "LZ4",
    version: str = "2.15",
    metadata_iops: int | None = None,
    efa: bool = False,
    automatic_backup_retention_days: int = 0,
    on_destroy: str = "destroy",
    data_repositories: Sequence[Repository] = (),
) -> list[Problem]:
    """Check a new file system; None asks for the default of its type."""
    problems = list(mount_path_problems(mount_path))
    if deployment_type not in facts.LUSTRE_STORAGE_TYPES:
        return [*problems, *choice("deployment_type", deployment_type, tuple(facts.LUSTRE_STORAGE_TYPES))]
    storage_types = facts.LUSTRE_STORAGE_TYPES[deployment_type]
    if storage_type not in storage_types:
        return [*problems, *choice("storage_type", storage_type, storage_types, f" with {deployment_type}")]
    return [
        *problems,
        *_throughput(deployment_type, storage_type, throughput_mbps_per_tib, throughput_mbps),
        *_capacity(deployment_type, storage_type, capacity_gib, throughput_mbps_per_tib, efa=efa),
        *_read_cache(storage_type, read_cache=read_cache),
        *choice("compression", compression, facts.LUSTRE_COMPRESSIONS),
        *_version(
            deployment_type,
            storage_type,
            version,
            has_iops=metadata_iops is not None,
            efa=efa,
            linked=bool(data_repositories),
        ),
        *_metadata(deployment_type, storage_type, metadata_iops),
        *([] if deployment_type == "PERSISTENT_2" or not efa else [_only_persistent_2("efa", given=True)]),
        *backup_problems(automatic_backup_retention_days, on_destroy),
        *_no_backups(deployment_type, automatic_backup_retention_days, on_destroy, linked=bool(data_repositories)),
        *_data_repositories(data_repositories),
    ]


def existing_lustre(*, dns_name: str, mount_name: str, mount_path: str) -> list[Problem]:
    """Check the names of an existing file system."""
    need = "a DNS name like fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    return [
        *matches("dns_name", dns_name, facts.FSX_DNS_NAME_PATTERN, need),
        *matches("mount_name", mount_name, facts.LUSTRE_MOUNT_NAME_PATTERN, "up to 8 letters, digits, _ and -"),
        *mount_path_problems(mount_path),
    ]


def lustre_throughput(deployment_type: str, storage_type: str, throughput_mbps_per_tib: int | None) -> int | None:
    """The throughput asked for, else the default of the type; None where there is no choice."""
    choices = facts.LUSTRE_THROUGHPUTS.get((deployment_type, storage_type))
    return choices[0] if choices and throughput_mbps_per_tib is None else throughput_mbps_per_tib


def lustre_capacities(
    deployment_type: str, storage_type: str, throughput_mbps_per_tib: int | None, *, efa: bool
) -> Capacities | None:
    """What FSx sells of a type; None if the capacity grows by itself, or hangs on a throughput that is not sold."""
    throughput = lustre_throughput(deployment_type, storage_type, throughput_mbps_per_tib) or 0
    if storage_type == TIERING:
        return None
    if storage_type != "HDD" and not efa:
        return Capacities(facts.MIN_LUSTRE_CAPACITY_GIB, facts.LUSTRE_CAPACITY_STEP_GIB)
    steps = facts.LUSTRE_HDD_CAPACITY_STEPS_GIB if storage_type == "HDD" else facts.LUSTRE_EFA_CAPACITY_STEPS_GIB
    step = steps.get(throughput)
    return Capacities(step, step) if step else None


def _throughput(deployment: str, storage: str, per_tib: int | None, total: int | None) -> Iterator[Problem]:
    choices = facts.LUSTRE_THROUGHPUTS.get((deployment, storage))
    kind = f"{deployment} on {storage}"
    if choices:
        yield from choice("throughput_mbps_per_tib", per_tib, sorted(choices), f" for {kind}")
    if not choices and per_tib is not None:
        hint = "Set throughput_mbps instead." if storage == TIERING else "Its throughput follows from its capacity."
        yield Problem("conflict", ("throughput_mbps_per_tib",), per_tib, f"no value for {kind}", hint)
    if storage != TIERING:
        if total is not None:
            need, hint = f"no value for {kind}", f"Only {TIERING} takes it."
            yield Problem("conflict", ("throughput_mbps",), total, need, hint)
    elif total is not None and not (
        0 < total <= facts.MAX_LUSTRE_TIERING_THROUGHPUT_MBPS and total % facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS == 0
    ):
        step, most = facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS, facts.MAX_LUSTRE_TIERING_THROUGHPUT_MBPS
        yield Problem("range", ("throughput_mbps",), total, f"a multiple of {step} up to {most}")


def _capacity(
    deployment: str, storage: str, capacity_gib: int | None, throughput: int | None, *, efa: bool
) -> Iterator[Problem]:
    if capacity_gib is None:
        return
    if storage == TIERING:
        hint = "It grows and shrinks with its contents."
        yield Problem("conflict", ("capacity_gib",), capacity_gib, f"no value for {storage}", hint)
        return
    sold = lustre_capacities(deployment, storage, throughput, efa=efa)
    if sold is None or capacity_gib in sold:
        return
    reason = " with EFA at this throughput" if efa else ""
    hint = f"The closest is {sold.closest(capacity_gib)}."
    yield Problem("range", ("capacity_gib",), capacity_gib, f"{sold}{reason}", hint)


def _read_cache(storage: str, *, read_cache: bool) -> Iterator[Problem]:
    if read_cache and storage == "SSD":
        hint = "The cache is an SSD in front of HDD or INTELLIGENT_TIERING."
        yield Problem("conflict", ("read_cache",), read_cache, "false on SSD", hint)


def _version(
    deployment: str, storage: str, version: str, *, has_iops: bool, efa: bool, linked: bool
) -> Iterator[Problem]:
    """2.10 is older than PERSISTENT_2 and data repositories; 2.12 than metadata, which EFA and tiering need.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/overview-dra-data-repo.html
    """
    needs_newest = deployment == "PERSISTENT_2" and (has_iops or efa or storage == TIERING)
    oldest = "2.15" if needs_newest else "2.12" if deployment == "PERSISTENT_2" or linked else "2.10"
    allowed = facts.LUSTRE_VERSIONS[: facts.LUSTRE_VERSIONS.index(oldest) + 1]
    reason = " with metadata_iops, efa or INTELLIGENT_TIERING" if needs_newest else ""
    reason = reason or (" with data_repositories" if linked else "")
    yield from choice("version", version, allowed, f" for {deployment}{reason}")


def _metadata(deployment: str, storage: str, metadata_iops: int | None) -> Iterator[Problem]:
    if metadata_iops is None:
        return
    if deployment != "PERSISTENT_2":
        yield _only_persistent_2("metadata_iops", given=metadata_iops)
        return
    choices = facts.LUSTRE_TIERING_METADATA_IOPS if storage == TIERING else facts.LUSTRE_METADATA_IOPS
    if metadata_iops not in choices:
        *few, last = choices
        need = one_of(choices) if storage == TIERING else f"{', '.join(map(str, few[:4]))} … {last} in steps of 12000"
        yield Problem("choice", ("metadata_iops",), metadata_iops, need)


def _only_persistent_2(argument: str, *, given: object) -> Problem:
    return Problem("conflict", (argument,), given, "deployment_type PERSISTENT_2")


def _no_backups(deployment: str, days: int, on_destroy: str, *, linked: bool) -> Iterator[Problem]:
    """FSx backs up neither scratch file systems nor those linked with S3.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html
    """
    if deployment == "SCRATCH_2":
        which, need = "scratch file systems", " with SCRATCH_2"
    elif linked:
        which, need = "file systems that are linked with S3", " with data_repositories"
    else:
        return
    hint = f"FSx does not back up {which}."
    if days:
        yield Problem("conflict", ("automatic_backup_retention_days",), days, f"0{need}", hint)
    if on_destroy == "backup":
        yield Problem("conflict", ("on_destroy",), on_destroy, f"destroy{need}", hint)


def _data_repositories(repositories: Sequence[Repository]) -> Iterator[Problem]:
    if len(repositories) > facts.MAX_DATA_REPOSITORIES:
        given = f"{len(repositories)} repositories"
        yield Problem("size", ("data_repositories",), given, f"at most {facts.MAX_DATA_REPOSITORIES}")
    for index, repository in enumerate(repositories):
        item: Path = ("data_repositories", index)
        need = "an absolute path like /data"
        yield from matches((*item, "path"), repository.path, facts.MOUNT_PATH_PATTERN, need)
        need = "s3://BUCKET or s3://BUCKET/PREFIX"
        yield from matches((*item, "s3_uri"), repository.s3_uri, facts.DATA_REPOSITORY_PATTERN, need)
    for (_, one), (index, other) in combinations(enumerate(repositories), 2):
        if _overlap(one.path, other.path):
            need = f"a folder apart from {one.path}"
            yield Problem("overlap", ("data_repositories", index, "path"), other.path, need)


def _overlap(one: str, other: str) -> bool:
    shorter, longer = sorted((PurePosixPath(one), PurePosixPath(other)), key=lambda path: len(path.parts))
    return longer.is_relative_to(shorter)
