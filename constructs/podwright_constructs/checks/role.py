"""Check the arguments of a role against IAM's limits, and that it cannot rewrite the nodes' scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from podwright_constructs import facts
from podwright_constructs.checks.words import (
    bucket_name_problems,
    duplicate_problems,
    item_problems,
    key_arn_problems,
    matches,
)
from podwright_constructs.problems import POLICY_VARIABLE, Problem, is_token

_PREFIX = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")  # no wildcard, no slash at either end
_VARIABLE = r"&\{[^{}]+\}"  # IAM fills it in for each principal, so it may have any value.
_WRITTEN_PREFIX = re.compile(rf"([A-Za-z0-9_.=-]|{_VARIABLE})+(/([A-Za-z0-9_.=-]|{_VARIABLE})+)*")
_OWNED = "Nodes run as root what is there: a node that can write it controls all the others."
# Mountpoint requires the slash at the end; without it, a prefix that ends in a variable also covers longer values.
_S3_PREFIX = re.compile(rf"(([A-Za-z0-9_.=+@-]|{_VARIABLE})+/)*")
# The end of a prefix is unknown only where it is a reference of Terraform's.
_MAY_END_IN_SLASH = re.compile(r".*(/|\]|\$\{[^&]*\})", re.DOTALL)


_ACTION = re.compile(r"[a-z0-9-]+:[A-Za-z0-9*?]+")
_RESOURCE = re.compile(r"\*|arn:(aws[a-z-]*|\*):([^\s:]*:){3}\S[^\n]*")


_OWN_LENGTH = 6_600  # A role's statements with the longest names, without the lists below.
_ARN_OF_EC2 = "arn:aws-us-gov:ec2:ap-northeast-1:*:security-group/"  # No ARN begins with more characters.


class Access(Protocol):
    """The attributes of an ``S3Access``, or of a settings section, that the checks read."""

    @property
    def bucket(self) -> str:
        """Name of the bucket."""

    @property
    def prefix(self) -> str:
        """Prefix of the keys."""

    @property
    def read_only(self) -> bool:
        """True if nodes only read."""

    @property
    def key_arn(self) -> str | None:
        """KMS key of the bucket."""


POLICY_ARN = "the ARN of a policy, arn:aws:iam::ACCOUNT:policy/NAME"


def permissions_boundary(arn: str | None) -> list[Problem]:
    """Check the permissions boundary of a new role, if it has one."""
    return [] if arn is None else matches("permissions_boundary_arn", arn, facts.POLICY_ARN_PATTERN, POLICY_ARN)


def assumed_role(*, role_arn: str, external_id: str | None = None, session_name: str = "podwright") -> list[Problem]:
    """Check a role that the AWS provider assumes."""
    need = "2 to 64 letters, digits and _+=,.@-"
    return [
        *matches("role_arn", role_arn, facts.ROLE_ARN_PATTERN, "the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME"),
        *(
            []
            if external_id is None
            else matches(
                "external_id", external_id, facts.EXTERNAL_ID_PATTERN, "2 to 1224 letters, digits and _+=,.@:/-"
            )
        ),
        *matches("session_name", session_name, facts.ROLE_SESSION_NAME_PATTERN, need),
    ]


def role_path(path: str | None) -> list[Problem]:
    """Check the IAM path of a new role, if it has one."""
    return [] if path is None else matches("path", path, facts.ROLE_PATH_PATTERN, "a path like /teams/llm/")


def execution_role(
    *,
    name: str,
    bucket_name: str = "",
    read_prefixes: Sequence[str] = (),
    write_prefixes: Sequence[str] = (),
    s3_access: Sequence[Access] = (),
    permissions_boundary_arn: str | None = None,
    path: str | None = None,
    policy_arns: Sequence[str] = (),
    volume_key_arns: Sequence[str] = (),
    override_subnet_ids: Sequence[str] = (),
    override_security_group_ids: Sequence[str] = (),
    statements_length: int = 0,
) -> list[Problem]:
    """Check a new role; ``statements_length`` is the length of additional statements, in characters."""
    problems = matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")
    problems += permissions_boundary(permissions_boundary_arn)
    problems += role_path(path)
    for index, policy_arn in enumerate(policy_arns):
        problems += matches(("policy_arns", index), policy_arn, facts.POLICY_ARN_PATTERN, POLICY_ARN)
    problems += duplicate_problems("policy_arns", policy_arns)
    overrides = {"override_subnet_ids": override_subnet_ids, "override_security_group_ids": override_security_group_ids}
    for argument, ids in overrides.items():
        problems += [problem for index, id_ in enumerate(ids) for problem in item_problems((argument, index), id_)]
    for index, access in enumerate(s3_access):
        access_problems = s3_access_problems(access, own_bucket=bucket_name, own_prefixes=read_prefixes)
        problems += [problem.below("s3_access", index) for problem in access_problems]
    length = _policy_length(s3_access, volume_key_arns, {*override_subnet_ids}, {*override_security_group_ids})
    length += statements_length
    if length > facts.MAX_ROLE_POLICY_LENGTH:
        hint = "Use fewer subnets, security groups, keys or S3 mounts for groups of one kind, or fewer statements."
        value, need = f"up to {length} characters", f"at most {facts.MAX_ROLE_POLICY_LENGTH}"
        problems.append(Problem("size", ("policy",), value, need, hint))
    return [*problems, *_prefixes(read_prefixes, write_prefixes)]


def _policy_length(
    s3_access: Sequence[Access], key_arns: Sequence[str], subnet_ids: Iterable[str], group_ids: Iterable[str]
) -> int:
    """Return an upper bound of a policy's length: subnets and keys are in two statements each, buckets in two more."""
    return (
        _OWN_LENGTH
        + sum(2 * len(f'"{_ARN_OF_EC2}{subnet_id}",') for subnet_id in subnet_ids)
        + sum(len(f'"{_ARN_OF_EC2}{group_id}",') for group_id in group_ids)
        + sum(2 * len(f'"{arn}",') for arn in key_arns)
        + sum(450 + 2 * len(item.bucket) + 2 * len(item.prefix) + len(item.key_arn or "") for item in s3_access)
    )


