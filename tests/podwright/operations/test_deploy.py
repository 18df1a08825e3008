"""From deploy to destroy: one cluster in an account of its own, by the real cdktf, Terraform and AWS provider.

The tests run in order, because a deployment takes a minute.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from podwright import checkout
from podwright.aws_session import Session
from podwright.cli import main
from podwright.operations.deployment.boots import BootLog
from podwright.operations.deployment.deployed_stacks import stacks
from podwright.operations.deployment.planned_changes import planned
from podwright.operations.deployment.terraform import TerraformError, terraform_environment
from podwright.operations.import_export.create_cluster import problems
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.deployer_policy import missing_actions
from podwright_testing.provider import running_provider

pytestmark = [pytest.mark.terraform]

MINIMAL = checkout.ROOT / "examples" / "minimal" / "cluster.yaml"
NAME = "minimal"
ORDER_SEED = 0  # AWS lists the workers before the controller, cluster.yaml after it
STEP = {
    "event": "step",
    "host": "ip-10-0-16-5",
    "role": "compute",
    "step": "lustre",
    "outcome": "changed",
    "changes": ["mounted /fsx"],
    "seconds": 3.2,
    "detail": "",
    "hint": "",
}


class Answer(NamedTuple):
    """A command's output and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, f"status {self.status}: {self.err}"
        return json.loads(self.out)


