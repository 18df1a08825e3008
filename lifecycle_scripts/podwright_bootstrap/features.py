"""Features of nodes beyond Slurm and a shared file system: one field per feature, each off by default.

These dataclasses are the only declaration of each setting. ``podwright.settings.nodes`` reads them from
``cluster.yaml``, constructs write them below ``podwright.nodes`` of ``provisioning_parameters.json``, and the steps
of the boot read them there. A field's documentation is in its metadata, because Python 3.8 has no ``Annotated``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import (
    Any,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

FOLLOWED = ("groups", "users", "slurm")  # features that nodes read again while they run
MIN_INTERVAL_S, MAX_INTERVAL_S = 5, 300  # a series whose values are five minutes apart is stale between them
MAX_CHECK_MINUTES, MAX_OUT_PERCENT, MAX_ACTS_PER_HOUR = 60, 50, 100  # limits of remediation
MAX_HOOK_MINUTES = 120  # all scripts of one moment have two hours
MIN_ID, MAX_ID = 1001, 60000  # ids of users: https://systemd.io/UIDS-GIDS, and 1000 is the image's own user

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


def _doc(text: str) -> Mapping[str, str]:
    """Return the metadata of a field that is documented by this text."""
    return {"doc": text}


@dataclass(frozen=True)
class Group:
    """A group with the same id on every node of every cluster that lists it."""

    name: str = field(metadata=_doc("Name of the group."))
    gid: int = field(metadata=_doc(f"Group id, {MIN_ID} to {MAX_ID}; a user's own group has the user's id."))


@dataclass(frozen=True)
class User:
    """A user with the same id on every node, without sudo."""

    name: str = field(
        metadata=_doc("Login name: lower-case letters, digits, -, _ and dots, at most 32, a letter first.")
    )
    uid: int = field(
        metadata=_doc(
            f"User id, {MIN_ID} to {MAX_ID}. Never change it: files belong to ids, not to names. Use the same "
            "id in all clusters that share files. The user's own group has the same id."
        )
    )
    groups: Tuple[str, ...] = field(
        default=(),
        metadata=_doc("Further groups, from nodes.groups; the user is removed from the rest of nodes.groups."),
    )
    ssh_keys: Tuple[str, ...] = field(
        default=(),
        metadata=_doc(
            "Public keys for logging in, as in an id_….pub. A key removed here is removed "
            "from the nodes; keys that the user added to ~/.ssh/authorized_keys stay. Default: no key."
        ),
    )
    home: Optional[str] = field(
        default=None,
        metadata=_doc(
            "Home directory, below a file system that all nodes mount. Default: a folder with the user's "
            "name on OpenZFS, else in home/ on Lustre."
        ),
    )


@dataclass(frozen=True)
class Ldap:
    """An existing LDAP server, which SSSD asks over TLS."""

    uri: str = field(metadata=_doc("Address of the server: ldaps://HOST[:PORT], or ldap://HOST[:PORT] with StartTLS."))
    search_base: str = field(metadata=_doc("DN below which users and groups are, such as dc=corp,dc=net."))
    ldap_schema: Literal["rfc2307", "rfc2307bis", "ad"] = field(
        default="rfc2307", metadata=_doc("Schema of groups: members by uid, members by DN, or Active Directory.")
    )
    bind_dn: Optional[str] = field(default=None, metadata=_doc("DN that nodes bind as. Default: anonymous."))
    bind_secret_arn: Optional[str] = field(
        default=None,
        metadata=_doc(
            "ARN of the secret in Secrets Manager that holds bind_dn's password as text, encrypted with "
            "AWS's key or this file's; controllers read it for all nodes. Required with bind_dn."
        ),
    )
    certificate: Optional[str] = field(
        default=None,
        metadata=_doc(
            "CA certificate of the server: PEM text, or a path on every node. Default: the CAs of the image."
        ),
    )
    allowed_groups: Tuple[str, ...] = field(
        default=(), metadata=_doc("Groups whose members may log in. Default: every user of the directory may log in.")
    )
    access_filter: Optional[str] = field(
        default=None,
        metadata=_doc(
            "LDAP filter that users must match to log in, such as (employeeType=staff); instead of "
            "allowed_groups. Default: no filter."
        ),
    )
    sudo_groups: Tuple[str, ...] = field(
        default=(),
        metadata=_doc("Groups whose members may become root by sudo, with their password. Default: no group."),
    )
    ssh_key_attribute: Optional[str] = field(
        default=None,
        metadata=_doc(
            "Attribute of users with their SSH public keys, such as sshPublicKey; sshd asks for it after the "
            "user's own authorized_keys. Default: keys of the directory are not used."
        ),
    )
    probe_user: Optional[str] = field(
        default=None, metadata=_doc("User that every node must find before it takes jobs. Default: no lookup.")
    )


@dataclass(frozen=True)
class S3Mount:
    """A bucket as a folder on every node, by Mountpoint for Amazon S3, for all users."""

    bucket: str = field(metadata=_doc("Name of the bucket; a created role gets the permissions."))
    path: str = field(metadata=_doc("Mount path on every node."))
    prefix: str = field(default="", metadata=_doc("Prefix to mount, such as datasets/. Default: the whole bucket."))
    read_only: bool = field(
        default=True, metadata=_doc("false lets every user of the nodes write, overwrite and delete.")
    )


@dataclass(frozen=True)
class LustreClient:
    """Use of FSx for Lustre by nodes, beyond mounting it."""

    striping: Literal["progressive", "file-system"] = field(
        default="progressive",
        metadata=_doc(
            "Striping of new files of runs and data: progressive uses more disks for larger files, "
            "file-system keeps the default of the file system (1 or 5 disks if created before August 2023)."
        ),
    )
    tuned: bool = field(
        default=True, metadata=_doc("Apply AWS's recommended tuning to nodes with more than 64 GiB or 64 vCPUs.")
    )


Effect = Literal["fail", "warn", "skip"]


@dataclass(frozen=True)
class Health:
    """Checks of a compute node before it takes jobs: a finding fails the boot or is a line in the log."""

    efa: Effect = field(default="fail", metadata=_doc("As many EFA interfaces as the type has."))
    gpu_memory: Effect = field(
        default="fail", metadata=_doc("No uncorrected memory error, no row pending replacement.")
    )
    gpu_persistence: Effect = field(default="warn", metadata=_doc("The driver stays loaded between jobs."))
    neuron_memory: Effect = field(
        default="fail", metadata=_doc("No uncorrected error in the memory of a Neuron device.")
    )
    nvlink: Effect = field(default="fail", metadata=_doc("All links between the GPUs of a node are up."))
    clock: Effect = field(default="warn", metadata=_doc("The clock is synchronised."))
    limits: Effect = field(default="warn", metadata=_doc("Jobs may lock memory and open many files."))
    huge_pages: Effect = field(default="warn", metadata=_doc("Huge pages are reserved where there is EFA."))
    shared_memory: Effect = field(default="warn", metadata=_doc("Shared memory has a quarter of the memory or more."))


@dataclass(frozen=True)
class Limits:
    """Kernel limits of users, daemons and network for a large cluster; locked memory is unlimited."""

    open_files: int = field(default=1048576, metadata=_doc("Files that a process may open, 65536 to 1048576."))
    neigh_gc_thresh3: int = field(
        default=32768, metadata=_doc("net.ipv4.neigh.default.gc_thresh3: entries of the ARP table, 1024 to 1048576.")
    )


@dataclass(frozen=True)
class Scratch:
    """The instance's own NVMe disks as one folder for all users; it is empty on a replaced node."""

    mount_path: str = field(default="/scratch", metadata=_doc("Mount path on nodes whose type has NVMe disks."))


