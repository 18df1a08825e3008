"""Two clusters in two regions, in one app and one stack: each region has a provider."""

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.lifecycle import ExistingLifecycleScripts
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import TrainingNetwork
from podwright_constructs.provider import use_provider
from podwright_constructs.role import ExecutionRole


class Site(Construct):
    """Network, bucket, file system, role and cluster of one region."""

    def __init__(self, scope: Construct, id_: str, *, name: str, availability_zone_id: str) -> None:
        super().__init__(scope, id_)
        network = TrainingNetwork(self, "network", name=name, availability_zone_id=availability_zone_id)
        bucket = TrainingBucket(self, "bucket", bucket_prefix=f"sagemaker-{name}-")
        LustreFileSystem(self, "lustre", LustreArguments(), network=network)
        role = ExecutionRole(self, "role", name=f"{name}-nodes", bucket=bucket, network=network)
        self.cluster = HyperPodCluster(
            self,
            "cluster",
            cluster_name=name,
            instance_groups=[
                InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1),
                InstanceGroup(name="workers", role="compute", instance_type="ml.g5.12xlarge", count=2, partition="gpu"),
            ],
            network=network,
            role=role,
            lifecycle=ExistingLifecycleScripts(source_s3_uri=f"s3://{bucket.name}/lifecycle"),
        )


class Everywhere(TerraformStack):
    """A site in the east and one in the west."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "east", region="us-east-1")
        west = AwsProvider(self, "west", region="us-west-2", alias="west")
        sites = {
            "east": Site(self, "site_east", name="train-east", availability_zone_id="use1-az6"),
            "west": Site(self, "site_west", name="train-west", availability_zone_id="usw2-az1"),
        }
        use_provider(sites["west"], west)
        for name, site in sites.items():
            TerraformOutput(self, f"ClusterArn_{name}", value=site.cluster.arn)


app = App()
Everywhere(app, "everywhere")
app.synth()
