"""The nodes' network: existing, a new subnet in an existing VPC, or a new VPC.

A new network consists of constructs that also work alone: ``subnet``, ``security_group``, ``endpoints``, ``flow_logs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.arguments.network import ExistingNetworkArguments
from podwright_constructs.aws.data_security_group import DataSecurityGroup
from podwright_constructs.aws.data_subnet import DataSubnet
from podwright_constructs.aws.data_vpc import DataVpc
from podwright_constructs.aws.default_security_group import DefaultSecurityGroup
from podwright_constructs.aws.eip import Eip
from podwright_constructs.aws.internet_gateway import InternetGateway
from podwright_constructs.aws.nat_gateway import NatGateway
from podwright_constructs.aws.vpc import Vpc
from podwright_constructs.aws.vpc_ipv4_cidr_block_association import VpcIpv4CidrBlockAssociation
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.endpoints import InterfaceEndpoints, S3Endpoint
from podwright_constructs.kit import ITerraformDependable
from podwright_constructs.problems import refuse
from podwright_constructs.security_group import ClusterSecurityGroup
from podwright_constructs.subnet import RoutedSubnet
from podwright_constructs.subnet_configuration import SubnetConfiguration


class Network(Protocol):
    """The attributes of a network that nodes and file systems need."""

    @property
    def vpc_id(self) -> str:
        """The VPC."""

    @property
    def subnet_ids(self) -> Sequence[str]:
        """Private subnets; nodes and file systems are made in the first one unless they say otherwise."""

    @property
    def route_table_ids(self) -> Sequence[str]:
        """Route tables of the subnets, for a file system in two zones; empty means the VPC's main table."""

    @property
    def security_group_id(self) -> str:
        """Security group of nodes and file systems alike."""

    @property
    def security_group_rules(self) -> Sequence[ITerraformDependable]:
        """The resources that a file system depends on: FSx looks for the rules, not for the group."""

    @property
    def routes(self) -> Sequence[ITerraformDependable]:
        """The resources that a node depends on to reach S3 and the internet."""


@dataclass(frozen=True, kw_only=True)
class ExistingNetwork(ExistingNetworkArguments):
    """A network you have; its rules and routes are yours to keep in order.

    Raises:
        InvalidArgumentsError: an id is malformed, or there is no subnet; all problems are in it.
    """

    security_group_rules: Sequence[ITerraformDependable] = ()
    routes: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        problems = checks.existing_network(
            vpc_id=self.vpc_id,
            subnet_ids=self.subnet_ids,
            security_group_id=self.security_group_id,
            route_table_ids=self.route_table_ids,
        )
        refuse(self, problems)


