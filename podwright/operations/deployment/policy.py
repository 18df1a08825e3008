"""``podwright policy``: the IAM policy that deploying a settings file needs, or training on its cluster."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from podwright.aws_session import Session
from podwright.check.load import load
from podwright.config_file import add_file
from podwright.diagram.stack_resources import read
from podwright.errors import AwsError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.deployment.deployer_actions import actions
from podwright.operations.deployment.kit import OUTPUT, Kit
from podwright.operations.output import print_document
from podwright.operations.target import add_examples, add_profile
from podwright.settings import names
from podwright.settings.regions import partition_of
from podwright_common.exit_status import FAILED, OK

if TYPE_CHECKING:
    from podwright.settings.root import Settings

MAX_POLICY_LENGTH = 6144  # IAM counts the characters of a managed policy without white space.
LIMITS_PAGE = "https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"
ACTIONS_A_CALL = 100  # The most that one call of simulate_principal_policy takes.
CREATE = "aws iam create-policy --policy-name podwright-{0} --policy-document file://{0}.json"
PURPOSES = {"deployer": "`podwright deploy` and `destroy`", "user": "sessions, jobs, logs and status"}
ROLE, REPOSITORIES = "aws_iam_role", "aws_fsx_data_repository_association"
# FSx gives its service-linked role for data repositories a policy with the caller's rights.
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html
REPOSITORIES_SERVICE = "s3.data-source.lustre.fsx.amazonaws.com"
EXAMPLE = "x"  # In place of what a policy leaves open.
PASSED_TO = ("sagemaker.amazonaws.com", "scheduler.amazonaws.com", "vpc-flow-logs.amazonaws.com")


@dataclass(frozen=True, kw_only=True)
class Policy(JsonObject):
    """The document of `podwright policy --json`."""

    schema: Literal["podwright.policy/1"] = "podwright.policy/1"
    policy: dict[str, Any]
    """For `aws iam create-policy --policy-document`."""
    missing: list[str]
    """Actions that the role of `--simulate` lacks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add POLICY, FILE, --simulate, --profile and --json."""
    parser.add_argument(
        "whose",
        metavar="POLICY",
        choices=["deployer", "user"],
        help="deployer: policy for podwright deploy and destroy; user: for people who train, with sessions on nodes, "
        "jobs, logs and status",
    )
    add_file(parser)
    parser.add_argument(
        "--simulate", type=_role_arn, metavar="ROLE_ARN", help="list the actions that this role lacks; exit with 1"
    )
    add_profile(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document with schema and missing actions")
    add_examples(
        parser,
        "podwright policy deployer > deployer.json",
        f"{CREATE.format('deployer')}  # makes it a policy in IAM, to attach",
        "podwright policy deployer --simulate arn:aws:iam::123456789012:role/ci",
        "podwright policy user > user.json",
    )


def _role_arn(text: str) -> str:
    """Parse the ARN of a role; argparse names the option in its message."""
    if not re.fullmatch(r"arn:[\w-]+:iam::\d{12}:role/\S+", text):
        raise argparse.ArgumentTypeError(f"got {text}, need arn:aws:iam::ACCOUNT:role/NAME")
    return text


def run(options: argparse.Namespace) -> int:
    """Print the policy, or the actions of it that a role lacks; AWS is not changed.

    Raises:
        PodwrightError: the file is wrong, the kit fails, or IAM does not simulate.
    """
    settings = load(options.file)
    session = Session(region=settings.region, profile=options.profile)
    if options.simulate:
        session.require_answer()
    policy = _of_user(settings, session) if options.whose == "user" else _of_kit(settings, options.file)
    missing = list(_missing(session, options.simulate, policy)) if options.simulate else []
    if options.json:
        print_document(Policy(policy=policy, missing=missing))
    elif options.simulate:
        action_count = sum(len(statement["Action"]) for statement in policy["Statement"])
        print("\n".join([*missing, f"{options.simulate}: {len(missing)} of {action_count} actions missing"]))
    else:
        print(json.dumps(policy, indent=2))
        _warn_about_length(policy)
        if sys.stdout.isatty():
            print(
                f"podwright: this IAM policy allows {PURPOSES[options.whose]}. To use it:\n"
                f"  podwright policy {options.whose} > {options.whose}.json\n  {CREATE.format(options.whose)}\n"
                "then attach it to their role: aws iam attach-role-policy --role-name ROLE --policy-arn ARN",
                file=sys.stderr,
            )
    return FAILED if missing else OK


def _of_user(settings: Settings, session: Session) -> dict[str, Any]:
    """Return the policy of people who train, limited to the cluster's id; warn if the id is unknown."""
    from podwright.operations.deployment.user_policy import user_policy  # --help need not wait for pydantic

    account = settings.account_id
    try:
        account = account or session.account_id
        arn = session.call("sagemaker", "describe_cluster", ClusterName=settings.name)["ClusterArn"]
        cluster_account, cluster_id = arn.split(":")[4], arn.rpartition("/")[2]
        if cluster_account == account:
            return user_policy(settings, account=account, cluster_id=cluster_id)
        reason = f"the cluster is in account {cluster_account}, not in {account}"
    except OperationError as error:
        is_absent = isinstance(error, AwsError) and error.absent
        reason = "the cluster does not exist yet" if is_absent else str(error)
    rights = "sessions" if settings.session else "sessions as root, and so the rights of the nodes' roles,"
    print(
        f"podwright: this policy allows {rights} on all clusters of {settings.region}, because {settings.name}'s id is "
        f"unknown ({reason}): once the cluster exists, print the policy again with credentials that may call "
        "sagemaker:DescribeCluster",
        file=sys.stderr,
    )
    return user_policy(settings, account=account)


