"""Where nodes get their scripts and their training program from: a bucket you have, or one made here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cdktf import AssetType, ITerraformDependable, TerraformAsset, TerraformResourceLifecycle
from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocument
from podwright_constructs.aws.s3_bucket import S3Bucket
from podwright_constructs.aws.s3_bucket_policy import S3BucketPolicy
from podwright_constructs.aws.s3_bucket_public_access_block import S3BucketPublicAccessBlock
from podwright_constructs.aws.s3_bucket_server_side_encryption_configuration import (
    S3BucketServerSideEncryptionConfiguration,
)
from podwright_constructs.aws.s3_bucket_versioning import S3BucketVersioning
from podwright_constructs.aws.s3_object import S3Object, S3ObjectOverrideProvider
from podwright_constructs.ordering import before
from podwright_constructs.problems import refuse


class Bucket(Protocol):
    """What uploads and roles ask of a bucket."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def ready(self) -> Sequence[ITerraformDependable]:
        """What must exist before anything is uploaded: encryption, versions, policy."""


@dataclass(frozen=True, kw_only=True)
class ExistingBucket:
    """A bucket you have; its encryption and policy are yours.

    Raises:
        InvalidArgumentsError: SageMaker would not read scripts from a bucket of that name.
    """

    name: str
    ready: Sequence[ITerraformDependable] = ()

    def __post_init__(self) -> None:
        refuse(self, checks.existing_bucket(name=self.name))


class TrainingBucket(Construct):
    """A private, encrypted, versioned bucket that answers over TLS alone.

    ``on_destroy="retain"`` makes Terraform refuse to destroy it while it holds objects, ``"destroy"`` deletes them.

    Raises:
        InvalidArgumentsError: a prefix that SageMaker or S3 would refuse; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, *, bucket_prefix: str, on_destroy: Literal["retain", "destroy"] = "retain"
    ) -> None:
        refuse(self, checks.training_bucket(bucket_prefix=bucket_prefix, on_destroy=on_destroy))
        super().__init__(scope, id_)
        bucket = S3Bucket(self, "bucket", bucket_prefix=bucket_prefix, force_destroy=on_destroy == "destroy")
        self.name = bucket.bucket
        self.ready: Sequence[ITerraformDependable] = [
            self._versioning(),
            self._encryption(),
            self._tls_only(bucket, after=self._no_public_access()),
        ]

    def _versioning(self) -> S3BucketVersioning:
        return S3BucketVersioning(self, "versioning", bucket=self.name, versioning_configuration={"status": "Enabled"})

    def _encryption(self) -> S3BucketServerSideEncryptionConfiguration:
        return S3BucketServerSideEncryptionConfiguration(
            self,
            "encryption",
            bucket=self.name,
            rule=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}],
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

    def _tls_only(self, bucket: S3Bucket, *, after: S3BucketPublicAccessBlock) -> S3BucketPolicy:
        document = DataIamPolicyDocument(
            self,
            "tls_only",
            statement=[
                {
                    "sid": "RefuseAnythingButTls",
                    "effect": "Deny",
                    "principals": [{"type": "*", "identifiers": ["*"]}],
                    "actions": ["s3:*"],
                    "resources": [bucket.arn, f"{bucket.arn}/*"],
                    "condition": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}],
                }
            ],
        )
        # S3 refuses two changes of a bucket's access at once (OperationAborted).
        return S3BucketPolicy(self, "policy", bucket=self.name, policy=document.json, depends_on=[after])


# A bucket's objects may have 10 tags, a provider's default tags may be more.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
NO_DEFAULT_TAGS: S3ObjectOverrideProvider = {"default_tags": {"tags": {}}}


def upload(scope: Construct, id_: str, *, bucket: Bucket, key: str, file: Path) -> S3Object:
    """Put a file into a bucket under a key that changes with the content.

    The old object goes after the new one is in use: whoever refers to the key is changed in between.
    """
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
        depends_on=before(scope, bucket.ready),
        lifecycle=TerraformResourceLifecycle(create_before_destroy=True),
    )


def sha256_of(file: Path) -> str:
    """Hexadecimal digest of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
