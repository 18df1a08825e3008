"""What IAM would refuse of a role, and what must not be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem

_PREFIX = re.compile(r"[\w.=-]+(/[\w.=-]+)*")  # no wildcard, no slash at either end


def execution_role(
    *,
    name: str,
    read_prefixes: Sequence[str] = (),
    write_prefixes: Sequence[str] = (),
    permissions_boundary_arn: str | None = None,
) -> list[Problem]:
    """Problems of a role to be created."""
    problems = matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")
    if permissions_boundary_arn is not None:
        allowed = "the ARN of a policy, arn:aws:iam::ACCOUNT:policy/NAME"
        problems += matches("permissions_boundary_arn", permissions_boundary_arn, facts.POLICY_ARN_PATTERN, allowed)
    return [*problems, *_prefixes(read_prefixes, write_prefixes)]


def existing_role(*, arn: str) -> list[Problem]:
    """Problems of the ARN of a role that exists."""
    hint = "A role's name alone is not enough." if "/" not in arn else ""
    return matches("arn", arn, facts.ROLE_ARN_PATTERN, "an ARN like arn:aws:iam::123456789012:role/nodes", hint)


def _prefixes(read: Sequence[str], write: Sequence[str]) -> Iterator[Problem]:
    for argument, prefixes in (("read_prefixes", read), ("write_prefixes", write)):
        for index, prefix in enumerate(prefixes):
            yield from matches(f"{argument}[{index}]", prefix, _PREFIX, "words between slashes, like demo/lifecycle")
    for index, prefix in enumerate(write):
        inside = [
            other for other in read if f"{prefix}/".startswith(f"{other}/") or f"{other}/".startswith(f"{prefix}/")
        ]
        if inside:
            hint = "Nodes run as root what lies there; one that could write it would own the others."
            yield Problem(f"write_prefixes[{index}]", prefix, f"nothing of what nodes read, {inside[0]}", hint)
