"""A cluster of which everything else exists: network, file system, bucket with scripts, role."""

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.lifecycle import ExistingLifecycleScripts
from podwright_constructs.network import ExistingNetwork
from podwright_constructs.role import ExistingRole


class Research(TerraformStack):
    """Only the cluster: everything else exists."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "aws", region="eu-central-1")
        cluster = HyperPodCluster(
            self,
            "cluster",
            cluster_name="research",
            instance_groups=[
                InstanceGroup(name="controller", role="controller", instance_type="ml.m5.2xlarge", count=1),
                InstanceGroup(
                    name="workers", role="compute", instance_type="ml.p4d.24xlarge", count=2, partition="gpu"
                ),
            ],
            network=ExistingNetwork(
                vpc_id="vpc-0a1b2c3d4e5f60718",
                subnet_ids=["subnet-0a1b2c3d4e5f60718"],
                security_group_id="sg-0a1b2c3d4e5f60718",
            ),
            role=ExistingRole(arn="arn:aws:iam::123456789012:role/hyperpod-nodes"),
            lifecycle=ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-research/lifecycle"),
        )
        TerraformOutput(self, "ClusterArn", value=cluster.arn)


app = App()
Research(app, "research")
app.synth()
