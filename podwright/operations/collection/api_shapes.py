"""The members of SageMaker's answers about a cluster, with their types and, of enumerations, their values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from podwright.aws_session import Session
from podwright.errors import AwsError
from podwright.operations.account.hyperpod import Cluster, Node

SHOWN_TEXTS = {"InstanceType", "CurrentImageReleaseVersion", "DesiredImageReleaseVersion"}  # AWS's own words
EVENTS = 50
UNKNOWN = "not in botocore's model"


def answers(session: Session, cluster: Cluster, nodes: Iterable[Node]) -> dict[str, dict[str, str]]:
    """Return the shapes of the answers about a cluster by operation: types and enumerations by path.

    An operation that AWS refuses has one line with the error's code.
    """
    node_of_group = {node.group: node for node in nodes}
    calls: Mapping[str, tuple[str, list[dict[str, Any]]]] = {
        "DescribeCluster": ("describe_cluster", [{}]),
        "ListClusterNodes": ("list_cluster_nodes", [{}]),
        "DescribeClusterNode": (
            "describe_cluster_node",
            [{"NodeId": node.instance_id} for node in node_of_group.values()],
        ),
        "ListClusterEvents": ("list_cluster_events", [{"MaxResults": EVENTS}]),
    }
    shapes = {}
    for operation, (method, requests) in calls.items():
        model = session.client("sagemaker").meta.service_model.operation_model(operation).output_shape
        try:
            bodies = [_body(session, method, ClusterName=cluster.arn, **request) for request in requests]
        except AwsError as error:
            shapes[operation] = {"": f"no answer: {error.code}"}
        else:
            shapes[operation] = shape_of(bodies, model)
    return shapes


def shape_of(bodies: Iterable[Any], model: Any) -> dict[str, str]:
    """Return the types and enumerations of answers by path; ``model`` is botocore's shape of them."""
    values: dict[str, set[str]] = {}
    for body in bodies:
        for path, value in _leaves(body, model, ""):
            values.setdefault(path, set()).add(value)
    return {path: " | ".join(sorted(items)) for path, items in sorted(values.items())}


def _body(session: Session, method: str, **request: Any) -> Any:
    """Call an operation and return its answer as AWS sent it: botocore leaves out members that it does not know.

    Raises:
        AwsError: the call failed.
    """
    bodies: list[bytes] = []

    def record(response_dict: Mapping[str, Any], **_: object) -> None:
        bodies.append(response_dict["body"])

    events = session.client("sagemaker").meta.events
    events.register("before-parse.sagemaker", record)
    try:
        session.call("sagemaker", method, **request)
    finally:
        events.unregister("before-parse.sagemaker", record)
    return json.loads(bodies[-1])


def _leaves(value: Any, model: Any, path: str) -> Iterator[tuple[str, str]]:
    if value is None:
        yield path, "null"
    elif model.type_name == "structure":
        for name, item in value.items():
            member = model.members.get(name)
            member_path = f"{path}.{name}".lstrip(".")
            yield from _leaves(item, member, member_path) if member else [(member_path, UNKNOWN)]
    elif model.type_name == "list":
        if not value:
            yield f"{path}[]", "empty"
        for item in value:
            yield from _leaves(item, model.member, f"{path}[]")
    elif model.type_name == "map":
        yield path, "map"  # Its keys are the user's, such as those of tags.
    elif getattr(model, "enum", None) or path.rpartition(".")[2] in SHOWN_TEXTS:
        yield path, str(value)
    else:
        yield path, str(model.type_name)
