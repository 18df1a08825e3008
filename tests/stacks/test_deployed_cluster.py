"""A cluster with everything, deployed by the real Terraform and AWS provider into the stand-in's account.

State is in the account's S3, locked there, as a team would have it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cdktf import App

from podwright import checkout
from podwright.diagram.stack_resources import read
from podwright.operations.deployment.policy import deployer_policy
from podwright.settings.root import Settings
from podwright_rehearsal.aws import AwsStandIn
from podwright_stacks.cluster import ClusterStack
from podwright_stacks.foundation import FoundationStack
from podwright_testing.provider import running_provider
from podwright_testing.workspace import LIMIT_S

STACKS = ("foundation", "cluster")
STATES = "team-states"
NOISE = re.compile(r".*(: Reading\.\.\.|: Read complete after|: Refreshing state\.\.\.).*\n")
CONTROLLER = {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1}
LOGIN = {"name": "login", "role": "login", "instance_type": "ml.m5.xlarge", "count": 1, "auto_patch": "when-idle"}
WORKERS = {
    "name": "workers",
    "role": "compute",
    "instance_type": "ml.g5.12xlarge",
    "count": 4,
    "partition": "gpu",
    "threads_per_core": 2,
    "deep_health_checks": ["instance-stress", "instance-connectivity"],
    "network_interface": "efa",
    "image_id": "ami-0123456789abcdef0",
    "scheduled_update": {"schedule": "cron(0 3 ? * SUN *)"},
}
BATCHES = {"schedule": "cron(0 3 ? * SUN *)", "max_percent": 25, "rollback_alarms": ["loss"]}
# RDS itself takes the provider a minute to wait for.
ACCOUNTING = {
    "source": "existing",
    "endpoint": "slurm.cluster-abc.us-west-2.rds.amazonaws.com",
    "secret_arn": "arn:aws:secretsmanager:us-west-2:123456789012:secret:slurm-abc",
}
VOLUME_KEY = "arn:aws:kms:us-west-2:123456789012:key/0a1b2c3d-1111-2222-3333-444455556666"
CLUSTER = {"instance_groups": [CONTROLLER, LOGIN, WORKERS]}
CLUSTER_ADDRESS = "aws_cloudcontrolapi_resource.cluster_A4C38409"
SETTINGS: dict[str, Any] = {
    "name": "demo",
    "region": "us-west-2",
    "tags": {"team": "llm"},
    "network": {"source": "create", "availability_zone_id": "usw2-az1"},
    "lustre": {"source": "create", "on_destroy": "destroy"},
    "bucket": {"source": "create", "on_destroy": "destroy"},
    "role": {"source": "create"},
    "cluster": CLUSTER,
    "openzfs": {"source": "create", "on_destroy": "destroy"},
    "logs": {"retention_days": 30},
    "notices": {"email": "team@llm.test", "idle_hours": 6},
    "budget": {"monthly_usd": 5000, "email": "team@llm.test"},
    "dashboard": {"source": "create"},
    "prometheus": {"source": "create"},
    "session": {},
    "state": {"source": "s3", "bucket": STATES},
    "training": {"source": "none"},
}


class Deployment:
    """One app, synthesized again and again, and Terraform in the folders of its stacks."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.scripts = folder / "scripts"
        self.environment = environment
        self.settings = folder / "cluster.yaml"
        self.settings.write_text(json.dumps(SETTINGS), encoding="utf-8")  # JSON is YAML
        shutil.copytree(checkout.LIFECYCLE_SCRIPTS, self.scripts)

    def synthesize(self, **changes: Any) -> None:
        app = App(outdir=str(self.folder / "cdktf.out"))
        settings = Settings.model_validate(SETTINGS | changes)
        ClusterStack(app, settings=settings, foundation=FoundationStack(app, settings=settings))
        app.synth()

    def directory(self, stack: str) -> Path:
        return self.folder / "cdktf.out" / "stacks" / f"demo-{stack}"

    def terraform(self, stack: str, *arguments: str) -> str:
        answer = subprocess.run(
            ["terraform", *arguments, "-no-color"],
            cwd=self.directory(stack),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert answer.returncode in {0, 2}, answer.stdout + answer.stderr
        return NOISE.sub("", answer.stdout)

    def apply(self, stack: str) -> str:
        return self.terraform(stack, "apply", "-auto-approve")

    def podwright(self, *arguments: str) -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "podwright", *arguments[:1], str(self.settings), *arguments[1:]],
            cwd=self.folder,
            env={**self.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        return answer.stdout

    def plan(self, stack: str = "cluster") -> str:
        return self.terraform(stack, "plan", "-detailed-exitcode")


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """The account, with the team's bucket of states."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.1, instant_deletion=True) as stand_in:
        stand_in.client("s3").create_bucket(
            Bucket=STATES, CreateBucketConfiguration={"LocationConstraint": stand_in.region}
        )
        yield stand_in


@pytest.fixture(scope="module")
def deployment(
    aws: AwsStandIn, terraform: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Foundation and cluster, deployed one after the other by a principal with the deployer's policy."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in aws.environment().items():
            patch.setenv(key, value)
        deployed = Deployment(tmp_path_factory.mktemp("deployment"), {**os.environ, **terraform, **aws.environment()})
        patch.setattr(checkout, "LIFECYCLE_SCRIPTS", deployed.scripts)
        deployed.synthesize()
        types = {resource.type for resource in read(deployed.folder / "cdktf.out")}
        deployed.environment |= aws.as_principal(deployer_policy(Settings.model_validate(SETTINGS), types))
        for stack in STACKS:
            deployed.terraform(stack, "init")
        with running_provider(deployed.directory("cluster"), deployed.environment) as provider:
            deployed.environment |= provider
            for stack in STACKS:
                deployed.apply(stack)
            yield deployed


def changes_of_cluster(plan: str) -> list[str]:
    """Return the changes that the plan marks in the cluster's desired state."""
    (block,) = re.findall(r"~ desired_state = jsonencode\(\n(.*?)\n        \)\n", plan, re.DOTALL)
    marked = (line.strip() for line in block.splitlines() if re.match(r"\s*[~+-] ", line))
    return [re.sub(r"\s+", " ", line) for line in marked]


pytestmark = pytest.mark.terraform


def test_second_plans_are_empty(deployment: Deployment) -> None:
    """A second plan of both stacks is empty, also after the scripts' times have changed."""
    for script in deployment.scripts.rglob("*.py"):
        os.utime(script, (1, 1))
    deployment.synthesize()
    for stack in STACKS:
        assert "No changes." in deployment.plan(stack)


def test_scaling_is_one_line(deployment: Deployment) -> None:
    """From 4 to 6 nodes the plan is one update in place, of one number."""
    deployment.synthesize(cluster=CLUSTER | {"instance_groups": [CONTROLLER, LOGIN, WORKERS | {"count": 6}]})
    plan = deployment.plan()
    assert re.findall("# (.*) will be (.*)", plan) == [(CLUSTER_ADDRESS, "updated in-place")]
    assert [line for line in changes_of_cluster(plan) if "->" in line] == ["~ InstanceCount = 4 -> 6"]
    assert "Plan: 0 to add, 1 to change, 0 to destroy." in plan


def test_another_group_leaves_the_others(deployment: Deployment) -> None:
    """The Trainium example's nodes as another group add only their own lines, to the cluster and to the parameters."""
    example = yaml.safe_load((checkout.ROOT / "examples/trainium/cluster.yaml").read_text(encoding="utf-8"))
    (trainium,) = (group for group in example["cluster"]["instance_groups"] if group["role"] == "compute")
    groups = {"instance_groups": [CONTROLLER, LOGIN, WORKERS, trainium]}
    deployment.synthesize(cluster=CLUSTER | groups, nodes=example["nodes"])
    plan = deployment.plan()
    changed = changes_of_cluster(plan)
    assert {'+ InstanceGroupName = "trainium"', '+ InstanceType = "ml.trn1.32xlarge"'} <= set(changed)
    assert {line[0] for line in changed if not line.endswith(("{", "["))} == {"+"}
    assert "Plan: 0 to add, 2 to change, 0 to destroy." in plan


def test_an_edited_script_is_another_place(deployment: Deployment) -> None:
    """Another line in a script uploads three objects under a new prefix and changes each group's URI, nothing else."""
    edited = deployment.scripts / "podwright_bootstrap" / "node.py"
    original = edited.read_text(encoding="utf-8")
    edited.write_text(f"{original}# edited\n", encoding="utf-8")
    deployment.synthesize()
    plan = deployment.plan()
    edited.write_text(original, encoding="utf-8")
    planned = dict(re.findall("# (.*) (?:will be|must be) (.*)", plan))
    assert planned.pop(CLUSTER_ADDRESS) == "updated in-place"
    assert [address.split(".")[0] for address in planned] == ["aws_s3_object"] * 3
    assert set(planned.values()) == {"replaced"}
    moved = [line for line in changes_of_cluster(plan) if "->" in line]
    assert len(moved) == 3
    assert all(re.fullmatch(r'~ SourceS3Uri = "s3://.*/demo/lifecycle/\w+" -> "s3://.*"', line) for line in moved)


def test_outputs_tell_what_is_there(deployment: Deployment, aws: AwsStandIn) -> None:
    """``podwright outputs --json`` gives the ids that AWS gave, and how to come to a node; the lines say the same."""
    (cluster,) = aws.client("sagemaker").list_clusters()["ClusterSummaries"]
    identifier = cluster["ClusterArn"].partition("/")[2]
    found = json.loads(deployment.podwright("outputs", "--json"))
    assert found["cluster"]["ClusterArn"] == cluster["ClusterArn"]
    assert found["cluster"]["LogGroup"] == f"/aws/sagemaker/Clusters/demo/{identifier}"
    assert found["cluster"]["SessionCommand"] == (
        f"aws ssm start-session --target sagemaker-cluster:{identifier}_GROUP-INSTANCE_ID"
        " --document-name podwright-demo"
    )
    file_systems = aws.client("fsx").describe_file_systems()["FileSystems"]
    by_type = {item["FileSystemType"]: (item["FileSystemId"], item["DNSName"]) for item in file_systems}
    assert found["foundation"]["LustreFileSystemId"] == by_type["LUSTRE"][0]
    assert found["foundation"]["OpenZfsFileSystemId"] == by_type["OPENZFS"][0]
    assert found["foundation"]["OpenZfsDnsName"] == by_type["OPENZFS"][1]
    assert not [key for values in found.values() for key in values if key.startswith("cross-stack")]
    assert f"SessionDocument           {found['foundation']['SessionDocument']}" in deployment.podwright("outputs")


def test_logs_notices_and_budget_are_as_asked(deployment: Deployment, aws: AwsStandIn) -> None:
    """The schedule keeps the cluster's own log group, events of this cluster reach the topic, the budget its mail."""
    (schedule,) = aws.client("scheduler").list_schedules()["Schedules"]
    target = aws.client("scheduler").get_schedule(Name=schedule["Name"])["Target"]
    outputs = json.loads(deployment.podwright("outputs", "--json"))
    assert target["Arn"] == "arn:aws:scheduler:::aws-sdk:cloudwatchlogs:putRetentionPolicy"
    assert json.loads(target["Input"]) == {"LogGroupName": outputs["cluster"]["LogGroup"], "RetentionInDays": 30}
    events = aws.client("events")
    patterns = [json.loads(rule["EventPattern"]) for rule in events.list_rules()["Rules"]]
    assert {pattern["detail-type"][0] for pattern in patterns} == {
        "SageMaker HyperPod Cluster State Change",
        "SageMaker HyperPod Cluster Node Health Event",
        "SageMaker HyperPod Cluster Event",
    }
    (alarm,) = aws.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert (alarm["Namespace"], alarm["MetricName"]) == ("/aws/sagemaker/Clusters", "RunningJobs")
    assert alarm["Dimensions"] == [{"Name": "ClusterName", "Value": "demo"}]
    assert (alarm["Period"], alarm["EvaluationPeriods"], alarm["TreatMissingData"]) == (3600, 6, "notBreaching")
    assert alarm["AlarmActions"] == [outputs["foundation"]["NoticesTopicArn"]]
    assert {target["Arn"] for rule in events.list_rules()["Rules"] for target in targets(events, rule["Name"])} == {
        outputs["foundation"]["NoticesTopicArn"]
    }


def test_slurm_moves_to_the_api_in_place(deployment: Deployment, aws: AwsStandIn) -> None:
    """AWS's migration from lifecycle scripts to the API and another strategy are updates, also with an older guard."""
    before = aws.client("sagemaker").list_clusters()["ClusterSummaries"]
    by_api = CLUSTER | {"slurm": {"source": "api", "strategy": "managed"}}
    deployment.synthesize(cluster=by_api)
    deployment.apply("foundation")
    deployment.apply("cluster")
    record_orchestrator(deployment, {"Slurm": {"SlurmConfigStrategy": "Managed"}})
    deployment.synthesize(cluster=by_api | {"slurm": {"source": "api", "strategy": "merge"}})
    deployment.apply("cluster")
    after = aws.client("sagemaker").list_clusters()["ClusterSummaries"]
    assert [item["ClusterArn"] for item in after] == [item["ClusterArn"] for item in before]
    described = aws.client("sagemaker").describe_cluster(ClusterName="demo")
    assert described["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Merge"}}


