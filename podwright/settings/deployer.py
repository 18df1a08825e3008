"""The AWS session of deployments: with the role that the settings name, as Terraform assumes it."""

from __future__ import annotations

from podwright.aws_session import RoleOfSession, Session
from podwright.settings.root import Settings


def deployer_session(settings: Settings, *, profile: str | None = None) -> Session:
    """Return a session in the cluster's region, with the rights of deployments.

    Args:
        settings: of the cluster.
        profile: name in AWS's configuration files. Default: ``AWS_PROFILE``, then boto3's order.
    """
    assumed = settings.assume_role
    role = RoleOfSession(assumed.role_arn, assumed.session_name, assumed.external_id) if assumed else None
    return Session(region=settings.region, profile=profile, role=role)
