"""The lifecycle scripts that a node runs when it starts: existing ones in S3, or the bundle that is uploaded there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from constructs import Construct

from podwright_bootstrap.contract import (
    USERS_NAME,
    Accounting,
    ClusterFacts,
    ClusterGroups,
    InstanceFacts,
    ProvisioningParameters,
    WorkerGroup,
)
from podwright_bootstrap.features import NodeFeatures
from podwright_common.checksum import sha256_of
from podwright_constructs import checks, lifecycle_archive
from podwright_constructs.accounting import AccountingDatabase
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.s3_object import S3Object
from podwright_constructs.bucket import NO_DEFAULT_TAGS, Bucket, upload
from podwright_constructs.catalog import InstanceType
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.hooks import hook_problems
from podwright_constructs.instance_group import InstanceGroup, in_order
from podwright_constructs.kit import App, Fn, ITerraformDependable, TerraformResourceLifecycle
from podwright_constructs.lifecycle_archive import ARCHIVE, ENTRYPOINT
from podwright_constructs.lustre import Lustre
from podwright_constructs.openzfs import OpenZfs
from podwright_constructs.ordering import before
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.problems import Problem, refuse
from podwright_constructs.prometheus import Prometheus

PREFIX = "lifecycle"
BUNDLE_PREFIX = "bundle"


class LifecycleScripts(Protocol):
    """Scripts that a cluster can run on its nodes."""

    @property
    def source_s3_uri(self) -> str:
        """Prefix that a node downloads."""

    @property
    def on_create(self) -> str:
        """File below the prefix that a node runs as root."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """Resources that are created before the nodes and destroyed after them."""


@dataclass(frozen=True, kw_only=True)
class ExistingLifecycleScripts:
    """Existing scripts in S3."""

    source_s3_uri: str
    on_create: str = ENTRYPOINT
    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        refuse(self, checks.existing_lifecycle_scripts(source_s3_uri=self.source_s3_uri, on_create=self.on_create))


class LifecycleBundle(CheckedConstruct):
    """Upload the scripts of a folder as ``on_create.sh`` and one archive, and ``provisioning_parameters.json`` beside.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-lifecycle.html
    HyperPod downloads everything below the prefix. The prefix carries the hash of the scripts alone: another group or
    wheel changes the parameters in place, and no running node. Users, groups and Slurm's policy are an object of their
    own, which running nodes follow. ``on_create.sh`` verifies the archive, so a node never
    runs half a bundle; whoever may write to the bucket can replace both, and runs as root on the nodes.

    Args:
        scripts: a folder with ``on_create.sh`` and the package ``podwright_bootstrap``.
        bucket: receives the objects. One bucket may serve several clusters, each with its ``prefix``.
        cluster_name: written into ``provisioning_parameters.json``, as are the arguments that follow.
        instance_groups: of the cluster; their roles and instance types.
        lustre: mounted on every node.
        openzfs: mounted as home directories. Default: homes stay on each node's disk.
        training: installed for jobs. Default: nothing is installed.
        accounting: slurmdbd's database. Default: no accounting.
        prometheus: the workspace that nodes send metrics to. Default: no metrics.
        facts: values that nodes get unchanged. ``nodes``: their optional features. ``multi_head``: what several
            controllers share, required with more than one. ``auto_resume``: ``False`` if HyperPod does not recover
            nodes; Slurm then confines tasks. ``publishes_running_jobs``: the controller publishes the number of
            running jobs in CloudWatch. ``slurm_by_api``: HyperPod sets Slurm up; pass the bundle as
            ``ApiSlurm(init_script=…)``, not as ``lifecycle``. The scripts then leave Slurm's daemons and mounts to
            HyperPod, and their parameters are a file of another name. Not with ``accounting`` or ``multi_head``.
            Default: one controller, no features.
        hooks: the files of ``facts.nodes.hooks``, by script. Required for each of them.
        bundle_prefix: the prefix in ``bucket`` that holds downloads for nodes without internet.
        prefix: of the objects' keys.

    Raises:
        InvalidArgumentsError: scripts are missing or unusable, or a group is wrong; it lists all problems.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        scripts: Path,
        bucket: Bucket,
        cluster_name: str,
        instance_groups: Sequence[InstanceGroup],
        lustre: Lustre,
        openzfs: OpenZfs | None = None,
        training: TrainingPayload | None = None,
        accounting: AccountingDatabase | None = None,
        prometheus: Prometheus | None = None,
        facts: ClusterFacts | None = None,
        hooks: Mapping[str, Path] = MappingProxyType({}),
        bundle_prefix: str = BUNDLE_PREFIX,
        prefix: str = PREFIX,
    ) -> None:
        facts = facts or ClusterFacts()
        problems = checks.cluster_instance_groups(instance_groups, multi_head=facts.multi_head is not None)
        problems += checks.types_with_bundle(instance_groups)
        problems += _set_up_by_api(accounting, facts) if facts.slurm_by_api else []
        problems += [*hook_problems(hooks), *_hooks_without_files(facts.nodes, hooks)]
        refuse(self, [*lifecycle_archive.problems(scripts), *problems])
        super().__init__(scope, id_)
        packed = lifecycle_archive.pack(scripts, into=Path(App.of(self).outdir) / "lifecycle")
        users_key, hooks_prefix = f"{prefix}/{USERS_NAME}", f"{prefix}/hooks"
        # Apart: while a cluster moves to the API, the parameters that AWS refuses there still lie in the other folder.
        prefix = f"{prefix}/{'api-' if facts.slurm_by_api else ''}{packed.name[:16]}"
        parameters = ProvisioningParameters(
            **vars(facts),
            **_groups(cluster_name, instance_groups),
            fsx_dns_name=lustre.dns_name,
            fsx_mountname=lustre.mount_name,
            lustre_mount_path=lustre.mount_path,
            lustre_efa=lustre.efa,
            fsx_openzfs_dns_name=openzfs.dns_name if openzfs else None,
            openzfs_mount_path=openzfs.mount_path if openzfs else "/home",
            region=DataRegion(self, "region").id,
            training=training.contract if training else None,
            accounting=_accounting(accounting) if accounting else None,
            prometheus_remote_write_url=prometheus.remote_write_url if prometheus else "",
            bundle_s3_uri=f"s3://{bucket.name}/{bundle_prefix}",
            users_s3_uri=f"s3://{bucket.name}/{users_key}",
            hooks_s3_uri=f"s3://{bucket.name}/{hooks_prefix}" if hooks else "",
            hook_sha256={script: sha256_of(file) for script, file in hooks.items()},
        )
        folders = [users_key.removesuffix(f"/{USERS_NAME}"), bundle_prefix]
        self.run_by_nodes = [f"{bucket.name}/{folder}" for folder in folders]
        if training:
            uris = [training.contract.wheel_s3_uri, training.contract.requirements_s3_uri]
            self.run_by_nodes += [uri.removeprefix("s3://").rpartition("/")[0] for uri in uris]
        self.source_s3_uri = f"s3://{bucket.name}/{prefix}"
        self.on_create = self.on_init_complete = ENTRYPOINT
        self.by_api = facts.slurm_by_api
        self.ready: Sequence[ITerraformDependable] = [
            *upload(self, {name: (f"{prefix}/{name}", packed / name) for name in (ENTRYPOINT, ARCHIVE)}, bucket=bucket),
            self._upload_json(
                "provisioning_parameters",
                parameters.to_dict(),
                bucket=bucket,
                key=f"{prefix}/{parameters.file_name}",
            ),
            *upload(self, _hook_objects(hooks_prefix, hooks), bucket=bucket),
            self._upload_json("users", parameters.nodes.followed(), bucket=bucket, key=users_key),
            *(training.ready if training else ()),
            *(accounting.ready if accounting else ()),
        ]

    def _upload_json(self, id_: str, content: dict[str, Any], *, bucket: Bucket, key: str) -> S3Object:
        return S3Object(
            self,
            id_,
            bucket=bucket.name,
            key=key,
            content=Fn.jsonencode(content),
            content_type="application/json",
            override_provider=NO_DEFAULT_TAGS,
            depends_on=before(self, bucket.ready),
            lifecycle=TerraformResourceLifecycle(create_before_destroy=True),
        )


