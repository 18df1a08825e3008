"""The permissions that a settings file asks of existing roles beyond AWS's managed policy for nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from podwright.settings import names
from podwright.settings.access import ExistingKey, ExistingRole
from podwright.settings.operations import DatabaseAccounting, ExistingAccounting, ExistingPrometheus, NoPrometheus
from podwright.settings.regions import partition_of
from podwright.settings.root import Settings
from podwright.settings.storage import ExistingBucket
from podwright_constructs import facts

_LOGS = ("logs:CreateLogStream", "logs:DescribeLogGroups", "logs:DescribeLogStreams", "logs:PutLogEvents")
_USE_KEY = ("kms:Decrypt", "kms:GenerateDataKey")
_USE_VOLUME_KEY = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext")
_READ_SECRET = ("secretsmanager:GetSecretValue",)


@dataclass(frozen=True)
class Right:
    """Actions that a role needs.

    Args:
        key: The key of ``role`` that names the role.
        role: Its ARN.
        actions: IAM's names.
        on: The resource in words.
        resources: Its ARNs, as far as they are known before a deployment.
    """

    key: str
    role: str
    actions: tuple[str, ...]
    on: str
    resources: tuple[str, ...] = ()

    @property
    def reads_secret(self) -> bool:
        """Return whether it is a secret that controllers alone need."""
        return self.actions == _READ_SECRET

    @property
    def words(self) -> str:
        """The actions and the resource: ``s3:GetObject on the mounted buckets``."""
        *leading, final = self.actions
        return f"{', '.join(leading)} and {final} {self.on}" if leading else f"{final} {self.on}"


def rights(settings: Settings) -> Iterator[Right]:
    """Yield the additional permissions that each existing role needs; none if podwright creates the roles."""
    role = settings.role
    if not isinstance(role, ExistingRole):
        return
    for actions, on, resources in _of_controllers(settings):
        key = "controller_arn" if role.controller_arn else "arn"
        yield Right(key, role.controller_arn or role.arn, actions, on, tuple(resources))
    for key, arn in role.arns().items():
        account = arn.split(":")[4] if arn.count(":") > 3 else ""  # noqa: PLR2004 (a malformed one has a finding)
        for actions, on, resources in _of_nodes(settings, account):
            yield Right(key, arn, actions, on, tuple(resources))


_Needed = tuple[tuple[str, ...], str, Sequence[str]]


def _of_controllers(settings: Settings) -> Iterator[_Needed]:
    accounting = settings.accounting
    if isinstance(accounting, DatabaseAccounting):
        secret_arns = [accounting.secret_arn] if isinstance(accounting, ExistingAccounting) else []
        yield _READ_SECRET, "on the database's secret", secret_arns
    ldap = settings.nodes.ldap
    if ldap and ldap.bind_secret_arn:
        yield _READ_SECRET, "on the LDAP secret", [ldap.bind_secret_arn]
    if settings.notices and settings.notices.idle_hours is not None:
        yield ("cloudwatch:PutMetricData",), "in the namespace /aws/sagemaker/Clusters", []


def _of_nodes(settings: Settings, account: str) -> Iterator[_Needed]:
    arn = f"arn:{partition_of(settings.region)}"
    if settings.session and settings.session.log_retention_days:
        group = f"/podwright/sessions/{names.operations_name(settings.name)}"
        named = f"{arn}:logs:{settings.region}:{account}:log-group:{group}:log-stream:any"
        yield _LOGS, f"on the log group {group}", [named]
    prometheus = settings.prometheus
    if settings.nodes.observability and not isinstance(prometheus, NoPrometheus):
        workspace_arns = [prometheus.arn] if isinstance(prometheus, ExistingPrometheus) else []
        yield ("aps:RemoteWrite",), "on the workspace", workspace_arns
    yield from _of_mounts(settings, arn)
    bucket = settings.bucket
    is_named = settings.are_valid("bucket.name")
    if isinstance(bucket, ExistingBucket) and is_named and not bucket.name.startswith(facts.BUCKET_NAME_PREFIX):
        scripts = f"{arn}:s3:::{bucket.name}/{names.scripts_prefix(settings.name)}/any"
        yield ("s3:GetObject",), f"in the bucket {bucket.name}", [scripts] if settings.has_own_scripts else []
    if isinstance(bucket, ExistingBucket) and bucket.key_arn:
        yield _USE_KEY, "on the bucket's key", [bucket.key_arn]
    elif bucket.source == "create" and settings.key.source != "none":
        yield _USE_KEY, "on the key", [settings.key.arn] if isinstance(settings.key, ExistingKey) else []
    volume_keys = sorted({group.key_arn for group in settings.cluster.instance_groups if group.key_arn})
    if volume_keys:
        yield _USE_VOLUME_KEY, "on the volumes' keys", volume_keys


def _of_mounts(settings: Settings, arn: str) -> Iterator[_Needed]:
    mounts = settings.nodes.s3_mounts
    if not mounts:
        return
    yield ("s3:ListBucket",), "on the mounted buckets", sorted({f"{arn}:s3:::{item.bucket}" for item in mounts})
    objects = sorted({f"{arn}:s3:::{item.bucket}/{item.prefix}any" for item in mounts})
    yield ("s3:GetObject",), "in the mounted buckets", objects
    writable = sorted({f"{arn}:s3:::{item.bucket}/{item.prefix}any" for item in mounts if not item.read_only})
    if writable:
        actions = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject")
        yield actions, "in mounts that are not read_only", writable