def _of_kit(settings: Settings, file: Path) -> dict[str, Any]:
    """Return the deployer's policy for the resource types that the file's stacks create."""
    kit = Kit(file, Path.cwd())
    kit.synthesize()
    return deployer_policy(settings, {resource.type for resource in read(kit.folder / OUTPUT)})


def deployer_policy(settings: Settings, types: set[str]) -> dict[str, Any]:
    """Return the policy document.

    Roles, buckets and objects are those with the cluster's names. Other actions are for all resources of their
    service: most of them take no resource, or one whose id is not known before it exists.
    """
    arn = f"arn:{partition_of(settings.region)}"
    return {"Version": "2012-10-17", "Statement": list(_statements(settings, types, arn))}


def _statements(settings: Settings, types: set[str], arn: str) -> Iterator[dict[str, Any]]:
    created = (
        *(names.role_name, names.controller_role_name, names.login_role_name),
        *(names.flow_logs_role_name, names.log_retention_name),
    )
    path = settings.role.path or "/"
    roles = [f"{arn}:iam::*:role{path}{name(settings.name, settings.region)}" for name in created]
    buckets = _buckets(settings, arn)
    for service, members in groupby(actions(types), key=lambda action: action.partition(":")[0]):
        service_actions = list(members)
        if service == "iam":
            linked = [action for action in service_actions if "ServiceLinkedRole" in action]
            of_roles = [action for action in service_actions if action not in linked]
            if of_roles and ROLE in types:  # Other types need the actions on service-linked roles alone.
                yield _allow("Roles", of_roles, roles)
            if linked:
                yield _allow("ServiceLinkedRoles", linked, [f"{arn}:iam::*:role/aws-service-role/*"])
            if REPOSITORIES in types:
                repositories_role = f"{arn}:iam::*:role/aws-service-role/{REPOSITORIES_SERVICE}/*"
                yield _allow("RepositoriesRole", ["iam:AttachRolePolicy", "iam:PutRolePolicy"], [repositories_role])
        elif service == "s3":
            yield _allow("Buckets", service_actions, buckets)
            yield _allow("FindBuckets", ["s3:ListAllMyBuckets"], ["*"])  # one that an interrupted deployment made
        else:
            yield _allow(service.capitalize(), service_actions, ["*"])
    existing = [] if settings.role.source == "create" else dict.fromkeys(settings.role.arns().values())
    passed = {"Condition": {"StringEquals": {"iam:PassedToService": list(PASSED_TO)}}}
    yield {**_allow("PassRoles", ["iam:PassRole"], [*roles, *existing]), **passed}
    if settings.state.source == "s3":
        state = f"{arn}:s3:::{settings.state.bucket}"
        objects = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        yield _allow("StateBucket", ["s3:ListBucket"], [state])
        yield _allow("State", objects, [f"{state}/{settings.name}/*"])


def _buckets(settings: Settings, arn: str) -> list[str]:
    bucket = settings.bucket
    name = f"{names.bucket_prefix(settings.name)}*" if bucket.source == "create" else bucket.name
    return [f"{arn}:s3:::{name}", f"{arn}:s3:::{name}/*"]


def _allow(sid: str, allowed_actions: Sequence[str], resources: Sequence[str]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": list(allowed_actions), "Resource": list(resources)}


def _missing(session: Session, role: str, policy: Mapping[str, Any]) -> Iterator[str]:
    """Yield the actions that IAM's simulation denies on every resource of their statement."""
    account = role.split(":")[4]
    for statement in policy["Statement"]:
        resources = [_example(resource, account) for resource in statement["Resource"]]
        statement_actions = statement["Action"]
        allowed = {
            result["EvalActionName"]
            for start in range(0, len(statement_actions), ACTIONS_A_CALL)
            for result in session.items(
                "iam",
                "simulate_principal_policy",
                "EvaluationResults",
                PolicySourceArn=role,
                ActionNames=statement_actions[start : start + ACTIONS_A_CALL],
                ResourceArns=resources,
                ContextEntries=list(_context(statement)),
            )
            if result["EvalDecision"] == "allowed"
        }
        yield from (action for action in statement_actions if action not in allowed)


def _context(statement: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield values of the condition keys with which a request meets the statement."""
    yield {"ContextKeyName": "aws:userid", "ContextKeyValues": [EXAMPLE], "ContextKeyType": "string"}
    for operator, values_by_key in statement.get("Condition", {}).items():
        kind = "boolean" if operator.startswith("Bool") else "string"
        suffix = "List" if operator.startswith("ForAnyValue") else ""
        for key, values in values_by_key.items():
            value = values[0].replace("*", EXAMPLE)
            yield {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": f"{kind}{suffix}"}


def _example(resource: str, account: str) -> str:
    """Return an ARN that a pattern of the policy matches, of the role's account."""
    with_account = resource.replace(":*:", f":{account}:").replace("${aws:userid}", EXAMPLE)
    return resource if resource == "*" else with_account.replace("*", EXAMPLE)


def _warn_about_length(policy: Mapping[str, Any]) -> None:
    length = len(json.dumps(policy, separators=(",", ":")))
    if length > MAX_POLICY_LENGTH:
        print(
            f"podwright: {length} characters, a managed policy has at most {MAX_POLICY_LENGTH}: make two of its "
            f"statements, or attach it to the role itself ({LIMITS_PAGE})",
            file=sys.stderr,
        )
