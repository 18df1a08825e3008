"""Look up resources of moto's EC2, IAM and S3 for the services that moto lacks.

The only module that reads moto's models.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.iam.models import iam_backends
from moto.s3.exceptions import MissingBucket
from moto.s3.models import s3_backends
from moto.ssm.models import ssm_backends
from moto.utilities.utils import get_partition

from podwright_rehearsal.aws.identity import ACCOUNT_ID

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
    """One security group rule; ``group_id`` is the referenced group, if the peer is a group."""

    is_egress: bool
    protocol: str
    from_port: int | None
    to_port: int | None
    group_id: str | None

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


class Account:
    """The account's resources in one region."""

    def __init__(self, *, region: str) -> None:
        self.region = region

    @property
    def partition(self) -> str:
        """Return the region's partition: ``aws``, ``aws-cn`` or ``aws-us-gov``."""
        return str(get_partition(self.region))

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of this account in this region."""
        return f"arn:{self.partition}:{service}:{self.region}:{ACCOUNT_ID}:{resource}"

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
        Rule(rule.is_egress, rule.ip_protocol, rule.from_port, rule.to_port, rule.source_group.get("GroupId"))
        for rule in [*group.ingress_rules, *group.egress_rules]
    )
    return SecurityGroup(group.id, group.vpc_id, tuple(rules))
