"""Check the arguments of a bucket against the limits of S3 and HyperPod."""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.checks.key import existing_key
from podwright_constructs.checks.words import bucket_name_problems, choice, is_reference, key_arn_problems, matches
from podwright_constructs.problems import Problem

ON_DESTROY = ("retain", "destroy")


def training_bucket(
    *,
    bucket_prefix: str | None,
    bucket_name: str | None = None,
    on_destroy: str,
    noncurrent_version_expiration_days: int = 90,
    access_log_bucket: str | None = None,
    access_log_prefix: str | None = None,
) -> list[Problem]:
    """Check a new bucket."""
    return [
        *_name_problems(bucket_prefix, bucket_name),
        *bucket_options(
            on_destroy=on_destroy,
            noncurrent_version_expiration_days=noncurrent_version_expiration_days,
            access_log_bucket=access_log_bucket,
            access_log_prefix=access_log_prefix,
        ),
    ]


def _name_problems(bucket_prefix: str | None, bucket_name: str | None) -> list[Problem]:
    """Check that there is either a name or a prefix of one."""
    if bucket_name is not None and bucket_prefix is not None:
        return [Problem("conflict", ("bucket_name",), bucket_name, "one of the two, bucket_name or bucket_prefix")]
    if bucket_name is not None:
        return bucket_name_problems("bucket_name", bucket_name)
    if bucket_prefix is None:
        return [Problem("missing", ("bucket_prefix",), "nothing", "one of the two, bucket_name or bucket_prefix")]
    need = (
        f"lower-case letters, digits, dots and hyphens, beginning with {facts.BUCKET_NAME_PREFIX}, "
        f"at most {facts.MAX_BUCKET_PREFIX_LENGTH} characters"
    )
    problems = matches("bucket_prefix", bucket_prefix, facts.BUCKET_PREFIX_PATTERN, need)
    if not problems and not is_reference(bucket_prefix) and not bucket_prefix.startswith(facts.BUCKET_NAME_PREFIX):
        hint = f"AWS's managed policy for nodes reads only buckets whose name begins with {facts.BUCKET_NAME_PREFIX}."
        problems.append(Problem("malformed", ("bucket_prefix",), bucket_prefix, need, hint))
    if not problems and len(bucket_prefix) > facts.MAX_BUCKET_PREFIX_LENGTH:
        problems.append(Problem("malformed", ("bucket_prefix",), bucket_prefix, need))
    return problems


def bucket_options(
    *,
    on_destroy: str,
    noncurrent_version_expiration_days: int,
    access_log_bucket: str | None,
    access_log_prefix: str | None,
) -> list[Problem]:
    """Check a new bucket, except for its name."""
    problems = choice("on_destroy", on_destroy, ON_DESTROY)
    if noncurrent_version_expiration_days < facts.MIN_NONCURRENT_DAYS:
        path, need = ("noncurrent_version_expiration_days",), f"at least {facts.MIN_NONCURRENT_DAYS}"
        problems.append(Problem("range", path, noncurrent_version_expiration_days, need))
    if access_log_bucket is not None:
        need = f"the name of your own bucket in this region, {facts.BUCKET_NAME_TEXT}"
        problems += bucket_name_problems("access_log_bucket", access_log_bucket, need)
    elif access_log_prefix is not None:
        hint = "The prefix is the start of the logs' keys in that bucket."
        problems.append(Problem("conflict", ("access_log_prefix",), access_log_prefix, "access_log_bucket too", hint))
    return problems


def existing_bucket(*, name: str, key_arn: str | None = None, account_id: str | None = None) -> list[Problem]:
    """Check the name of an existing bucket, its account, and the key that encrypts it."""
    key = [problem.at("key_arn") for problem in existing_key(arn=key_arn)] if key_arn else []
    account = [] if account_id is None else matches("account_id", account_id, facts.ACCOUNT_ID_PATTERN, "12 digits")
    return [*bucket_name_problems("name", name), *key, *account]


def state_bucket(*, bucket: str, key_arn: str | None) -> list[Problem]:
    """Check the bucket that keeps Terraform's state, and the key that encrypts it."""
    return [*bucket_name_problems("bucket", bucket), *key_arn_problems(key_arn)]
