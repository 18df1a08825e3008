"""The section ``nodes`` of ``cluster.yaml``: features of nodes beyond Slurm and file systems, all off by default."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from podwright.settings.section import Section

if TYPE_CHECKING:
    from podwright_bootstrap.features import NodeFeatures

MIN_INTERVAL_S, MAX_INTERVAL_S = 5, 300  # a series whose values are five minutes apart is stale between them
MAX_CHECK_MINUTES, MAX_OUT_PERCENT, MAX_ACTS_PER_HOUR = 60, 50, 100  # Limits of remediation.
MAX_HOOK_MINUTES = 120  # all scripts of one moment have two hours
MIN_ID, MAX_ID = 1001, 60000  # Ids of users, without the image's own user 1000: https://systemd.io/UIDS-GIDS


class Group(Section):
    """A group with the same id on every node of every cluster that lists it."""

    name: str = Field(description="Name of the group.")
    gid: int = Field(description=f"Group id, {MIN_ID} to {MAX_ID}; a user's own group has the user's id.")


class User(Section):
    """A user with the same id on every node, without sudo."""

    name: str = Field(description="Login name: lower-case letters, digits, -, _ and dots, at most 32, a letter first.")
    uid: int = Field(
        description=f"User id, {MIN_ID} to {MAX_ID}. Never change it: files belong to ids, not to names. Use the same "
        "id in all clusters that share files. The user's own group has the same id."
    )
    groups: tuple[str, ...] = Field(
        (), description="Further groups, from nodes.groups; the user is removed from the rest of nodes.groups."
    )
    ssh_keys: tuple[str, ...] = Field(
        (),
        description="Public keys for logging in, as in an id_….pub. A key removed here is removed "
        "from the nodes; keys that the user added to ~/.ssh/authorized_keys stay. Default: no key.",
    )
    home: str | None = Field(
        None,
        description="Home directory, below a file system that all nodes mount. Default: a folder with the user's "
        "name on OpenZFS, else in home/ on Lustre.",
    )


class Ldap(Section):
    """An existing LDAP server, which SSSD asks over TLS."""

    uri: str = Field(description="Address of the server: ldaps://HOST[:PORT], or ldap://HOST[:PORT] with StartTLS.")
    search_base: str = Field(description="DN below which users and groups are, such as dc=corp,dc=net.")
    ldap_schema: Literal["rfc2307", "rfc2307bis", "ad"] = Field(
        "rfc2307", description="Schema of groups: members by uid, members by DN, or Active Directory."
    )
    bind_dn: str | None = Field(None, description="DN that nodes bind as. Default: anonymous.")
    bind_secret_arn: str | None = Field(
        None,
        description="ARN of the secret in Secrets Manager that holds bind_dn's password as text, encrypted with "
        "AWS's key or this file's; controllers read it for all nodes. Required with bind_dn.",
    )
    certificate: str | None = Field(
        None,
        description="CA certificate of the server: PEM text, or a path on every node. Default: the CAs of the image.",
    )
    allowed_groups: tuple[str, ...] = Field(
        (), description="Groups whose members may log in. Default: every user of the directory may log in."
    )
    access_filter: str | None = Field(
        None,
        description="LDAP filter that users must match to log in, such as (employeeType=staff); instead of "
        "allowed_groups. Default: no filter.",
    )
    sudo_groups: tuple[str, ...] = Field(
        (), description="Groups whose members may become root by sudo, with their password. Default: no group."
    )
    ssh_key_attribute: str | None = Field(
        None,
        description="Attribute of users with their SSH public keys, such as sshPublicKey; sshd asks for it after the "
        "user's own authorized_keys. Default: keys of the directory are not used.",
    )
    probe_user: str | None = Field(
        None, description="User that every node must find before it takes jobs. Default: no lookup."
    )


class S3Mount(Section):
    """A bucket as a folder on every node, by Mountpoint for Amazon S3, for all users."""

    bucket: str = Field(description="Name of the bucket; a created role gets the permissions.")
    prefix: str = Field("", description="Prefix to mount, such as datasets/. Default: the whole bucket.")
    path: str = Field(description="Mount path on every node.")
    read_only: bool = Field(True, description="false lets every user of the nodes write, overwrite and delete.")
    key_arn: str | None = Field(None, description="KMS key of the bucket. Default: no permission for a key.")


Reaction = Literal["fail", "warn", "skip"]


def _reaction(default: Reaction, description: str) -> Reaction:
    """Declare the effect of a finding: fail the boot, warn in the log, or skip the check."""
    field: Reaction = Field(default, description=description)
    return field


class LustreClient(Section):
    """Use of FSx for Lustre by nodes, beyond mounting it."""

    striping: Literal["progressive", "file-system"] = Field(
        "progressive",
        description="Striping of new files of runs and data: progressive uses more disks for larger files, "
        "file-system keeps the default of the file system (1 or 5 disks if created before August 2023).",
    )
    tuned: bool = Field(
        default=True, description="Apply AWS's recommended tuning to nodes with more than 64 GiB or 64 vCPUs."
    )


class Health(Section):
    """Checks of a compute node before it takes jobs: a finding fails the boot or is a line in the log."""

    efa: Reaction = _reaction("fail", "As many EFA interfaces as the type has.")
    gpu_memory: Reaction = _reaction("fail", "No uncorrected memory error, no row pending replacement.")
    gpu_persistence: Reaction = _reaction("warn", "The driver stays loaded between jobs.")
    neuron_memory: Reaction = _reaction("fail", "No uncorrected error in the memory of a Neuron device.")
    nvlink: Reaction = _reaction("fail", "All links between the GPUs of a node are up.")
    clock: Reaction = _reaction("warn", "The clock is synchronised.")
    limits: Reaction = _reaction("warn", "Jobs may lock memory and open many files.")
    huge_pages: Reaction = _reaction("warn", "Huge pages are reserved where there is EFA.")
    shared_memory: Reaction = _reaction("warn", "Shared memory has a quarter of the memory or more.")


class Limits(Section):
    """Kernel limits of users, daemons and network for a large cluster; locked memory is unlimited."""

    open_files: int = Field(1048576, description="Files that a process may open, 65536 to 1048576.")
    neigh_gc_thresh3: int = Field(
        32768, description="net.ipv4.neigh.default.gc_thresh3: entries of the ARP table, 1024 to 1048576."
    )


class Scratch(Section):
    """The instance's own NVMe disks as one folder for all users; it is empty on a replaced node."""

    mount_path: str = Field("/scratch", description="Mount path on nodes whose type has NVMe disks.")