def _hook_objects(prefix: str, hooks: Mapping[str, Path]) -> dict[str, tuple[str, Path]]:
    """Return key and file of each content, by construct id: two scripts may be the same."""
    files = {sha256_of(file): file for file in hooks.values()}
    return {f"hook_{sha256[:16]}": (f"{prefix}/{sha256}", file) for sha256, file in files.items()}


def _set_up_by_api(accounting: AccountingDatabase | None, facts: ClusterFacts) -> list[Problem]:
    hint = "HyperPod sets it up: pass it to ApiSlurm, or leave it out."
    values = {"accounting": accounting, "multi_head": facts.multi_head}
    conflicts = [name for name, value in values.items() if value is not None]
    return [Problem("conflict", (name,), "a value", "no value with slurm_by_api", hint) for name in conflicts]


def _hooks_without_files(nodes: NodeFeatures, hooks: Mapping[str, Path]) -> list[Problem]:
    missing = sorted({hook.script for hook in nodes.hooks} - set(hooks))
    return [Problem("missing", ("hooks",), sorted(hooks), f"the file of {script}") for script in missing]


def _groups(cluster_name: str, instance_groups: Sequence[InstanceGroup]) -> dict[str, Any]:
    """Return the fields of ``ClusterGroups``."""
    groups = in_order(instance_groups)
    logins = [group.name for group in groups if group.role == "login"]
    facts = ClusterGroups(
        cluster_name=cluster_name,
        controller_group=next(group.name for group in groups if group.role == "controller"),
        worker_groups=[WorkerGroup(group.name, group.partition_name) for group in groups if group.partition_name],
        login_group=logins[0] if logins else None,
        more_login_groups=logins[1:],
        instance_facts={group.name: _facts(InstanceType.of(group.instance_type)) for group in groups},
    )
    return vars(facts)


def _accounting(database: AccountingDatabase) -> Accounting:
    return Accounting(
        endpoint=database.endpoint,
        port=database.port,
        secret_arn=database.secret_arn,
        certificates=database.certificates,
        makes_user=database.has_masters_secret,
    )


def _facts(instance_type: InstanceType) -> InstanceFacts:
    return InstanceFacts(
        accelerator=instance_type.accelerator,
        accelerators_per_node=instance_type.accelerator_count,
        accelerator_name=instance_type.accelerator_name,
        efa_interfaces=instance_type.efa_interfaces,
        vcpus=instance_type.vcpus,
        memory_gib=instance_type.memory_gib,
        nvlink=instance_type.nvlink,
        nvme_disks=instance_type.nvme_disks,
    )