class LookedUpNetwork(CheckedConstruct):
    """A network you have, found by tags whenever Terraform plans: one VPC, one subnet of each zone, one security group.

    Terraform stops if there are none or several of one of them.

    Args:
        vpc_tags: Tags of the VPC, such as ``{"Name": "research"}``.
        subnet_tags: Tags of its private subnets.
        availability_zone_ids: Zones whose subnets are used, the nodes' own first.
        security_group_tags: Tags of the security group of nodes and file systems.

    Attributes:
        vpc: the data source, ``aws_vpc``; ``subnets`` and ``security_group`` are the others.

    Raises:
        InvalidArgumentsError: tags or zones are missing, or a zone's name is given instead of its id.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        vpc_tags: Mapping[str, str],
        subnet_tags: Mapping[str, str],
        availability_zone_ids: Sequence[str],
        security_group_tags: Mapping[str, str],
    ) -> None:
        problems = checks.network_lookup(
            vpc_tags=vpc_tags,
            subnet_tags=subnet_tags,
            security_group_tags=security_group_tags,
            availability_zone_ids=availability_zone_ids,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        self.vpc = DataVpc(self, "vpc", tags=vpc_tags)
        self.vpc_id = self.vpc.id
        self.subnets = [
            DataSubnet(self, f"subnet_{number}", vpc_id=self.vpc_id, availability_zone_id=zone_id, tags=subnet_tags)
            for number, zone_id in enumerate(availability_zone_ids)
        ]
        self.subnet_ids: Sequence[str] = [subnet.id for subnet in self.subnets]
        self.security_group = DataSecurityGroup(self, "security_group", vpc_id=self.vpc_id, tags=security_group_tags)
        self.security_group_id = self.security_group.id
        self.route_table_ids: Sequence[str] = ()
        self.security_group_rules: Sequence[ITerraformDependable] = ()
        self.routes: Sequence[ITerraformDependable] = ()


class PrivateNetwork(CheckedConstruct):
    """A new private subnet with its security group in a VPC you have.

    With a NAT gateway of yours the subnet gets a route table of its own, and S3 without leaving AWS's network; with a
    route table of yours it follows what stands there.

    Raises:
        InvalidArgumentsError: an id or block is malformed, or both or neither of the two are given; all problems are
            in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        vpc_id: str,
        availability_zone_id: str,
        private_subnet_cidr: str,
        nat_gateway_id: str | None = None,
        route_table_id: str | None = None,
        nfs: bool = False,
    ) -> None:
        problems = checks.private_network(
            vpc_id=vpc_id,
            availability_zone_id=availability_zone_id,
            private_subnet_cidr=private_subnet_cidr,
            nat_gateway_id=nat_gateway_id,
            route_table_id=route_table_id,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        subnet = RoutedSubnet(
            self,
            "private",
            name=f"{name}-private",
            vpc_id=vpc_id,
            availability_zone_id=availability_zone_id,
            cidr=private_subnet_cidr,
            nat_gateway_id=nat_gateway_id,
            route_table_id=route_table_id,
        )
        group = ClusterSecurityGroup(self, "security_group", name=name, vpc_id=vpc_id, nfs=nfs)
        self.vpc_id = vpc_id
        self.subnet_ids: Sequence[str] = [subnet.id]
        self.route_table_ids: Sequence[str] = [subnet.route_table_id]
        self.security_group_id = group.id
        self.security_group_rules: Sequence[ITerraformDependable] = group.rules
        self.routes: Sequence[ITerraformDependable] = subnet.routes
        if route_table_id is None:
            s3 = S3Endpoint(self, "s3", name=name, vpc_id=vpc_id, route_table_ids=self.route_table_ids)
            self.routes = [*self.routes, *s3.ready]


class TrainingNetwork(CheckedConstruct):
    """A VPC with private subnets for nodes, EFA's security group, and ways to S3, to AWS's APIs and to the internet.

    The VPC's default security group is closed. Without internet there are neither a public subnet nor NAT, and nodes
    reach AWS's APIs through endpoints alone.
    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-prerequisites.html

    Args:
        secondary_cidrs: further blocks of the VPC, for more addresses than its first block has.
        extra_private_subnets: beside the one of ``private_subnet_cidr``, in this zone or others.
        endpoints: services at private addresses, see ``InterfaceEndpoints``.
        nfs: whether OpenZFS is mounted here.

    Raises:
        InvalidArgumentsError: a zone's name instead of its id, impossible blocks, or an unknown service; all
            problems are in it.
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
        secondary_cidrs: Sequence[str] = (),
        extra_private_subnets: Sequence[SubnetConfiguration] = (),
        internet: Literal["nat", "none"] = "nat",
        endpoints: Sequence[str] = (),
        nfs: bool = False,
    ) -> None:
        problems = checks.training_network(
            availability_zone_id=availability_zone_id,
            cidr=cidr,
            public_subnet_cidr=public_subnet_cidr,
            private_subnet_cidr=private_subnet_cidr,
            secondary_cidrs=secondary_cidrs,
            extra_private_subnets=extra_private_subnets,
            internet=internet,
            endpoints=endpoints,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        self._name = name
        self._make_vpc(cidr, secondary_cidrs)
        has_nat = internet == "nat"
        public, nat_gateway_id = self._way_out(availability_zone_id, public_subnet_cidr) if has_nat else (None, None)
        private_subnet = SubnetConfiguration(availability_zone_id=availability_zone_id, cidr=private_subnet_cidr)
        subnets = [private_subnet, *extra_private_subnets]
        private = [self._private_subnet(number, subnet, nat_gateway_id) for number, subnet in enumerate(subnets)]
        group = ClusterSecurityGroup(self, "security_group", name=name, vpc_id=self.vpc_id, nfs=nfs)
        self.subnet_ids: Sequence[str] = [subnet.id for subnet in private]
        self.route_table_ids: Sequence[str] = [subnet.route_table_id for subnet in private]
        self.security_group_id = group.id
        self.security_group_rules: Sequence[ITerraformDependable] = group.rules
        self.routes: Sequence[ITerraformDependable] = [
            *(route for subnet in filter(None, [public, *private]) for route in subnet.routes),
            *self._s3(filter(None, [public, *private])),
            *self._endpoints(endpoints, [subnet.availability_zone_id for subnet in subnets]),
        ]

    @staticmethod
    def from_lookup(
        scope: Construct,
        id_: str,
        *,
        vpc_tags: Mapping[str, str],
        subnet_tags: Mapping[str, str],
        availability_zone_ids: Sequence[str],
        security_group_tags: Mapping[str, str],
    ) -> LookedUpNetwork:
        """Return a network you have, found by tags.

        Raises:
            InvalidArgumentsError: tags or zones are missing, or a zone's name is given instead of its id.
        """
        return LookedUpNetwork(
            scope,
            id_,
            vpc_tags=vpc_tags,
            subnet_tags=subnet_tags,
            availability_zone_ids=availability_zone_ids,
            security_group_tags=security_group_tags,
        )

    @staticmethod
    def from_ids(
        *, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str, route_table_ids: Sequence[str] = ()
    ) -> ExistingNetwork:
        """Return a network you have.

        Raises:
            InvalidArgumentsError: an id is malformed, or there is no subnet; all problems are in it.
        """
        return ExistingNetwork(
            vpc_id=vpc_id,
            subnet_ids=subnet_ids,
            security_group_id=security_group_id,
            route_table_ids=route_table_ids,
        )

    def _make_vpc(self, cidr: str, secondary_cidrs: Sequence[str]) -> None:
        vpc = Vpc(self, "vpc", cidr_block=cidr, enable_dns_support=True, enable_dns_hostnames=True, tags=self._tags())
        DefaultSecurityGroup(self, "default_security_group", vpc_id=vpc.id, tags=self._tags("closed"))
        self.vpc, self.vpc_id = vpc, vpc.id
        # A subnet may lie in any of them, and EC2 knows a block only when its association is complete.
        self._blocks: Sequence[ITerraformDependable] = [
            VpcIpv4CidrBlockAssociation(self, f"secondary_{block}", vpc_id=vpc.id, cidr_block=block)
            for block in secondary_cidrs
        ]

    def _way_out(self, availability_zone_id: str, cidr: str) -> tuple[RoutedSubnet, str]:
        """A public subnet and the id of the NAT gateway in it."""
        gateway = InternetGateway(self, "internet_gateway", vpc_id=self.vpc_id, tags=self._tags())
        public = RoutedSubnet(
            self,
            "public",
            name=f"{self._name}-public",
            vpc_id=self.vpc_id,
            availability_zone_id=availability_zone_id,
            cidr=cidr,
            gateway_id=gateway.id,
            after=self._blocks,
        )
        address = Eip(self, "nat_address", domain="vpc", tags=self._tags("nat"), depends_on=[gateway])
        nat = NatGateway(
            self,
            "nat_gateway",
            allocation_id=address.id,
            subnet_id=public.id,
            tags=self._tags(),
            depends_on=[gateway],  # AWS asks for it: the gateway's route is not an argument of the NAT gateway
        )
        return public, nat.id

    def _private_subnet(self, number: int, subnet: SubnetConfiguration, nat_gateway_id: str | None) -> RoutedSubnet:
        return RoutedSubnet(
            self,
            f"private_{number}" if number else "private",
            name=f"{self._name}-private-{number}" if number else f"{self._name}-private",
            vpc_id=self.vpc_id,
            availability_zone_id=subnet.availability_zone_id,
            cidr=subnet.cidr,
            nat_gateway_id=nat_gateway_id,
            after=self._blocks,
        )

    def _s3(self, subnets: Iterable[RoutedSubnet]) -> Sequence[ITerraformDependable]:
        tables = [subnet.route_table_id for subnet in subnets]
        return S3Endpoint(self, "s3", name=self._name, vpc_id=self.vpc_id, route_table_ids=tables).ready

    def _endpoints(self, services: Sequence[str], zones: Sequence[str]) -> Sequence[ITerraformDependable]:
        """An endpoint takes one subnet of each zone."""
        if not services:
            return []
        first_of_zone = dict(reversed(list(zip(zones, self.subnet_ids, strict=True))))
        return InterfaceEndpoints(
            self,
            "endpoints",
            name=self._name,
            vpc_id=self.vpc_id,
            subnet_ids=list(first_of_zone.values()),
            members_security_group_id=self.security_group_id,
            services=services,
        ).ready

    def _tags(self, part: str = "") -> dict[str, str]:
        return {"Name": f"{self._name}-{part}" if part else self._name}