class Prolog(Section):
    """Prolog and epilog that Slurm runs on a compute node before and after each job."""

    check: bool = Field(
        default=True,
        description="Check accelerators before the job; a node that fails is drained and the job requeued.",
    )
    clean: bool = Field(default=True, description="Remove leftovers of a job: processes, shared memory, files in /tmp.")
    job_folder: bool = Field(
        default=True, description="Give each job its own folder jobs/JOB below nodes.scratch while it runs."
    )


class Neuron(Section):
    """AWS's tools on nodes with Trainium or Inferentia: driver, runtime and tools are required, port 41000 reserved."""

    tools_version: str | None = Field(
        None, description="Version of aws-neuronx-tools to install, as apt names it. Default: the image's."
    )
    huge_pages: int | None = Field(
        None, description="Huge pages of 2 MiB to reserve for EFA's buffers, 1 to 65536. Default: the image's."
    )


class Downloads(Section):
    """Source of programs that the image lacks, each with its checksum, and of the training program's packages."""

    source: Literal["internet", "bundle"] = Field(
        description="internet downloads from each program's own site and the package index; bundle downloads from the "
        "cluster's bucket, filled by `podwright bundle --upload`, for nodes without internet."
    )


class Containers(Section):
    """Docker, and Enroot with Pyxis: installed if the image lacks them, else left as they are."""

    docker: bool = Field(default=True, description="Install Docker on all nodes but the controller.")
    enroot: bool = Field(default=True, description="Install Enroot and Pyxis, for `srun --container-image`.")
    docker_for_job_user: bool = Field(
        default=False,
        description="Allow ubuntu to use Docker. This equals root on the node: Docker can read and change every file.",
    )
    shared_cache: bool = Field(
        default=False,
        description="Keep the image layers that a user's Enroot downloads on the shared file system, for all nodes.",
    )


class Observability(Section):
    """Metrics of hosts, accelerators, EFA, Slurm and training runs, for the workspace that `prometheus` names."""

    interval_s: int = Field(
        default=30,
        description=f"Seconds between two samples of a metric, {MIN_INTERVAL_S} to {MAX_INTERVAL_S}; AWS bills each.",
    )


class PamSlurmAdopt(Section):
    """Allow logins on compute nodes only to users with a job there, and to root.

    Slurm's PAM module comes with the image, is installed where Slurm is the distribution's, or is built.
    """

    admins: tuple[str, ...] = Field(("ubuntu",), description="Users who may log in without a job.")
    slurm_source_sha256: str | None = Field(
        None,
        description="SHA-256 of GitHub's archive of the image's Slurm, such as slurm-24-11-4-1.tar.gz, from which "
        "nodes build the module. Default: podwright's, of 24.11.5, 24.11.6 and 25.11.2.",
    )


