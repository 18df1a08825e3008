"""Where the nodes are: a VPC you have, or one made for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdktf import ITerraformDependable
from constructs import Construct

from podwright_constructs import checks, facts
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.eip import Eip
from podwright_constructs.aws.internet_gateway import InternetGateway
from podwright_constructs.aws.nat_gateway import NatGateway
from podwright_constructs.aws.route import Route
from podwright_constructs.aws.route_table import RouteTable
from podwright_constructs.aws.route_table_association import RouteTableAssociation
from podwright_constructs.aws.security_group import SecurityGroup
from podwright_constructs.aws.subnet import Subnet
from podwright_constructs.aws.vpc import Vpc
from podwright_constructs.aws.vpc_endpoint import VpcEndpoint
from podwright_constructs.aws.vpc_security_group_egress_rule import VpcSecurityGroupEgressRule
from podwright_constructs.aws.vpc_security_group_ingress_rule import VpcSecurityGroupIngressRule
from podwright_constructs.problems import refuse

ALL_PROTOCOLS = "-1"  # EC2's word for every protocol and port
ANYWHERE = "0.0.0.0/0"


class Network(Protocol):
    """What nodes and file systems ask of a network."""

    @property
    def vpc_id(self) -> str:
        """The VPC."""

    @property
    def subnet_ids(self) -> Sequence[str]:
        """Private subnets for nodes; a file system is made in the first one."""

    @property
    def security_group_id(self) -> str:
        """Security group of nodes and file systems alike."""

    @property
    def security_group_rules(self) -> Sequence[ITerraformDependable]:
        """What must exist before a file system: FSx looks for the rules, not for the group."""

    @property
    def routes(self) -> Sequence[ITerraformDependable]:
        """What must exist before a node reaches S3 and the internet."""


@dataclass(frozen=True, kw_only=True)
class ExistingNetwork:
    """A network you have; its rules and routes are yours to keep in order.

    Raises:
        InvalidArgumentsError: an id is malformed, or there is no subnet; all problems are in it.
    """

    vpc_id: str
    subnet_ids: Sequence[str]
    security_group_id: str
    security_group_rules: Sequence[ITerraformDependable] = ()
    routes: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        problems = checks.existing_network(
            vpc_id=self.vpc_id, subnet_ids=self.subnet_ids, security_group_id=self.security_group_id
        )
        refuse(self, problems)


class TrainingNetwork(Construct):
    """A VPC with one public and one private subnet in one zone, a NAT gateway, an S3 endpoint and EFA's security group.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites.html

    Raises:
        InvalidArgumentsError: a zone's name instead of its id, or blocks that cannot be; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        availability_zone_id: str,
        cidr: str = "10.0.0.0/16",
        public_subnet_cidr: str = "10.0.0.0/24",
        private_subnet_cidr: str = "10.0.16.0/20",
    ) -> None:
        problems = checks.training_network(
            availability_zone_id=availability_zone_id,
            cidr=cidr,
            public_subnet_cidr=public_subnet_cidr,
            private_subnet_cidr=private_subnet_cidr,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        self._name = name
        self._vpc = Vpc(
            self, "vpc", cidr_block=cidr, enable_dns_support=True, enable_dns_hostnames=True, tags=self._tags()
        )
        public = self._subnet("public", availability_zone_id, public_subnet_cidr)
        private = self._subnet("private", availability_zone_id, private_subnet_cidr)
        self.routes: Sequence[ITerraformDependable] = self._connect(public, private)
        self.vpc_id = self._vpc.id
        self.subnet_ids: Sequence[str] = [private.id]
        self.security_group_id = SecurityGroup(
            self,
            "security_group",
            name_prefix=f"{name}-",
            description="HyperPod nodes and their file systems",
            vpc_id=self._vpc.id,
            tags=self._tags(),
        ).id
        self.security_group_rules: Sequence[ITerraformDependable] = [*self._ingress_rules(), *self._egress_rules()]

    def _tags(self, part: str = "") -> dict[str, str]:
        return {"Name": f"{self._name}-{part}" if part else self._name}

    def _subnet(self, kind: str, availability_zone_id: str, cidr: str) -> Subnet:
        return Subnet(
            self,
            f"{kind}_subnet",
            vpc_id=self._vpc.id,
            availability_zone_id=availability_zone_id,
            cidr_block=cidr,
            tags=self._tags(kind),
        )

    def _connect(self, public: Subnet, private: Subnet) -> list[ITerraformDependable]:
        """Public subnet to the internet, private subnet through NAT, both to S3 without leaving AWS's network."""
        gateway = InternetGateway(self, "internet_gateway", vpc_id=self._vpc.id, tags=self._tags())
        address = Eip(self, "nat_address", domain="vpc", tags=self._tags("nat"), depends_on=[gateway])
        nat = NatGateway(
            self,
            "nat_gateway",
            allocation_id=address.id,
            subnet_id=public.id,
            tags=self._tags(),
            depends_on=[gateway],  # AWS asks for it: the gateway's route is not an argument of the NAT gateway
        )
        public_table, public_association = self._route_table("public", public)
        private_table, private_association = self._route_table("private", private)
        to_internet = Route(
            self,
            "public_route",
            route_table_id=public_table.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=gateway.id,
        )
        to_nat = Route(
            self,
            "private_route",
            route_table_id=private_table.id,
            destination_cidr_block=ANYWHERE,
            nat_gateway_id=nat.id,
        )
        to_s3 = VpcEndpoint(
            self,
            "s3_endpoint",
            vpc_id=self._vpc.id,
            service_name=f"com.amazonaws.{DataRegion(self, 'region').id}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[public_table.id, private_table.id],
            tags=self._tags("s3"),
        )
        return [public_association, private_association, to_internet, to_nat, to_s3]

    def _route_table(self, kind: str, subnet: Subnet) -> tuple[RouteTable, RouteTableAssociation]:
        table = RouteTable(self, f"{kind}_route_table", vpc_id=self._vpc.id, tags=self._tags(kind))
        association = RouteTableAssociation(
            self, f"{kind}_route_table_association", route_table_id=table.id, subnet_id=subnet.id
        )
        return table, association

    def _ingress_rules(self) -> list[ITerraformDependable]:
        """EFA needs every protocol between members; FSx asks for Lustre's ports by number."""
        members = VpcSecurityGroupIngressRule(
            self,
            "ingress_from_members",
            security_group_id=self.security_group_id,
            referenced_security_group_id=self.security_group_id,
            ip_protocol=ALL_PROTOCOLS,
            description="EFA: all traffic between members",
        )
        lustre = [
            VpcSecurityGroupIngressRule(
                self,
                f"ingress_lustre_{ports.first}",
                security_group_id=self.security_group_id,
                referenced_security_group_id=self.security_group_id,
                ip_protocol="tcp",
                from_port=ports.first,
                to_port=ports.last,
                description="Lustre between members",
            )
            for ports in facts.LUSTRE_PORTS
        ]
        return [members, *lustre]

    def _egress_rules(self) -> list[ITerraformDependable]:
        """EFA's health check looks for the rule to the group itself, whatever else is open."""
        members = VpcSecurityGroupEgressRule(
            self,
            "egress_to_members",
            security_group_id=self.security_group_id,
            referenced_security_group_id=self.security_group_id,
            ip_protocol=ALL_PROTOCOLS,
            description="EFA: all traffic between members",
        )
        anywhere = VpcSecurityGroupEgressRule(
            self,
            "egress_to_anywhere",
            security_group_id=self.security_group_id,
            cidr_ipv4=ANYWHERE,
            ip_protocol=ALL_PROTOCOLS,
            description="Packages, data sets and AWS's APIs",
        )
        return [members, anywhere]
