"""The section ``nodes`` of ``cluster.yaml``: what nodes have beyond Slurm and file systems, off unless asked for."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from podwright.settings.section import Section

if TYPE_CHECKING:
    from podwright_bootstrap.features import NodeFeatures

MIN_INTERVAL_S, MAX_INTERVAL_S = 5, 300  # a series whose values are five minutes apart is stale between them
MIN_ID, MAX_ID = 1001, 60000  # for people: https://systemd.io/UIDS-GIDS, and 1000 is the image's own user


class Group(Section):
    """A group with the same id on every node of every cluster that lists it."""

    name: str = Field(description="Its name.")
    gid: int = Field(description=f"Its id, {MIN_ID} to {MAX_ID}; users' own groups have their user's id.")


class User(Section):
    """Somebody who works on the cluster, with the same id on every node; never with sudo."""

    name: str = Field(description="Login name: lower-case letters, digits, - and _, at most 32, a letter first.")
    uid: int = Field(
        description=f"User id, {MIN_ID} to {MAX_ID}, for good: files belong to ids, not to names. The same in all "
        "clusters that share files. The user's own group has it too."
    )
    groups: tuple[str, ...] = Field((), description="Further groups, of nodes.groups; others lose the user.")
    ssh_keys: tuple[str, ...] = Field(
        (), description="Public keys that let the user in, as in an id_….pub; one that is taken out lets nobody in."
    )
    home: str | None = Field(
        None,
        description="Home directory, below a file system that all nodes have; none is its name on OpenZFS, else "
        "in home/ on Lustre.",
    )


class Ldap(Section):
    """An LDAP server of yours that knows people, asked by SSSD over TLS alone."""

    uri: str = Field(description="ldaps://HOST[:PORT], or ldap://HOST[:PORT], which is upgraded by StartTLS.")
    search_base: str = Field(description="Where people and groups are, such as dc=corp,dc=net.")
    ldap_schema: Literal["rfc2307", "rfc2307bis", "ad"] = Field(
        "rfc2307", description="How groups name members: by uid, by DN, or Active Directory's way."
    )
    bind_dn: str | None = Field(None, description="As whom nodes ask; none is anonymous.")
    bind_secret_arn: str | None = Field(
        None,
        description="Secret in Secrets Manager that is bind_dn's password, as text; encrypted with AWS's key or this "
        "file's.",
    )
    certificate: str | None = Field(
        None,
        description="Of the authority that signed the server's: PEM text, or its path on every node; none is the "
        "image's own authorities.",
    )
    allowed_groups: tuple[str, ...] = Field((), description="Groups whose members may log in; none is everybody.")
    probe_user: str | None = Field(None, description="Somebody whom every node must find before it takes jobs.")


class S3Mount(Section):
    """A bucket as a folder on every node, by Mountpoint for Amazon S3, for all users."""

    bucket: str = Field(description="Its name; a created role gets the rights.")
    prefix: str = Field("", description="Only what lies below this, such as datasets/; none is the whole bucket.")
    path: str = Field(description="Where nodes mount it.")
    read_only: bool = Field(True, description="false lets everybody on the nodes write, overwrite and delete.")
    key_arn: str | None = Field(None, description="KMS key the bucket is encrypted with, if it is a key of yours.")


Reaction = Literal["fail", "warn", "skip"]


def _reaction(default: Reaction, description: str) -> Reaction:
    """What a finding does: it fails the boot, it is a line in the log, or nobody asks."""
    field: Reaction = Field(default, description=description)
    return field


class LustreClient(Section):
    """How nodes use FSx for Lustre, beyond mounting it."""

    striping: Literal["progressive", "file-system"] = Field(
        "progressive",
        description="How new files of runs and data are spread over disks: the larger the more, or as the file system "
        "does, which made before August 2023 takes 1 or 5 for all.",
    )
    tuned: bool = Field(
        default=True, description="Whether nodes with more than 64 GiB or 64 vCPUs are tuned as AWS recommends."
    )


class Health(Section):
    """What is asked of a compute node before it takes jobs: a finding fails the boot or is a line in the log."""

    efa: Reaction = _reaction("fail", "As many EFA interfaces as the type has.")
    gpu_memory: Reaction = _reaction("fail", "No uncorrected memory error, no row that waits for its replacement.")
    gpu_persistence: Reaction = _reaction("warn", "The driver stays loaded between jobs.")
    nvlink: Reaction = _reaction("fail", "All links between the GPUs of a node are up.")
    clock: Reaction = _reaction("warn", "The clock is synchronised.")
    limits: Reaction = _reaction("warn", "Jobs may lock memory and open many files.")
    huge_pages: Reaction = _reaction("warn", "Huge pages are reserved where there is EFA.")
    shared_memory: Reaction = _reaction("warn", "Shared memory has a quarter of the memory or more.")


class Limits(Section):
    """What the kernel grants users, daemons and the network of a large cluster; memory locks are without limit."""

    open_files: int = Field(1048576, description="How many files a process may open, 65536 to 1048576.")
    neigh_gc_thresh3: int = Field(
        32768, description="net.ipv4.neigh.default.gc_thresh3: entries of the ARP table, 1024 to 1048576."
    )


class Scratch(Section):
    """The instance's own NVMe disks as one folder for everybody; a replaced node starts with it empty."""

    mount_path: str = Field("/scratch", description="Where the folder is on nodes whose type has such disks.")