@dataclass(frozen=True)
class Prolog:
    """Prolog and epilog that Slurm runs on a compute node before and after each job."""

    check: bool = field(
        default=True,
        metadata=_doc("Check accelerators before the job; a node that fails is drained and the job requeued."),
    )
    clean: bool = field(
        default=True, metadata=_doc("Remove leftovers of a job: processes, shared memory, files in /tmp.")
    )
    job_folder: bool = field(
        default=True, metadata=_doc("Give each job its own folder jobs/JOB below nodes.scratch while it runs.")
    )


@dataclass(frozen=True)
class Neuron:
    """AWS's tools on nodes with Trainium or Inferentia: driver, runtime and tools are required, port 41000 reserved."""

    tools_version: Optional[str] = field(
        default=None, metadata=_doc("Version of aws-neuronx-tools to install, as apt names it. Default: the image's.")
    )
    huge_pages: Optional[int] = field(
        default=None,
        metadata=_doc("Huge pages of 2 MiB to reserve for EFA's buffers, 1 to 65536. Default: the image's."),
    )


@dataclass(frozen=True)
class Downloads:
    """Source of programs that the image lacks, each with its checksum, and of the training program's packages."""

    source: Literal["internet", "bundle"] = field(
        metadata=_doc(
            "internet downloads from each program's own site and the package index; bundle downloads from the "
            "cluster's bucket, filled by `podwright bundle --upload`, for nodes without internet."
        )
    )


