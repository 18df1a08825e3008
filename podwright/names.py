"""Every physical name, made of the cluster's name in one place."""

from __future__ import annotations

import hashlib

from podwright.settings import Settings
from podwright_constructs import facts

CLUSTER_TAG = "podwright:cluster"


def foundation_stack(name: str) -> str:
    """The Terraform stack of what you keep."""
    return f"{name}-foundation"


def cluster_stack(name: str) -> str:
    """The Terraform stack of what you may destroy tonight."""
    return f"{name}-cluster"


def bucket_prefix(name: str) -> str:
    """What the created bucket's name begins with; Terraform appends digits that make it unique in the world."""
    room = facts.MAX_BUCKET_PREFIX_LENGTH - len(facts.BUCKET_NAME_PREFIX) - len("-")
    return f"{facts.BUCKET_NAME_PREFIX}{_shorten(name.lower(), room)}-"


def role_name(name: str) -> str:
    """The created role's name; roles are global in an account, so two clusters of one name cannot share it."""
    suffix = "-nodes"
    return _shorten(name, facts.MAX_ROLE_NAME_LENGTH - len(suffix)) + suffix


def tags(settings: Settings) -> dict[str, str]:
    """The tags of everything that is created: the user's and the one that says which cluster it belongs to."""
    return {**settings.tags, CLUSTER_TAG: settings.name}


def _shorten(name: str, max_length: int) -> str:
    """The name, or its beginning and a hash of the whole, so that two long names stay two."""
    if len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: max_length - len(digest) - 1].rstrip('-')}-{digest}"
