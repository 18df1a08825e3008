"""Turn an instance group, as SageMaker describes it, into a request of UpdateCluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podwright.aws_session import Session
from podwright.operations.account.hyperpod import InstanceGroup


def group_request(session: Session, group: InstanceGroup, *, count: int) -> dict[str, Any]:
    """Return the group with another number of nodes and all its other settings as they are.

    UpdateCluster takes whole groups; botocore's service model says which members of the description it knows.
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterInstanceGroupSpecification.html
    """
    with session.translated("sagemaker"):
        model = session.client("sagemaker").meta.service_model
    shape = model.operation_model("UpdateCluster").input_shape.members["InstanceGroups"].member
    request: dict[str, Any] = _fitting(shape, group.description)
    described = group.description
    if kinds := described.get("InstanceRequirements", {}).get("DesiredInstanceTypes"):
        request.pop("InstanceType", None)
        request["InstanceRequirements"] = {"InstanceTypes": kinds}
    if described.get("DesiredImageId"):
        request["ImageId"] = described["DesiredImageId"]
    if described.get("MinCount"):
        request["MinInstanceCount"] = described["MinCount"]
    return {**request, "InstanceCount": count}


def _fitting(shape: Any, value: Any) -> Any:
    """Return the part of a value that a shape of botocore has."""
    if shape.type_name == "structure" and isinstance(value, Mapping):
        return {key: _fitting(shape.members[key], value[key]) for key in shape.members if key in value}
    if shape.type_name == "list":
        return [_fitting(shape.member, item) for item in value]
    return value
