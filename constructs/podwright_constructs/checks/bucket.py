"""What S3 or HyperPod would refuse of a bucket."""

from __future__ import annotations

import re
from dataclasses import replace

from podwright_constructs import facts
from podwright_constructs.checks.key import existing_key
from podwright_constructs.checks.words import is_reference, matches, one_of
from podwright_constructs.problems import Problem

ON_DESTROY = ("retain", "destroy")


def training_bucket(
    *,
    bucket_prefix: str,
    on_destroy: str,
    noncurrent_version_expiration_days: int = 90,
    access_log_bucket: str | None = None,
    access_log_prefix: str | None = None,
) -> list[Problem]:
    """Problems of a bucket to be created."""
    allowed = (
        f"lower-case letters, digits, dots and hyphens, beginning with {facts.BUCKET_NAME_PREFIX}, "
        f"at most {facts.MAX_BUCKET_PREFIX_LENGTH} characters"
    )
    problems = _bucket_name("bucket_prefix", bucket_prefix, facts.BUCKET_PREFIX_PATTERN, allowed)
    if not problems and len(bucket_prefix) > facts.MAX_BUCKET_PREFIX_LENGTH:
        problems.append(Problem("bucket_prefix", bucket_prefix, allowed))
    return [
        *problems,
        *bucket_options(
            on_destroy=on_destroy,
            noncurrent_version_expiration_days=noncurrent_version_expiration_days,
            access_log_bucket=access_log_bucket,
            access_log_prefix=access_log_prefix,
        ),
    ]


def bucket_options(
    *,
    on_destroy: str,
    noncurrent_version_expiration_days: int,
    access_log_bucket: str | None,
    access_log_prefix: str | None,
) -> list[Problem]:
    """Problems of a bucket to be created, but for its name."""
    problems = []
    if on_destroy not in ON_DESTROY:
        problems.append(Problem("on_destroy", on_destroy, one_of(ON_DESTROY)))
    if noncurrent_version_expiration_days < facts.MIN_NONCURRENT_DAYS:
        allowed = f"at least {facts.MIN_NONCURRENT_DAYS}"
        given = noncurrent_version_expiration_days
        problems.append(Problem("noncurrent_version_expiration_days", given, allowed))
    if access_log_bucket is not None:
        allowed = "the name of a bucket of yours in this region, 3 to 63 lower-case letters, digits, dots and hyphens"
        problems += matches("access_log_bucket", access_log_bucket, facts.BUCKET_NAME_PATTERN, allowed)
    elif access_log_prefix is not None:
        hint = "It says where in access_log_bucket the logs go."
        problems.append(Problem("access_log_prefix", access_log_prefix, "none without access_log_bucket", hint))
    return problems


def existing_bucket(*, name: str, key_arn: str | None = None) -> list[Problem]:
    """Problems of the name of a bucket that exists, and of the key that it is encrypted with."""
    allowed = f"3 to 63 lower-case letters, digits, dots and hyphens, beginning with {facts.BUCKET_NAME_PREFIX}"
    key = [replace(problem, argument="key_arn") for problem in existing_key(arn=key_arn)] if key_arn else []
    return [*_bucket_name("name", name, facts.BUCKET_NAME_PATTERN, allowed), *key]


def _bucket_name(argument: str, name: str, pattern: re.Pattern[str], allowed: str) -> list[Problem]:
    problems = matches(argument, name, pattern, allowed)
    if not problems and not is_reference(name) and not name.startswith(facts.BUCKET_NAME_PREFIX):
        hint = f"SageMaker reads lifecycle scripts only from buckets whose name begins with {facts.BUCKET_NAME_PREFIX}."
        problems.append(Problem(argument, name, allowed, hint))
    return problems