class MetadataAccess(Section):
    """Block the instance's metadata service, and so the node's role, for other users; needs nftables.

    Jobs that read or write S3 with the node's role need their user here.
    """

    users: tuple[str, ...] = Field((), description="Users whose programs may use the node's role, besides root's.")
    everybody: bool = Field(
        default=False, description="Allow the node's role to every user, but on controllers only to `users`."
    )


class ControllerLogins(Section):
    """Allow logins on controllers by ssh only to administrators; controllers may read the cluster's secrets."""

    admins: tuple[str, ...] = Field(
        ("ubuntu",), description="Users who may log in, in addition to root and the members of `ldap.sudo_groups`."
    )
    everybody: bool | None = Field(
        None, description="Allow logins to every user. Default: true in a cluster without login nodes, else false."
    )


class Qos(Section):
    """A quality of service: the priority and limits of the jobs that ask for it with `--qos`."""

    name: str = Field(description="Name: lower-case letters, digits, - and _; `normal` is Slurm's own.")
    priority: int = Field(default=0, description="Priority of its jobs; a higher number starts first.")
    preempts: tuple[str, ...] = Field(
        default=(), description="Qualities of service whose running jobs are requeued when its jobs need their nodes."
    )
    grace_time_s: int = Field(
        default=0, description="Seconds of grace, from SIGTERM on, before a preempted job of this quality is killed."
    )
    max_wall_minutes: int | None = Field(default=None, description="Longest time limit of a job. Default: no limit.")
    max_jobs_per_user: int | None = Field(default=None, description="Jobs a user may run at once. Default: no limit.")
    max_nodes_per_user: int | None = Field(
        default=None, description="Nodes that all jobs of a user may use at once. Default: no limit."
    )
    max_gpus_per_user: int | None = Field(
        default=None, description="GPUs that all jobs of a user may use at once. Default: no limit."
    )


class SlurmAccount(Section):
    """An account of Slurm: users that share a part of the cluster; each user's first account is the default."""

    name: str = Field(description="Name: lower-case letters, digits, - and _.")
    users: tuple[str, ...] = Field(
        default=(), description="Users of nodes.users or of LDAP, or ubuntu. Users in no account are in `default`."
    )
    fair_share: int = Field(default=1, description="Fair-share weight relative to the other accounts.")
    qos: tuple[str, ...] = Field(
        default=("normal",),
        description="Qualities of service that its jobs may ask for: `normal`, or names in nodes.slurm.qos.",
    )
    max_wall_minutes: int | None = Field(default=None, description="Longest time limit of a job. Default: no limit.")
    max_jobs_per_user: int | None = Field(default=None, description="Jobs a user may run at once. Default: no limit.")
    max_nodes: int | None = Field(
        default=None, description="Nodes that all its jobs may use at once. Default: no limit."
    )
    max_gpus: int | None = Field(default=None, description="GPUs that all its jobs may use at once. Default: no limit.")


class PartitionLimits(Section):
    """Limits of the jobs in a partition."""

    name: str = Field(description="Partition of an instance group.")
    max_minutes: int | None = Field(default=None, description="Longest time limit of a job. Default: the service's.")
    default_minutes: int | None = Field(
        default=None, description="Time limit of jobs without `--time`. Default: the service's."
    )
    max_nodes: int | None = Field(default=None, description="Nodes that a job may use. Default: the service's.")
    accounts: tuple[str, ...] = Field(default=(), description="Accounts that may use it. Default: all.")
    qos: tuple[str, ...] = Field(default=(), description="Qualities of service that may use it. Default: all.")


class SlurmPolicy(Section):
    """Accounts, qualities of service and limits, which each boot of the controller applies; needs a database."""

    accounts: tuple[SlurmAccount, ...] = Field(default=(), description="Accounts and their users.")
    qos: tuple[Qos, ...] = Field(default=(), description="Qualities of service.")
    partitions: tuple[PartitionLimits, ...] = Field(default=(), description="Limits of partitions.")
    settings: dict[str, str] = Field(
        default_factory=dict, description="Further keys of slurm.conf, each with its value as text."
    )


