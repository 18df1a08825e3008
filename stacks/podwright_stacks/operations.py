"""Notices, budget and sessions, which outlive a cluster."""

from __future__ import annotations

from podwright.settings import names
from podwright.settings.root import Settings
from podwright_constructs.budget import ClusterBudget
from podwright_constructs.kit import TerraformOutput, TerraformStack
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.session import SessionDocument


def operations(stack: TerraformStack, settings: Settings, key_arn: str | None) -> None:
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
        document = SessionDocument(stack, "session", name=name, idle_minutes=settings.session.idle_minutes)
        TerraformOutput(stack, "SessionDocument", value=document.name)
