"""The network of the settings file: VPC, subnets and security group."""

from typing import Literal

from pydantic import Field

from podwright.settings.section import Section
from podwright_constructs import facts
from podwright_constructs.arguments.network import ExistingNetworkArguments
from podwright_constructs.subnet_configuration import SubnetConfiguration


class PrivateSubnet(Section, SubnetConfiguration):
    """A further private subnet of the created VPC."""


class CreatedNetwork(Section):
    """A VPC with private subnets, NAT gateway, S3 endpoint and the security group EFA needs."""

    source: Literal["create"] = Field(description="A new VPC.")
    availability_zone_id: str = Field(
        description="Id (not name) of the zone that has your capacity, such as usw2-az1: ask AWS or your training plan."
    )
    cidr: str = Field("10.0.0.0/16", description=f"Addresses of the VPC, {facts.VPC_PREFIX_TEXT}.")
    public_subnet_cidr: str = Field("10.0.0.0/24", description="Addresses of the NAT gateway's subnet, within cidr.")
    private_subnet_cidr: str = Field(
        "10.0.16.0/20",
        description="Addresses of the nodes' subnet, within cidr or secondary_cidrs and apart from the public one.",
    )
    secondary_cidrs: tuple[str, ...] = Field(
        (), description="Further addresses of the VPC, for more nodes than cidr holds, such as 100.64.0.0/16."
    )
    extra_private_subnets: tuple[PrivateSubnet, ...] = Field(
        (), description="Further private subnets, in this zone or others; MULTI_AZ_1 of OpenZFS needs a second zone."
    )
    internet: Literal["nat", "none"] = Field(
        "nat",
        description="How nodes reach the internet: through a NAT gateway, or not at all. Without it they reach AWS "
        "through endpoints alone, and packages must come from the bundle or your own mirror.",
    )
    endpoints: tuple[str, ...] = Field(
        (),
        description="Interface endpoints for AWS's APIs, each billed by the hour: standard for all that nodes call "
        f"({', '.join(facts.STANDARD_ENDPOINTS)}), or services by name.",
    )
    flow_logs: Literal["cloudwatch", "bucket", "none"] = Field(
        "cloudwatch",
        description="Destination of VPC flow logs: a CloudWatch log group, AWSLogs/ in the cluster's bucket, or none.",
    )


class CreatedSubnet(Section):
    """A new private subnet and security group in an existing VPC; its endpoints and flow logs stay as they are."""

    source: Literal["existing_vpc"] = Field(description="A new private subnet in an existing VPC.")
    vpc_id: str = Field(description="The VPC, vpc-….")
    availability_zone_id: str = Field(description="Id of the zone that has your capacity, such as usw2-az1.")
    private_subnet_cidr: str = Field(description="Addresses of the new subnet, free in the VPC.")
    nat_gateway_id: str | None = Field(
        None, description="Existing NAT gateway, nat-…: the subnet gets a route table with a route to it and one to S3."
    )
    route_table_id: str | None = Field(
        None, description="Existing route table, rtb-…, with routes to S3 and to packages, instead of nat_gateway_id."
    )


class ExistingNetwork(Section, ExistingNetworkArguments):
    """An existing VPC; its security group must allow all traffic to itself, in and out, or EFA is unhealthy."""

    source: Literal["existing"] = Field(description="An existing VPC.")
