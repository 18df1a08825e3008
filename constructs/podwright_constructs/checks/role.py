"""What IAM would refuse of a role, and what must not be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem

_PREFIX = re.compile(r"[\w.=-]+(/[\w.=-]+)*")  # no wildcard, no slash at either end
_S3_PREFIX = re.compile(r"([\w.=+@-]+/)*")  # as Mountpoint wants it: with a slash at its end


class Access(Protocol):
    """What is read of an ``S3Access``, or of a settings section of the same shape."""

    @property
    def bucket(self) -> str:
        """Its name."""

    @property
    def prefix(self) -> str:
        """What keys begin with."""

    @property
    def read_only(self) -> bool:
        """Whether nodes only read."""

    @property
    def key_arn(self) -> str | None:
        """Its KMS key."""


def execution_role(
    *,
    name: str,
    bucket_name: str = "",
    read_prefixes: Sequence[str] = (),
    write_prefixes: Sequence[str] = (),
    s3_access: Sequence[Access] = (),
    permissions_boundary_arn: str | None = None,
) -> list[Problem]:
    """Problems of a role to be created."""
    problems = matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")
    if permissions_boundary_arn is not None:
        allowed = "the ARN of a policy, arn:aws:iam::ACCOUNT:policy/NAME"
        problems += matches("permissions_boundary_arn", permissions_boundary_arn, facts.POLICY_ARN_PATTERN, allowed)
    for index, access in enumerate(s3_access):
        found = s3_access_problems(access, own_bucket=bucket_name, own_prefixes=read_prefixes)
        problems += [replace(problem, argument=f"s3_access[{index}].{problem.argument}") for problem in found]
    return [*problems, *_prefixes(read_prefixes, write_prefixes)]


def s3_access_problems(access: Access, *, own_bucket: str, own_prefixes: Sequence[str]) -> list[Problem]:
    """Problems of rights on a bucket; what nodes run, below prefixes of their own bucket, they may never write."""
    allowed = "3 to 63 lower-case letters, digits, dots and hyphens"
    problems = matches("bucket", access.bucket, facts.BUCKET_NAME_PATTERN, allowed)
    problems += matches("prefix", access.prefix, _S3_PREFIX, "empty, or words that each end in a slash, like datasets/")
    if access.key_arn is not None:
        allowed = "an ARN like arn:aws:kms:us-west-2:123456789012:key/…"
        problems += matches("key_arn", access.key_arn, facts.KEY_ARN_PATTERN, allowed)
    if access.bucket == own_bucket and not access.read_only:
        meets = [own for own in own_prefixes if _overlap(access.prefix, f"{own}/")]
        if meets:
            hint = "Nodes run as root what lies there; one that could write it would own the others."
            problems.append(
                Problem("prefix", access.prefix or "the whole bucket", f"read-only: it meets {meets[0]}", hint)
            )
    return problems


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def existing_role(*, arn: str) -> list[Problem]:
    """Problems of the ARN of a role that exists."""
    hint = "A role's name alone is not enough." if "/" not in arn else ""
    return matches("arn", arn, facts.ROLE_ARN_PATTERN, "an ARN like arn:aws:iam::123456789012:role/nodes", hint)


def _prefixes(read: Sequence[str], write: Sequence[str]) -> Iterator[Problem]:
    for argument, prefixes in (("read_prefixes", read), ("write_prefixes", write)):
        for index, prefix in enumerate(prefixes):
            yield from matches(f"{argument}[{index}]", prefix, _PREFIX, "words between slashes, like demo/lifecycle")
    for index, prefix in enumerate(write):
        inside = [other for other in read if _overlap(f"{prefix}/", f"{other}/")]
        if inside:
            hint = "Nodes run as root what lies there; one that could write it would own the others."
            yield Problem(f"write_prefixes[{index}]", prefix, f"nothing of what nodes read, {inside[0]}", hint)