@dataclass(frozen=True)
class Containers:
    """Docker, and Enroot with Pyxis: installed if the image lacks them, else left as they are."""

    docker: bool = field(default=True, metadata=_doc("Install Docker on all nodes but the controller."))
    enroot: bool = field(default=True, metadata=_doc("Install Enroot and Pyxis, for `srun --container-image`."))
    docker_for_job_user: bool = field(
        default=False,
        metadata=_doc(
            "Allow ubuntu to use Docker. This equals root on the node: Docker can read and change every file."
        ),
    )
    shared_cache: bool = field(
        default=False,
        metadata=_doc("Keep the image layers that a user's Enroot downloads on the shared file system, for all nodes."),
    )


@dataclass(frozen=True)
class Observability:
    """Metrics of hosts, accelerators, EFA, Slurm and training runs, for the workspace that `prometheus` names."""

    interval_s: int = field(
        default=30,
        metadata=_doc(
            f"Seconds between two samples of a metric, {MIN_INTERVAL_S} to {MAX_INTERVAL_S}; AWS bills each."
        ),
    )


@dataclass(frozen=True)
class PamSlurmAdopt:
    """Allow logins on compute nodes only to users with a job there, and to root.

    Slurm's PAM module comes with the image, is installed where Slurm is the distribution's, or is built.
    """

    admins: Tuple[str, ...] = field(default=("ubuntu",), metadata=_doc("Users who may log in without a job."))
    slurm_source_sha256: Optional[str] = field(
        default=None,
        metadata=_doc(
            "SHA-256 of GitHub's archive of the image's Slurm, such as slurm-24-11-4-1.tar.gz, from which "
            "nodes build the module. Default: podwright's, of 24.11.5, 24.11.6 and 25.11.2."
        ),
    )


@dataclass(frozen=True)
class MetadataAccess:
    """Block the instance's metadata service, and so the node's role, for other users; needs nftables.

    Jobs that read or write S3 with the node's role need their user here.
    """

    users: Tuple[str, ...] = field(
        default=(), metadata=_doc("Users whose programs may use the node's role, besides root's.")
    )
    everybody: bool = field(
        default=False, metadata=_doc("Allow the node's role to every user, but on controllers only to `users`.")
    )


@dataclass(frozen=True)
class ControllerLogins:
    """Allow logins on controllers by ssh only to administrators; controllers may read the cluster's secrets."""

    admins: Tuple[str, ...] = field(
        default=("ubuntu",),
        metadata=_doc("Users who may log in, in addition to root and the members of `ldap.sudo_groups`."),
    )
    everybody: Optional[bool] = field(
        default=None,
        metadata=_doc("Allow logins to every user. Default: true in a cluster without login nodes, else false."),
    )


