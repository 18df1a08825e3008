"""The policy of people who train allows each call of their commands, and no other but the plugin's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.client import BaseClient

from podwright.checkout import ROOT
from podwright.cli import main
from podwright.config_file import CONFIG_VARIABLE
from podwright.operations.access import session_plugin
from podwright.operations.account import session_documents
from podwright.operations.deployment.user_policy import user_policy
from podwright.settings.root import Settings
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.identity import ACCOUNT_ID
from podwright_rehearsal.run.lifecycle_logs import LifecycleLogs
from podwright_testing.hyperpod import ClusterMaker

COMMANDS = (
    *(["status"], ["status", "--jobs"], ["nodes", "list"], ["nodes", "list", "--slurm"]),
    *(["connect"], ["connect", "--user", "root"], ["ssh-config"], ["forward", "6006"]),
    *(["jobs"], ["cancel", "1"], ["fetch", "run"], ["submit", "job.sbatch"]),
    *(
        ["logs", "1"],
        ["logs", "--lifecycle", "i-0123456789abcdef0"],
        ["logs", "--health", "controller"],
        ["logs", "--slurm"],
    ),
)
# AWS's plugin makes them, with the caller's credentials.
OF_PLUGIN = {"ssm:ResumeSession", "ssm:TerminateSession"}
# Asked only of nodes whose host names SageMaker does not list, of events that are warnings or errors, and of nodes of
# training plans.
RARE = {"sagemaker:DescribeClusterNode", "sagemaker:DescribeClusterEvent", "sagemaker:DescribeTrainingPlan"}


def settings(**changes: Any) -> Settings:
    """Return the settings of the checkout's file, with other sections."""
    data: Mapping[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    return Settings.model_validate({**data, **changes})


def statements(**changes: Any) -> dict[str, dict[str, Any]]:
    """Return the policy's statements by their names."""
    return {statement["Sid"]: statement for statement in user_policy(settings(**changes))["Statement"]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the set of calls, in IAM's words, that every client of boto3 adds to."""
    recorded: set[str] = set()
    make_call = BaseClient._make_api_call

    def record(client: BaseClient, operation: str, arguments: Mapping[str, Any]) -> Any:
        recorded.add(f"{client.meta.service_model.service_name}:{operation}")
        return make_call(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return recorded


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an ssh that reaches nothing and a Session Manager plugin on PATH, and let no command become it."""
    programs = folder / "programs"
    programs.mkdir()
    for name, line in (("ssh", "exit 255"), (session_plugin.PLUGIN, "echo 1.2.707.0")):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "execvpe", lambda *_: None)
    (folder / "job.sbatch").write_text("#!/bin/sh\n", encoding="utf-8")


@pytest.mark.usefixtures("programs")
def test_each_call_of_a_user_is_allowed(aws: AwsStandIn, maker: ClusterMaker, calls: set[str]) -> None:
    """Commands on a cluster of scripts and on one with a file system and events ask for what the policy allows."""
    file_system = aws.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[maker.subnet_id],
        SecurityGroupIds=[maker.security_group_id],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    )["FileSystem"]
    mount = {"DnsName": file_system["DNSName"], "MountName": file_system["LustreConfiguration"]["MountName"]}
    arn = maker.make("people-scripts")
    logs = LifecycleLogs(aws.client("logs"), f"/aws/sagemaker/Clusters/people-scripts/{arn.rpartition('/')[2]}")
    logs.write(instance_group="workers", instance_id="i-0123456789abcdef0", line="ready")
    logs.flush()
    maker.make(
        "people-api",
        api_mode=True,
        storage=[{"FsxLustreConfig": mount}],
        NodeProvisioningMode="Continuous",
        Orchestrator={"Slurm": {}},
    )
    calls.clear()
    for name in ("people-scripts", "people-api", "nothing"):
        for command in COMMANDS:
            main([*command, "--cluster", name])
    allowed = {action for statement in statements().values() for action in statement["Action"]}
    assert calls - allowed == set()
    assert allowed >= RARE
    assert allowed - calls - RARE == OF_PLUGIN


@pytest.mark.usefixtures("folder")
def test_the_command_prints_it_without_an_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`podwright policy user` needs neither the kit nor AWS; without the cluster's id, it warns about all clusters."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(ROOT / "cluster.yaml"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert main(["policy", "user"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == user_policy(settings())
    assert "allows sessions as root, and so the rights of the nodes' roles, on all clusters of us-west-2" in printed.err


@pytest.mark.usefixtures("folder")
def test_sessions_are_limited_to_the_existing_cluster(
    maker: ClusterMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The policy has the account of the credentials, and the cluster's id as soon as AWS has one."""
    file = tmp_path / "people.yaml"
    file.write_text((ROOT / "cluster.yaml").read_text(encoding="utf-8").replace("podwright-demo", "people-limited"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))

    def printed() -> tuple[str, str]:
        assert main(["policy", "user"]) == 0
        output = capsys.readouterr()
        by_sid = {statement["Sid"]: statement for statement in json.loads(output.out)["Statement"]}
        return by_sid["StartSessions"]["Resource"][0], output.err

    clusters, warning = printed()
    assert clusters == f"arn:aws:sagemaker:us-west-2:{ACCOUNT_ID}:cluster/*"
    assert "the cluster does not exist yet" in warning
    arn = maker.make("people-limited")
    assert printed() == (arn, "")


@pytest.mark.usefixtures("folder")
def test_a_role_with_the_policy_lacks_nothing(
    aws: AwsStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--simulate` gives IAM what the conditions ask for; without an action, the role lacks this one."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(ROOT / "cluster.yaml"))
    iam, document = aws.client("iam"), json.dumps(user_policy(settings()))
    arn = iam.create_role(RoleName="people", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    for text, missing in ((document, []), (document.replace("ssm:StartSession", "ssm:Other"), ["ssm:StartSession"])):
        iam.put_role_policy(RoleName="people", PolicyName="user", PolicyDocument=text)
        assert main(["policy", "user", "--simulate", arn, "--json"]) == (1 if missing else 0)
        assert json.loads(capsys.readouterr().out)["missing"] == missing


def test_a_session_document_replaces_those_that_run_as_root() -> None:
    """With the section session, people start its document, ssh and port forwarding alone."""
    documents = {arn.rpartition("/")[2] for arn in statements()["StartSessions"]["Resource"]}
    assert documents - {"*"} == {
        *(session_documents.SSH, session_documents.FORWARD, session_documents.INTERACTIVE, session_documents.COMMAND)
    }
    with_document = statements(session={"idle_minutes": 20}, account_id="210987654321")
    assert with_document["StartSessions"]["Resource"] == [
        "arn:aws:sagemaker:us-west-2:210987654321:cluster/*",
        "arn:aws:ssm:us-west-2::document/AWS-StartSSHSession",
        "arn:aws:ssm:us-west-2::document/AWS-StartPortForwardingSession",
        "arn:aws:ssm:us-west-2:210987654321:document/podwright-podwright-demo",
    ]


def test_a_key_of_the_bucket_decrypts_one_file() -> None:
    """The created key, an existing one and an existing bucket's own: each through S3 alone; none without a key."""
    assert "DecryptNodesParameters" not in statements()
    arn = "arn:aws:kms:us-west-2:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    created, existing, of_bucket = (
        statements(**changes)["DecryptNodesParameters"]
        for changes in (
            {"key": {"source": "create"}},
            {"key": {"source": "existing", "arn": arn}},
            {"bucket": {"source": "existing", "name": "scripts", "key_arn": arn}},
        )
    )
    assert created["Condition"]["ForAnyValue:StringEquals"] == {
        "kms:ResourceAliases": ["alias/podwright/podwright-demo"]
    }
    assert existing["Resource"] == of_bucket["Resource"] == [arn]
    assert all(
        item["Condition"]["StringLike"] == {"kms:ViaService": ["s3.*"]} for item in (created, existing, of_bucket)
    )


def test_scripts_of_yours_have_their_parameters_beside_them() -> None:
    """The file that names the groups' roles is read where the nodes' scripts are."""
    slurm = {"source": "existing", "source_s3_uri": "s3://sagemaker-mine/src/"}
    changes = {"cluster": {"slurm": slurm, "instance_groups": settings().cluster.model_dump()["instance_groups"]}}
    resources = statements(**changes, training={"source": "none"})["ReadNodesParameters"]["Resource"]
    assert resources == ["arn:aws:s3:::sagemaker-mine/src/provisioning_parameters.json"]