def record_orchestrator(deployment: Deployment, orchestrator: Mapping[str, Any]) -> None:
    """Write into the state what the guard of version 0.1.0 recorded: all of the orchestrator."""
    state = json.loads(deployment.terraform("cluster", "state", "pull"))
    records = [item for item in state["resources"] if item["type"] == "terraform_data"]
    outputs = [item["instances"][0]["attributes"]["output"] for item in records]
    (output,) = (output for output in outputs if "ClusterName" in str(output))  # the other one is the state's owner
    output["value"] = json.dumps(json.loads(output["value"]) | {"Orchestrator": orchestrator})
    state["serial"] += 1
    file = deployment.folder / "edited.tfstate"
    file.write_text(json.dumps(state), encoding="utf-8")
    deployment.terraform("cluster", "state", "push", str(file))


def test_the_cluster_goes_alone_and_comes_back_by_the_api(deployment: Deployment, aws: AwsStandIn) -> None:
    """The foundation outlives the cluster; on it another is deployed whose Slurm the API sets up; then all is gone."""
    deployment.synthesize()
    deployment.terraform("cluster", "destroy", "-auto-approve")
    assert aws.client("sagemaker").list_clusters()["ClusterSummaries"] == []

    continuous = {"key_arn": VOLUME_KEY, "min_count": 2, "scheduled_update": BATCHES}
    groups = [CONTROLLER, LOGIN, WORKERS | continuous]
    by_api = {"instance_groups": groups, "slurm": {"source": "api"}, "node_provisioning": "continuous"}
    deployment.synthesize(cluster=by_api)
    deployment.apply("foundation")
    deployment.apply("cluster")
    (made,) = aws.client("sagemaker").list_clusters()["ClusterSummaries"]
    deployment.synthesize(cluster=by_api, accounting=ACCOUNTING)
    deployment.apply("foundation")  # controllers may read the secret, and workers use the volumes' key
    deployment.apply("cluster")
    assert [item["ClusterArn"] for item in aws.client("sagemaker").list_clusters()["ClusterSummaries"]] == [
        made["ClusterArn"]  # a database is added in place
    ]
    assert "No changes." in deployment.plan()
    described = aws.client("sagemaker").describe_cluster(ClusterName="demo")
    database = described["Orchestrator"]["Slurm"]["AccountingDatabase"]
    assert (database["Endpoint"], database["Port"]) == (ACCOUNTING["endpoint"], 3306)
    assert described["NodeProvisioningMode"] == "Continuous"
    (homes,) = [
        item for item in aws.client("fsx").describe_file_systems()["FileSystems"] if item["FileSystemType"] == "OPENZFS"
    ]
    for group in described["InstanceGroups"]:
        (mount,) = [item["FsxOpenZfsConfig"] for item in group["InstanceStorageConfigs"] if "FsxOpenZfsConfig" in item]
        assert mount == {"DnsName": homes["DNSName"], "MountPath": "/home"}
        assert group["LifeCycleConfig"]["OnInitComplete"] == "on_create.sh"
        assert "OnCreate" not in group["LifeCycleConfig"]

    for stack in reversed(STACKS):
        deployment.terraform(stack, "destroy", "-auto-approve")
    assert [resource for resource in aws.inventory() if STATES not in resource] == []


def targets(events: Any, rule: str) -> list[dict[str, Any]]:
    """Return the targets of an EventBridge rule."""
    return list(events.list_targets_by_rule(Rule=rule)["Targets"])
