"""The account's principals with credentials, and IAM's decisions on their calls.

Roles are theirs by STS's AssumeRole, users by access keys. moto stores both; it enforces nothing.
https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_access-denied.html
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.aws.permission import Permission
from podwright_rehearsal.aws.policy_evaluation import Statement, decide, statements_of

# https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
ALWAYS_ALLOWED = "sts:GetCallerIdentity"
# Services answer JSON with AccessDeniedException; these differ.
ERROR_CODES = {"ec2": "UnauthorizedOperation", "sns": "AuthorizationError"}
QUERY_SERVICES = ("cloudformation", "iam", "monitoring", "rds", "s3", "sts")
EC2_MESSAGE = "You are not authorized to perform this operation. {}"


@dataclass(frozen=True, kw_only=True)
class Principal:
    """An identity with the policies that decide its calls."""

    arn: str
    user_id: str
    statements: list[Statement]
    boundary: list[Statement] | None
    """Statements of the permissions boundary; None without one."""

    @property
    def reads_tags(self) -> bool:
        """True if a policy has a condition on tags of resources, which take time to look up."""
        return "resourcetag/" in f"{self.statements}{self.boundary}".lower()

    def denial(self, permission: Permission) -> str:
        """Return IAM's message if the policies deny a permission, or an empty string."""
        if permission.action == ALWAYS_ALLOWED:
            return ""
        reason = self._reason(permission)
        resource = f'"{permission.resource}"' if permission.action.startswith("s3:") else permission.resource
        message = f"User: {self.arn} is not authorized to perform: {permission.action} on resource: {resource} {reason}"
        return message if reason else ""

    def _reason(self, permission: Permission) -> str:
        context = {
            **permission.context,
            "aws:principalarn": [self.arn],
            "aws:userid": [self.user_id],
            "aws:securetransport": ["true"],  # The loopback stands for TLS.
        }
        policies = {"identity-based policy": self.statements, "permissions boundary": self.boundary}
        article = {"identity-based policy": "an", "permissions boundary": "a"}
        decisions = {
            kind: decide(statements, permission.action, permission.resource, context)
            for kind, statements in policies.items()
            if statements is not None
        }
        for kind, decision in decisions.items():
            if decision == "explicitDeny":
                return f"with an explicit deny in {article[kind]} {kind}"
        for kind, decision in decisions.items():
            if decision == "implicitDeny":
                return f"because no {kind} allows the {permission.action} action"
        return ""


def principal(access_key: str, session_token: str, partition: str) -> Principal | None:
    """Return the user or assumed role of an access key, or None if it is nobody's."""
    iam = iam_backends[ACCOUNT_ID][partition]
    for session in list(sts_backends[ACCOUNT_ID][partition].assumed_roles):
        if _same(session.access_key_id, access_key) and _same(session.session_token, session_token):
            role = iam.get_role_by_arn(session.role_arn)
            return Principal(
                arn=session.arn,
                user_id=session.user_id,
                statements=statements(role),
                boundary=_boundary(iam, role.permissions_boundary_arn),
            )
    for user in list(iam.users.values()):
        if any(_same(key.access_key_id, access_key) for key in user.access_keys):
            groups = [group for group in iam.groups.values() if user in group.users]
            allowed = [statement for owner in (user, *groups) for statement in statements(owner)]
            return Principal(arn=user.arn, user_id=user.id, statements=allowed, boundary=None)
    return None


def error(service: str, message: str) -> AwsError:
    """Return the refusal of a call, with the code that the service uses."""
    by_protocol = "AccessDenied" if service in QUERY_SERVICES else "AccessDeniedException"
    text = EC2_MESSAGE.format(message) if service == "ec2" else message
    return AwsError(ERROR_CODES.get(service, by_protocol), text)


def first_denial(caller: Principal, permissions: Iterable[Permission]) -> tuple[Permission, str] | None:
    """Return the first permission that the caller lacks with IAM's message, or None."""
    denials: Iterator[tuple[Permission, str]] = ((item, caller.denial(item)) for item in permissions)
    return next((denial for denial in denials if denial[1]), None)


def statements(owner: Any) -> list[Statement]:
    """Return the statements of a role's, user's or group's own and attached policies."""
    attached = map(_document, owner.managed_policies.values())
    return statements_of([*owner.policies.values(), *attached])


def _boundary(iam: Any, arn: str | None) -> list[Statement] | None:
    return None if arn is None else statements_of([_document(iam.managed_policies[arn])])


def _document(managed_policy: Any) -> str:
    return next(str(version.document) for version in managed_policy.versions if version.is_default)


def _same(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(), secret.encode())
