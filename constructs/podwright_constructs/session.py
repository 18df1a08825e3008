"""Shell access to nodes through Session Manager, as the user who runs jobs instead of root."""

from __future__ import annotations

import json
from collections.abc import Mapping

from constructs import Construct

from podwright_bootstrap import contract
from podwright_constructs import checks
from podwright_constructs.aws.cloudwatch_log_group import CloudwatchLogGroup
from podwright_constructs.aws.ssm_document import SsmDocument
from podwright_constructs.construct import CheckedConstruct
from podwright_constructs.problems import refuse
from podwright_constructs.role import ExecutionRole


class SessionDocument(CheckedConstruct):
    """A Session document for ``aws ssm start-session --document-name``.

    https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-schema.html

    Args:
        scope: as of every construct.
        id_: as of every construct.
        name: of the document, unique in account and region.
        user: user who runs the shell.
        idle_minutes: Minutes after which an idle session ends.
        log_retention_days: Days that a log group of its own keeps what sessions show. Default: it is not recorded.
            The node writes it: call ``grant_logs`` with its role.
        key_arn: KMS key of that log group. Default: CloudWatch's own.

    Raises:
        InvalidArgumentsError: SSM or CloudWatch would refuse a value; all problems are in it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        user: str = contract.JOB_USER,
        idle_minutes: int = 20,
        log_retention_days: int | None = None,
        key_arn: str | None = None,
    ) -> None:
        problems = checks.session_document(
            name=name, idle_minutes=idle_minutes, log_retention_days=log_retention_days, key_arn=key_arn
        )
        refuse(self, problems)
        super().__init__(scope, id_)
        self.log_group = self._log_group(name, log_retention_days, key_arn) if log_retention_days else None
        content = {
            "schemaVersion": "1.0",
            "description": f"A shell of {user} on a cluster's node",
            "sessionType": "Standard_Stream",
            "inputs": {
                "runAsEnabled": True,
                "runAsDefaultUser": user,
                "idleSessionTimeout": str(idle_minutes),
                "shellProfile": {"linux": "cd ~ && exec bash --login"},
                **self._logging(encrypted=key_arn is not None),
            },
        }
        self.document = SsmDocument(
            self, "document", name=name, document_type="Session", document_format="JSON", content=json.dumps(content)
        )
        self.name = self.document.name

    def grant_logs(self, role: ExecutionRole) -> None:
        """Let the nodes of a role write recordings of sessions, if they are kept.

        https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html
        """
        if self.log_group:
            write = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
            role.add_statement({"sid": "FindSessionLogs", "actions": ["logs:DescribeLogGroups"], "resources": ["*"]})
            role.add_statement(
                {"sid": "WriteSessionLogs", "actions": write, "resources": [f"{self.log_group.arn}:log-stream:*"]}
            )

    def _log_group(self, name: str, retention_days: int, key_arn: str | None) -> CloudwatchLogGroup:
        group = f"/podwright/sessions/{name}"
        return CloudwatchLogGroup(self, "log_group", name=group, retention_in_days=retention_days, kms_key_id=key_arn)

    def _logging(self, *, encrypted: bool) -> Mapping[str, object]:
        if self.log_group is None:
            return {}
        return {
            "cloudWatchLogGroupName": self.log_group.name,
            "cloudWatchEncryptionEnabled": encrypted,  # true refuses a group without a key of yours
            "cloudWatchStreamingEnabled": True,
        }
