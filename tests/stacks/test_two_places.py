"""One name in two regions, another account, and a first init that fails: by the real Terraform and AWS provider."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from podwright import checkout
from podwright.aws_session import deployer_session
from podwright.check.load import load
from podwright.cli import main
from podwright.errors import OperationError
from podwright.operations.deployment.deployed_stacks import DeployedStack, stacks
from podwright.operations.deployment.kit import Kit
from podwright.operations.deployment.state_lock import StateLockedError
from podwright.operations.deployment.terraform import TerraformError, terraform_environment
from podwright.state_owner import StateOwner, StateOwnerError, state_file
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.aws.inventory import PRINCIPALS_PATH
from podwright_testing.provider import VARIABLE, running_provider

pytestmark = pytest.mark.terraform

HERE, THERE = "us-west-2", "us-east-1"
ZONES = {HERE: "usw2-az1", THERE: "use1-az1"}
APPLY = ("apply", "-auto-approve", "-input=false", "-no-color")
ACCOUNT_ID, OTHER_ACCOUNT_ID = "123456789012", "210987654321"


def settings(region: str, **changes: Any) -> dict[str, Any]:
    """Return settings whose foundation is a bucket and three roles."""
    return {
        "name": "twin",
        "region": region,
        "network": {
            "source": "existing",
            "vpc_id": "vpc-0123456789abcdef0",
            "subnet_ids": ["subnet-0123456789abcdef0"],
            "security_group_id": "sg-0123456789abcdef0",
        },
        "lustre": {
            "source": "existing",
            "dns_name": f"fs-0123456789abcdef0.fsx.{region}.amazonaws.com",
            "mount_name": "abcdefgh",
        },
        "bucket": {"source": "create", "on_destroy": "destroy"},
        "role": {"source": "create"},
        "cluster": {
            "instance_groups": [
                {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1},
                {
                    "name": "workers",
                    "role": "compute",
                    "instance_type": "ml.g5.12xlarge",
                    "count": 1,
                    "partition": "gpu",
                },
            ]
        },
        **changes,
    }


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account that answers in both regions."""
    with AwsStandIn(
        directory=tmp_path_factory.mktemp("aws"), region=HERE, other_regions=[THERE], transition_s=0.1
    ) as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def project(aws: AwsStandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that both regions are deployed from."""
    folder = tmp_path_factory.mktemp("project")
    app = f"{sys.executable} {checkout.ROOT / 'main.py'}"
    (folder / "cdktf.json").write_text(json.dumps({"language": "python", "app": app}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**aws.environment(), **terraform_environment(folder / "terraform")}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.chdir(folder)
        yield folder


def foundation(project: Path, region: str, **changes: Any) -> DeployedStack:
    """Synthesize the settings; return the stack of the foundation."""
    file = project / f"{region}.yaml"
    file.write_text(json.dumps(settings(region, **changes)), encoding="utf-8")  # JSON is YAML
    Kit(file, project).synthesize()
    return stacks("twin", folder=project)["foundation"]


def local_stack(project: Path) -> DeployedStack:
    """Synthesize a stack of one resource without a provider, as in a folder of this name."""
    stack = DeployedStack(project / "cdktf.out" / "stacks" / "twin-foundation")
    backend = {"local": {"path": str(project / "state")}}
    stack.folder.mkdir(parents=True, exist_ok=True)
    content = {"terraform": {"backend": backend}, "resource": {"terraform_data": {"one": {"input": "1"}}}}
    (stack.folder / "cdk.tf.json").write_text(json.dumps(content))
    return stack


def test_a_renamed_folder_is_the_same_project(tmp_path: Path) -> None:
    """The state comes along with its folder; a state that stayed behind is not passed over for an empty one."""
    former, present = tmp_path / "former", tmp_path / "present"
    local_stack(former).terraform(*APPLY)
    former.rename(present)
    stack = local_stack(present)
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")
    (present / "state").rename(tmp_path / "state")
    (present / "state.backup").unlink(missing_ok=True)
    shutil.copytree(present, former)
    (tmp_path / "state").rename(present / "state")
    with pytest.raises(TerraformError, match="the state of twin-foundation is in local:"):
        local_stack(former).terraform("plan", "-input=false", "-no-color")


def state_of(*resources: tuple[str, dict[str, str]]) -> str:
    """Return Terraform's state of resources by type and attributes."""
    listed = [{"mode": "managed", "type": kind, "instances": [{"attributes": it}]} for kind, it in resources]
    return json.dumps({"version": 4, "resources": listed})


def test_a_former_file_is_of_its_region_until_it_is_empty(tmp_path: Path) -> None:
    """Once its resources are destroyed, no region takes it up; with roles alone their names say whose it is."""
    former = tmp_path / "terraform.twin-foundation.tfstate"
    own = {region: tmp_path / f"terraform.twin-foundation.{region}.tfstate" for region in ZONES}
    role = ("aws_iam_role", {"name": f"twin-{HERE}-nodes", "arn": f"arn:aws:iam::{ACCOUNT_ID}:role/twin-{HERE}-nodes"})
    bucket = ("aws_s3_bucket", {"region": HERE, "arn": "arn:aws:s3:::b"})
    for resources in ([bucket], [role], [role, bucket]):
        former.write_text(state_of(*resources))
        assert state_file(tmp_path, "twin-foundation", HERE) == former
        assert state_file(tmp_path, "twin-foundation", THERE) == own[THERE]
    own[THERE].write_text(state_of(("aws_s3_bucket", {"region": THERE, "arn": "arn:aws:s3:::c"})))
    former.write_text(state_of())
    assert [state_file(tmp_path, "twin-foundation", region) for region in own] == [*own.values()]
    former.write_text(state_of(bucket))
    own[HERE].write_text(state_of(bucket))
    with pytest.raises(StateOwnerError, match="both have resources of us-west-2"):
        state_file(tmp_path, "twin-foundation", HERE)


def test_a_state_has_an_owner() -> None:
    """Account and region are those of its ARNs; a state without resources is anybody's."""
    bucket = ("aws_s3_bucket", {"region": HERE, "arn": "arn:aws:s3:::b"})
    role = ("aws_iam_role", {"name": f"twin-{HERE}-nodes", "arn": f"arn:aws:iam::{ACCOUNT_ID}:role/twin-{HERE}-nodes"})
    owner = StateOwner.of(json.loads(state_of(bucket, role)))
    owner.check("twin-foundation", account_id=ACCOUNT_ID, region=HERE)
    for account_id, region in ((OTHER_ACCOUNT_ID, HERE), (ACCOUNT_ID, THERE)):
        with pytest.raises(StateOwnerError, match=f"this would be account {account_id} in {region}") as refused:
            owner.check("twin-foundation", account_id=account_id, region=region)
        assert "use that account's credentials and that region, or deploy from another folder" in refused.value.hint
    StateOwner.of(json.loads(state_of())).check("twin-foundation", account_id=OTHER_ACCOUNT_ID, region=THERE)


def test_a_failed_init_is_repeated(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An init that did not find the provider leaves its folder behind; the next command begins anew."""
    stack = foundation(project, HERE)
    with monkeypatch.context() as patch:
        empty = project / "empty.tfrc"
        empty.write_text(f'provider_installation {{ filesystem_mirror {{ path = "{project}/none" }} }}')
        patch.setenv("TF_CLI_CONFIG_FILE", str(empty))
        with pytest.raises(TerraformError, match="`terraform init` failed"):
            stack.terraform("show", "-json")
    assert stack.was_initialized
    assert "values" not in json.loads(stack.terraform("show", "-json"))


@pytest.fixture(scope="module")
def one_provider(project: Path) -> Iterator[None]:
    """One provider for all Terraforms from here on; the stacks upload no file, so that its folder does not matter."""
    stack = foundation(project, HERE)
    stack.terraform("version")
    with running_provider(stack.folder, os.environ) as variable, pytest.MonkeyPatch.context() as patch:
        for name, value in variable.items():
            patch.setenv(name, value)
        yield


@pytest.mark.usefixtures("one_provider")
def test_one_name_in_two_regions(aws: AwsStandIn, project: Path) -> None:
    """Deployed from one folder, each region has its state; one goes, and the other's plan is still empty."""
    stack = foundation(project, HERE)
    stack.terraform(*APPLY)
    here = set(aws.inventory())
    foundation(project, THERE)
    stack.terraform(*APPLY)
    assert here < set(aws.inventory())
    stack.terraform("destroy", *APPLY[1:])
    assert set(aws.inventory()) == here
    foundation(project, HERE)
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")


@pytest.mark.usefixtures("one_provider")
def test_a_state_of_an_older_version_is_of_its_region_alone(project: Path) -> None:
    """A file without the region in its name is used where it is, and not by another region."""
    stack = foundation(project, HERE)
    state = project / f"terraform.twin-foundation.{HERE}.tfstate"
    former = state.rename(project / "terraform.twin-foundation.tfstate")
    try:
        foundation(project, HERE)
        assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")
        foundation(project, THERE)
        assert json.loads(stack.terraform("state", "pull") or "{}").get("resources", []) == []
    finally:
        former.rename(state)


@pytest.mark.usefixtures("one_provider")
def test_another_account_is_refused(project: Path) -> None:
    """Every plan compares the account that the state recorded, and account_id refuses also to destroy."""
    stack = foundation(project, HERE)
    stack.check_owner(account_id=ACCOUNT_ID, region=HERE)
    with pytest.raises(StateOwnerError, match=f"is of account {ACCOUNT_ID} in {HERE}, and this would be account 2109"):
        stack.check_owner(account_id=OTHER_ACCOUNT_ID, region=HERE)
    file = project / f"terraform.twin-foundation.{HERE}.tfstate"
    before = shutil.copy(file, project / "kept")
    file.write_text(file.read_text().replace(f'\\"account\\":\\"{ACCOUNT_ID}', '\\"account\\":\\"210987654321'))
    with pytest.raises(TerraformError, match=r"(?s)The state of twin is\s+of.*210987654321"):
        stack.terraform("plan", "-input=false", "-no-color")
    shutil.copy(before, file)
    foundation(project, HERE, account_id=OTHER_ACCOUNT_ID)
    for verb in ("plan", "destroy"):
        with pytest.raises(TerraformError, match="AWS account ID not allowed"):
            stack.terraform(verb, *(APPLY[1:] if verb == "destroy" else ("-input=false", "-no-color")))
    foundation(project, HERE, account_id=ACCOUNT_ID)
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")


@pytest.mark.usefixtures("one_provider")
def test_one_name_in_two_accounts(
    aws: AwsStandIn, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One account's folder is refused with the other's credentials; from two folders neither touches the other."""
    foundation(project, HERE).terraform(*APPLY)
    here = set(aws.inventory())
    assert here
    with AwsStandIn(directory=tmp_path / "aws", account_id=OTHER_ACCOUNT_ID, region=HERE, transition_s=0.1) as other:
        with monkeypatch.context() as patch:
            for name, value in other.environment().items():
                patch.setenv(name, value)
            patch.delenv(VARIABLE)  # the shared provider has the first account's address
            for verb in ("deploy", "destroy"):
                assert main([verb, str(project / f"{HERE}.yaml"), "--yes"]) == 1
                refusal = (
                    f"is of account {ACCOUNT_ID} in {HERE}, and this would be account {OTHER_ACCOUNT_ID} in {HERE}"
                )
                assert refusal in capsys.readouterr().err
            assert other.inventory() == []
            folder = tmp_path / "project"
            folder.mkdir()
            shutil.copy(project / "cdktf.json", folder)
            patch.chdir(folder)
            twin = foundation(folder, HERE)
            twin.terraform(*APPLY)
            assert f"role/twin-{HERE}-nodes" in twin.terraform("state", "pull")
            assert f"AWS::IAM::Role twin-{HERE}-nodes" in {*other.inventory()} & here
            twin.terraform("destroy", *APPLY[1:])
            assert other.inventory() == []
        assert set(aws.inventory()) == here
    stack = foundation(project, HERE)
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")


@pytest.mark.usefixtures("one_provider")
def test_an_older_key_is_refused_until_it_is_moved(aws: AwsStandIn, project: Path) -> None:
    """A state in S3 under a key without a region is never passed over for an empty one."""
    bucket = "states-of-twins"
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": HERE})
    state = project / f"terraform.twin-foundation.{HERE}.tfstate"
    s3.put_object(Bucket=bucket, Key="twin/twin-foundation.tfstate", Body=state.read_bytes())
    elsewhere = state.rename(project / "elsewhere")
    try:
        shutil.rmtree(project / "cdktf.out")
        stack = foundation(project, HERE, state={"source": "s3", "bucket": bucket})
        with pytest.raises(TerraformError, match=r"Run `podwright\s+state`"):
            stack.terraform("plan", "-input=false", "-no-color")
        s3.delete_object(Bucket=bucket, Key="twin/twin-foundation.tfstate")
        s3.put_object(Bucket=bucket, Key="twin/twin-foundation.tfstate.tflock", Body=b"{}")  # of a Terraform that died
        assert "to add" in stack.terraform("plan", "-input=false", "-no-color")
        lock = {"ID": "5ad20ae8", "Operation": "OperationTypeApply", "Who": "ada@laptop", "Version": "1.11.4"}
        lock |= {"Path": f"{bucket}/twin/{HERE}/twin-foundation.tfstate", "Created": "2026-11-27T19:20:11.123456Z"}
        s3.put_object(
            Bucket=bucket, Key=f"twin/{HERE}/twin-foundation.tfstate.tflock", Body=json.dumps(lock), IfNoneMatch="*"
        )
        with pytest.raises(StateLockedError) as locked:
            stack.terraform("plan", "-input=false", "-no-color")
        assert "twin-foundation is locked by ada@laptop since 2026-11-27 19:20:11 UTC, for apply" in str(locked.value)
        assert "force-unlock 5ad20ae8" in locked.value.hint
        assert "-lock=false" not in locked.value.render()
    finally:
        shutil.rmtree(project / "cdktf.out")
        elsewhere.rename(state)


class StateServer(BaseHTTPRequestHandler):
    """Terraform's http backend: GET, POST, LOCK and UNLOCK of a path. The server has ``states`` and ``locks``."""

    server: States

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def do_GET(self) -> None:
        state = self.server.states.get(self.path)
        self.answer(404 if state is None else 200, state or b"")

    def do_POST(self) -> None:
        path, _, lock_id = self.path.partition("?ID=")
        content = self.body()
        held = json.loads(self.server.locks.get(path, b'{"ID": ""}'))["ID"]
        if held == lock_id:
            self.server.states[path] = content
        self.answer(200 if held == lock_id else 409)

    def do_LOCK(self) -> None:
        content = self.body()
        held = self.server.locks.setdefault(self.path, content)
        self.answer(200 if held == content else 423, held)

    def do_UNLOCK(self) -> None:
        self.body()
        self.server.locks.pop(self.path, None)
        self.answer(200)

    def log_message(self, *_: object) -> None:
        pass


class States(ThreadingHTTPServer):
    """A server of states, such as GitLab's."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StateServer)
        self.states: dict[str, bytes] = {}
        self.locks: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def states() -> Iterator[States]:
    """A server that runs during the test."""
    with States() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.mark.usefixtures("one_provider")
def test_any_backend_keeps_the_states(project: Path, states: States, capsys: pytest.CaptureFixture[str]) -> None:
    """`podwright state` moves local states there; the other stack reads them, two regions do not meet, and it locks."""
    stack = foundation(project, HERE)
    stack.terraform(*APPLY)
    shutil.copytree(project, elsewhere := project.with_name("before_backend"))
    file = project / f"terraform.twin-foundation.{HERE}.tfstate"
    place = f"{states.address}/{{region}}/{{stack}}"
    arguments = {"address": place, "lock_address": place, "unlock_address": place}
    state = {"source": "backend", "type": "http", "arguments": arguments}
    try:
        with pytest.raises(OperationError, match="the settings keep states in http"):
            foundation(project, HERE, state=state)
        assert main(["state", str(project / f"{HERE}.yaml"), "--yes"]) == 0, capsys.readouterr().err
        assert f"move {file.name} to the backend http" in capsys.readouterr().out
        assert not file.exists()
        assert list(states.states) == [f"/{HERE}/twin-foundation"]
        foundation(project, HERE, state=state)
        assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")
        cluster = stacks("twin", folder=project)["cluster"]
        assert "aws_cloudcontrolapi_resource" in cluster.terraform("plan", "-input=false", "-no-color")
        foundation(project, THERE, state=state)
        assert "to add" in stack.terraform("plan", "-input=false", "-no-color")
        foundation(project, HERE, state=state)
        assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")
        states.locks[f"/{HERE}/twin-foundation"] = json.dumps({"ID": "5ad20ae8", "Who": "ada@laptop"}).encode()
        with pytest.raises(StateLockedError, match="is locked by another Terraform, as 5ad20ae8") as locked:
            stack.terraform("plan", "-input=false", "-no-color")
        assert "force-unlock 5ad20ae8" in locked.value.hint
        states.locks.clear()
        other = {**state, "arguments": {**arguments, "address": f"{states.address}/other/{{stack}}"}}
        foundation(project, HERE, state=other)
        with pytest.raises(TerraformError, match="the state of twin-foundation is in http:"):
            stack.terraform("plan", "-input=false", "-no-color")
    finally:
        shutil.rmtree(project / "cdktf.out")
        shutil.copy(elsewhere / file.name, file)


@pytest.mark.usefixtures("one_provider")
def test_tags_of_others_stay(aws: AwsStandIn, project: Path) -> None:
    """A tag that a landing zone sets is no change where the settings ignore it."""
    stack = foundation(project, HERE)
    stack.terraform(*APPLY)
    aws.client("iam").tag_role(RoleName=f"twin-{HERE}-nodes", Tags=[{"Key": "corp:cost-centre", "Value": "7"}])
    assert "corp:cost-centre" in stack.terraform("plan", "-input=false", "-no-color")
    foundation(project, HERE, ignore_tags={"key_prefixes": ["corp:"]})
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")


@pytest.mark.usefixtures("one_provider")
def test_deployments_assume_a_role(aws: AwsStandIn, project: Path) -> None:
    """Terraform and podwright's session call AWS as the role that the settings name, with what it may."""
    iam, name = aws.client("iam"), "deployer"
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": ACCOUNT_ID}}
    trusting = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName=name, Path=PRINCIPALS_PATH, AssumeRolePolicyDocument=trusting)["Role"]
    stack = foundation(project, HERE, assume_role={"role_arn": role["Arn"], "external_id": "llm-7"})
    for action in ("*", "sts:*"):
        statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_role_policy(RoleName=name, PolicyName="policy", PolicyDocument=document)
        session = deployer_session(load(project / f"{HERE}.yaml"))
        assert session.call("sts", "get_caller_identity")["Arn"].endswith("deployer/podwright")
        if action == "*":
            stack.terraform("plan", "-input=false", "-no-color")
    with pytest.raises(TerraformError, match=r"(?s)deployer/podwright\s+is\s+not\s+authorized"):
        stack.terraform(*APPLY)


def network_of(aws: AwsStandIn) -> tuple[dict[str, Any], list[str]]:
    """Make a VPC; return the settings of its network, and subnets of two zones."""
    ec2 = aws.client("ec2")
    vpc_id = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet_ids = [
        ec2.create_subnet(VpcId=vpc_id, CidrBlock=f"10.0.{number}.0/24", AvailabilityZoneId=f"usw2-az{number}")[
            "Subnet"
        ]["SubnetId"]
        for number in (1, 2)
    ]
    group_id = ec2.create_security_group(GroupName="nodes", Description="-", VpcId=vpc_id)["GroupId"]
    network = {"source": "existing", "vpc_id": vpc_id, "subnet_ids": subnet_ids[:1], "security_group_id": group_id}
    return network, subnet_ids


@pytest.mark.usefixtures("one_provider")
def test_topic_and_subnets_of_a_landing_zone_are_used(aws: AwsStandIn, project: Path) -> None:
    """Notices go to an existing topic, the database is in existing subnets and leaves a snapshot."""
    network, subnet_ids = network_of(aws)
    topic = aws.client("sns").create_topic(Name="landing-zone")["TopicArn"]
    before = aws.inventory()
    database = {"source": "create", "subnet_ids": subnet_ids, "on_destroy": "backup"}
    added = {"name": "zone", "network": network, "accounting": database}
    added["notices"] = {"topic_arn": topic, "idle_hours": 6}
    file = project / "zone.yaml"
    file.write_text(json.dumps(settings(HERE, **added)), encoding="utf-8")
    Kit(file, project).synthesize()
    stack = stacks("zone", folder=project)["foundation"]
    rds = aws.client("rds")
    stack.terraform(*APPLY)
    assert "No changes" in stack.terraform("plan", "-input=false", "-no-color")
    (group,) = rds.describe_db_subnet_groups()["DBSubnetGroups"]
    assert sorted(subnet["SubnetIdentifier"] for subnet in group["Subnets"]) == sorted(subnet_ids)
    events = aws.client("events")
    rules = [rule["Name"] for rule in events.list_rules()["Rules"]]
    assert {target["Arn"] for rule in rules for target in events.list_targets_by_rule(Rule=rule)["Targets"]} == {topic}
    (alarm,) = aws.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["AlarmActions"] == [topic]
    stack.terraform("destroy", *APPLY[1:])
    (snapshot,) = rds.describe_db_snapshots()["DBSnapshots"]
    assert snapshot["DBSnapshotIdentifier"].startswith("slurm-zone-last-sg-")  # another name in each life
    left = {item.split()[0] for item in set(aws.inventory()) - set(before)}
    assert {kind for kind in left if "Snapshot" not in kind} <= {"AWS::KMS::Key"}  # RDS's own