def with_policy_variables(text: str) -> str:
    """Return a text whose IAM policy variables are not Terraform's: ``&{aws:username}`` instead of ``${…}``.

    https://registry.terraform.io/providers/hashicorp/aws/latest/docs/data-sources/iam_policy_document
    """
    return POLICY_VARIABLE.sub(r"&{\1}", text)


def statement_problems(*, actions: Sequence[str], resources: Sequence[str]) -> list[Problem]:
    """Check an additional statement of a role."""
    problems = [
        Problem("size", (argument,), "nothing", "at least one")
        for argument, values in (("actions", actions), ("resources", resources))
        if not values
    ]
    for index, action in enumerate(actions):
        hint = "A job on any node could do everything in the account." if action == "*" else ""
        problems += matches(("actions", index), action, _ACTION, "SERVICE:ACTION, such as s3:GetObject", hint)
    for index, resource in enumerate(resources):
        need = "an ARN, such as arn:aws:s3:::datasets/*, or *"
        problems += matches(("resources", index), with_policy_variables(resource), _RESOURCE, need)
    return problems


def condition_problems(*, test: str, variable: str, values: Sequence[str]) -> list[Problem]:
    """Check a condition of a statement."""
    key = "a condition key, such as aws:ResourceAccount"
    return [
        *matches("test", test, facts.CONDITION_OPERATOR_PATTERN, "an operator of IAM, such as StringEquals"),
        *matches("variable", variable, facts.CONDITION_KEY_PATTERN, key),
        *([] if values else [Problem("size", ("values",), "nothing", "at least one")]),
    ]


def s3_access_problems(access: Access, *, own_bucket: str, own_prefixes: Sequence[str]) -> list[Problem]:
    """Check rights on a bucket: nodes may never write their own scripts, below prefixes of their bucket."""
    problems = bucket_name_problems("bucket", access.bucket)
    problems += _s3_prefix_problems(access.prefix)
    problems += key_arn_problems(access.key_arn)
    if access.bucket == own_bucket and not access.read_only:
        meets = [script_prefix for script_prefix in own_prefixes if _overlap(access.prefix, f"{script_prefix}/")]
        if meets:
            value, need = access.prefix or "the whole bucket", f"read_only: true, because it overlaps {meets[0]}"
            problems.append(Problem("unsafe", ("prefix",), value, need, _OWNED))
    return problems


def _s3_prefix_problems(prefix: str) -> list[Problem]:
    need = "an empty text, or a prefix that ends in a slash, like datasets/"
    written = with_policy_variables(prefix) if isinstance(prefix, str) else prefix
    problems = matches("prefix", written, _S3_PREFIX, need)
    if not problems and is_token(written) and not _MAY_END_IN_SLASH.fullmatch(written):
        problems = [Problem("malformed", ("prefix",), prefix, need)]
    return [replace(problem, value=prefix) for problem in problems]


def _overlap(prefix: str, other_prefix: str) -> bool:
    """Return whether keys below one prefix can be below the other; a policy variable may have any value."""
    known_prefix, known_other = (POLICY_VARIABLE.split(text, maxsplit=1)[0] for text in (prefix, other_prefix))
    return known_prefix.startswith(known_other) or known_other.startswith(known_prefix)


def existing_role(*, argument: str = "arn", arn: str) -> list[Problem]:
    """Check the ARN of an existing role."""
    hint = "The role's name alone is not enough." if isinstance(arn, str) and "/" not in arn else ""
    return matches(argument, arn, facts.ROLE_ARN_PATTERN, "an ARN like arn:aws:iam::123456789012:role/nodes", hint)


def granted_role(*, arn: str, policy_name: str | None) -> list[Problem]:
    """Check a role that receives an inline policy, and the policy's name."""
    problems = existing_role(arn=arn)
    if not problems and ":role/aws-service-role/" in arn:
        hint = "IAM lets nobody but the service change a service-linked role."
        problems.append(Problem("conflict", ("arn",), arn, "a role of yours", hint))
    need = "1 to 128 letters, digits and _+=,.@-"
    return [*problems, *matches("policy_name", policy_name, facts.ROLE_POLICY_NAME_PATTERN, need)]


def _prefixes(read: Sequence[str], write: Sequence[str]) -> Iterator[Problem]:
    for argument, prefixes in (("read_prefixes", read), ("write_prefixes", write)):
        for index, prefix in enumerate(prefixes):
            # Nodes run what they read: its place is the same for all of them.
            form = _WRITTEN_PREFIX if argument == "write_prefixes" else _PREFIX
            written = with_policy_variables(prefix) if argument == "write_prefixes" else prefix
            for problem in matches((argument, index), written, form, "words between slashes, like demo/lifecycle"):
                yield replace(problem, value=prefix)
    for index, prefix in enumerate(write):
        inside = [other for other in read if _overlap(f"{prefix}/", f"{other}/")]
        if inside:
            yield Problem("unsafe", ("write_prefixes", index), prefix, f"a prefix apart from {inside[0]}", _OWNED)
