"""Rules of a security group, for connections of nodes with what is yours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.vpc_security_group_egress_rule import VpcSecurityGroupEgressRule
from podwright_constructs.aws.vpc_security_group_ingress_rule import VpcSecurityGroupIngressRule
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.facts import ALL_PROTOCOLS, PortRange
from podwright_constructs.problems import refuse


class Connections(CheckedConstruct):
    """More rules of a security group: one of a network, or one made elsewhere.

    A cluster's own group lets members reach everything; ``allow_to`` is for a group of yours that does not.

    Args:
        security_group_id: of the group whose rules these are.

    Attributes:
        security_group_id: the same.
        rules: the resources, ``aws_vpc_security_group_ingress_rule`` and ``…_egress_rule``.

    Raises:
        InvalidArgumentsError: the id is malformed.
    """

    def __init__(self, scope: Construct, id_: str, *, security_group_id: str) -> None:
        refuse(self, checks.connections(security_group_id=security_group_id))
        super().__init__(scope, id_)
        self.security_group_id = security_group_id
        self.rules: list[VpcSecurityGroupIngressRule | VpcSecurityGroupEgressRule] = []

    def allow_from(
        self,
        id_: str,
        *,
        security_group_id: str | None = None,
        cidr: str | None = None,
        ports: PortRange | int | None = None,
        description: str | None = None,
    ) -> None:
        """Let members of another group, or addresses of a block, reach members at TCP ports.

        Args:
            id_: of the rule, unique among these connections.
            security_group_id: of the others; or
            cidr: the others' IPv4 block.
            ports: one port or a range. Default: all traffic.
            description: of the rule.

        Raises:
            InvalidArgumentsError: both or neither of the two are given, or one is malformed.
        """
        rule = self._rule(security_group_id, cidr, ports)
        self.rules.append(VpcSecurityGroupIngressRule(self, id_, description=description, **rule))

    def allow_to(
        self,
        id_: str,
        *,
        security_group_id: str | None = None,
        cidr: str | None = None,
        ports: PortRange | int | None = None,
        description: str | None = None,
    ) -> None:
        """Let members reach members of another group, or addresses of a block, at TCP ports.

        Args:
            id_: of the rule, unique among these connections.
            security_group_id: of the others; or
            cidr: the others' IPv4 block.
            ports: one port or a range. Default: all traffic.
            description: of the rule.

        Raises:
            InvalidArgumentsError: both or neither of the two are given, or one is malformed.
        """
        rule = self._rule(security_group_id, cidr, ports)
        self.rules.append(VpcSecurityGroupEgressRule(self, id_, description=description, **rule))

    def _rule(
        self, security_group_id: str | None, cidr: str | None, ports: PortRange | int | None
    ) -> Mapping[str, Any]:
        refuse(self, checks.connection(security_group_id=security_group_id, cidr=cidr, ports=ports))
        span = PortRange(ports, ports) if isinstance(ports, int) else ports
        return {
            "security_group_id": self.security_group_id,
            "referenced_security_group_id": security_group_id,
            "cidr_ipv4": cidr,
            "ip_protocol": "tcp" if span else ALL_PROTOCOLS,
            "from_port": span.from_port if span else None,
            "to_port": span.to_port if span else None,
        }