def podwright(*arguments: str) -> Answer:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    return Answer(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account of this module's own."""
    with AwsStandIn(
        directory=tmp_path_factory.mktemp("aws"), transition_s=0.1, instant_deletion=True, order_seed=ORDER_SEED
    ) as stand_in:
        yield stand_in


@pytest.fixture(scope="module", autouse=True)
def project(aws: AwsStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a project: cdktf.json and the minimal example, in the account's region."""
    folder = tmp_path_factory.mktemp("project")
    kit = json.loads((checkout.ROOT / "cdktf.json").read_text(encoding="utf-8"))
    kit["app"] = f"{sys.executable} {checkout.ROOT / 'main.py'}"
    (folder / "cdktf.json").write_text(json.dumps(kit), encoding="utf-8")
    settings = MINIMAL.read_text(encoding="utf-8").replace("us-east-2", aws.region).replace("use2-", "usw2-")
    (folder / "cluster.yaml").write_text(settings, encoding="utf-8")
    environment: Mapping[str, str] = {**aws.environment(), **terraform_environment(folder / "terraform")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("PODWRIGHT_CONFIG", raising=False)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def one_provider(aws: AwsStandIn, project: Path) -> Iterator[None]:
    """One provider for all Terraforms from here on, with the deployer's policy; an earlier test has initialized."""
    environment = {**os.environ, **aws.as_principal(deployer_policy(project))}
    with (
        running_provider(project / "cdktf.out" / "stacks" / f"{NAME}-cluster", environment) as variable,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in variable.items():
            patch.setenv(name, value)
        yield


def test_a_dry_run_shows_price_and_changes(aws: AwsStandIn) -> None:
    """Before anything is made, the document has every resource of both stacks and the price by the hour."""
    answer = podwright("deploy", "--dry-run", "--json")
    assert (answer.status, answer.json["schema"]) == (0, "podwright.deploy/1")
    changes = {(change["stack"], change["path"]): change["verb"] for change in answer.json["changes"]}
    assert changes["minimal-foundation", "network/vpc"] == changes["minimal-cluster", "cluster/cluster"] == "create"
    assert set(changes.values()) == {"create"}
    assert answer.json["usd_per_hour"] > answer.json["nodes_usd_per_hour"] > 5  # one ml.g5.12xlarge and a controller
    kept = answer.json["usd_per_hour"] - answer.json["nodes_usd_per_hour"]
    assert answer.json["kept_usd_per_month"] == pytest.approx(730 * kept, rel=0.01)
    assert aws.inventory() == []


def test_deploy_asks_first(aws: AwsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal and --yes nothing is deployed."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    answer = podwright("deploy", "--only", "foundation")
    assert answer.status == 2
    assert "confirm with --yes" in answer.err
    assert " USD a month, also when the cluster is destroyed" in answer.out
    assert aws.inventory() == []


def test_the_deployer_policy_is_simulated(aws: AwsStandIn, project: Path) -> None:
    """A role with the policy lacks nothing of it; one without an action is reported with this action."""
    policy = podwright("policy", "deployer")
    (project / "deployer.json").write_text(policy.out, encoding="utf-8")
    assert policy.status == 0, policy.err
    assert len(json.dumps(json.loads(policy.out), separators=(",", ":"))) < 10_240  # a role's inline policies
    iam = aws.client("iam")
    arn = iam.create_role(RoleName="ci", AssumeRolePolicyDocument=policy.out)["Role"]["Arn"]
    iam.put_role_policy(RoleName="ci", PolicyName="deployer", PolicyDocument=policy.out)
    assert podwright("policy", "deployer", "--simulate", arn, "--json").json["missing"] == []
    iam.put_role_policy(
        RoleName="ci", PolicyName="deployer", PolicyDocument=policy.out.replace('ec2:CreateVpc"', 'ec2:Other"')
    )
    answer = podwright("policy", "deployer", "--simulate", arn)
    assert (answer.status, answer.out.splitlines()[0]) == (1, "ec2:CreateVpc")
    iam.delete_role_policy(RoleName="ci", PolicyName="deployer")
    iam.delete_role(RoleName="ci")


def deployer_policy(project: Path) -> dict[str, Any]:
    """Return the saved policy."""
    return dict(json.loads((project / "deployer.json").read_text(encoding="utf-8")))


@contextmanager
def as_deployer(aws: AwsStandIn, project: Path) -> Iterator[None]:
    """Call AWS in the block with what the saved policy allows; no call is denied, not even one that may fail."""
    policy = deployer_policy(project)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in aws.as_principal(policy).items():
            patch.setenv(name, value)
        yield
    assert missing_actions(policy, aws.permissions()) == set()


@pytest.mark.usefixtures("one_provider")
def test_deploy_follows_every_resource(aws: AwsStandIn, project: Path) -> None:
    """Each created resource has one line with its construct and id; the deployer's policy suffices."""
    with as_deployer(aws, project):
        answer = podwright("deploy", "--yes")
    assert answer.status == 0, answer.err
    (vpc,) = aws.client("ec2").describe_vpcs(Filters=[{"Name": "tag:podwright:cluster", "Values": [NAME]}])["Vpcs"]
    lines = answer.out.splitlines()
    assert any(line.startswith(f"created   network/vpc {vpc['VpcId']} (") for line in lines)
    assert sum(line.startswith("created ") for line in lines) == sum(line.startswith("  + ") for line in lines)
    assert lines[lines.index("next:") + 1] == "  podwright status"


def test_boot_steps_come_from_the_log_once(aws: AwsStandIn) -> None:
    """A node's steps are read from the cluster's log group, in words and each once; other lines are left out."""
    session = Session(region=aws.region)
    log = BootLog(session, NAME, since_ms=0)
    assert list(log.new_steps()) == []
    arn = aws.client("sagemaker").describe_cluster(ClusterName=NAME)["ClusterArn"]
    group, stream = f"/aws/sagemaker/Clusters/{NAME}/{arn.rpartition('/')[2]}", "LifecycleConfig/workers/i-1"
    logs = aws.client("logs")
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName=stream)
    lines = ["lustre mounted", json.dumps(STEP), json.dumps({**STEP, "changes": None})]
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
    assert [step.line() for step in log.new_steps()] == [
        "ip-10-0-16-5     lustre          changed      3.2 s  mounted /fsx"
    ]
    assert list(log.new_steps()) == []


def test_teardown_lists_what_costs(aws: AwsStandIn) -> None:
    """Nodes, file system, NAT gateway and what was left beside them have an id, a price and a command; CI fails."""
    tags = [{"Key": "podwright:cluster", "Value": NAME}]
    ec2 = aws.client("ec2")
    specification = [{"ResourceType": "volume", "Tags": tags}]
    volume = ec2.create_volume(AvailabilityZone=f"{aws.region}a", Size=730, TagSpecifications=specification)["VolumeId"]
    answer = podwright("teardown", "--check", "--json")
    assert answer.status == 1
    left = {item["kind"]: item for item in answer.json["left"]}
    assert {"nodes", "file system", "NAT gateway", "volume", "bucket", "log group"} <= left.keys()
    assert left["volume"]["delete"] == f"aws ec2 delete-volume --volume-id {volume}"
    assert left["volume"]["usd_per_hour"] == pytest.approx(0.08, rel=0.01)  # 730 GiB, and a month has 730 hours
    assert left["file system"]["usd_per_hour"] > left["NAT gateway"]["usd_per_hour"] > 0
    assert answer.json["usd_per_hour"] == pytest.approx(sum(item["usd_per_hour"] for item in answer.json["left"]), 1e-3)
    ec2.delete_volume(VolumeId=volume)
    assert podwright("teardown").out.splitlines()[-1].startswith(f"{NAME}: ")


def test_scaling_to_nothing_and_back_keeps_the_rest(aws: AwsStandIn, project: Path) -> None:
    """Each plan changes the cluster alone and in place, as the deployer may; the file system and the file stay."""
    before = (project / "cluster.yaml").read_bytes()
    kept = [item for item in aws.inventory() if "FSx" in item]
    for count in ("0", "1"):
        with as_deployer(aws, project):
            scaled = podwright("scale", "workers", count)
            deployed = podwright("deploy", "--only", "cluster", "--yes")
        assert (scaled.status, deployed.status) == (0, 0), scaled.err + deployed.err
        assert "cluster: 1 to update\n  ~ cluster/cluster (aws_cloudcontrolapi_resource): desired_state" in scaled.out
        listed = aws.client("sagemaker").list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"]
        groups = sorted(node["InstanceGroupName"] for node in listed)
        assert groups == ["controller", *["workers"] * int(count)]  # though AWS lists the groups in another order
    assert [item for item in aws.inventory() if "FSx" in item] == kept != []
    assert (project / "cluster.yaml").read_bytes() == before


def test_no_edit_replaces_the_cluster(project: Path) -> None:
    """Terraform refuses a plan with another subnet or name; without the guard it would replace; it plans to destroy."""
    stack = stacks(NAME, folder=project)["cluster"]
    synthesized = stack.folder / "cdk.tf.json"
    kept, before = synthesized.read_text(encoding="utf-8"), stack.terraform("state", "pull")
    other_subnet = re.sub(r'(\\"Subnets\\" = \[).*?\]', r'\1\\"subnet-0123456789abcdef0\\"]', kept)
    other_name = kept.replace(f'\\"ClusterName\\" = \\"{NAME}\\"', '\\"ClusterName\\" = \\"other\\"')
    plan = ("plan", "-refresh=false", "-input=false", "-no-color")
    assert planned(stack) == []
    try:
        for edited in (other_subnet, other_name):
            synthesized.write_text(edited, encoding="utf-8")
            with pytest.raises(TerraformError, match=r"(?s)An edit of ClusterName,\s+VpcConfig"):
                stack.terraform(*plan)
        assert [(change.verb, change.keys) for change in planned(stack)] == [("replace", ("ClusterName",))]
        assert "to destroy" in stack.terraform(*plan, "-destroy")
        stack.forget_guards()
        stack.forget_guards()  # there is none
        assert "must be replaced" in stack.terraform(*plan)
    finally:
        synthesized.write_text(kept, encoding="utf-8")
        stack.terraform("state", "push", "-force", "-", text=before)


def test_export_is_what_the_cluster_was_made_of(aws: AwsStandIn, project: Path) -> None:
    """The exported request has every id of the deployed cluster, and CreateCluster makes the same cluster of it."""
    assert podwright("export", "create-cluster.json").out == (
        "create-cluster.json: 2 instance groups, valid for sagemaker:CreateCluster\n"
    )
    request = json.loads((project / "create-cluster.json").read_text(encoding="utf-8"))
    assert problems(request) == []
    described = aws.client("sagemaker").describe_cluster(ClusterName=NAME)
    assert request["VpcConfig"] == described["VpcConfig"]
    groups = {group["InstanceGroupName"]: group for group in described["InstanceGroups"]}
    for group in request["InstanceGroups"]:
        for key in ("InstanceType", "LifeCycleConfig", "ExecutionRole", "InstanceStorageConfigs"):
            assert group[key] == groups[group["InstanceGroupName"]][key]


def test_export_refuses_what_the_service_model_refuses(project: Path) -> None:
    """An unknown key, a missing one, a word and a number out of range are all named with their path."""
    request = json.loads((project / "create-cluster.json").read_text(encoding="utf-8"))
    group = request["InstanceGroups"][0]
    group.update({"InstanceCount": 10_000_000, "InstanceType": "ml.g5.tiny", "Colour": "red"})
    del request["InstanceGroups"][1]["ExecutionRole"]
    text = "\n".join(problems(request))
    for words in ("Colour", "ExecutionRole", "InstanceGroups[0].InstanceCount: got", "got ml.g5.tiny, need"):
        assert words in text


def test_doctor_finds_nothing_wrong_with_a_fresh_cluster() -> None:
    """Settings, account, network, scripts and role of a fresh cluster are in order."""
    answer = podwright("doctor", "--json")
    assert [item for item in answer.json["findings"] if item["level"] == "error"] == []
    assert (answer.status, answer.json["schema"], answer.json["account"]) == (0, "podwright.doctor/1", "123456789012")


def edit_count_and_script(aws: AwsStandIn) -> None:
    sagemaker, s3 = aws.client("sagemaker"), aws.client("s3")
    keys = ("InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "InstanceStorageConfigs")
    groups = [
        {**{key: group[key] for key in keys}, "InstanceCount": group["TargetCount"]}
        for group in sagemaker.describe_cluster(ClusterName=NAME)["InstanceGroups"]
    ]
    workers = next(group for group in groups if group["InstanceGroupName"] == "workers")
    bucket, prefix = workers["LifeCycleConfig"]["SourceS3Uri"].removeprefix("s3://").split("/", 1)
    source = {"Bucket": bucket, "Key": f"{prefix}/on_create.sh"}
    s3.copy_object(Bucket=bucket, Key=f"{prefix}/other.sh", CopySource=source)
    workers.update(InstanceCount=3, LifeCycleConfig={"SourceS3Uri": f"s3://{bucket}/{prefix}", "OnCreate": "other.sh"})
    sagemaker.update_cluster(ClusterName=NAME, InstanceGroups=groups, NodeRecovery="None")
    s3.put_object(Body=b"#!/bin/bash\n", **source)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.delete_public_access_block(Bucket=bucket)


def edit_network(aws: AwsStandIn) -> None:
    ec2 = aws.client("ec2")
    own = [{"Name": "tag:podwright:cluster", "Values": [NAME]}]
    private = [{"Name": "tag:Name", "Values": [f"{NAME}-private"]}]  # the role's policy refers to it
    (subnet,) = ec2.describe_subnets(Filters=private)["Subnets"]
    ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=[{"Key": "Name", "Value": "mine"}])
    groups = ec2.describe_security_groups(Filters=own)["SecurityGroups"]
    group = next(group["GroupId"] for group in groups if group["GroupName"] != "default")
    rules = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])["SecurityGroupRules"]
    lustre = next(rule["SecurityGroupRuleId"] for rule in rules if rule.get("FromPort") == 988)
    ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=[lustre])
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh])
    for table in ec2.describe_route_tables(Filters=own)["RouteTables"]:
        if any("NatGatewayId" in route for route in table["Routes"]):
            ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    (flow_log,) = ec2.describe_flow_logs()["FlowLogs"]
    ec2.delete_flow_logs(FlowLogIds=[flow_log["FlowLogId"]])


