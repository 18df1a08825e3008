"""A VPC whose way out is a transit gateway, and endpoints that serve one account: as a landing zone may ask."""

from cdktf import App, Fn, TerraformResource, TerraformStack
from constructs import Construct

from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.aws.route import Route
from podwright_constructs.aws.vpc_endpoint import VpcEndpoint
from podwright_constructs.network import TrainingNetwork

TRANSIT_GATEWAY_ID = "tgw-0a1b2c3d4e5f60718"


class Egress(TerraformStack):
    """A network without internet of its own: what it sends out goes where the transit gateway leads."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        AwsProvider(self, "aws", region="us-west-2")
        network = TrainingNetwork(
            self,
            "network",
            name="training",
            availability_zone_id="usw2-az1",
            internet="none",
            endpoints=["standard"],
        )
        self._leave_by_transit_gateway(network)
        self._serve_own_account(network)

    def _leave_by_transit_gateway(self, network: TrainingNetwork) -> None:
        # Your own provider package may have a class for it; the route's argument has none in ours.
        kind = "aws_ec2_transit_gateway_vpc_attachment"
        attachment = TerraformResource(self, "attachment", terraform_resource_type=kind)
        attachment.add_override("transit_gateway_id", TRANSIT_GATEWAY_ID)
        attachment.add_override("vpc_id", network.vpc_id)
        attachment.add_override("subnet_ids", list(network.subnet_ids))
        for number, table_id in enumerate(network.route_table_ids):
            route = Route(
                self,
                f"out_{number}",
                route_table_id=table_id,
                destination_cidr_block="0.0.0.0/0",
                depends_on=[attachment],
            )
            route.add_override("transit_gateway_id", TRANSIT_GATEWAY_ID)

    def _serve_own_account(self, network: TrainingNetwork) -> None:
        """Nobody uses the endpoints with credentials of another account."""
        account_id = DataCallerIdentity(self, "caller").account_id
        condition = {"StringEquals": {"aws:PrincipalAccount": account_id}}
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "*",
            "Resource": "*",
            "Condition": condition,
        }
        policy = Fn.jsonencode({"Version": "2012-10-17", "Statement": [statement]})
        for part in network.node.find_all():
            if isinstance(part, VpcEndpoint):
                part.add_override("policy", policy)


app = App()
Egress(app, "egress")
app.synth()
