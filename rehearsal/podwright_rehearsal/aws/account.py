"""Look up resources of moto's EC2, IAM and S3 for the services that moto lacks.

The only module that reads moto's models.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.iam.models import iam_backends
from moto.rds.models import rds_backends
from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends
from moto.utilities.utils import get_partition

from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.aws.simulation import simulate

ALL_PROTOCOLS = "-1"
RESERVED_AT_START, RESERVED_AT_END = 4, 1  # https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html


def random_id(prefix: str) -> str:
    """Return a resource id in EC2's long format: the prefix and 17 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(9)[:17]}"


@dataclass(frozen=True)
class Subnet:
    """A subnet: ``cidr`` is its IPv4 block."""

    subnet_id: str
    vpc_id: str
    cidr: ipaddress.IPv4Network
    availability_zone: str
    availability_zone_id: str

    def usable_addresses(self) -> Iterable[str]:
        """Yield the addresses that AWS assigns, ascending."""
        for number in range(RESERVED_AT_START, self.cidr.num_addresses - RESERVED_AT_END):
            yield str(self.cidr[number])


@dataclass(frozen=True)
class Rule:
    """One security group rule; its peers are the group ``group_id``, or the addresses of ``blocks``."""

    is_egress: bool
    protocol: str
    from_port: int | None
    to_port: int | None
    group_id: str | None
    blocks: tuple[ipaddress.IPv4Network, ...] = ()

    def covers(self, *, protocol: str, port: int) -> bool:
        """Return True if traffic of this protocol on this port passes."""
        if self.protocol == ALL_PROTOCOLS:
            return True
        return self.protocol == protocol and (self.from_port or 0) <= port <= (self.to_port or 0)


@dataclass(frozen=True)
class SecurityGroup:
    """A security group with its rules."""

    group_id: str
    vpc_id: str
    rules: tuple[Rule, ...]

    def passes_all_within(self, *, is_egress: bool) -> bool:
        """Return True if a rule lets all traffic pass between the group's members in this direction."""
        return any(
            rule.is_egress is is_egress and rule.protocol == ALL_PROTOCOLS and rule.group_id == self.group_id
            for rule in self.rules
        )


@dataclass(frozen=True)
class Host:
    """The network of a service's host name, such as a file system's, and the TCP port that its clients need."""

    vpc_id: str
    security_group_ids: tuple[str, ...]
    port: int


