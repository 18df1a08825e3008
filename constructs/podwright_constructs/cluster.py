"""The HyperPod cluster itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cdktf import Fn
from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.cloudcontrolapi_resource import CloudcontrolapiResource
from podwright_constructs.instance_group import InstanceGroup, in_order
from podwright_constructs.lifecycle import LifecycleScripts
from podwright_constructs.network import Network
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse
from podwright_constructs.role import Role

__all__ = ["HyperPodCluster", "InstanceGroup"]

TIMEOUT = "720m"  # what AWS's own handlers may take


class HyperPodCluster(Construct):
    """A SageMaker HyperPod cluster orchestrated by Slurm.

    The AWS provider has no resource of its own for it: Cloud Control takes AWS's CloudFormation schema.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sagemaker-cluster.html

    Raises:
        InvalidArgumentsError: AWS would refuse the cluster or one of its groups; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        cluster_name: str,
        instance_groups: Sequence[InstanceGroup],
        network: Network,
        role: Role,
        lifecycle: LifecycleScripts,
        node_recovery: Literal["automatic", "none"] = "automatic",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        problems = checks.cluster(
            cluster_name=cluster_name,
            instance_groups=instance_groups,
            node_recovery=node_recovery,
            tags=list(tags or {}),
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        desired_state = {
            "ClusterName": cluster_name,
            "InstanceGroups": [_instance_group(group, role, lifecycle) for group in in_order(instance_groups)],
            "NodeRecovery": node_recovery.capitalize(),
            "Tags": [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())],
            "VpcConfig": {"SecurityGroupIds": [network.security_group_id], "Subnets": list(network.subnet_ids)},
        }
        first = [*network.security_group_rules, *network.routes, *role.ready, *lifecycle.ready]
        cluster = CloudcontrolapiResource(
            self,
            "cluster",
            type_name="AWS::SageMaker::Cluster",
            desired_state=Fn.jsonencode(desired_state),
            timeouts={"create": TIMEOUT, "update": TIMEOUT, "delete": TIMEOUT},
            depends_on=before(self, first),
        )
        self.name = cluster_name
        self.arn = cluster.id  # Cloud Control identifies a cluster by its ARN


def _instance_group(group: InstanceGroup, role: Role, lifecycle: LifecycleScripts) -> dict[str, Any]:
    return {
        "InstanceGroupName": group.name,
        "InstanceType": group.instance_type,
        "InstanceCount": group.count,
        "ExecutionRole": role.arn,
        "ThreadsPerCore": group.threads_per_core,
        "LifeCycleConfig": {"SourceS3Uri": lifecycle.source_s3_uri, "OnCreate": lifecycle.on_create},
        "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": group.volume_gib}}],
    }