def edit_role(aws: AwsStandIn) -> None:
    iam, role = aws.client("iam"), f"{NAME}-{aws.region}-nodes"
    policy = iam.get_role_policy(RoleName=role, PolicyName="hyperpod-node")["PolicyDocument"]
    policy["Statement"] = [item for item in policy["Statement"] if item["Sid"] != "AcceptSessions"]
    iam.put_role_policy(RoleName=role, PolicyName="hyperpod-node", PolicyDocument=json.dumps(policy))
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_role_policy(RoleName=role, PolicyName="more", PolicyDocument=json.dumps(everything))
    trust = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    trust["Statement"][0]["Principal"] = {"AWS": "*"}
    iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(trust))


DRIFTS = {  # code, the end of the path, and words of the message
    ("edited", "cluster.instance_groups[1].count", "InstanceCount: AWS has 3, deployed was 1"),
    ("edited", "cluster.instance_groups[1].name", "OnCreate: AWS has other.sh, deployed was on_create.sh"),
    ("edited", "cluster", "NodeRecovery: AWS has None, deployed was Automatic"),
    ("overwritten", "cluster.lifecycle/on_create.sh", "is not what was uploaded"),
    ("edited", "foundation.bucket/versioning.versioning_configuration.0.status", "AWS has Suspended"),
    ("gone", "foundation.bucket/public_access_block", "is gone from AWS"),
    ("edited", "foundation.network/private/subnet.tags.Name", "AWS has mine, deployed was minimal-private"),
    ("gone", "foundation.network/security_group/ingress_lustre_988", "is gone from AWS"),
    ("added", "foundation.network/security_group/group", "one more rule: tcp 22-22 from 0.0.0.0/0"),
    ("gone", "foundation.network/private/route", "is gone from AWS"),
    ("gone", "foundation.flow_logs/flow_log", "is gone from AWS"),
    ("edited", "foundation.role/policy.policy.Statement.AcceptSessions", "AWS has nothing"),
    ("added", "foundation.role/role", "has one more policy: more"),
    ("edited", "foundation.role/role.assume_role_policy.Statement.0.Principal.AWS", "AWS has *, deployed was nothing"),
}


