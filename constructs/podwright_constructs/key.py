"""The KMS key for data at rest: existing or new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from constructs import Construct

from podwright_constructs import checks
from podwright_constructs.aws.data_caller_identity import DataCallerIdentity
from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocument, DataIamPolicyDocumentStatement
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.aws.kms_alias import KmsAlias
from podwright_constructs.aws.kms_key import KmsKey
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.grants import Grantee
from podwright_constructs.problems import refuse

DELETION_WINDOW_DAYS = 30  # the longest: until then a deletion can be taken back


class Key(Protocol):
    """The attributes of a key that buckets, file systems and log groups need."""

    @property
    def arn(self) -> str:
        """Its ARN."""


@dataclass(frozen=True, kw_only=True)
class ExistingKey:
    """An existing key; its policy must admit CloudWatch Logs, and the roles that read encrypted data.

    Raises:
        InvalidArgumentsError: the ARN is malformed, or an alias's.
    """

    arn: str

    def __post_init__(self) -> None:
        refuse(self, checks.existing_key(arn=self.arn))


class EncryptionKey(CheckedConstruct):
    """A symmetric key that KMS rotates every year, with an alias.

    IAM's policies say who of the account uses it: through S3, FSx and EBS that is whoever calls them. CloudWatch Logs,
    the delivery of logs to S3, and messages of EventBridge and CloudWatch to topics are services of their own and stand
    in the key's policy, for this account alone.
    https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-default.html
    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html

    Raises:
        InvalidArgumentsError: KMS would refuse the alias, which is given without ``alias/``.
    """

    def __init__(self, scope: Construct, id_: str, *, alias: str) -> None:
        refuse(self, checks.encryption_key(alias=alias))
        super().__init__(scope, id_)
        self._account = DataCallerIdentity(self, "caller").account_id
        self._partition = DataPartition(self, "partition")
        self._region = DataRegion(self, "region").id
        statements = [self._account_decides(), self._log_groups(), self._delivered_logs(), self._published_events()]
        self.key = KmsKey(
            self,
            "key",
            description=f"Data at rest of {alias}",
            enable_key_rotation=True,
            deletion_window_in_days=DELETION_WINDOW_DAYS,
            policy=DataIamPolicyDocument(self, "policy", statement=statements).json,
        )
        KmsAlias(self, "alias", name=f"alias/{alias}", target_key_id=self.key.key_id)
        self.arn = self.key.arn

    @staticmethod
    def from_arn(arn: str) -> ExistingKey:
        """Return a key you have.

        Raises:
            InvalidArgumentsError: the ARN is malformed, or an alias's.
        """
        return ExistingKey(arn=arn)

    def grant_encrypt_decrypt(self, role: Grantee) -> None:
        """Let a role encrypt and decrypt with the key itself; buckets and file systems need no such grant."""
        actions = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
        role.add_statement({"actions": actions, "resources": [self.arn]})

    def _account_decides(self) -> DataIamPolicyDocumentStatement:
        root = f"arn:{self._partition.partition}:iam::{self._account}:root"
        return {
            "sid": "LetIamDecideWhoUsesIt",
            "principals": [{"type": "AWS", "identifiers": [root]}],
            "actions": ["kms:*"],
            "resources": ["*"],  # in a key's policy: this key
        }

    def _log_groups(self) -> DataIamPolicyDocumentStatement:
        groups = f"arn:{self._partition.partition}:logs:{self._region}:{self._account}:log-group:*"
        return {
            "sid": "EncryptLogGroups",
            "principals": [
                {"type": "Service", "identifiers": [f"logs.{self._region}.{self._partition.dns_suffix}"]},
            ],
            "actions": ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"],
            "resources": ["*"],
            "condition": [{"test": "ArnLike", "variable": "kms:EncryptionContext:aws:logs:arn", "values": [groups]}],
        }

    def _delivered_logs(self) -> DataIamPolicyDocumentStatement:
        """Of logs that AWS writes into a bucket, flow logs among them.

        https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-s3-cmk-policy.html
        """
        return {
            "sid": "EncryptDeliveredLogs",
            "principals": [{"type": "Service", "identifiers": ["delivery.logs.amazonaws.com"]}],
            "actions": ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"],
            "resources": ["*"],
            "condition": [{"test": "StringEquals", "variable": "aws:SourceAccount", "values": [self._account]}],
        }

    def _published_events(self) -> DataIamPolicyDocumentStatement:
        """EventBridge and CloudWatch give SNS no source account, so the topic's ARN identifies the account.

        https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
        """
        topics = f"arn:{self._partition.partition}:sns:{self._region}:{self._account}:*"
        return {
            "sid": "EncryptPublishedEvents",
            "principals": [{"type": "Service", "identifiers": ["cloudwatch.amazonaws.com", "events.amazonaws.com"]}],
            "actions": ["kms:Decrypt", "kms:GenerateDataKey*"],
            "resources": ["*"],
            "condition": [
                {"test": "ArnLike", "variable": "kms:EncryptionContext:aws:sns:topicArn", "values": [topics]}
            ],
        }
