"""Shell access to nodes through Session Manager, as the user who runs jobs and not as root."""

from __future__ import annotations

import json

from constructs import Construct

from podwright_bootstrap import contract
from podwright_constructs import checks
from podwright_constructs.aws.ssm_document import SsmDocument
from podwright_constructs.problems import refuse


class SessionDocument(Construct):
    """A Session document for ``aws ssm start-session --document-name``.

    https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-schema.html

    Raises:
        InvalidArgumentsError: SSM would refuse the name or the minutes; all problems are in it.
    """

    def __init__(
        self, scope: Construct, id_: str, *, name: str, user: str = contract.JOB_USER, idle_minutes: int = 20
    ) -> None:
        refuse(self, checks.session_document(name=name, idle_minutes=idle_minutes))
        super().__init__(scope, id_)
        content = {
            "schemaVersion": "1.0",
            "description": f"A shell of {user} on a cluster's node",
            "sessionType": "Standard_Stream",
            "inputs": {
                "runAsEnabled": True,
                "runAsDefaultUser": user,
                "idleSessionTimeout": str(idle_minutes),
                "shellProfile": {"linux": "cd ~ && exec bash --login"},
            },
        }
        document = SsmDocument(
            self, "document", name=name, document_type="Session", document_format="JSON", content=json.dumps(content)
        )
        self.name = document.name
