"""Features of nodes beyond Slurm and a shared file system: one field per feature, each off by default.

Written by the constructs below ``podwright.nodes`` of ``provisioning_parameters.json``, read by the steps.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union, get_args, get_origin, get_type_hints

BUNDLE = "bundle"  # of Downloads.source
FOLLOWED = ("groups", "users", "slurm")  # features that nodes read again while they run

# Types in the words of JSON.
NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list",
    list: "a list",
    dict: "an object",
}

NO_TEXT = re.compile("[\0\ud800-\udfff]")  # half a character, as JSON may hold, and what ends a path

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """A group that has the same id on all nodes."""

    name: str
    gid: int


@dataclass(frozen=True)
class User:
    """A person; ``uid`` is also the id of the user's own group."""

    name: str
    uid: int
    groups: Tuple[str, ...] = ()
    ssh_keys: Tuple[str, ...] = ()  # public ones, which let the user in from outside
    home: Optional[str] = None  # Default: below the nodes' homes


@dataclass(frozen=True)
class Ldap:
    """An LDAP server that knows people, asked by SSSD."""

    uri: str  # ldaps://…, or ldap://… with StartTLS
    search_base: str
    ldap_schema: str = "rfc2307"  # as in sssd-ldap(5)
    bind_dn: Optional[str] = None
    bind_secret_arn: Optional[str] = None  # controllers read it for all; without a shared file system each node does
    certificate: Optional[str] = None  # of the authority: PEM text, or its path on the nodes
    allowed_groups: Tuple[str, ...] = ()  # Default: everybody may log in
    access_filter: Optional[str] = None  # of LDAP, for who may log in
    sudo_groups: Tuple[str, ...] = ()
    ssh_key_attribute: Optional[str] = None  # of users: the public keys that let them in
    probe_user: Optional[str] = None


@dataclass(frozen=True)
class S3Mount:
    """A bucket, or a prefix of it, mounted as a folder."""

    bucket: str
    path: str
    prefix: str = ""
    read_only: bool = True


@dataclass(frozen=True)
class LustreClient:
    """Settings of nodes for FSx for Lustre, beyond mounting it."""

    striping: str = "progressive"  # of new files: "progressive" | "file-system" for what the file system does
    tuned: bool = True  # as AWS recommends for large instances


@dataclass(frozen=True)
class Health:
    """The effect of each check's finding (``podwright_bootstrap.health_checks``): "fail" | "warn" | "skip"."""

    efa: str = "fail"
    gpu_memory: str = "fail"
    gpu_persistence: str = "warn"
    neuron_memory: str = "fail"
    nvlink: str = "fail"
    clock: str = "warn"
    limits: str = "warn"
    huge_pages: str = "warn"
    shared_memory: str = "warn"


@dataclass(frozen=True)
class Limits:
    """Kernel limits of users, daemons and the network in a large cluster."""

    open_files: int = 1048576
    neigh_gc_thresh3: int = 32768  # entries of the ARP table


@dataclass(frozen=True)
class Scratch:
    """The instance's own NVMe disks as a folder for all users, empty on a replaced node."""

    mount_path: str = "/scratch"


@dataclass(frozen=True)
class Prolog:
    """The programs that Slurm runs on a node before and after a job."""

    check: bool = True  # the accelerators, before: a node that fails is drained, the job goes elsewhere
    clean: bool = True  # after: what is left of the job
    job_folder: bool = True  # below the scratch folder: jobs/JOB


@dataclass(frozen=True)
class Neuron:
    """AWS's tools for Trainium and Inferentia."""

    tools_version: Optional[str] = None  # of aws-neuronx-tools, as apt names it; Default: the image's
    huge_pages: Optional[int] = None  # of 2 MiB, for libfabric; Default: the image's


@dataclass(frozen=True)
class Downloads:
    """The source of programs that the image lacks."""

    source: str  # BUNDLE, else the internet


@dataclass(frozen=True)
class Containers:
    """Container runtimes of nodes."""

    docker: bool = True
    enroot: bool = True
    docker_for_job_user: bool = False
    shared_cache: bool = False  # of Enroot: a user's layers on the shared file system


