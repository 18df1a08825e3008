"""Answers that AWS may give and seldom does; botocore's stubs check them against the service model."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from datetime import datetime, timezone
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.response import StreamingBody
from botocore.stub import ANY, Stubber

from podwright.aws_session import Session
from podwright.errors import OperationError
from podwright.operations.access.remote import Remote
from podwright.operations.account import hyperpod
from podwright.operations.account.inventory import Inventory, Leftover, _Search
from podwright.operations.import_export.imported import ClusterDescription, describe
from podwright.operations.jobs import runs
from podwright_bootstrap.contract import InstanceFacts, NodeRecord
from podwright_testing.mutations import mutated_bytes

pytestmark = pytest.mark.usefixtures("folder")
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"
SCRIPTS = "s3://sagemaker-scripts/src"


def describing(**members: Any) -> dict[str, Any]:
    """Return an answer of DescribeCluster with one group and these members."""
    group = {"InstanceGroupName": "workers", "InstanceType": "ml.g5.12xlarge", "CurrentCount": 2}
    made = {"ClusterName": "odd", "ClusterStatus": "SystemUpdating", "CreationTime": datetime.now(timezone.utc)}
    return {"ClusterArn": ARN, **made, "InstanceGroups": [group], **members}


class DamagedNode:
    """A node that prints a damaged record."""

    node = SimpleNamespace(name="controller/1")
    cluster = SimpleNamespace(name="demo")
    record = ""

    def run(self, _line: str) -> str:
        """Return what the node would print."""
        return f"{self.record}\036yes\n\036rest"


def test_a_damaged_record_of_a_node_is_a_line() -> None:
    """Whatever node.json is, the folder of runs is known, or one error says that the node has to boot again."""
    values = {item.name: item.name for item in fields(NodeRecord)}
    numbers = {"accelerators_per_node": 8, "efa_interfaces": 32, "partitions": {"gpu": InstanceFacts("gpu", 8)}}
    content = json.loads(NodeRecord(**{**values, **numbers}).to_json())  # type: ignore[arg-type]
    random, node = Random(0), DamagedNode()  # noqa: S311 (repeatable accidents)
    refused: list[str] = []
    for _ in range(300):
        node.record = mutated_bytes(content, random).decode(errors="replace")
        try:
            assert runs.find(cast("Remote", node), None).folder.endswith("/runs")
        except OperationError as error:
            refused.append(str(error))
    assert [line for line in refused if len(line.encode().splitlines()) != 1] == []
    assert 50 < len(refused) < 300


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        {"worker_groups": None, "controller_group": ["a"]},
        {"worker_groups": {"instance_group_name": "workers"}},
        {"worker_groups": ["workers", {"partition_name": None}, {"instance_group_name": {}}]},
    ],
)
def test_parameters_of_others_are_no_reason_to_fail(parameters: Any) -> None:
    """provisioning_parameters.json is anybody's file: what it does not say right is not known."""
    session = Session(region="us-west-2")
    scripts = {"LifeCycleConfig": {"SourceS3Uri": SCRIPTS}}
    text = json.dumps(parameters).encode()
    with Stubber(session.client("s3")) as s3:
        body = StreamingBody(io.BytesIO(text), len(text))
        s3.add_response("get_object", {"Body": body}, {"Bucket": ANY, "Key": "src/provisioning_parameters.json"})
        answer = describing()
        answer["InstanceGroups"][0] |= scripts
        (group,) = hyperpod.described(session, answer).groups
    assert (group.role, group.partition) == ("", "")


def test_every_login_group_is_known() -> None:
    """AWS's key names one login group, podwright's own key the others."""
    session = Session(region="us-west-2")
    groups = [{"InstanceGroupName": name, "InstanceType": "ml.m5.large"} for name in ("login", "notebooks")]
    groups[0]["LifeCycleConfig"] = {"SourceS3Uri": SCRIPTS}
    text = json.dumps({"login_group": "login", "podwright": {"more_login_groups": ["notebooks"]}}).encode()
    with Stubber(session.client("s3")) as s3:
        s3.add_response("get_object", {"Body": StreamingBody(io.BytesIO(text), len(text))})
        found = hyperpod.described(session, describing(InstanceGroups=groups)).groups
    assert [group.role for group in found] == ["login", "login"]


def test_a_group_without_scripts_of_its_own_is_described() -> None:
    """Every member of LifeCycleConfig is optional in the API."""
    answer = describing()
    answer["InstanceGroups"][0]["LifeCycleConfig"] = {"OnInitComplete": "after.sh"}
    assert hyperpod.described(Session(region="us-west-2"), answer).groups[0].scripts_s3_uri == ""


