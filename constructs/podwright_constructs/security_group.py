"""The security group of nodes and file systems."""

from __future__ import annotations

from collections.abc import Sequence

from constructs import Construct

from podwright_constructs import facts
from podwright_constructs.aws.security_group import SecurityGroup
from podwright_constructs.aws.vpc_security_group_egress_rule import VpcSecurityGroupEgressRule
from podwright_constructs.aws.vpc_security_group_ingress_rule import VpcSecurityGroupIngressRule
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.facts import ALL_PROTOCOLS, ANYWHERE, PortRange
from podwright_constructs.kit import ITerraformDependable


class ClusterSecurityGroup(CheckedConstruct):
    """Members reach each other with every protocol, in both directions, and everything else outwards.

    ``nfs`` names the port of OpenZFS too. Nobody else reaches a member: people come through Session Manager.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security
    """

    def __init__(self, scope: Construct, id_: str, *, name: str, vpc_id: str, nfs: bool = False) -> None:
        super().__init__(scope, id_)
        self.id = SecurityGroup(
            self,
            "group",
            name_prefix=f"{name}-",
            description="HyperPod nodes and their file systems",
            vpc_id=vpc_id,
            tags={"Name": name},
        ).id
        nfs_ports = [PortRange(facts.NFS_PORT, facts.NFS_PORT)] if nfs else []
        self.rules: Sequence[ITerraformDependable] = [
            self._members_ingress(),
            *(self._ingress("lustre", "Lustre", ports) for ports in facts.LUSTRE_PORTS),
            *(self._ingress("nfs", "NFS", ports) for ports in nfs_ports),
            *self._egress(),
        ]

    def _members_ingress(self) -> VpcSecurityGroupIngressRule:
        return VpcSecurityGroupIngressRule(
            self,
            "ingress_from_members",
            security_group_id=self.id,
            referenced_security_group_id=self.id,
            ip_protocol=ALL_PROTOCOLS,
            description="EFA: all traffic between members",
        )

    def _ingress(self, service: str, name: str, ports: PortRange) -> VpcSecurityGroupIngressRule:
        """FSx looks for the ports by number, whatever the rule for all traffic says."""
        return VpcSecurityGroupIngressRule(
            self,
            f"ingress_{service}_{ports.from_port}",
            security_group_id=self.id,
            referenced_security_group_id=self.id,
            ip_protocol="tcp",
            from_port=ports.from_port,
            to_port=ports.to_port,
            description=f"{name} between members",
        )

    def _egress(self) -> list[ITerraformDependable]:
        """EFA's health check looks for the rule to the group itself, whatever else is open."""
        members = VpcSecurityGroupEgressRule(
            self,
            "egress_to_members",
            security_group_id=self.id,
            referenced_security_group_id=self.id,
            ip_protocol=ALL_PROTOCOLS,
            description="EFA: all traffic between members",
        )
        anywhere = VpcSecurityGroupEgressRule(
            self,
            "egress_to_anywhere",
            security_group_id=self.id,
            cidr_ipv4=ANYWHERE,
            ip_protocol=ALL_PROTOCOLS,
            description="Packages, data sets and AWS's APIs",
        )
        return [members, anywhere]
