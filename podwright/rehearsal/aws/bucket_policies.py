"""Bucket policies as S3 would read them here: moto reads no conditions, so a "deny without TLS" would deny everything."""

from __future__ import annotations

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

# The loopback stands for TLS: statements about requests without it never apply.
WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


def install() -> None:
    """Have moto's buckets judge by ``permission``."""
    FakeBucket.get_permission = permission


def permission(bucket: Any, action: str, resource: str) -> Any:
    """What the bucket's policy says of an action; neutral without a policy."""
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    policy = json.loads(bucket.policy)
    policy["Statement"] = [item for item in policy["Statement"] if item.get("Condition") != WITHOUT_TLS]
    return IAMPolicy(json.dumps(policy)).is_action_permitted(action, resource)
