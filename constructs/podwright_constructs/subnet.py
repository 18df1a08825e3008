"""A subnet with the routes that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from constructs import Construct

from podwright_constructs.aws.route import Route
from podwright_constructs.aws.route_table import RouteTable
from podwright_constructs.aws.route_table_association import RouteTableAssociation
from podwright_constructs.aws.subnet import Subnet
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.facts import ANYWHERE
from podwright_constructs.kit import ITerraformDependable


class RoutedSubnet(CheckedConstruct):
    """A subnet of one zone, without public addresses, that follows a route table of its own or one of yours.

    Args:
        gateway_id: an internet gateway, which makes the subnet public; in its own table.
        nat_gateway_id: a NAT gateway, through which a private subnet reaches the internet; in its own table.
        route_table_id: An existing route table. Default: a new one.
        after: what must exist before the subnet, such as the VPC's block that it lies in.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        vpc_id: str,
        availability_zone_id: str,
        cidr: str,
        gateway_id: str | None = None,
        nat_gateway_id: str | None = None,
        route_table_id: str | None = None,
        after: Sequence[ITerraformDependable] = (),
    ) -> None:
        super().__init__(scope, id_)
        tags = {"Name": name}
        self.id = Subnet(
            self,
            "subnet",
            vpc_id=vpc_id,
            availability_zone_id=availability_zone_id,
            cidr_block=cidr,
            map_public_ip_on_launch=False,
            tags=tags,
            depends_on=list(after),
        ).id
        self.route_table_id = route_table_id or RouteTable(self, "route_table", vpc_id=vpc_id, tags=tags).id
        routes: list[ITerraformDependable] = [
            RouteTableAssociation(self, "association", route_table_id=self.route_table_id, subnet_id=self.id)
        ]
        if gateway_id or nat_gateway_id:
            routes.append(
                Route(
                    self,
                    "route",
                    route_table_id=self.route_table_id,
                    destination_cidr_block=ANYWHERE,
                    gateway_id=gateway_id,
                    nat_gateway_id=nat_gateway_id,
                )
            )
        self.routes: Sequence[ITerraformDependable] = routes
