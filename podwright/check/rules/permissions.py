"""Rules about permissions that jobs get from the nodes' role, and about roles beside an existing one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase

from podwright.check.findings import Finding, KeyPath, warning
from podwright.check.rules.rule import reads
from podwright.settings import names
from podwright.settings.access import CreatedRole, ExistingRole, Statement
from podwright.settings.network import CreatedNetwork
from podwright.settings.operations import CreatedAccounting, ExistingAccounting, S3State
from podwright.settings.regions import partition_of
from podwright.settings.root import Settings
from podwright_constructs import facts

STATEMENTS: KeyPath = ("role", "statements")
READ_OBJECT, READ_SECRET = frozenset({"s3:GetObject", "s3:GetObjectVersion"}), "secretsmanager:GetSecretValue"
_ACCOUNT = re.compile(r"(?<=:iam::)[0-9]{12}(?=:)")


@reads("region", "account_id")
def takeover_by_jobs(settings: Settings) -> Iterator[Finding]:
    """A statement lets jobs use or change every IAM role, user, group or policy of the account, and so take it over.

    Reported are statements without conditions, whose actions include one that passes, assumes or changes a role, a
    user, a group or a policy, and whose resources include each of this kind in the account.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html and
    https://docs.aws.amazon.com/IAM/latest/UserGuide/best-practices.html#grant-least-privilege
    """
    for index, statement in _statements(settings):
        resources = [_in_any_account(resource, settings.account_id) for resource in statement.resources]
        actions_by_kind: dict[str, list[str]] = {}
        for action in statement.actions:
            for kind in _kinds_taken_over(action):
                arn = f"arn:{partition_of(settings.region)}:iam::*:{kind}/*"
                if any(_includes(resource, arn) for resource in resources):
                    actions_by_kind.setdefault(kind, []).append(action)
                    break
        if actions_by_kind:
            parts = [f"{' and '.join(actions)} on every {kind}" for kind, actions in actions_by_kind.items()]
            message = f"statements[{index}]: with {' and '.join(parts)} a job could take over the account"
            kinds = " and ".join(_PLURALS[kind] for kind in actions_by_kind)
            yield warning((*STATEMENTS, index, "actions"), message, f"name the {kinds} that jobs need in `resources`")


_PLURALS = {"role": "roles", "user": "users", "group": "groups", "policy": "policies"}


def _kinds_taken_over(action: str) -> Iterator[str]:
    """Yield the kinds of IAM's resources that an action, which may have wildcards, passes, assumes or changes."""
    for kind in _PLURALS:
        if _includes_any(action, {name for name in facts.TAKEOVER_ACTIONS if _kind(name) == kind}):
            yield kind


def _kind(action: str) -> str:
    """Return the kind of resource of one of IAM's actions.

    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
    """
    if action in {"iam:CreateAccessKey", "iam:CreateLoginProfile", "iam:UpdateLoginProfile"}:
        return "user"
    if action == "iam:AddUserToGroup":
        return "group"
    name = action.partition(":")[2]
    if name in {"CreatePolicyVersion", "SetDefaultPolicyVersion"}:
        return "policy"
    return next(word for word in ("Role", "User", "Group") if word in name).lower()


def _in_any_account(resource: str, account_id: str | None) -> str:
    """Return an ARN with * for its account, unless that is another one than the cluster's."""
    match = _ACCOUNT.search(resource)
    return resource if match and account_id not in {None, match[0]} else _ACCOUNT.sub("*", resource)


