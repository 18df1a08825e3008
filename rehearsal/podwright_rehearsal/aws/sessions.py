"""Systems Manager's sessions on HyperPod nodes: the answer with which a Session Manager plugin opens one.

https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-run-jobs-slurm-access-nodes.html
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from podwright_rehearsal.aws.account import Account
from podwright_rehearsal.aws.aws_errors import AwsError
from podwright_rehearsal.aws.hyperpod import ClusterNode, EmulatedClusters

TARGET = re.compile(r"sagemaker-cluster:(?P<cluster>[a-z0-9]+)_(?P<group>.+)-(?P<instance>i-[0-9a-f]+)")
SHELL = "SSM-SessionManagerRunShell"
# AWS's own documents, with the parameters that they require.
# https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-schema.html
REQUIRED: Mapping[str, tuple[str, ...]] = {
    SHELL: (),
    "AWS-StartSSHSession": ("portNumber",),
    "AWS-StartPortForwardingSession": ("portNumber", "localPortNumber"),
    "AWS-StartInteractiveCommand": ("command",),
    "AWS-StartNonInteractiveCommand": ("command",),
}


class Sessions:
    """The service. Not thread-safe: the server calls it under its lock."""

    def __init__(self, *, account: Account, clusters: EmulatedClusters) -> None:
        self._account = account
        self._clusters = clusters
        self.operations = {"StartSession": self.start_session, "TerminateSession": self.terminate_session}

    def start_session(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """StartSession: of a running node, with a document that exists and all that it requires."""
        target = request.get("Target", "")
        node = self._node(target)
        if node is None or node.status != "Running":
            raise AwsError("TargetNotConnected", f"{target} is not connected.")
        document = request.get("DocumentName", SHELL)
        required = REQUIRED.get(document)
        if required is None and not self._account.has_session_document(document):
            raise AwsError("InvalidDocument", f"Document with name {document} does not exist.")
        if missing := [name for name in required or () if not (request.get("Parameters") or {}).get(name)]:
            raise AwsError("InvalidParameters", f"{document} needs the parameters {', '.join(missing)}")
        session_id = f"rehearsal-{secrets.token_hex(8)}"
        return {
            "SessionId": session_id,
            "TokenValue": secrets.token_urlsafe(32),
            "StreamUrl": f"wss://ssmmessages.{self._account.region}.amazonaws.com/v1/data-channel/{session_id}",
        }

    def terminate_session(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """TerminateSession."""
        return {"SessionId": request.get("SessionId", "")}

    def _node(self, target: str) -> ClusterNode | None:
        """Return the node of ``sagemaker-cluster:CLUSTER_GROUP-INSTANCE``, or None if it does not exist."""
        match = TARGET.fullmatch(target)
        if match is None:
            return None
        identity = (match["cluster"], match["group"], match["instance"])
        return next(
            (
                node
                for cluster in self._clusters.all()
                for node in cluster.nodes
                if (cluster.cluster_id, node.group, node.instance_id) == identity
            ),
            None,
        )
