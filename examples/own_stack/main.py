"""A cluster in a stack of yours: podwright's file system, scripts and nodes beside your provider, VPC and bucket.

`cdktf deploy research` deploys it. On CDK Terrain, import from `cdktn` and run `cdktn deploy research`.
"""

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright.checkout import LIFECYCLE_SCRIPTS
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.aws.route_table import RouteTable
from podwright_constructs.aws.s3_bucket import S3Bucket
from podwright_constructs.aws.vpc import Vpc
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.endpoints import S3Endpoint
from podwright_constructs.lifecycle import LifecycleBundle
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import PrivateNetwork
from podwright_constructs.role import ExecutionRole

NAME = "research"
GROUPS = [
    InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1),
    InstanceGroup(name="workers", role="compute", instance_type="ml.g5.12xlarge", count=1, partition="gpu"),
]


class Research(TerraformStack):
    """Your VPC and data sets, and a cluster that uses them."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "aws", region="us-west-2")
        vpc = Vpc(self, "vpc", cidr_block="10.0.0.0/16", enable_dns_hostnames=True, tags={"Name": NAME})
        routes = RouteTable(self, "routes", vpc_id=vpc.id)
        S3Endpoint(self, "s3", name=NAME, vpc_id=vpc.id, route_table_ids=[routes.id])
        datasets = S3Bucket(self, "datasets", bucket_prefix="research-datasets-")

        network = PrivateNetwork(
            self,
            "network",
            name=NAME,
            vpc_id=vpc.id,
            availability_zone_id="usw2-az1",
            private_subnet_cidr="10.0.16.0/20",
            route_table_id=routes.id,
        )
        bucket = TrainingBucket(self, "bucket", bucket_prefix="sagemaker-research-", on_destroy="destroy")
        role = ExecutionRole(self, "role", name="research-nodes", bucket=bucket, network=network, cluster_name=NAME)
        TrainingBucket.from_name(datasets.bucket).grant_read(role)
        # Without on_destroy the kit's destroy keeps the files, and ends with an error.
        arguments = LustreArguments(capacity_gib=1200, on_destroy="destroy")
        files = LustreFileSystem(self, "files", arguments, network=network)
        scripts = LifecycleBundle(
            self,
            "scripts",
            scripts=LIFECYCLE_SCRIPTS,
            bucket=bucket,
            cluster_name=NAME,
            instance_groups=GROUPS,
            lustre=files,
        )
        cluster = HyperPodCluster(
            self,
            "cluster",
            cluster_name=NAME,
            instance_groups=GROUPS,
            network=network,
            role=role,
            lifecycle=scripts,
        )
        TerraformOutput(self, "ClusterArn", value=cluster.arn)
        TerraformOutput(self, "Datasets", value=datasets.bucket)


if __name__ == "__main__":
    app = App()
    Research(app, NAME)
    app.synth()