@dataclass(frozen=True)
class Observability:
    """The interval of metrics."""

    interval_s: int = 30


@dataclass(frozen=True)
class PamSlurmAdopt:
    """Logins on compute nodes, only for users with a job there."""

    admins: Tuple[str, ...] = ("ubuntu",)  # who may log in without
    slurm_source_sha256: Optional[str] = None  # of the image's release, where the module is built


@dataclass(frozen=True)
class ControllerLogins:
    """The users who may log in to controllers by ssh, in addition to root."""

    admins: Tuple[str, ...] = ("ubuntu",)
    everybody: Optional[bool] = None  # Default: where there are no login nodes


@dataclass(frozen=True)
class MetadataAccess:
    """The users who may reach the instance's metadata service, in addition to root."""

    users: Tuple[str, ...] = ()
    everybody: bool = False  # on nodes that are no controllers


@dataclass(frozen=True)
class Qos:
    """A quality of service: the priority and limits of the jobs that ask for it."""

    name: str
    priority: int = 0
    preempts: Tuple[str, ...] = ()  # those whose jobs are requeued for its jobs
    grace_time_s: int = 0  # from SIGTERM until a preempted job of this quality is killed
    max_wall_minutes: Optional[int] = None  # of a job
    max_jobs_per_user: Optional[int] = None  # that run at the same time
    max_nodes_per_user: Optional[int] = None
    max_gpus_per_user: Optional[int] = None


@dataclass(frozen=True)
class Account:
    """An account of Slurm: the users that share its part of the cluster."""

    name: str
    users: Tuple[str, ...] = ()
    fair_share: int = 1  # beside the other accounts' numbers
    qos: Tuple[str, ...] = ("normal",)  # that its jobs may ask for
    max_wall_minutes: Optional[int] = None  # of a job
    max_jobs_per_user: Optional[int] = None  # that run at the same time
    max_nodes: Optional[int] = None  # of all its jobs together
    max_gpus: Optional[int] = None


@dataclass(frozen=True)
class PartitionLimits:
    """Limits of the jobs in a partition that the service made."""

    name: str
    max_minutes: Optional[int] = None  # of a job
    default_minutes: Optional[int] = None  # of a job that asks for no time
    max_nodes: Optional[int] = None  # of a job
    accounts: Tuple[str, ...] = ()  # Default: all
    qos: Tuple[str, ...] = ()  # Default: all


@dataclass(frozen=True)
class SlurmPolicy:
    """Use of the cluster by its users, and further settings of Slurm."""

    accounts: Tuple[Account, ...] = ()
    qos: Tuple[Qos, ...] = ()
    partitions: Tuple[PartitionLimits, ...] = ()
    settings: Dict[str, str] = field(default_factory=dict)  # keys of slurm.conf


@dataclass(frozen=True)
class Remediation:
    """Reboots and replacements of compute nodes that report a fault, and their limits."""

    interval_minutes: int = 5  # between two checks of a node
    max_percent: int = 10  # of the nodes out of service; one node at least
    max_per_hour: int = 2
    replace: bool = True  # else a node that a reboot does not cure is drained
    jobs: bool = False  # elastic runs report nodes too


@dataclass(frozen=True)
class Hook:
    """A script of the cluster's owner, which boots run as root."""

    script: str  # as cluster.yaml names it
    when: str = "after"  # "before" | "after" the other steps
    groups: Tuple[str, ...] = ()  # instance groups. Default: all
    timeout_minutes: int = 20


