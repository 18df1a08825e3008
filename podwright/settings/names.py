"""Make every physical name from the cluster's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from podwright_constructs import facts

if TYPE_CHECKING:  # commands that need names alone do not wait for pydantic
    from podwright.settings.root import Settings

OPERATIONS_PREFIX = "podwright-"
TAG_PREFIX = "podwright:"  # Only podwright's own tags have it.
NAME_TAG = "Name"  # The console's column of the same name shows it.
CLUSTER_TAG = f"{TAG_PREFIX}cluster"
CONSTRUCT_PATH_TAG = f"{TAG_PREFIX}construct-path"
FORMER_CONSTRUCT_PATH_TAG = f"{TAG_PREFIX}place"  # Older deployments have this name of the tag.


def foundation_stack(name: str) -> str:
    """Return the name of the foundation's Terraform stack, which you keep."""
    return f"{name}-foundation"


def cluster_stack(name: str) -> str:
    """Return the name of the cluster's Terraform stack, which you may destroy tonight."""
    return f"{name}-cluster"


def bucket_prefix(name: str) -> str:
    """Return the prefix of the created bucket's name; Terraform appends digits that make it globally unique."""
    room = facts.MAX_BUCKET_PREFIX_LENGTH - len(facts.BUCKET_NAME_PREFIX) - len("-")
    return f"{facts.BUCKET_NAME_PREFIX}{_shorten(name.lower(), room)}-"


def is_own_bucket(settings: Settings, bucket: str) -> bool:
    """Return whether a bucket is the cluster's own; Terraform appends digits to the prefix of a created one."""
    if settings.bucket.source == "create":
        return bucket.startswith(bucket_prefix(settings.name))
    return bucket == settings.bucket.name


def role_name(name: str, region: str) -> str:
    """Return the name of the compute nodes' role; it contains the region, because roles are global in an account."""
    return _role(name, f"-{region}-nodes")


def controller_role_name(name: str, region: str) -> str:
    """Return the name of the controllers' role, which also reads the accounting database's password."""
    return _role(name, f"-{region}-controllers")


def login_role_name(name: str, region: str) -> str:
    """Return the name of the login nodes' role."""
    return _role(name, f"-{region}-login")


def region_of_role(role: str) -> str:
    """Return the region in the name of one of our roles; empty if there is none."""
    match = re.search(r"-([a-z]{2}(?:-[a-z]+)+-\d+)-(?:nodes|controllers|login|flow-logs|logs)$", role)
    return match[1] if match else ""


def flow_logs_role_name(name: str, region: str) -> str:
    """Return the name of the role that writes flow logs to their log group."""
    return _role(name, f"-{region}-flow-logs")


def _role(name: str, suffix: str) -> str:
    return _shorten(name, facts.MAX_ROLE_NAME_LENGTH - len(suffix)) + suffix


def key_alias(name: str) -> str:
    """Return the created key's alias, without KMS's prefix ``alias/``."""
    return f"podwright/{name}"


def log_retention_name(name: str, region: str) -> str:
    """The role that sets the log group's retention, and the prefix of its schedules' names."""
    suffix = f"-{region}-logs"
    return _shorten(name, facts.MAX_LOG_RETENTION_NAME_LENGTH - len(suffix)) + suffix


def database_name(name: str) -> str:
    """Return the accounting database's name."""
    prefix, spelt = "slurm-", re.sub("-+", "-", name.lower())
    if spelt != name:  # RDS knows no upper case and no two hyphens in a row
        spelt = f"{spelt}-{_digest(name)}"
    return prefix + _shorten(spelt, facts.MAX_DATABASE_NAME_LENGTH - len(prefix))


def operations_name(name: str) -> str:
    """Return the name of session document and workspace, and the beginning of those of budget and dashboard."""
    return f"{OPERATIONS_PREFIX}{name}"


def dashboard_name(name: str, region: str) -> str:
    """Return the dashboard's name; it contains the region, because dashboards are global in an account."""
    return f"{operations_name(name)}-{region}"


def notices_name(name: str) -> str:
    """Return the topic's name, with which those of EventBridge's rules begin."""
    return OPERATIONS_PREFIX + _shorten(name, facts.MAX_NOTICES_NAME_LENGTH - len(OPERATIONS_PREFIX))


def scripts_prefix(name: str) -> str:
    """Return the bucket prefix of the lifecycle scripts, which nodes read."""
    return f"{name}/lifecycle"


def payload_prefix(name: str) -> str:
    """Return the bucket prefix of the training program, which nodes read."""
    return f"{name}/training"


def bundle_prefix(name: str) -> str:
    """Return the bucket prefix of the offline bundle, which nodes read."""
    return f"{name}/bundle"


def readable_prefixes(name: str) -> tuple[str, ...]:
    """Return all bucket prefixes that nodes read programs from."""
    return scripts_prefix(name), payload_prefix(name), bundle_prefix(name)


def writable_prefixes(name: str) -> tuple[str, ...]:
    """Return the bucket prefixes that nodes may write to."""
    return f"{name}/runs", f"{name}/logs"


def state_key(name: str, region: str, stack: str) -> str:
    """Return the key of a stack's state in the bucket of the states; a name may be in several regions."""
    return f"{name}/{region}/{stack}.tfstate"


def former_state_key(name: str, stack: str) -> str:
    """Return the key of a stack's state until version 0.1.0."""
    return f"{name}/{stack}.tfstate"


def state_file(stack: str, region: str) -> str:
    """Return the name of a stack's local state."""
    return f"terraform.{stack}.{region}.tfstate"


def former_state_file(stack: str) -> str:
    """Return the name of a stack's local state until version 0.1.0."""
    return f"terraform.{stack}.tfstate"


def stack_of_state(path: str) -> str:
    """Return the name of the stack whose state has this path or key; names of stacks have no dot."""
    return path.rpartition("/")[2].removeprefix("terraform.").partition(".")[0]


def session_target(cluster_id: str) -> str:
    """Return the target of ``aws ssm start-session --target``, with placeholders for the node."""
    return f"sagemaker-cluster:{cluster_id}_GROUP-INSTANCE_ID"


def tags(settings: Settings) -> dict[str, str]:
    """Return the tags of all created resources: the user's and the cluster's name."""
    return {**settings.tags, CLUSTER_TAG: settings.name}


def cluster_tags(settings: Settings) -> dict[str, str]:
    """The tags of the cluster itself, which the provider cannot tag: those and its construct path, or the user's."""
    if not settings.cluster.own_tags:
        return dict(settings.tags)
    return {**tags(settings), CONSTRUCT_PATH_TAG: f"{cluster_stack(settings.name)}/cluster/cluster"}


def construct_path(tags: Mapping[str, str]) -> str:
    """Return the construct path in a resource's tags, empty if there is none."""
    return tags.get(CONSTRUCT_PATH_TAG) or tags.get(FORMER_CONSTRUCT_PATH_TAG, "")


def _shorten(name: str, max_length: int) -> str:
    """The name, or its beginning and a hash of the whole, so that two long names stay two."""
    if len(name) <= max_length:
        return name
    digest = _digest(name)
    return f"{name[: max_length - len(digest) - 1].rstrip('-')}-{digest}"


def _digest(name: str) -> str:
    import hashlib  # noqa: PLC0415 — OpenSSL takes 5 ms to load, and few names are too long

    return hashlib.sha256(name.encode()).hexdigest()[:6]
