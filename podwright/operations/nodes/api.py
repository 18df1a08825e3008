"""Add, replace, reboot and delete nodes through SageMaker's Batch operations.

https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_BatchReplaceClusterNodes.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podwright.aws_session import Session
from podwright.errors import ArgumentError, AwsError
from podwright.json_document import JsonObject
from podwright.operations.account.hyperpod import Cluster, Node

BATCH_SIZE = 25  # nodes in a call
ADDED_AT_A_TIME = 50


@dataclass(frozen=True)
class NodeChange:
    """A Batch operation: boto3's name, its verb, and the consequences that the question before it names."""

    operation: str
    verb: str
    consequences: str
    for_controllers: bool = False  # whether AWS does it to a controller


REPLACE = NodeChange(
    "batch_replace_cluster_nodes",
    "replace",
    "New instances come up with empty disks, and jobs on the old ones are requeued.",
)
REBOOT = NodeChange("batch_reboot_cluster_nodes", "reboot", "Jobs on them are requeued.", for_controllers=True)
DELETE = NodeChange(
    "batch_delete_cluster_nodes", "delete", "Their disks are lost, and their groups have fewer nodes from then on."
)


@dataclass(frozen=True)
class Result:
    """AWS's answer for one node: ``code`` and ``message`` are empty if the change was accepted."""

    node: Node
    code: str = ""
    message: str = ""

    @property
    def accepted(self) -> bool:
        """True if AWS carries the change out."""
        return not self.code


def protect_controllers(change: NodeChange, nodes: Sequence[Node], *, include_controller: bool) -> None:
    """Refuse a change of a controller.

    Raises:
        ArgumentError: one of the nodes is a controller, and AWS cannot change controllers, or it is not allowed.
    """
    controllers = [node.name for node in nodes if node.is_controller]
    if not controllers:
        return
    of = f"{' and '.join(controllers)} runs Slurm's controller"
    if not change.for_controllers:
        raise ArgumentError(
            f"{of}: AWS cannot {change.verb} it", "reboot it with `podwright nodes reboot --include-controller`"
        )
    if not include_controller:
        hint = "running jobs continue, and no job starts until it is back"
        raise ArgumentError(f"{of}: rebooting it needs --include-controller", hint)


def apply(session: Session, cluster: Cluster, change: NodeChange, nodes: Sequence[Node]) -> Iterator[Result]:
    """Change nodes, 25 in a call, and yield the answer for each.

    A call that is refused as a whole counts as the answer for its nodes, and ends the calls: what AWS accepted before
    stays known.
    """
    for start in range(0, len(nodes), BATCH_SIZE):
        batch = nodes[start : start + BATCH_SIZE]
        try:
            answer = session.call(
                "sagemaker",
                change.operation,
                ClusterName=cluster.arn,
                NodeIds=[node.instance_id for node in batch],
            )
        except AwsError as error:
            if start == 0:
                raise
            yield from (Result(node, error.code or "NotSent", str(error)) for node in nodes[start:])
            return
        yield from _results(batch, answer)


def _results(batch: Sequence[Node], answer: Mapping[str, Any]) -> Iterator[Result]:
    failed = {item["NodeId"]: item for item in answer.get("Failed", ())}
    for node in batch:
        item = failed.get(node.instance_id)
        if item is None:
            yield Result(node)
        else:  # BatchDeleteClusterNodes calls it Code
            code = item.get("ErrorCode") or item.get("Code") or "Failed"
            yield Result(node, code, " ".join(item.get("Message", "").split()))


@dataclass(frozen=True)
class Added(JsonObject):
    """AWS's answer for new nodes."""

    group: str
    nodes: tuple[str, ...]
    """Their logical ids."""
    refused: int
    code: str
    """AWS's; empty where it accepted."""
    message: str


def add(session: Session, cluster: Cluster, group: str, count: int) -> Iterator[Added]:
    """Add nodes to a group, 50 in a call, and yield the answer of each call.

    A call that is refused as a whole counts as the answer for its nodes, and ends the calls.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_BatchAddClusterNodes.html

    Raises:
        AwsError: AWS refuses the first call.
    """
    for start in range(0, count, ADDED_AT_A_TIME):
        increment = min(ADDED_AT_A_TIME, count - start)
        try:
            answer = session.call(
                "sagemaker",
                "batch_add_cluster_nodes",
                ClusterName=cluster.arn,
                NodesToAdd=[{"InstanceGroupName": group, "IncrementTargetCountBy": increment}],
            )
        except AwsError as error:
            if start == 0:
                raise
            yield Added(group, (), count - start, error.code or "NotSent", str(error))
            return
        node_ids = tuple(item["NodeLogicalId"] for item in answer["Successful"])
        if node_ids:
            yield Added(group, node_ids, 0, "", "")
        for item in answer["Failed"]:
            yield Added(group, (), item["FailedCount"], item["ErrorCode"], " ".join(item.get("Message", "").split()))


def start_health_checks(session: Session, cluster: Cluster, nodes: Sequence[Node], checks: Sequence[str]) -> None:
    """Start deep health checks, such as ``InstanceStress``, on nodes: one call, with an entry for each group.

    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StartClusterHealthCheck.html

    Raises:
        AwsError: AWS refuses the call.
    """
    instance_ids: dict[str, list[str]] = {}
    for node in nodes:
        instance_ids.setdefault(node.group, []).append(node.instance_id)
    configurations = [
        {"InstanceGroupName": group, "InstanceIds": ids, "DeepHealthChecks": list(checks)}
        for group, ids in instance_ids.items()
    ]
    session.call(
        "sagemaker",
        "start_cluster_health_check",
        ClusterName=cluster.arn,
        DeepHealthCheckConfigurations=configurations,
    )
