"""The cluster stack, which can be destroyed at any time: scripts, training program, cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from constructs import Construct

from podwright import checkout
from podwright.settings import names
from podwright.settings.arguments import arguments, group_arguments
from podwright.settings.cluster import ApiSlurm as ApiSlurmSettings
from podwright.settings.cluster import ExistingScripts
from podwright.settings.operations import LocalAccounting
from podwright.settings.root import Settings
from podwright.training_lock import training_lock
from podwright_bootstrap.contract import ClusterFacts, MultiHead
from podwright_common.atomic_file import write_file
from podwright_constructs import checks
from podwright_constructs.accounting import AccountingDatabase, LocalAccountingDatabase
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.dashboard import ClusterDashboard
from podwright_constructs.kit import App, TerraformOutput, TerraformStack
from podwright_constructs.lifecycle import ExistingLifecycleScripts, LifecycleBundle, LifecycleScripts
from podwright_constructs.log_group import ClusterLogGroup, log_group_name
from podwright_constructs.lustre import file_system_id
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.slurm import ApiSlurm, InitScript
from podwright_stacks.backend import remember
from podwright_stacks.foundation import FoundationStack
from podwright_stacks.owner import StateOwnerRecord
from podwright_stacks.provider import aws_provider
from podwright_stacks.tags import tag_construct_paths
from podwright_stacks.wheel import build_wheel


class ClusterStack(TerraformStack):
    """A cluster on a foundation."""

    def __init__(self, scope: Construct, *, settings: Settings, foundation: FoundationStack) -> None:
        super().__init__(scope, names.cluster_stack(settings.name))
        aws_provider(self, settings)
        remember(self, settings)
        StateOwnerRecord(self, settings=settings)
        cluster_settings = settings.cluster
        instance_groups = [group_arguments(group) for group in cluster_settings.instance_groups]
        bundle = _bundle(self, settings, foundation, instance_groups)
        cluster = HyperPodCluster(
            self,
            "cluster",
            cluster_name=settings.name,
            instance_groups=instance_groups,
            network=foundation.network,
            role=foundation.roles["compute"],
            controller_role=foundation.roles["controller"],
            login_role=foundation.roles["login"],
            lifecycle=_scripts(settings, bundle),
            slurm=_slurm(settings, foundation, bundle),
            node_recovery=cluster_settings.node_recovery,
            node_provisioning=cluster_settings.node_provisioning,
            extra_security_group_ids=cluster_settings.extra_security_group_ids,
            multi_head=checks.controllers(instance_groups) > 1,
            tags=names.cluster_tags(settings),
        )
        self._outputs(settings, cluster)
        _watch(self, settings, foundation, cluster)
        tag_construct_paths(self)

    def _outputs(self, settings: Settings, cluster: HyperPodCluster) -> None:
        TerraformOutput(self, "ClusterName", value=cluster.name)
        TerraformOutput(self, "ClusterArn", value=cluster.arn)
        TerraformOutput(self, "ClusterId", value=cluster.id)
        TerraformOutput(self, "LogGroup", value=log_group_name(cluster.name, cluster.id))
        target = names.session_target(cluster.id)
        document = f" --document-name {names.operations_name(settings.name)}" if settings.session else ""
        TerraformOutput(self, "SessionTarget", value=target)
        TerraformOutput(self, "SessionCommand", value=f"aws ssm start-session --target {target}{document}")


def _scripts(settings: Settings, bundle: LifecycleBundle | None) -> LifecycleScripts | None:
    slurm = settings.cluster.slurm
    if isinstance(slurm, ExistingScripts):
        return ExistingLifecycleScripts(**arguments(slurm))
    return None if isinstance(slurm, ApiSlurmSettings) else bundle


def _bundle(
    stack: ClusterStack,
    settings: Settings,
    foundation: FoundationStack,
    instance_groups: Sequence[InstanceGroup],
) -> LifecycleBundle | None:
    if not settings.has_own_scripts:
        return None
    by_api = isinstance(settings.cluster.slurm, ApiSlurmSettings)
    return LifecycleBundle(
        stack,
        "lifecycle",
        scripts=checkout.LIFECYCLE_SCRIPTS,
        bucket=foundation.bucket,
        prefix=names.scripts_prefix(settings.name),
        cluster_name=settings.name,
        instance_groups=instance_groups,
        lustre=foundation.lustre,
        openzfs=foundation.openzfs,
        training=_payload(stack, settings, foundation),
        accounting=None if by_api else _accounting(settings, foundation),
        prometheus=foundation.prometheus,
        facts=ClusterFacts(
            nodes=settings.nodes.features(),
            multi_head=_multi_head(foundation) if checks.controllers(instance_groups) > 1 else None,
            slurm_by_api=by_api,
            auto_resume=settings.cluster.node_recovery == "automatic",
            publishes_running_jobs=settings.notices is not None and settings.notices.idle_hours is not None,
        ),
        hooks={hook.script: settings.path(hook.script) for hook in settings.nodes.hooks},
        bundle_prefix=names.bundle_prefix(settings.name),
    )


def _accounting(settings: Settings, foundation: FoundationStack) -> AccountingDatabase | None:
    return LocalAccountingDatabase() if isinstance(settings.accounting, LocalAccounting) else foundation.accounting


def _multi_head(foundation: FoundationStack) -> MultiHead | None:
    """Return the resources that several controllers share, in AWS's terms; a rule requires the database."""
    database = foundation.accounting
    if database is None:
        return None
    return MultiHead(
        slurm_database_secret_arn=database.secret_arn,
        slurm_database_endpoint=database.endpoint,
        slurm_shared_directory=foundation.lustre.mount_path,
        slurm_sns_arn=foundation.notices.topic_arn if foundation.notices else None,
    )