class Account:
    """The account's resources in one region."""

    def __init__(self, *, region: str) -> None:
        self.region = region
        self.file_systems: dict[str, Host] = {}  # By DNS name; the service of file systems fills it.

    @property
    def partition(self) -> str:
        """Return the region's partition: ``aws``, ``aws-cn`` or ``aws-us-gov``."""
        return str(get_partition(self.region))

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of this account in this region."""
        return f"arn:{self.partition}:{service}:{self.region}:{ACCOUNT_ID}:{resource}"

    def zones(self) -> list[tuple[str, str]]:
        """Return names and ids of the region's zones, in the order of the names."""
        return sorted((zone.name, zone.zone_id) for zone in self._ec2().describe_availability_zones())

    def subnet(self, subnet_id: str) -> Subnet | None:
        """Return the subnet, or None if it does not exist."""
        for subnet in self._ec2().describe_subnets():
            if subnet.id == subnet_id:
                cidr = ipaddress.IPv4Network(subnet.cidr_block)
                return Subnet(subnet_id, subnet.vpc_id, cidr, subnet.availability_zone, subnet.availability_zone_id)
        return None

    def security_group(self, group_id: str) -> SecurityGroup | None:
        """Return the security group, or None if it does not exist."""
        group = self._ec2().get_security_group_from_id(group_id)
        return _security_group(group) if group else None

    def default_security_group(self, vpc_id: str) -> SecurityGroup:
        """Return the group that AWS uses where a request has no security groups."""
        return _security_group(self._ec2().get_default_security_group(vpc_id))

    def host(self, name: str) -> Host | None:
        """Return the network of a file system's or database's host name, or None if the account has no such name."""
        for database in rds_backends[ACCOUNT_ID][self.region].databases.values():
            subnet_group = getattr(database, "db_subnet_group", None)  # It is not set without one.
            if database.address == name and subnet_group:
                return Host(subnet_group.vpc_id, tuple(database.vpc_security_group_ids), int(database.port))
        return self.file_systems.get(name)

    def has_route(self, subnet: Subnet, vpc_id: str) -> bool:
        """Return True if a subnet is in the VPC, or its route table leads there: by peering or a transit gateway."""
        if subnet.vpc_id == vpc_id:
            return True
        tables = [table for table in self._ec2().route_tables.values() if table.vpc_id == subnet.vpc_id]
        explicit = [table for table in tables if self._is_associated(table, subnet)]
        routes = [route for table in explicit or tables for route in table.routes if explicit or _is_main(table)]
        return any(route.transit_gateway or _is_peering(route.vpc_pcx, vpc_id) for route in routes)

    def admits(self, host: Host, subnet: Subnet, group_ids: Collection[str]) -> bool:
        """Return True if a rule of the host's groups lets members of these groups, in this subnet, reach its port."""
        groups = [group for group in map(self.security_group, host.security_group_ids) if group]
        rules = [rule for group in groups for rule in group.rules if not rule.is_egress]
        return any(
            rule.covers(protocol="tcp", port=host.port)
            and (rule.group_id in group_ids or any(subnet.cidr.subnet_of(block) for block in rule.blocks))
            for rule in rules
        )

    @staticmethod
    def _is_associated(table: Any, subnet: Subnet) -> bool:
        return any(item.get("SubnetId") == subnet.subnet_id for item in table.associations)

    def addresses_in_use(self) -> set[str]:
        """Return the private IPv4 addresses of all network interfaces."""
        return {
            address["PrivateIpAddress"] for eni in self._ec2().enis.values() for address in eni.private_ip_addresses
        }

    def trust_policy(self, role_arn: str) -> dict[str, Any] | None:
        """Return the role's trust policy, or None if there is no such role."""
        for role in iam_backends[ACCOUNT_ID][self.partition].get_roles():
            if role.arn == role_arn:
                policy: dict[str, Any] = json.loads(role.assume_role_policy_document)
                return policy
        return None

    def reads_bucket(self, role_arn: str, bucket: str) -> bool:
        """Return True if the role's policies, its own and the attached ones, allow it to read objects of the bucket."""
        if self.trust_policy(role_arn) is None:
            return False
        resource = f"arn:{self.partition}:s3:::{bucket}/any"
        form = {"PolicySourceArn": role_arn, "ActionNames.member.1": "s3:GetObject", "ResourceArns.member.1": resource}
        return "<EvalDecision>allowed</EvalDecision>" in simulate(form)

    def read_object(self, *, bucket: str, key: str) -> bytes | None:
        """Return an object's bytes, or None if there is no such bucket or object."""
        try:
            stored = s3_backends[ACCOUNT_ID][self.partition].get_object(bucket, key)
        except MissingBucket:
            return None
        return bytes(stored.value) if stored else None

    def has_bucket(self, name: str) -> bool:
        """Return True if there is a bucket of this name."""
        try:
            s3_backends[ACCOUNT_ID][self.partition].get_bucket(name)
        except MissingBucket:
            return False
        return True

    def has_session_document(self, name: str) -> bool:
        """Return True if there is an SSM document of this name with which sessions are started."""
        document = ssm_backends[ACCOUNT_ID][self.region]._documents.get(name)  # noqa: SLF001 -- its methods answer in JSON
        return document is not None and document.get_default_version().document_type == "Session"

    def supports_efa(self, instance_type: str) -> bool:
        """Return True if the EC2 type behind ``ml.…`` supports EFA; unknown types do not."""
        ec2_type = INSTANCE_TYPES.get(instance_type.removeprefix("ml."), {})
        return bool(ec2_type.get("NetworkInfo", {}).get("EfaSupported"))

    def _ec2(self) -> Any:
        return ec2_backends[ACCOUNT_ID][self.region]


def _security_group(group: Any) -> SecurityGroup:
    rules = (
        Rule(
            rule.is_egress,
            rule.ip_protocol,
            rule.from_port,
            rule.to_port,
            rule.source_group.get("GroupId"),
            (ipaddress.IPv4Network(block),) if (block := rule.ip_range.get("CidrIp")) else (),
        )
        for rule in [*group.ingress_rules, *group.egress_rules]
    )
    return SecurityGroup(group.id, group.vpc_id, tuple(rules))


def _is_main(table: Any) -> bool:
    return table.main_association_id is not None


def _is_peering(peering: Any, vpc_id: str) -> bool:
    """Return True for an active peering with the VPC."""
    return bool(peering) and peering.status["Code"] == "active" and vpc_id in {peering.vpc.id, peering.peer_vpc.id}
