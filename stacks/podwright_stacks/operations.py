"""Notices, budget and sessions, which outlive a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from podwright.settings import names
from podwright.settings.root import Settings
from podwright_constructs.budget import ClusterBudget
from podwright_constructs.kit import TerraformOutput, TerraformStack
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.role import ExecutionRole, Role
from podwright_constructs.session import SessionDocument


def operations(stack: TerraformStack, settings: Settings, *, key_arn: str | None, roles: Sequence[Role | None]) -> None:
    """Notices, budget and sessions, each if the settings ask for it."""
    name = names.operations_name(settings.name)
    if settings.notices:
        notices = ClusterNotices(
            stack,
            "notices",
            name=name,
            cluster_name=settings.name,
            email=settings.notices.email,
            idle_hours=settings.notices.idle_hours,
            key_arn=key_arn,
        )
        TerraformOutput(stack, "NoticesTopicArn", value=notices.topic_arn)
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
        for role in roles:
            if isinstance(role, ExecutionRole):  # an existing one is the user's
                document.grant_logs(role)
        TerraformOutput(stack, "SessionDocument", value=document.name)