@dataclass(frozen=True)
class Qos:
    """A quality of service: the priority and limits of the jobs that ask for it with `--qos`."""

    name: str = field(metadata=_doc("Name: lower-case letters, digits, - and _; `normal` is Slurm's own."))
    priority: int = field(default=0, metadata=_doc("Priority of its jobs; a higher number starts first."))
    preempts: Tuple[str, ...] = field(
        default=(),
        metadata=_doc("Qualities of service whose running jobs are requeued when its jobs need their nodes."),
    )
    grace_time_s: int = field(
        default=0, metadata=_doc("Seconds of grace, from SIGTERM on, before a preempted job of this quality is killed.")
    )
    max_wall_minutes: Optional[int] = field(
        default=None, metadata=_doc("Longest time limit of a job. Default: no limit.")
    )
    max_jobs_per_user: Optional[int] = field(
        default=None, metadata=_doc("Jobs a user may run at once. Default: no limit.")
    )
    max_nodes_per_user: Optional[int] = field(
        default=None, metadata=_doc("Nodes that all jobs of a user may use at once. Default: no limit.")
    )
    max_gpus_per_user: Optional[int] = field(
        default=None, metadata=_doc("GPUs that all jobs of a user may use at once. Default: no limit.")
    )


@dataclass(frozen=True)
class Account:
    """An account of Slurm: users that share a part of the cluster; each user's first account is the default."""

    name: str = field(metadata=_doc("Name: lower-case letters, digits, - and _."))
    users: Tuple[str, ...] = field(
        default=(), metadata=_doc("Users of nodes.users or of LDAP, or ubuntu. Users in no account are in `default`.")
    )
    fair_share: int = field(default=1, metadata=_doc("Fair-share weight relative to the other accounts."))
    qos: Tuple[str, ...] = field(
        default=("normal",),
        metadata=_doc("Qualities of service that its jobs may ask for: `normal`, or names in nodes.slurm.qos."),
    )
    max_wall_minutes: Optional[int] = field(
        default=None, metadata=_doc("Longest time limit of a job. Default: no limit.")
    )
    max_jobs_per_user: Optional[int] = field(
        default=None, metadata=_doc("Jobs a user may run at once. Default: no limit.")
    )
    max_nodes: Optional[int] = field(
        default=None, metadata=_doc("Nodes that all its jobs may use at once. Default: no limit.")
    )
    max_gpus: Optional[int] = field(
        default=None, metadata=_doc("GPUs that all its jobs may use at once. Default: no limit.")
    )


@dataclass(frozen=True)
class PartitionLimits:
    """Limits of the jobs in a partition."""

    name: str = field(metadata=_doc("Partition of an instance group."))
    max_minutes: Optional[int] = field(
        default=None, metadata=_doc("Longest time limit of a job. Default: the service's.")
    )
    default_minutes: Optional[int] = field(
        default=None, metadata=_doc("Time limit of jobs without `--time`. Default: the service's.")
    )
    max_nodes: Optional[int] = field(default=None, metadata=_doc("Nodes that a job may use. Default: the service's."))
    accounts: Tuple[str, ...] = field(default=(), metadata=_doc("Accounts that may use it. Default: all."))
    qos: Tuple[str, ...] = field(default=(), metadata=_doc("Qualities of service that may use it. Default: all."))


@dataclass(frozen=True)
class SlurmPolicy:
    """Accounts, qualities of service and limits, which each boot of the controller applies; needs a database."""

    accounts: Tuple[Account, ...] = field(default=(), metadata=_doc("Accounts and their users."))
    qos: Tuple[Qos, ...] = field(default=(), metadata=_doc("Qualities of service."))
    partitions: Tuple[PartitionLimits, ...] = field(default=(), metadata=_doc("Limits of partitions."))
    settings: Dict[str, str] = field(
        default_factory=dict, metadata=_doc("Further keys of slurm.conf, each with its value as text.")
    )