@reads("region", "state")
def state_read_by_jobs(settings: Settings) -> Iterator[Finding]:
    """A statement or a policy lets jobs read Terraform's state, which has secrets.

    https://developer.hashicorp.com/terraform/language/state/sensitive-data
    """
    state, role = settings.state, settings.role
    if not isinstance(state, S3State) or not isinstance(role, CreatedRole):
        return
    stacks = (names.foundation_stack(settings.name), names.cluster_stack(settings.name))
    keys = [names.state_key(settings.name, settings.region, stack) for stack in stacks]
    states = [f"arn:{partition_of(settings.region)}:s3:::{state.bucket}/{key}" for key in keys]
    hint = f"name the buckets that jobs need, without {state.bucket}"
    for index, statement in _statements(settings):
        reads_objects = any(_includes_any(action, READ_OBJECT) for action in statement.actions)
        if reads_objects and any(_includes(resource, arn) for resource in statement.resources for arn in states):
            message = f"statements[{index}]: jobs could read Terraform's state in {state.bucket}, which has secrets"
            yield warning((*STATEMENTS, index, "resources"), message, hint)
    for index, arn in enumerate(role.policy_arns):
        if arn.partition(":policy/")[2] in facts.POLICIES_THAT_READ_BUCKETS:
            message = f"policy_arns[{index}]: with {arn} jobs could read Terraform's state in {state.bucket}"
            yield warning(("role", "policy_arns", index), message, hint)


@reads("region", "accounting", "nodes.ldap")
def secrets_read_by_jobs(settings: Settings) -> Iterator[Finding]:
    """A statement lets jobs read a password that only controllers should have: the database's or the directory's.

    https://docs.aws.amazon.com/secretsmanager/latest/userguide/best-practices.html
    """
    accounting, ldap = settings.accounting, settings.nodes.ldap
    secret_arns = [accounting.secret_arn] if isinstance(accounting, ExistingAccounting) else []
    if isinstance(accounting, CreatedAccounting):  # RDS names its secret.
        secret_arns.append(f"arn:{partition_of(settings.region)}:secretsmanager:{settings.region}:*:secret:rds!db-*")
    secret_arns += [ldap.bind_secret_arn] if ldap and ldap.bind_secret_arn else []
    for index, statement in _statements(settings):
        reads_secrets = any(_includes_any(action, {READ_SECRET}) for action in statement.actions)
        if reads_secrets and any(_includes(resource, arn) for resource in statement.resources for arn in secret_arns):
            message = f"statements[{index}]: jobs could read the password of the database or of the directory"
            yield warning((*STATEMENTS, index, "resources"), message, "name the secrets that jobs need")


@reads("network.source", "network.flow_logs", "logs", "role.permissions_boundary_arn")
def roles_beside_existing(settings: Settings) -> Iterator[Finding]:
    """The nodes' role exists already, but podwright creates other roles, which your account may forbid.

    Flow logs in CloudWatch and the retention of logs need a role each:
    https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html and
    https://docs.aws.amazon.com/scheduler/latest/UserGuide/setting-up.html
    """
    role, network = settings.role, settings.network
    if not isinstance(role, ExistingRole) or role.permissions_boundary_arn is not None:
        return  # A file with a boundary knows of these roles.
    remedy_by_purpose = {}
    if isinstance(network, CreatedNetwork) and network.flow_logs == "cloudwatch":
        remedy_by_purpose["flow logs"] = "write `network: {flow_logs: bucket}`"
    if settings.logs:
        remedy_by_purpose["log retention"] = "delete the section logs"
    if remedy_by_purpose:
        yield warning(
            ("role", "source"),
            f"source: got existing, but podwright creates roles for {' and '.join(remedy_by_purpose)}",
            f"if you may not create roles, {' and '.join(remedy_by_purpose.values())}; if they need a permissions "
            "boundary, add permissions_boundary_arn",
        )


def _statements(settings: Settings) -> Iterator[tuple[int, Statement]]:
    """Yield a created role's statements without conditions: a condition may limit them to what is harmless."""
    if isinstance(settings.role, CreatedRole):
        for index, statement in enumerate(settings.role.statements):
            path = (*STATEMENTS, index)
            has_conditions = statement.conditions or settings.is_wrong((*path, "conditions"))
            if not has_conditions and not settings.is_wrong(path):
                yield index, statement


def _includes_any(action: str, actions: AbstractSet[str]) -> bool:
    """Return whether an action, which may have wildcards, includes one of these; IAM ignores their case."""
    return ":" in action and any(fnmatchcase(name.lower(), action.lower()) for name in actions)


def _includes(resource: str, arn: str) -> bool:
    """Return whether a statement's resource, which may have wildcards, includes an ARN or every ARN of a pattern."""
    return fnmatchcase(arn, resource.replace("[", "[[]"))