def test_drift_names_every_edit(aws: AwsStandIn, project: Path) -> None:
    """After a deployment nothing drifts; each of fourteen edits made in AWS is one finding at its place."""
    with as_deployer(aws, project):
        answer = podwright("drift")
    assert (answer.status, answer.out) == (0, f"{NAME}: AWS, the state and the settings agree\n")
    edit_count_and_script(aws)
    edit_network(aws)
    edit_role(aws)
    answer = podwright("drift", "--json")
    assert (answer.status, answer.json["schema"]) == (1, "podwright.drift/1")
    found = [(item["code"], item["path"], item["message"]) for item in answer.json["findings"]]
    for code, path, words in DRIFTS:
        matching = [item for item in found if item[0] == code and item[1].startswith(path) and words in item[2]]
        assert len(matching) == 1, "\n".join(map(str, [(code, path, words), "of", *found]))
    counted = next(item for item in answer.json["findings"] if "InstanceCount" in item["message"])
    lines = (project / "cluster.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[counted["line"] - 1].strip() == "count: 1"
    assert "role: compute" in lines[counted["line"] - 3]


@contextmanager
def settings_with(project: Path, words: str, others: str) -> Iterator[None]:
    """Replace words of cluster.yaml in the block."""
    file = project / "cluster.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(words, others), encoding="utf-8")
    yield
    file.write_text(text, encoding="utf-8")


def test_a_kept_file_system_is_not_replaced(project: Path) -> None:
    """--replace does not override lustre.on_destroy: retain, the default; the message names the key."""
    with settings_with(project, "lustre:\n", "lustre:\n  backup_id: backup-0123456789abcdef0\n"):
        refused = podwright("deploy", "--only", "foundation", "--yes")
        kept = podwright("deploy", "--only", "foundation", "--yes", "--replace", "lustre/file_system")
    assert "replace lustre/file_system because of backup_id" in refused.err
    assert (refused.status, kept.status) == (2, 2)
    assert "lustre.on_destroy is `retain`, so nothing is replaced" in kept.err


def test_a_backup_that_is_not_deployed_is_no_backup(project: Path) -> None:
    """Terraform reads from its state whether to make a last backup, so nothing is destroyed before it says so."""
    with settings_with(project, "lustre:\n", "lustre:\n  on_destroy: backup\n"):
        answer = podwright("destroy", "--yes")
    assert answer.status == 2
    assert re.search("`backup` of lustre.on_destroy of fs-[0-9a-f]+ is not deployed", answer.err)


def test_destroy_keeps_files_and_what_they_need(aws: AwsStandIn, project: Path) -> None:
    """By default a file system stays with its network, all else goes, and a deployment makes the rest again."""
    s3 = aws.client("s3")
    (bucket,) = (item["Name"] for item in s3.list_buckets()["Buckets"])
    s3.put_object(Bucket=bucket, Key=f"{NAME}/runs/tiny/metrics.jsonl", Body=b"{}")
    (file_system,) = aws.client("fsx").describe_file_systems()["FileSystems"]
    with as_deployer(aws, project):
        answer = podwright("destroy", "--yes")
        again = podwright("destroy", "--yes", "--json")
        preview = podwright("deploy", "--dry-run", "--json")
    assert (answer.status, again.status) == (0, 0), answer.err + again.err
    assert f"  kept: {file_system['FileSystemId']} (1200 GiB), " in answer.out
    assert "because lustre.on_destroy is `retain`; --delete-file-systems deletes it too" in answer.out
    assert f"  kept: bucket {bucket}" in answer.out
    assert again.json["kept_file_systems"] == [file_system["FileSystemId"]]
    assert aws.client("fsx").describe_file_systems()["FileSystems"][0]["Lifecycle"] == "AVAILABLE"
    in_foundation = (change for change in preview.json["changes"] if change["stack"] == f"{NAME}-foundation")
    verbs = {change["path"]: change["verb"] for change in in_foundation}
    assert set(verbs.values()) <= {"create", "update"}
    assert {verbs["network/nat_gateway"], verbs["role/role"]} == {"create"}
    assert verbs.keys().isdisjoint({"lustre/file_system", "network/vpc", "bucket/bucket", "state_owner"})


def test_destroy_keeps_a_bucket_with_runs(aws: AwsStandIn, project: Path) -> None:
    """Objects that podwright did not upload stay with their bucket, which is named with its price; all else goes."""
    s3 = aws.client("s3")
    (bucket,) = (item["Name"] for item in s3.list_buckets()["Buckets"])
    with as_deployer(aws, project):
        answer = podwright("destroy", "--yes", "--delete-file-systems")
    assert answer.status == 0, answer.err
    assert f"  kept: bucket {bucket}: 1 objects with their versions" in answer.out
    assert [item for item in aws.inventory() if "AWS::S3::" not in item and "Clusters/minimal" not in item] == []
    assert s3.head_object(Bucket=bucket, Key=f"{NAME}/runs/tiny/metrics.jsonl")


def test_what_a_log_group_costs_is_seen_until_it_is_gone(aws: AwsStandIn) -> None:
    """The cluster's log group, which SageMaker makes, is found by its name; with it the bill is zero."""
    left = podwright("teardown", "--json").json["left"]
    assert sorted(item["kind"] for item in left) == ["bucket", "log group"]
    for item in left:
        if item["kind"] == "log group":
            aws.client("logs").delete_log_group(logGroupName=item["id"])
        else:
            versions = aws.client("s3").list_object_versions(Bucket=item["id"])
            for version in [*versions.get("Versions", ()), *versions.get("DeleteMarkers", ())]:
                aws.client("s3").delete_object(Bucket=item["id"], Key=version["Key"], VersionId=version["VersionId"])
            aws.client("s3").delete_bucket(Bucket=item["id"])
    answer = podwright("teardown", "--check")
    assert (answer.status, answer.out.splitlines()[-1]) == (0, f"{NAME}: 0 left, 0 $/h")
