"""Compare a deployer's policy with the permissions that the calls of a deployment needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from podwright_rehearsal.aws.permission import Permission
from podwright_rehearsal.aws.policy_evaluation import decide, statements_of


def missing_actions(policy: Mapping[str, Any], permissions: Iterable[Permission]) -> set[str]:
    """Return the actions of permissions that the policy does not allow."""
    statements = statements_of([policy])
    return {
        permission.action
        for permission in permissions
        if decide(statements, permission.action, permission.resource, permission.context) != "allowed"
    }


def unneeded_actions(policy: Mapping[str, Any], permissions: Iterable[Permission]) -> set[str]:
    """Return the actions without which the policy still allows all permissions, tried one by one."""
    needed = list(permissions)
    return {
        action
        for statement in policy["Statement"]
        for action in statement["Action"]
        if not missing_actions(_without(policy, statement, action), [item for item in needed if item.action == action])
    }


def _without(policy: Mapping[str, Any], statement: Mapping[str, Any], action: str) -> dict[str, Any]:
    remaining = {**statement, "Action": [name for name in statement["Action"] if name != action]}
    return {**policy, "Statement": [remaining if item is statement else item for item in policy["Statement"]]}
