"""The role that a construct gives permissions to."""

from __future__ import annotations

from typing import Protocol

from podwright_constructs.aws.data_iam_policy_document import DataIamPolicyDocumentStatement


class Grantee(Protocol):
    """Receives permissions: an ``ExecutionRole``. An existing role is not changed."""

    def add_statement(self, statement: DataIamPolicyDocumentStatement) -> None:
        """Allow more."""