@dataclass(frozen=True)
class Remediation:
    """Reboot or replace compute nodes that report a fault of GPUs, EFA or file system twice in a row.

    The controller sets them to fail with the reason Action:Reboot or Action:Replace, on which HyperPod acts. Jobs on
    the node are requeued.
    """

    interval_minutes: int = field(
        default=5, metadata=_doc(f"Minutes between two checks of a node, 1 to {MAX_CHECK_MINUTES}.")
    )
    max_percent: int = field(
        default=10,
        metadata=_doc(
            "Share of the nodes that may be out of service, for whatever reason, 1 to 50; one node always may."
        ),
    )
    max_per_hour: int = field(default=2, metadata=_doc("Nodes that are rebooted or replaced within an hour, 1 to 100."))
    replace: bool = field(
        default=True,
        metadata=_doc("Replace a node that a reboot does not cure; its volumes are lost. false drains it for you."),
    )
    jobs: bool = field(
        default=False,
        metadata=_doc("Also reboot nodes on which an elastic run failed three times within a day, as its job reports."),
    )


@dataclass(frozen=True)
class Hook:
    """A script of yours that every boot of a node runs as root; if it fails, the boot fails."""

    script: str = field(
        metadata=_doc("Path of the script, from this file's folder; its first line names its interpreter: #!/bin/bash.")
    )
    when: Literal["before", "after"] = field(
        default="after", metadata=_doc("before or after the other steps; Slurm starts after both.")
    )
    groups: Tuple[str, ...] = field(default=(), metadata=_doc("Instance groups that run it. Default: all."))
    timeout_minutes: int = field(
        default=20,
        metadata=_doc(f"Minutes that the script may take, 1 to {MAX_HOOK_MINUTES}; after that the boot fails."),
    )


@dataclass(frozen=True)
class NodeFeatures:
    """Settings of the nodes, beyond Slurm and file systems; lifecycle scripts apply them."""

    skip: Tuple[str, ...] = field(
        default=(), metadata=_doc("Steps of the boot to skip on every node, by the names in its summary, such as ssh.")
    )
    groups: Tuple[Group, ...] = field(default=(), metadata=_doc("Groups that users may be in."))
    users: Tuple[User, ...] = field(
        default=(),
        metadata=_doc("Users with a login, a home and SSH between the nodes; users who are removed lose their access."),
    )
    ldap: Optional[Ldap] = field(
        default=None, metadata=_doc("Existing LDAP server with users and groups. Default: no LDAP.")
    )
    s3_mounts: Tuple[S3Mount, ...] = field(default=(), metadata=_doc("S3 buckets mounted as folders."))
    motd: bool = field(default=False, metadata=_doc("Show next commands and the paths of logs at login."))
    lustre_client: Optional[LustreClient] = field(
        default=None, metadata=_doc("Lustre client; `{}` for the defaults. Default: mount only.")
    )
    health: Optional[Health] = field(
        default=None, metadata=_doc("Checks of a node before it takes jobs; `{}` for the defaults. Default: no checks.")
    )
    limits: Optional[Limits] = field(
        default=None, metadata=_doc("Limits for large clusters; `{}` for the defaults. Default: the image's limits.")
    )
    scratch: Optional[Scratch] = field(
        default=None, metadata=_doc("The node's own NVMe disks; `{}` for the defaults. Default: not mounted.")
    )
    prolog: Optional[Prolog] = field(
        default=None, metadata=_doc("Slurm's prolog and epilog; `{}` for the defaults. Default: not installed.")
    )
    neuron: Optional[Neuron] = field(
        default=None,
        metadata=_doc(
            "Neuron's driver and tools on Trainium and Inferentia, port 41000 reserved for NxD Training; `{}` "
            "for the image's version. Default: not checked."
        ),
    )
    downloads: Optional[Downloads] = field(
        default=None, metadata=_doc("Source of programs and packages. Default: the internet.")
    )
    containers: Optional[Containers] = field(
        default=None, metadata=_doc("Docker, Enroot and Pyxis. Default: the image's own, if it has them.")
    )
    observability: Optional[Observability] = field(
        default=None, metadata=_doc("Metrics that nodes send. Default: no metrics.")
    )
    pam_slurm_adopt: Optional[PamSlurmAdopt] = field(
        default=None, metadata=_doc("Restrict logins on compute nodes. Default: every user may log in.")
    )
    metadata_access: Optional[MetadataAccess] = field(
        default=None,
        metadata=_doc(
            "Restrict the node's role to root and these users; `{}` for root alone. Default: root and "
            "ubuntu, on controllers root alone."
        ),
    )
    controller_logins: Optional[ControllerLogins] = field(
        default=None,
        metadata=_doc("Restrict logins on controllers. Default: root and ubuntu alone, where there are login nodes."),
    )
    slurm: Optional[SlurmPolicy] = field(
        default=None, metadata=_doc("Accounts, priorities and limits of jobs. Default: one account without limits.")
    )
    hooks: Tuple[Hook, ...] = field(default=(), metadata=_doc("Scripts of yours that boots run."))
    remediation: Optional[Remediation] = field(
        default=None, metadata=_doc("Reboot and replace sick nodes; `{}` for the defaults. Default: never.")
    )

    @property
    def runs_containers(self) -> bool:
        """Return whether Slurm's jobs run in containers of Enroot."""
        return self.containers is not None and self.containers.enroot

    @property
    def has_prolog(self) -> bool:
        """Return whether Slurm runs our programs before and after jobs; before, they make containers' folders."""
        return self.prolog is not None or self.runs_containers

    def to_dict(self) -> Dict[str, Any]:
        """Return the features that are on, as JSON has them: with lists for tuples."""
        return {name: value for name, value in json.loads(json.dumps(asdict(self))).items() if value}

    def followed(self) -> Dict[str, Any]:
        """Return the features that nodes read again while they run."""
        return {name: value for name, value in self.to_dict().items() if name in FOLLOWED}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> NodeFeatures:
        """Read what ``to_dict`` returned; raises ``TypeError`` for keys that are missing or unknown, at any depth."""
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
    instance: T = reader.dataclass(cls, content, cls.__name__)
    if reader.problems:
        raise TypeError("; ".join(reader.problems))
    return instance