class Prolog(Section):
    """What Slurm runs on a compute node before and after each job."""

    check: bool = Field(
        default=True,
        description="Whether accelerators are asked first; a node that fails is drained, the job requeued.",
    )
    clean: bool = Field(default=True, description="Whether processes and shared memory that a job leaves are cleared.")
    job_folder: bool = Field(
        default=True, description="Whether a job has a folder of its number below nodes.scratch while it runs."
    )


class Neuron(Section):
    """AWS's tools on nodes with Trainium or Inferentia: driver, runtime and tools are required."""

    tools_version: str | None = Field(
        None, description="Version of aws-neuronx-tools to install, as apt names it; without it, the image's."
    )


class Downloads(Section):
    """Where nodes get what their image lacks: programs, each with its checksum, and the training program's packages."""

    source: Literal["internet", "bundle"] = Field(
        description="internet is each program's own page and the package index; bundle is the cluster's bucket, where "
        "`podwright bundle --upload` puts all of it, for nodes without internet."
    )


class Containers(Section):
    """Docker, and Enroot with Pyxis: what the image lacks is installed, what it has stays."""

    docker: bool = Field(default=True, description="Whether nodes but the controller run Docker.")
    enroot: bool = Field(default=True, description="Whether `srun --container-image` works: Enroot and Pyxis.")
    docker_for_job_user: bool = Field(
        default=False,
        description="Whether ubuntu may talk to Docker. That is as good as root on the node: with Docker anybody can "
        "read and change every file of it.",
    )


class Observability(Section):
    """Metrics of hosts, accelerators, EFA, Slurm and training runs, for the workspace that `prometheus` names."""

    interval_s: int = Field(
        default=30,
        description=f"Seconds between two values of a metric, {MIN_INTERVAL_S} to {MAX_INTERVAL_S}; each is paid.",
    )


class PamSlurmAdopt(Section):
    """Logins on compute nodes for who has a job there, and for root; the image must have Slurm's PAM module."""

    admins: tuple[str, ...] = Field(("ubuntu",), description="Users who may log in there without a job.")


class Nodes(Section):
    """What lifecycle scripts set up besides."""

    skip: tuple[str, ...] = Field(
        default=(),
        description="Steps of a boot to leave out on every node, by the names that its summary shows, such as ssh.",
    )
    groups: tuple[Group, ...] = Field(default=(), description="Groups that users may be in.")
    users: tuple[User, ...] = Field(default=(), description="People with a login, a home and SSH between the nodes.")
    ldap: Ldap | None = Field(default=None, description="LDAP, where people are known already.")
    s3_mounts: tuple[S3Mount, ...] = Field(default=(), description="Buckets as folders.")
    motd: bool = Field(default=False, description="true greets who logs in with the next commands and where logs are.")
    lustre_client: LustreClient | None = Field(default=None, description="How nodes use Lustre; `{}` for the defaults.")
    health: Health | None = Field(
        default=None, description="Checks of a node before it takes jobs; `{}` for the defaults."
    )
    limits: Limits | None = Field(default=None, description="Limits for large clusters; `{}` for the defaults.")
    scratch: Scratch | None = Field(default=None, description="The node's own NVMe disks; `{}` for the defaults.")
    prolog: Prolog | None = Field(default=None, description="Before and after a job; `{}` for the defaults.")
    neuron: Neuron | None = Field(
        default=None, description="Neuron's tools on Trainium and Inferentia; `{}` for the image's."
    )
    downloads: Downloads | None = Field(default=None, description="Where programs come from; none is the internet.")
    containers: Containers | None = Field(default=None, description="Docker, Enroot and Pyxis.")
    observability: Observability | None = Field(default=None, description="Metrics that nodes give.")
    pam_slurm_adopt: PamSlurmAdopt | None = Field(
        default=None, description="Who may log in on compute nodes; none is anybody."
    )

    def features(self) -> "NodeFeatures":
        """Return what the nodes read: the same names, but for `S3Mount.key_arn`, which only the role needs."""
        from podwright_bootstrap.features import NodeFeatures  # noqa: PLC0415 — `check` does not need it

        return NodeFeatures.from_dict(
            self.model_dump(exclude_none=True, exclude={"s3_mounts": {"__all__": {"key_arn"}}})
        )