@dataclass(frozen=True)
class NodeFeatures:
    """The features of a cluster's nodes."""

    skip: Tuple[str, ...] = ()  # names of steps
    groups: Tuple[Group, ...] = ()
    users: Tuple[User, ...] = ()
    ldap: Optional[Ldap] = None
    s3_mounts: Tuple[S3Mount, ...] = ()
    motd: bool = False
    lustre_client: Optional[LustreClient] = None
    health: Optional[Health] = None
    limits: Optional[Limits] = None
    scratch: Optional[Scratch] = None
    prolog: Optional[Prolog] = None
    neuron: Optional[Neuron] = None
    downloads: Optional[Downloads] = None
    containers: Optional[Containers] = None
    observability: Optional[Observability] = None
    pam_slurm_adopt: Optional[PamSlurmAdopt] = None
    metadata_access: Optional[MetadataAccess] = None
    controller_logins: Optional[ControllerLogins] = None
    slurm: Optional[SlurmPolicy] = None
    hooks: Tuple[Hook, ...] = ()
    remediation: Optional[Remediation] = None

    @property
    def runs_containers(self) -> bool:
        """Return whether Slurm's jobs run in containers of Enroot."""
        return self.containers is not None and self.containers.enroot

    @property
    def has_prolog(self) -> bool:
        """Return whether Slurm runs our programs before and after jobs; before, they make containers' folders."""
        return self.prolog is not None or self.runs_containers

    def to_dict(self) -> Dict[str, Any]:
        """The features that are on, as JSON has them: with lists for tuples."""
        return {name: value for name, value in json.loads(json.dumps(asdict(self))).items() if value}

    def followed(self) -> Dict[str, Any]:
        """The features that nodes read again while they run."""
        return {name: value for name, value in self.to_dict().items() if name in FOLLOWED}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> NodeFeatures:
        """Read what ``to_dict`` gave; raises ``TypeError`` for keys that are missing or unknown, at any depth."""
        return build(cls, content, strict=True)


def build(cls: Type[T], content: Any, *, strict: bool = False) -> T:
    """Make a dataclass, and those in it, of plain JSON.

    Args:
        cls: the dataclass; its annotations say which JSON is right.
        content: an object.
        strict: refuse unknown keys. Default: ignore them.

    Raises:
        TypeError: something is missing, unknown or of another type; the message names everything, at any depth.
    """
    reader = _Reader(strict=strict)
    made: T = reader.dataclass(cls, content, cls.__name__)
    if reader.problems:
        raise TypeError("; ".join(reader.problems))
    return made


class _Reader:
    """Makes values of JSON and notes all that is wrong with it."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.problems: List[str] = []

    def dataclass(self, cls: Any, content: Any, where: str) -> Any:
        if not isinstance(content, Mapping):
            self.problems.append(f"{where}: got {_shown(content)}, need an object")
            return None
        types, known = get_type_hints(cls), {item.name: item for item in fields(cls)}
        unknown = sorted(set(content) - set(known))
        required = [name for name, item in known.items() if item.default is MISSING and item.default_factory is MISSING]
        missing = [name for name in required if name not in content]
        if missing:
            self.problems.append(f"{where} lacks {', '.join(missing)}")
        if self.strict and unknown:
            self.problems.append(f"{where} does not know {', '.join(unknown)}")
        given = [name for name in known if name in content]
        values = {name: self.value(types[name], content[name], f"{where}.{name}") for name in given}
        return None if self.problems else cls(**values)

    def value(self, kind: Any, content: Any, where: str) -> Any:
        """Return JSON as the type says: a dataclass, an optional one, a list or dictionary of them, or the value."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Union:  # Optional
            return None if content is None else self.value(inner[0], content, where)
        if origin in {tuple, list} and isinstance(content, list):
            return origin(self.value(inner[0], item, f"{where}[{i}]") for i, item in enumerate(content))
        if origin is dict and isinstance(content, dict):
            return {name: self.value(inner[1], item, f"{where}.{name}") for name, item in content.items()}
        if is_dataclass(kind):
            return self.dataclass(kind, content, where)
        if not _is(origin or kind, content):
            self.problems.append(f"{where}: got {_shown(content)}, need {NAMES[origin or kind]}")
        return content


def _is(kind: Any, content: Any) -> bool:
    if kind is str:
        return isinstance(content, str) and not NO_TEXT.search(content)
    if kind is bool or isinstance(content, bool):
        return kind is bool and isinstance(content, bool)
    if kind is float:  # neither NaN nor more than a float can hold
        return isinstance(content, (int, float)) and abs(content) <= sys.float_info.max
    return isinstance(content, kind)


def _shown(content: Any) -> str:
    return textwrap.shorten(ascii(content), 60, placeholder=" …")