class _Reader:
    """Makes values of JSON and notes all that is wrong with it."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.problems: List[str] = []

    def dataclass(self, cls: Any, content: Any, path: str) -> Any:
        if not isinstance(content, Mapping):
            self.problems.append(f"{path}: got {_shown(content)}, need an object")
            return None
        types, fields_by_name = get_type_hints(cls), {item.name: item for item in fields(cls)}
        unknown = sorted(set(content) - set(fields_by_name))
        missing = [name for name, item in fields_by_name.items() if _is_required(item) and name not in content]
        if missing:
            self.problems.append(f"{path} lacks {', '.join(missing)}")
        if self.strict and unknown:
            self.problems.append(f"{path} does not know {', '.join(unknown)}")
        present = [name for name in fields_by_name if name in content]
        values = {name: self.value(types[name], content[name], f"{path}.{name}") for name in present}
        return None if self.problems else cls(**values)

    def value(self, kind: Any, content: Any, path: str) -> Any:
        """Return JSON as the type says: a dataclass, an optional one, a list or dictionary of them, or the value."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Union:  # Optional
            return None if content is None else self.value(inner[0], content, path)
        if origin in {tuple, list} and isinstance(content, list):
            return origin(self.value(inner[0], item, f"{path}[{i}]") for i, item in enumerate(content))
        if origin is dict and isinstance(content, dict):
            return {name: self.value(inner[1], item, f"{path}.{name}") for name, item in content.items()}
        if is_dataclass(kind):
            return self.dataclass(kind, content, path)
        if origin is Literal:
            if content not in inner:
                self.problems.append(f"{path}: got {_shown(content)}, need {' or '.join(inner)}")
        elif not _is(origin or kind, content):
            self.problems.append(f"{path}: got {_shown(content)}, need {NAMES[origin or kind]}")
        return content


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


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
