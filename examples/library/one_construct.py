"""One construct in a stack of yours: a Lustre file system in a network that exists."""

from cdktf import App, TerraformOutput, TerraformStack
from constructs import Construct

from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import ExistingNetwork


class Scratch(TerraformStack):
    """A file system for a project."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "aws", region="us-west-2")
        network = ExistingNetwork(
            vpc_id="vpc-0a1b2c3d4e5f60718",
            subnet_ids=["subnet-0a1b2c3d4e5f60718"],
            security_group_id="sg-0a1b2c3d4e5f60718",
        )
        scratch = LustreFileSystem(self, "scratch", LustreArguments(capacity_gib=2400), network=network)
        TerraformOutput(self, "DnsName", value=scratch.dns_name)
        TerraformOutput(self, "MountName", value=scratch.mount_name)


app = App()
Scratch(app, "scratch")
app.synth()