class Remediation(Section):
    """Reboot or replace compute nodes that report a fault of GPUs, EFA or file system twice in a row.

    The controller sets them to fail with the reason Action:Reboot or Action:Replace, on which HyperPod acts. Jobs on
    the node are requeued.
    """

    interval_minutes: int = Field(
        default=5, description=f"Minutes between two checks of a node, 1 to {MAX_CHECK_MINUTES}."
    )
    max_percent: int = Field(
        default=10,
        description="Share of the nodes that may be out of service, for whatever reason, 1 to 50; one node always may.",
    )
    max_per_hour: int = Field(default=2, description="Nodes that are rebooted or replaced within an hour, 1 to 100.")
    replace: bool = Field(
        default=True,
        description="Replace a node that a reboot does not cure; its volumes are lost. false drains it for you.",
    )
    jobs: bool = Field(
        default=False,
        description="Also reboot nodes on which an elastic run failed three times within a day, as its job reports.",
    )


class Hook(Section):
    """A script of yours that every boot of a node runs as root; if it fails, the boot fails."""

    script: str = Field(
        description="Path of the script, from this file's folder; its first line names its interpreter: #!/bin/bash."
    )
    when: Literal["before", "after"] = Field(
        default="after", description="before or after the other steps; Slurm starts after both."
    )
    groups: tuple[str, ...] = Field(default=(), description="Instance groups that run it. Default: all.")
    timeout_minutes: int = Field(
        default=20, description=f"Minutes that the script may take, 1 to {MAX_HOOK_MINUTES}; after that the boot fails."
    )


class NodesSection(Section):
    """Settings of the nodes, beyond Slurm and file systems; lifecycle scripts apply them."""

    skip: tuple[str, ...] = Field(
        default=(),
        description="Steps of the boot to skip on every node, by the names in its summary, such as ssh.",
    )
    groups: tuple[Group, ...] = Field(default=(), description="Groups that users may be in.")
    users: tuple[User, ...] = Field(
        default=(),
        description="Users with a login, a home and SSH between the nodes; users who are removed lose their access.",
    )
    ldap: Ldap | None = Field(default=None, description="Existing LDAP server with users and groups. Default: no LDAP.")
    s3_mounts: tuple[S3Mount, ...] = Field(default=(), description="S3 buckets mounted as folders.")
    motd: bool = Field(default=False, description="Show next commands and the paths of logs at login.")
    lustre_client: LustreClient | None = Field(
        default=None, description="Lustre client; `{}` for the defaults. Default: mount only."
    )
    health: Health | None = Field(
        default=None, description="Checks of a node before it takes jobs; `{}` for the defaults. Default: no checks."
    )
    limits: Limits | None = Field(
        default=None, description="Limits for large clusters; `{}` for the defaults. Default: the image's limits."
    )
    scratch: Scratch | None = Field(
        default=None, description="The node's own NVMe disks; `{}` for the defaults. Default: not mounted."
    )
    prolog: Prolog | None = Field(
        default=None, description="Slurm's prolog and epilog; `{}` for the defaults. Default: not installed."
    )
    neuron: Neuron | None = Field(
        default=None,
        description="Neuron's driver and tools on Trainium and Inferentia, port 41000 reserved for NxD Training; `{}` "
        "for the image's version. Default: not checked.",
    )
    downloads: Downloads | None = Field(
        default=None, description="Source of programs and packages. Default: the internet."
    )
    containers: Containers | None = Field(
        default=None, description="Docker, Enroot and Pyxis. Default: the image's own, if it has them."
    )
    observability: Observability | None = Field(
        default=None, description="Metrics that nodes send. Default: no metrics."
    )
    pam_slurm_adopt: PamSlurmAdopt | None = Field(
        default=None, description="Restrict logins on compute nodes. Default: every user may log in."
    )
    metadata_access: MetadataAccess | None = Field(
        default=None,
        description="Restrict the node's role to root and these users; `{}` for root alone. Default: root and "
        "ubuntu, on controllers root alone.",
    )
    controller_logins: ControllerLogins | None = Field(
        default=None,
        description="Restrict logins on controllers. Default: root and ubuntu alone, where there are login nodes.",
    )
    slurm: SlurmPolicy | None = Field(
        default=None, description="Accounts, priorities and limits of jobs. Default: one account without limits."
    )
    hooks: tuple[Hook, ...] = Field(default=(), description="Scripts of yours that boots run.")
    remediation: Remediation | None = Field(
        default=None, description="Reboot and replace sick nodes; `{}` for the defaults. Default: never."
    )

    def features(self) -> "NodeFeatures":
        """Return the nodes' view: the same names, except `S3Mount.key_arn`, which only the role needs."""
        from podwright_bootstrap.features import NodeFeatures  # noqa: PLC0415 — `check` does not need it

        return NodeFeatures.from_dict(
            self.model_dump(mode="json", exclude_none=True, exclude={"s3_mounts": {"__all__": {"key_arn"}}})
        )
