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
READ_OBJECT, READ_SECRET = "s3:GetObject", "secretsmanager:GetSecretValue"
_ACCOUNT = re.compile(r"(?<=:iam::)[0-9]{12}(?=:)")


@reads("region")
def takeover_by_jobs(settings: Settings) -> Iterator[Finding]:
    """A statement lets jobs use or change every IAM role of the account, and so take it over.

    Reported are statements without conditions, whose actions include one that passes, assumes or changes a role, a
    user or a policy, and whose resources include every role.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html and
    https://docs.aws.amazon.com/IAM/latest/UserGuide/best-practices.html#grant-least-privilege
    """
    role = f"arn:{partition_of(settings.region)}:iam::*:role/*"
    for index, statement in _statements(settings):
        actions = [action for action in statement.actions if _includes_any(action, facts.TAKEOVER_ACTIONS)]
        if actions and any(_includes(_ACCOUNT.sub("*", resource), role) for resource in statement.resources):
            message = (
                f"statements[{index}]: with {' and '.join(actions)} on every role a job could take over the account"
            )
            yield warning((*STATEMENTS, index, "actions"), message, "name the roles that jobs need in `resources`")


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
        reads_objects = any(_includes_any(action, {READ_OBJECT}) for action in statement.actions)
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
            if not statement.conditions and not settings.is_wrong((*STATEMENTS, index)):
                yield index, statement


def _includes_any(action: str, actions: AbstractSet[str]) -> bool:
    """Return whether an action, which may have wildcards, includes one of these; IAM ignores their case."""
    return ":" in action and any(fnmatchcase(name.lower(), action.lower()) for name in actions)


def _includes(resource: str, arn: str) -> bool:
    """Return whether a statement's resource, which may have wildcards, includes an ARN or every ARN of a pattern."""
    return fnmatchcase(arn, resource.replace("[", "[[]"))
