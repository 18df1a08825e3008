"""The roles that constructs give permissions to, and what the permissions are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, cast

from podwright_constructs import checks
from podwright_constructs.aws.data_iam_policy_document import (
    DataIamPolicyDocument,
    DataIamPolicyDocumentStatement,
    DataIamPolicyDocumentStatementCondition,
)
from podwright_constructs.aws.data_partition import DataPartition
from podwright_constructs.aws.data_region import DataRegion
from podwright_constructs.problems import refuse
from podwright_constructs.s3_access import S3Access

KEY_ACTIONS_OF_OBJECTS = ("kms:Decrypt", "kms:GenerateDataKey")


class Grantee(Protocol):
    """Receives permissions: an ``ExecutionRole``, or a ``GrantedRole``, which was made elsewhere."""

    def add_statement(self, statement: DataIamPolicyDocumentStatement) -> None:
        """Allow more."""


class ReceivesGrants:
    """The part of a role that receives permissions, in one policy document."""

    _permissions: DataIamPolicyDocument
    _own_bucket = ""
    _own_prefixes: Sequence[str] = ()

    def add_statement(self, statement: DataIamPolicyDocumentStatement) -> None:
        """Allow more, in the words of Terraform's ``aws_iam_policy_document``: actions, resources, condition.

        IAM's policy variables are written as IAM has them, such as ``${aws:PrincipalTag/team}``.

        Raises:
            InvalidArgumentsError: an action or a resource is malformed; all problems are in it.
        """
        actions, resources = statement.get("actions") or (), statement.get("resources") or ()
        refuse(self, checks.statement_problems(actions=actions, resources=resources))
        escaped = cast("DataIamPolicyDocumentStatement", with_policy_variables(statement))
        self._permissions.append("statement", escaped)

    def add_bucket_access(self, access: S3Access) -> None:
        """Allow reading or writing a bucket and the use of its key; ``Bucket.grant_read`` calls it.

        Raises:
            InvalidArgumentsError: nodes could write their own scripts, or a name is malformed; all problems are in it.
        """
        refuse(self, checks.s3_access_problems(access, own_bucket=self._own_bucket, own_prefixes=self._own_prefixes))
        name = f"Granted{next(self._grant_numbers)}"
        for statement in self._access(access, f"List{name}", f"Use{name}"):
            self.add_statement(statement)
        if access.key_arn:
            self.add_statement(self._use_key(f"UseKeyOf{name}", KEY_ACTIONS_OF_OBJECTS, [access.key_arn], "s3"))

    def never_write(self, prefixes: Sequence[str]) -> None:
        """Deny writing what nodes run, as BUCKET/PREFIX; a cluster calls it for its nodes' roles."""
        statement: DataIamPolicyDocumentStatement = {
            "effect": "Deny",
            "actions": ["s3:DeleteObject*", "s3:PutObject*", "s3:RestoreObject"],
            "resources": [f"arn:{self._partition}:s3:::{prefix}/*" for prefix in prefixes],
        }
        self.add_statement(statement)

    def _find_place(self: Any) -> None:
        """Ask for the names that ARNs of the stack's account and region begin with."""
        partition = DataPartition(self, "partition")
        self._partition, self._dns_suffix = partition.partition, partition.dns_suffix
        self._region = DataRegion(self, "region").id
        self._grant_numbers = count()

    def _access(self, access: S3Access, list_sid: str, use_sid: str) -> Iterator[DataIamPolicyDocumentStatement]:
        arn = f"arn:{self._partition}:s3:::{access.bucket}"
        actions = ["s3:GetObject"]
        if not access.read_only:
            actions += ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"]
        may_list: DataIamPolicyDocumentStatement = {"sid": list_sid, "actions": ["s3:ListBucket"], "resources": [arn]}
        if access.prefix:
            values = [f"{access.prefix}*"]
            may_list["condition"] = [{"test": "StringLike", "variable": "s3:prefix", "values": values}]
        yield may_list
        yield {"sid": use_sid, "actions": actions, "resources": [f"{arn}/{access.prefix}*"]}

    def _use_key(
        self, sid: str, actions: Sequence[str], key_arns: Sequence[str], *services: str
    ) -> DataIamPolicyDocumentStatement:
        through: DataIamPolicyDocumentStatementCondition = {
            "test": "StringEquals",
            "variable": "kms:ViaService",
            "values": [f"{service}.{self._region}.{self._dns_suffix}" for service in services],
        }
        return {"sid": sid, "actions": actions, "resources": list(key_arns), "condition": [through]}


def with_policy_variables(value: Any) -> Any:
    """Return a statement whose texts have IAM's policy variables as the data source writes them."""
    if isinstance(value, str):
        return checks.with_policy_variables(value)
    if isinstance(value, Mapping):
        return {key: with_policy_variables(item) for key, item in value.items()}
    return [with_policy_variables(item) for item in value] if isinstance(value, list | tuple) else value
