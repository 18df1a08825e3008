"""What you may destroy tonight: scripts, training program, cluster."""

from __future__ import annotations

from pathlib import Path

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright import names
from podwright.settings import Settings
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.lifecycle import LifecycleBundle
from podwright_constructs.payload import TrainingPayload
from stacks.foundation import FoundationStack
from stacks.provider import aws_provider
from stacks.wheel import build_wheel

REPOSITORY = Path(__file__).resolve().parent.parent
LIFECYCLE_SCRIPTS = REPOSITORY / "lifecycle_scripts"
TRAINING = REPOSITORY / "training"


class ClusterStack(TerraformStack):
    """A cluster on a foundation."""

    def __init__(self, scope: Construct, *, settings: Settings, foundation: FoundationStack) -> None:
        super().__init__(scope, names.cluster_stack(settings.name))
        aws_provider(self, settings)
        instance_groups = [
            InstanceGroup(
                name=group.name,
                role=group.role,
                instance_type=group.instance_type,
                count=group.count,
                partition=group.partition,
                volume_gib=group.volume_gib,
                threads_per_core=group.threads_per_core,
            )
            for group in settings.cluster.instance_groups
        ]
        lifecycle = LifecycleBundle(
            self,
            "lifecycle",
            scripts=LIFECYCLE_SCRIPTS,
            bucket=foundation.bucket,
            cluster_name=settings.name,
            instance_groups=instance_groups,
            lustre=foundation.lustre,
            training=_payload(self, settings, foundation),
        )
        cluster = HyperPodCluster(
            self,
            "cluster",
            cluster_name=settings.name,
            instance_groups=instance_groups,
            network=foundation.network,
            role=foundation.role,
            lifecycle=lifecycle,
            node_recovery=settings.cluster.node_recovery,
            tags=names.tags(settings),
        )
        TerraformOutput(self, "ClusterName", value=cluster.name)
        TerraformOutput(self, "ClusterArn", value=cluster.arn)


def _payload(stack: ClusterStack, settings: Settings, foundation: FoundationStack) -> TrainingPayload | None:
    if settings.training.source == "none":
        return None
    return TrainingPayload(
        stack,
        "training",
        bucket=foundation.bucket,
        wheel=build_wheel(TRAINING, cache=Path(App.of(stack).outdir) / "wheels"),
        requirements=TRAINING / "requirements.lock",
    )
