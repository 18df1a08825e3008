"""Notices, budget and sessions, which outlive a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from podwright.settings import names
from podwright.settings.root import Settings
from podwright_constructs.budget import ClusterBudget
from podwright_constructs.kit import TerraformOutput, TerraformStack
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.role import ExecutionRole, Role
from podwright_constructs.session import SessionDocument


def operations(
    stack: TerraformStack, settings: Settings, *, key_arn: str | None, roles: Mapping[str, Role]
) -> ClusterNotices | None:
    """Create notices, budget and sessions, each if the settings ask for it; return the notices."""
    notices = _notices(stack, settings, key_arn=key_arn, controllers=roles["controller"])
    name = names.operations_name(settings.name)
    if settings.budget:
        ClusterBudget(
            stack,
            "budget",
            name=f"{name}-{settings.region}",
            monthly_usd=settings.budget.monthly_usd,
            email=settings.budget.email,
            tag_key=names.CLUSTER_TAG,
            tag_value=settings.name,
        )
    if settings.session:
        document = SessionDocument(
            stack,
            "session",
            name=name,
            idle_minutes=settings.session.idle_minutes,
            log_retention_days=settings.session.log_retention_days,
            key_arn=key_arn,
        )
        for role in roles.values():
            if isinstance(role, ExecutionRole):  # an existing one is the user's
                document.grant_logs(role)
        TerraformOutput(stack, "SessionDocument", value=document.name)
    return notices


def _notices(
    stack: TerraformStack, settings: Settings, *, key_arn: str | None, controllers: Role
) -> ClusterNotices | None:
    """Create the topic, to which several controllers publish that another one took over."""
    if not settings.notices:
        return None
    notices = ClusterNotices(
        stack,
        "notices",
        name=names.notices_name(settings.name),
        cluster_name=settings.name,
        email=settings.notices.email,
        topic_arn=settings.notices.topic_arn,
        idle_hours=settings.notices.idle_hours,
        warnings=settings.notices.warnings,
        key_arn=key_arn,
    )
    TerraformOutput(stack, "NoticesTopicArn", value=notices.topic_arn)
    count = sum(group.count for group in settings.cluster.instance_groups if group.role == "controller")
    if count > 1 and isinstance(controllers, ExecutionRole):
        notices.grant_publish(controllers)
    return notices
