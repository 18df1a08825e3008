"""File systems and bucket of the settings file."""

from typing import Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts

_LUSTRE_THROUGHPUTS = "; ".join(
    f"{deployment} {storage} {', '.join(map(str, choices))}"
    for (deployment, storage), choices in facts.LUSTRE_THROUGHPUTS.items()
)


_OPENZFS_THROUGHPUTS = "; ".join(
    f"{deployment} {', '.join(map(str, choices))}" for deployment, choices in facts.OPENZFS_THROUGHPUTS_MBPS.items()
)


_OPENZFS_THROUGHPUTS += ". The first is the default"


class DataRepository(Section):
    """A prefix of an S3 bucket that a folder of the Lustre file system shows."""

    path: str = Field(description="The folder below the file system's root, such as /data; no folder in another's.")
    s3_uri: str = Field(description="s3://BUCKET or s3://BUCKET/PREFIX, in this region.")
    import_changes: bool = Field(
        default=True, description="Whether the folder shows what is new, changed or deleted in S3."
    )
    export_changes: bool = Field(
        default=False, description="Whether what is new, changed or deleted in the folder is so in S3."
    )


_BACKUP_RETENTION = f"Days that automatic daily backups stay, 0 (none) to {facts.MAX_BACKUP_RETENTION_DAYS}."


_LAST_BACKUP = "What destroying the foundation does first: backup makes a last backup, which stays; destroy none."


class CreatedLustre(Section):
    """An FSx for Lustre file system."""

    source: Literal["create"] = Field(description="A new file system.")
    deployment_type: Literal["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"] = Field(
        "PERSISTENT_2", description="PERSISTENT_1 where a region has no 2; SCRATCH_2 for what may be lost."
    )
    storage_type: Literal["SSD", "HDD", "INTELLIGENT_TIERING"] = Field(
        "SSD", description="HDD goes with PERSISTENT_1, INTELLIGENT_TIERING with PERSISTENT_2."
    )
    capacity_gib: int | None = Field(
        None,
        description=f"Storage capacity; of SSD {facts.MIN_LUSTRE_CAPACITY_GIB} or a multiple of "
        f"{facts.LUSTRE_CAPACITY_STEP_GIB}. Default: the smallest one. INTELLIGENT_TIERING has none.",
    )
    throughput_mbps_per_tib: int | None = Field(
        None, description=f"Throughput in MB/s for each TiB: {_LUSTRE_THROUGHPUTS}. The first is the default."
    )
    throughput_mbps: int | None = Field(
        None,
        description="Throughput of INTELLIGENT_TIERING in MB/s, a multiple of "
        f"{facts.LUSTRE_TIERING_THROUGHPUT_STEP_MBPS}, which is the default.",
    )
    read_cache: bool = Field(default=False, description="Whether an SSD is before HDD or INTELLIGENT_TIERING.")
    compression: Literal["LZ4", "NONE"] = Field("LZ4", description="How FSx compresses what is written.")
    version: Literal["2.15", "2.12", "2.10"] = Field("2.15", description="Lustre's version.")
    metadata_iops: int | None = Field(
        None,
        description="Operations on names per second, of PERSISTENT_2: 1500, 3000, 6000 or a multiple of 12000. "
        "Default: what FSx finds right for the capacity.",
    )
    efa: bool = Field(
        default=False, description="Whether nodes reach it over EFA; needs PERSISTENT_2 and larger capacities."
    )
    automatic_backup_retention_days: int = Field(0, description=_BACKUP_RETENTION)
    on_destroy: Literal["backup", "destroy"] = Field("destroy", description=_LAST_BACKUP)
    data_repositories: tuple[DataRepository, ...] = Field(
        (), description=f"Prefixes of S3 that folders show, at most {facts.MAX_DATA_REPOSITORIES}."
    )
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class ExistingLustre(Section):
    """An FSx for Lustre file system of yours."""

    source: Literal["existing"] = Field(description="A file system you have.")
    dns_name: str = Field(description="Its DNS name, fs-….fsx.REGION.amazonaws.com.")
    mount_name: str = Field(description="Its mount name, from `aws fsx describe-file-systems`.")
    efa: bool = Field(default=False, description="Whether it was made with EFA; nodes that can then reach it over EFA.")
    mount_path: str = Field("/fsx", description="Where every node mounts it.")


class CreatedOpenZfs(Section):
    """An FSx for OpenZFS file system, for people's homes."""

    source: Literal["create"] = Field(description="A new file system.")
    deployment_type: Literal["SINGLE_AZ_1", "SINGLE_AZ_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_HA_2", "MULTI_AZ_1"] = Field(
        "SINGLE_AZ_HA_2",
        description="HA has a second server in the same zone, MULTI_AZ_1 in the network's second private subnet.",
    )
    capacity_gib: int = Field(64, description=f"Storage capacity, {facts.OPENZFS_CAPACITY_TEXT}.")
    throughput_mbps: int | None = Field(None, description=f"Throughput in MB/s: {_OPENZFS_THROUGHPUTS}.")
    compression: Literal["ZSTD", "LZ4", "NONE"] = Field("ZSTD", description="How FSx compresses what is written.")
    automatic_backup_retention_days: int = Field(0, description=_BACKUP_RETENTION)
    on_destroy: Literal["backup", "destroy"] = Field("destroy", description=_LAST_BACKUP)
    mount_path: str = Field("/home", description="Where every node mounts it.")


class ExistingOpenZfs(Section):
    """An FSx for OpenZFS file system of yours; nodes mount its root volume, /fsx."""

    source: Literal["existing"] = Field(description="A file system you have.")
    dns_name: str = Field(description="Its DNS name, fs-….fsx.REGION.amazonaws.com.")
    mount_path: str = Field("/home", description="Where every node mounts it.")


class NoOpenZfs(Section):
    """Homes are on each node's own disk."""

    source: Literal["none"] = Field(description="No OpenZFS file system: homes are on each node's own disk.")


class CreatedBucket(Section):
    """An S3 bucket for lifecycle scripts and training payload, named as HyperPod's managed policy wants it."""

    source: Literal["create"] = Field(description="A new bucket.")
    on_destroy: Literal["retain", "destroy"] = Field(
        "retain",
        description="What destroying the foundation does to the bucket: retain refuses while there are objects in it, "
        "destroy deletes them too.",
    )
    noncurrent_version_expiration_days: int = Field(
        90, description="Days that what was overwritten or deleted can be had back."
    )
    access_log_bucket: str | None = Field(
        None, description="A bucket of yours, in this region, that receives a line for each request."
    )
    access_log_prefix: str | None = Field(
        None, description="Where in access_log_bucket; default: the beginning of the bucket's name."
    )


class ExistingBucket(Section):
    """An S3 bucket of yours."""

    source: Literal["existing"] = Field(description="A bucket you have.")
    name: str = Field(description=f"Its name; HyperPod reads scripts only from {facts.BUCKET_NAME_PREFIX}….")
    key_arn: str | None = Field(
        None, description="ARN of the KMS key that it is encrypted with, which a created role may then use."
    )