def _slurm(settings: Settings, foundation: FoundationStack, bundle: LifecycleBundle | None) -> ApiSlurm | None:
    slurm_settings = settings.cluster.slurm
    if not isinstance(slurm_settings, ApiSlurmSettings):
        return None
    return ApiSlurm(
        strategy=slurm_settings.strategy,
        lustre=foundation.lustre,
        home=foundation.openzfs,
        accounting=foundation.accounting,
        database_name=getattr(settings.accounting, "database_name", None),
        init_script=InitScript(**arguments(slurm_settings.init_script)) if slurm_settings.init_script else bundle,
    )


def _watch(stack: ClusterStack, settings: Settings, foundation: FoundationStack, cluster: HyperPodCluster) -> None:
    """Create logs and dashboard, if the settings have them: both need the cluster's id."""
    if settings.logs:
        ClusterLogGroup(
            stack,
            "log_group",
            name=names.log_retention_name(settings.name, settings.region),
            cluster_name=cluster.name,
            cluster_id=cluster.id,
            retention_days=settings.logs.retention_days,
            key_arn=foundation.key_arn,
            permissions_boundary_arn=settings.role.permissions_boundary_arn,
            role_path=settings.role.path,
        )
    if settings.dashboard.source == "create":
        dashboard = ClusterDashboard(
            stack,
            "dashboard",
            name=names.dashboard_name(settings.name, settings.region),
            log_group=log_group_name(cluster.name, cluster.id),
            file_system_id=file_system_id(foundation.lustre.dns_name),
        )
        TerraformOutput(stack, "Dashboard", value=dashboard.name)


def _payload(stack: ClusterStack, settings: Settings, foundation: FoundationStack) -> TrainingPayload | None:
    if settings.training.source == "none":
        return None
    requirements = Path(App.of(stack).outdir) / "wheels" / checkout.REQUIREMENTS_LOCK.name
    write_file(requirements, training_lock(settings.added_requirements))
    return TrainingPayload(
        stack,
        "training",
        bucket=foundation.bucket,
        prefix=names.payload_prefix(settings.name),
        wheel=build_wheel(
            checkout.TRAINING,
            cache=Path(App.of(stack).outdir) / "wheels",
            contained_package=checkout.COMMON / "podwright_common",
        ),
        requirements=requirements,
    )
