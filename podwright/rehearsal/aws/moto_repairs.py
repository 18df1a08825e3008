"""Where moto's answer differs from AWS's in a way that Terraform or a policy of ours notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import InvalidPermissionNotFoundError, InvalidSecurityGroupRuleIdNotFoundError
from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.ec2.models.security_groups import SecurityGroupBackend, SecurityGroupRule
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

# The loopback stands for TLS: statements about requests without it never apply.
WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}
DELETE_NAT_GATEWAY = NatGatewayBackend.delete_nat_gateway  # moto's own


def install() -> None:
    """Have moto answer as AWS does."""
    FakeBucket.get_permission = _permission
    SecurityGroupRule.description = property(_description)
    NatGatewayBackend.delete_nat_gateway = _delete_nat_gateway
    for revoke in ("revoke_security_group_ingress", "revoke_security_group_egress"):
        setattr(SecurityGroupBackend, revoke, _naming_unknown_rules(getattr(SecurityGroupBackend, revoke)))


def _permission(bucket: Any, action: str, resource: str) -> Any:
    """What the bucket's policy says of an action. moto reads no conditions: "deny without TLS" would deny all."""
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    policy = json.loads(bucket.policy)
    policy["Statement"] = [item for item in policy["Statement"] if item.get("Condition") != WITHOUT_TLS]
    return IAMPolicy(json.dumps(policy)).is_action_permitted(action, resource)


def _description(rule: Any) -> str | None:
    """A rule's description, which moto forgets when the rule's peer is a security group."""
    description: str | None = rule.ip_range.get("Description") or rule.source_group.get("Description")
    return description


def _delete_nat_gateway(backend: Any, nat_gateway_id: str) -> Any:
    """A NAT gateway takes its network interface with it; moto leaves that behind, and a subnet that looks used."""
    gateway = DELETE_NAT_GATEWAY(backend, nat_gateway_id)
    for address in gateway.address_set:
        backend.enis.pop(address["networkInterfaceId"], None)
    return gateway


def _naming_unknown_rules(revoke: Callable[..., None]) -> Callable[..., None]:
    """AWS names a rule id that is gone: an SDK that tries again after a lost answer takes that as done."""

    def revoke_or_name(backend: Any, *args: Any, **kwargs: Any) -> None:
        try:
            revoke(backend, *args, **kwargs)
        except InvalidPermissionNotFoundError:
            if rule_ids := kwargs.get("security_rule_ids"):
                raise InvalidSecurityGroupRuleIdNotFoundError(rule_ids[0]) from None
            raise

    return revoke_or_name