def test_restricted_groups_cost_too() -> None:
    """A cluster of restricted instance groups alone is no empty cluster."""
    session = Session(region="us-west-2")
    group = {"InstanceGroupName": "nova", "InstanceType": "ml.p5.48xlarge", "CurrentCount": 4}
    with Stubber(session.client("sagemaker")) as sagemaker:
        sagemaker.add_response("describe_cluster", describing(InstanceGroups=[], RestrictedInstanceGroups=[group]))
        (found,) = _Search(session, "odd").nodes()
    assert (found.id, found.detail) == ("odd/nova", "4 x ml.p5.48xlarge, SystemUpdating")
    assert found.usd_per_hour is not None
    assert found.usd_per_hour > 0


def test_what_is_left_costs_by_the_hour_and_by_the_month() -> None:
    """The last line of `teardown --check` sums up both, and says how many things have no known price."""
    left = [Leftover("NAT gateway", "nat-1", "", 0.05, "aws"), Leftover("file system", "fs-1", "", None, "aws")]
    assert Inventory("odd", "us-east-1", left).summary == "2 left, 0.05 $/h, 36 $/month and 1 without a known price"
    assert Inventory("odd", "us-east-1").summary == "0 left, 0 $/h"


def test_a_file_system_without_a_capacity_is_listed() -> None:
    """INTELLIGENT_TIERING has no StorageCapacity and no known price, but it costs money."""
    session = Session(region="us-west-2")
    file_system = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "LUSTRE",
        "StorageType": "INTELLIGENT_TIERING",
        "Lifecycle": "AVAILABLE",
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2"},
        "Tags": [{"Key": "podwright:cluster", "Value": "odd"}],
    }
    with Stubber(session.client("fsx")) as fsx:
        fsx.add_response("describe_file_systems", {"FileSystems": [file_system]})
        (found,) = _Search(session, "odd").file_systems()
    assert (found.detail, found.usd_per_hour) == ("LUSTRE, INTELLIGENT_TIERING, AVAILABLE", None)


def test_nodes_of_a_group_of_several_types_cost_by_their_type() -> None:
    """A group that names several types is a row for each type that its nodes have."""
    session = Session(region="us-west-2")
    details = [{"InstanceType": kind, "CurrentCount": 2} for kind in ("ml.g5.12xlarge", "ml.g6.12xlarge")]
    group = {"InstanceGroupName": "workers", "CurrentCount": 4, "InstanceTypeDetails": details}
    with Stubber(session.client("sagemaker")) as sagemaker:
        sagemaker.add_response("describe_cluster", describing(InstanceGroups=[group]))
        found = list(_Search(session, "odd").nodes())
    assert [item.detail.split(",")[0] for item in found] == ["2 x ml.g5.12xlarge", "2 x ml.g6.12xlarge"]
    assert all(item.usd_per_hour for item in found)


@pytest.mark.parametrize(("partition", "written"), [("dev", "workers"), ("gpu", "gpu"), ("", "workers")])
def test_an_imported_group_has_a_partition_that_check_takes(partition: str, written: str) -> None:
    """`dev` is a partition that HyperPod makes itself, and the scripts of others give it to groups too."""
    group = {"InstanceGroupName": "workers", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 2}
    scripts = {"SourceS3Uri": SCRIPTS, "OnCreate": "on_create.sh"}
    answer = describing(InstanceGroups=[{**group, "LifeCycleConfig": scripts}])
    session = Session(region="us-west-2")
    parameters = {"worker_groups": [{"instance_group_name": "workers", "partition_name": partition}]}
    text = json.dumps(parameters).encode()
    with Stubber(session.client("s3")) as s3:
        s3.add_response("get_object", {"Body": StreamingBody(io.BytesIO(text), len(text))})
        found = hyperpod.described(session, answer)
    model = {
        "ClusterName": "odd",
        "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
        "InstanceGroups": [
            {
                "InstanceGroupName": "workers",
                "InstanceCount": 2,
                "InstanceRequirements": {"InstanceTypes": ["ml.g5.12xlarge", "ml.g6.12xlarge"]},
                "LifeCycleConfig": scripts,
            }
        ],
    }
    lustre = {"source": "existing", "mount_path": "/fsx"}
    described = describe(ClusterDescription(found, model, parameters, "vpc-1", "bucket", lustre, None))
    (section,) = (part for part in described.parts if part.key == "cluster")
    (workers,) = section.value["instance_groups"]
    assert workers["partition"] == written
    assert (workers["instance_type"], workers["other_instance_types"]) == ("ml.g5.12xlarge", ["ml.g6.12xlarge"])
    assert described.not_managed == []
    assert any("every HyperPod cluster has: workers (dev)" in line for line in section.remarks) == (partition == "dev")
