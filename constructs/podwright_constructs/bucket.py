"""The bucket with the nodes' scripts and training program: existing or new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from constructs import Construct

from podwright_common.checksum import sha256_of
from podwright_constructs import checks
from podwright_constructs.arguments.bucket import ExistingBucketArguments
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import (
    DataIamPolicyDocument,
    DataIamPolicyDocumentStatement,
    DataIamPolicyDocumentStatementCondition,
    DataIamPolicyDocumentStatementPrincipals,
)
from podwright_constructs.aws.s3_bucket import S3Bucket
from podwright_constructs.aws.s3_bucket_lifecycle_configuration import S3BucketLifecycleConfiguration
from podwright_constructs.aws.s3_bucket_logging import S3BucketLogging
from podwright_constructs.aws.s3_bucket_policy import S3BucketPolicy
from podwright_constructs.aws.s3_bucket_public_access_block import S3BucketPublicAccessBlock
from podwright_constructs.aws.s3_bucket_server_side_encryption_configuration import (
    S3BucketServerSideEncryptionConfiguration,
    S3BucketServerSideEncryptionConfigurationRule,
)
from podwright_constructs.aws.s3_bucket_versioning import S3BucketVersioning
from podwright_constructs.aws.s3_object import S3Object, S3ObjectOverrideProvider
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.key import Key
from podwright_constructs.kit import AssetType, ITerraformDependable, TerraformAsset, TerraformResourceLifecycle
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse
from podwright_constructs.s3_access import S3Access

ABANDONED_UPLOAD_DAYS = 7


class Bucket(Protocol):
    """The attributes of a bucket that uploads and roles need."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def key_arn(self) -> str | None:
        """The KMS key that its readers need; None where S3 encrypts with its own."""

    @property
    def account_id(self) -> str | None:
        """The account that has the bucket; None for the account of the stack."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """The resources that an upload depends on: encryption, versioning, policy."""


class BucketGrantee(Protocol):
    """Receives access to a bucket: an ``ExecutionRole``."""

    def add_bucket_access(self, access: S3Access) -> None:
        """Allow reading or writing a bucket."""


class Granting:
    """The grants of a bucket."""

    name: str
    key_arn: str | None

    def grant_read(self, role: BucketGrantee, prefix: str = "") -> None:
        """Let a role list and read the objects below a prefix, and use the bucket's key.

        Raises:
            InvalidArgumentsError: the prefix does not end in a slash.
        """
        role.add_bucket_access(S3Access(bucket=self.name, prefix=prefix, key_arn=self.key_arn))

    def grant_read_write(self, role: BucketGrantee, prefix: str = "") -> None:
        """Let a role list, read, write and delete the objects below a prefix, and use the bucket's key.

        Raises:
            InvalidArgumentsError: the prefix does not end in a slash, or nodes could write their own scripts.
        """
        role.add_bucket_access(S3Access(bucket=self.name, prefix=prefix, read_only=False, key_arn=self.key_arn))


@dataclass(frozen=True, kw_only=True)
class ExistingBucket(ExistingBucketArguments, Granting):
    """A bucket you have; its encryption and policy are yours.

    Raises:
        InvalidArgumentsError: the bucket's name, the key's ARN or the account's number is malformed.
    """

    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        problems = checks.existing_bucket(name=self.name, key_arn=self.key_arn, account_id=self.account_id)
        refuse(self, problems)


class TrainingBucket(CheckedConstruct, Granting):
    """A private, encrypted, versioned bucket that answers over TLS alone.

    ``on_destroy="retain"`` makes Terraform refuse to destroy it while it holds objects, ``"destroy"`` deletes them.

    Args:
        bucket_prefix: Prefix of its name, to which Terraform adds digits.
        bucket_name: Its whole name, instead of a prefix. AWS's managed policy for nodes reads buckets named
            ``sagemaker-…`` alone; an ``ExecutionRole`` reads its bucket whatever the name.
        key: The key that encrypts objects. Default: S3's own key.
        noncurrent_version_expiration_days: Days that overwritten and deleted versions are kept.
        access_log_bucket: An existing bucket in this region for access logs. Default: no access logs.
        access_log_prefix: Prefix of the access logs in that bucket.
        receives_logs: whether AWS may deliver logs of this account, such as a VPC's flow logs.

    Attributes:
        name: its name.
        arn: its ARN.
        key_arn: the key that encrypts objects; None for S3's own.
        account_id: None, because the bucket is in the account of the stack.
        bucket: the resource, ``aws_s3_bucket``.
        ready: what an upload depends on.

    Raises:
        InvalidArgumentsError: a name that SageMaker or S3 would refuse; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        bucket_prefix: str | None = None,
        bucket_name: str | None = None,
        on_destroy: Literal["retain", "destroy"] = "retain",
        key: Key | None = None,
        noncurrent_version_expiration_days: int = 90,
        access_log_bucket: str | None = None,
        access_log_prefix: str | None = None,
        receives_logs: bool = False,
    ) -> None:
        problems = checks.training_bucket(
            bucket_prefix=bucket_prefix,
            bucket_name=bucket_name,
            on_destroy=on_destroy,
            noncurrent_version_expiration_days=noncurrent_version_expiration_days,
            access_log_bucket=access_log_bucket,
            access_log_prefix=access_log_prefix,
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        bucket = S3Bucket(
            self,
            "bucket",
            bucket=bucket_name,
            bucket_prefix=bucket_prefix,
            force_destroy=on_destroy == "destroy",
        )
        self.bucket, self.name, self.arn = bucket, bucket.bucket, bucket.arn
        self.key_arn = key.arn if key else None
        self.account_id: str | None = None
        versioning = self._versioning()
        self.ready: Sequence[ITerraformDependable] = [
            versioning,
            self._encryption(),
            self._policy(bucket, receives_logs=receives_logs, after=self._no_public_access()),
        ]
        self._lifecycle(noncurrent_version_expiration_days, after=versioning)
        if access_log_bucket:
            S3BucketLogging(
                self,
                "access_logs",
                bucket=self.name,
                target_bucket=access_log_bucket,
                target_prefix=access_log_prefix or f"{(bucket_name or bucket_prefix or '').rstrip('-')}/",
            )

    @staticmethod
    def from_name(name: str, *, key_arn: str | None = None, account_id: str | None = None) -> ExistingBucket:
        """Return a bucket you have, in this account or another one.

        Raises:
            InvalidArgumentsError: the bucket's name, the key's ARN or the account's number is malformed.
        """
        return ExistingBucket(name=name, key_arn=key_arn, account_id=account_id)

    def _versioning(self) -> S3BucketVersioning:
        return S3BucketVersioning(self, "versioning", bucket=self.name, versioning_configuration={"status": "Enabled"})

    def _encryption(self) -> S3BucketServerSideEncryptionConfiguration:
        rule: S3BucketServerSideEncryptionConfigurationRule = {
            "apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}
        }
        if self.key_arn:
            rule = {
                "apply_server_side_encryption_by_default": {
                    "sse_algorithm": "aws:kms",
                    "kms_master_key_id": self.key_arn,
                },
                "bucket_key_enabled": True,  # one request to KMS for many objects
            }
        return S3BucketServerSideEncryptionConfiguration(self, "encryption", bucket=self.name, rule=[rule])

    def _lifecycle(self, noncurrent_days: int, *, after: S3BucketVersioning) -> None:
        """Expire uploads that were never completed, and old versions of objects."""
        S3BucketLifecycleConfiguration(
            self,
            "lifecycle",
            bucket=self.name,
            rule=[
                {
                    "id": "what-is-left-behind",
                    "status": "Enabled",
                    "filter": [{}],
                    "abort_incomplete_multipart_upload": [{"days_after_initiation": ABANDONED_UPLOAD_DAYS}],
                    "noncurrent_version_expiration": [{"noncurrent_days": noncurrent_days}],
                }
            ],
            depends_on=[after],
        )

    def _no_public_access(self) -> S3BucketPublicAccessBlock:
        return S3BucketPublicAccessBlock(
            self,
            "public_access_block",
            bucket=self.name,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
        )

    def _policy(self, bucket: S3Bucket, *, receives_logs: bool, after: S3BucketPublicAccessBlock) -> S3BucketPolicy:
        statements = [_tls_only(bucket), *(self._delivery_of_logs(bucket) if receives_logs else ())]
        document = DataIamPolicyDocument(self, "access", statement=statements)
        # S3 refuses two changes of a bucket's access at once (OperationAborted).
        return S3BucketPolicy(self, "policy", bucket=self.name, policy=document.json, depends_on=[after])

    def _delivery_of_logs(self, bucket: S3Bucket) -> list[DataIamPolicyDocumentStatement]:
        """https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-s3-permissions.html."""
        account = DataCallerIdentity(self, "caller").account_id
        same_account: DataIamPolicyDocumentStatementCondition = {
            "test": "StringEquals",
            "variable": "aws:SourceAccount",
            "values": [account],
        }
        delivery: DataIamPolicyDocumentStatementPrincipals = {
            "type": "Service",
            "identifiers": ["delivery.logs.amazonaws.com"],
        }
        return [
            {
                "sid": "FindBucketForLogs",
                "principals": [delivery],
                "actions": ["s3:GetBucketAcl", "s3:ListBucket"],
                "resources": [bucket.arn],
                "condition": [same_account],
            },
            {
                "sid": "DeliverLogs",
                "principals": [delivery],
                "actions": ["s3:PutObject"],
                "resources": [f"{bucket.arn}/AWSLogs/{account}/*"],
                "condition": [
                    same_account,
                    {"test": "StringEquals", "variable": "s3:x-amz-acl", "values": ["bucket-owner-full-control"]},
                ],
            },
        ]


def _tls_only(bucket: S3Bucket) -> DataIamPolicyDocumentStatement:
    return {
        "sid": "RefuseAnythingButTls",
        "effect": "Deny",
        "principals": [{"type": "*", "identifiers": ["*"]}],
        "actions": ["s3:*"],
        "resources": [bucket.arn, f"{bucket.arn}/*"],
        "condition": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}],
    }


# A bucket's objects may have 10 tags, a provider's default tags may be more.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
NO_DEFAULT_TAGS: S3ObjectOverrideProvider = {"default_tags": {"tags": {}}}


def upload(scope: Construct, files: Mapping[str, tuple[str, Path]], *, bucket: Bucket) -> list[S3Object]:
    """Upload files, given as construct id: (key, file). A key must change with its file's content.

    Terraform deletes the old object last, when everything that refers to its key has changed.
    """
    dependencies = before(scope, bucket.ready)
    return [
        _object(scope, id_, bucket=bucket, key=key, file=file, dependencies=dependencies)
        for id_, (key, file) in files.items()
    ]


def _object(
    scope: Construct, id_: str, *, bucket: Bucket, key: str, file: Path, dependencies: list[ITerraformDependable]
) -> S3Object:
    asset = TerraformAsset(
        scope, f"{id_}_file", path=str(file.resolve()), type=AssetType.FILE, asset_hash=sha256_of(file)
    )
    return S3Object(
        scope,
        id_,
        bucket=bucket.name,
        key=key,
        source=asset.path,
        override_provider=NO_DEFAULT_TAGS,
        depends_on=dependencies,
        lifecycle=TerraformResourceLifecycle(create_before_destroy=True),
    )
