"""What AWS would refuse of what watches a cluster: logs, notices, budget, metrics, sessions."""

from __future__ import annotations

from podwright_constructs import facts
from podwright_constructs.checks.words import matches
from podwright_constructs.problems import Problem


def cluster_log_group(*, name: str, retention_days: int, key_arn: str | None = None) -> list[Problem]:
    """Problems of how long logs are kept."""
    problems = matches("name", name, facts.ROLE_NAME_PATTERN, "1 to 64 letters, digits and +=,.@-_")
    if len(name) > facts.MAX_KEEPER_NAME_LENGTH:
        problems.append(Problem("name", name, f"at most {facts.MAX_KEEPER_NAME_LENGTH} characters"))
    if retention_days not in facts.LOG_RETENTIONS_DAYS:
        nearest = min(facts.LOG_RETENTIONS_DAYS, key=lambda days: abs(days - retention_days))
        allowed = ", ".join(map(str, facts.LOG_RETENTIONS_DAYS))
        problems.append(Problem("retention_days", retention_days, allowed, f"The nearest is {nearest}."))
    return [*problems, *_key(key_arn)]


def cluster_notices(*, name: str, email: str, key_arn: str | None = None) -> list[Problem]:
    """Problems of a topic and of who hears of it."""
    topic = matches("name", name, facts.TOPIC_NAME_PATTERN, "1 to 256 letters, digits, hyphens and underscores")
    return [*topic, *_email(email), *_key(key_arn)]


def cluster_budget(*, name: str, monthly_usd: int, email: str) -> list[Problem]:
    """Problems of a budget."""
    problems = matches("name", name, facts.BUDGET_NAME_PATTERN, "1 to 100 characters without colon and backslash")
    if monthly_usd < 1:
        problems.append(Problem("monthly_usd", monthly_usd, "1 or more"))
    return [*problems, *_email(email)]


def prometheus_workspace(*, key_arn: str | None) -> list[Problem]:
    """Problems of a workspace to be created."""
    return _key(key_arn)


def existing_prometheus(*, arn: str, remote_write_url: str) -> list[Problem]:
    """Problems of how a workspace that exists is reached."""
    url = "https://aps-workspaces.REGION.amazonaws.com/workspaces/ID/api/v1/remote_write"
    return [
        *matches(
            "arn", arn, facts.WORKSPACE_ARN_PATTERN, "an ARN like arn:aws:aps:us-west-2:123456789012:workspace/ws-…"
        ),
        *matches("remote_write_url", remote_write_url, facts.REMOTE_WRITE_URL_PATTERN, f"an address like {url}"),
    ]


def session_document(*, name: str, idle_minutes: int) -> list[Problem]:
    """Problems of a Session document."""
    problems = matches("name", name, facts.DOCUMENT_NAME_PATTERN, "3 to 128 letters, digits and _.-")
    least, most = facts.MIN_IDLE_MINUTES, facts.MAX_IDLE_MINUTES
    if not least <= idle_minutes <= most:
        problems.append(Problem("idle_minutes", idle_minutes, f"{least} to {most}"))
    return problems


def _email(email: str) -> list[Problem]:
    return matches("email", email, facts.EMAIL_PATTERN, "an address like team@your-domain.org")


def _key(key_arn: str | None) -> list[Problem]:
    if key_arn is None:
        return []
    return matches("key_arn", key_arn, facts.KEY_ARN_PATTERN, "an ARN like arn:aws:kms:…:key/…")
