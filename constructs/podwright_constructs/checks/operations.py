"""Check the arguments of logs, notices, budget, metrics and sessions against AWS's limits."""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.checks.words import key_arn_problems, matches, one_of, within
from podwright_constructs.problems import Problem


def cluster_log_group(*, name: str, retention_days: int, key_arn: str | None = None) -> list[Problem]:
    """Check the retention of logs."""
    problems = matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")
    if len(name) > facts.MAX_LOG_RETENTION_NAME_LENGTH:
        problems.append(
            Problem("malformed", ("name",), name, f"at most {facts.MAX_LOG_RETENTION_NAME_LENGTH} characters")
        )
    return [*problems, *_retention("retention_days", retention_days), *key_arn_problems(key_arn)]


def _retention(argument: str, days: int) -> list[Problem]:
    if days in facts.LOG_RETENTIONS_DAYS:
        return []
    nearest = min(facts.LOG_RETENTIONS_DAYS, key=lambda accepted: abs(accepted - days))
    return [Problem("choice", (argument,), days, one_of(facts.LOG_RETENTIONS_DAYS), f"The nearest is {nearest}.")]


def cluster_notices(
    *,
    name: str,
    email: str | None,
    topic_arn: str | None = None,
    idle_hours: int | None = None,
    key_arn: str | None = None,
) -> list[Problem]:
    """Check the name of topic and rules, the subscriber or the existing topic, and the time without jobs."""
    need = f"1 to {facts.MAX_NOTICES_NAME_LENGTH} letters, digits, hyphens and underscores"
    topic = matches("name", name, facts.NOTICES_NAME_PATTERN, need)
    idle = [] if idle_hours is None else within("idle_hours", idle_hours, 1, facts.MAX_IDLE_NOTICE_HOURS)
    receiver = [] if email is None else _email(email)
    if email is None and topic_arn is None:
        hint = "Without one of them nobody gets the notices."
        receiver.append(Problem("missing", ("email",), "no value", "an address, or topic_arn instead", hint))
    if topic_arn is not None:
        need_arn = "an ARN like arn:aws:sns:us-west-2:123456789012:NAME; FIFO topics get no events of EventBridge"
        receiver += matches("topic_arn", topic_arn, facts.TOPIC_ARN_PATTERN, need_arn)
    return [*topic, *receiver, *idle, *key_arn_problems(key_arn)]


def cluster_budget(*, name: str, monthly_usd: int, email: str) -> list[Problem]:
    """Check a budget."""
    problems = matches("name", name, facts.BUDGET_NAME_PATTERN, "1 to 100 characters other than colon and backslash")
    if monthly_usd < 1:
        problems.append(Problem("range", ("monthly_usd",), monthly_usd, "1 or more"))
    return [*problems, *_email(email)]


def prometheus_workspace(*, key_arn: str | None) -> list[Problem]:
    """Check a new workspace."""
    return key_arn_problems(key_arn)


def existing_prometheus(*, arn: str, remote_write_url: str) -> list[Problem]:
    """Check the ARN and the address of an existing workspace."""
    url = "https://aps-workspaces.REGION.amazonaws.com/workspaces/ID/api/v1/remote_write"
    address = facts.REMOTE_WRITE_URL_PATTERN.fullmatch(remote_write_url)
    workspace = facts.WORKSPACE_ARN_PATTERN.fullmatch(arn)
    if address and workspace and (workspace["region"], workspace["id"]) != (address["region"], address["workspace"]):
        need = f"the address of {workspace['id']} in {workspace['region']}"
        return [Problem("conflict", ("remote_write_url",), remote_write_url, need, "The role may write to arn alone.")]
    return [
        *matches(
            "arn", arn, facts.WORKSPACE_ARN_PATTERN, "an ARN like arn:aws:aps:us-west-2:123456789012:workspace/ws-…"
        ),
        *matches("remote_write_url", remote_write_url, facts.REMOTE_WRITE_URL_PATTERN, f"a URL like {url}"),
    ]


def session_document(
    *, name: str, idle_minutes: int, log_retention_days: int | None = None, key_arn: str | None = None
) -> list[Problem]:
    """Check a Session Manager document."""
    problems = matches("name", name, facts.DOCUMENT_NAME_PATTERN, "3 to 128 letters, digits and _.-")
    problems += key_arn_problems(key_arn)
    if log_retention_days is not None:
        problems += _retention("log_retention_days", log_retention_days)
    return [*problems, *within("idle_minutes", idle_minutes, facts.MIN_IDLE_MINUTES, facts.MAX_IDLE_MINUTES)]


def _email(email: str) -> list[Problem]:
    return matches("email", email, facts.EMAIL_PATTERN, "an address like team@your-domain.org")
