"""Your own resources beside podwright's: a bucket that nodes read, one more permission, an alarm."""

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import TrainingNetwork
from podwright_constructs.role import ExecutionRole

GIB = 1024**3


class Permissions(TerraformStack):
    """A role for nodes in a network that exists, and a file system that reports when it is full."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "aws", region="us-west-2")
        network = TrainingNetwork.from_ids(
            vpc_id="vpc-0a1b2c3d4e5f60718",
            subnet_ids=["subnet-0a1b2c3d4e5f60718"],
            security_group_id="sg-0a1b2c3d4e5f60718",
        )
        scripts = TrainingBucket.from_name("sagemaker-scripts")
        role = ExecutionRole(self, "role", name="research-nodes", bucket=scripts, network=network)
        TrainingBucket.from_name("sagemaker-datasets").grant_read(role, "papers/")
        role.add_statement({"actions": ["ecr:GetAuthorizationToken"], "resources": ["*"]})
        files = LustreFileSystem(self, "files", LustreArguments(capacity_gib=2400), network=network)
        files.metric_free_capacity().alarm(
            self, "full", name="research-files-full", comparison="LessThanThreshold", threshold=240 * GIB
        )
        TerraformOutput(self, "RoleArn", value=role.arn)
        TerraformOutput(self, "FileSystemId", value=files.id)


app = App()
Permissions(app, "permissions")
app.synth()
