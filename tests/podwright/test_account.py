"""``podwright check --live`` against the AWS stand-in, through real botocore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from podwright.check import rules
from podwright.check.account import Account
from podwright.check.checked_settings import check, check_live, codes
from podwright.check.findings import Finding, Level
from podwright.check.rules import live
from podwright.settings.root import Settings
from podwright_constructs import facts
from podwright_constructs.catalog import cluster_instance_types
from podwright_constructs.problems import dotted
from podwright_rehearsal.aws import AwsStandIn

REGION = "us-west-2"
ZONE_ID = "usw2-az1"
TRUST = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
    },
}
Judge = Callable[[Mapping[str, Any]], list[Finding]]


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """An account, as the tests of this module leave it."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), region=REGION, transition_s=0) as stand_in:
        yield stand_in


class Things:
    """Resources that tests put into the account."""

    def __init__(self, aws: AwsStandIn) -> None:
        self.aws = aws
        self.ec2, self.iam, self.fsx = (aws.client(service) for service in ("ec2", "iam", "fsx"))

    def vpc(self, *, dns: bool = True, block: str = "10.0.0.0/16") -> str:
        vpc_id: str = self.ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]
        self.ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsHostnames={"Value": dns})
        return vpc_id

    def subnet(self, vpc_id: str, block: str = "10.0.16.0/20", *, s3: bool = True) -> str:
        subnet = self.ec2.create_subnet(VpcId=vpc_id, CidrBlock=block, AvailabilityZoneId=ZONE_ID)["Subnet"]
        table = self.ec2.create_route_table(VpcId=vpc_id)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])
        if s3:
            self.ec2.create_vpc_endpoint(
                VpcId=vpc_id,
                ServiceName=f"com.amazonaws.{REGION}.s3",
                VpcEndpointType="Gateway",
                RouteTableIds=[table],
            )
        return str(subnet["SubnetId"])

    def group(self, vpc_id: str, name: str, *, ports: bool = True, members: bool = True) -> str:
        group: str = self.ec2.create_security_group(VpcId=vpc_id, GroupName=name, Description="x")["GroupId"]
        itself = {"UserIdGroupPairs": [{"GroupId": group}]}
        everything = [{"IpProtocol": facts.ALL_PROTOCOLS, **itself}] if members else []
        named = [(item.from_port, item.to_port) for item in facts.LUSTRE_PORTS] + [(facts.NFS_PORT, facts.NFS_PORT)]
        numbers = [{"IpProtocol": "tcp", "FromPort": first, "ToPort": last, **itself} for first, last in named]
        if ingress := everything + numbers * ports:
            self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=ingress)
        if everything:
            self.ec2.authorize_security_group_egress(GroupId=group, IpPermissions=everything)
        return group

    def role(self, name: str, trust: Mapping[str, Any]) -> str:
        role = self.iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        return str(role["Role"]["Arn"])

    def bucket(self, name: str, region: str = REGION) -> str:
        client = self.aws._session.client("s3", region_name=region, endpoint_url=self.aws.endpoint_url)
        client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
        return name

    def lustre(self, subnet: str, group: str) -> dict[str, str]:
        made = self.fsx.create_file_system(
            FileSystemType="LUSTRE",
            StorageCapacity=1200,
            SubnetIds=[subnet],
            SecurityGroupIds=[group],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
        )["FileSystem"]
        return {"dns_name": made["DNSName"], "mount_name": made["LustreConfiguration"]["MountName"]}


@pytest.fixture(scope="module")
def things(aws: AwsStandIn) -> Things:
    """Makes what a test needs."""
    return Things(aws)


@pytest.fixture(scope="module")
def existing(things: Things) -> dict[str, Any]:
    """Settings that bring everything, all of it in the account and as it must be."""
    vpc = things.vpc()
    subnet, group = things.subnet(vpc), things.group(vpc, "nodes")
    return {
        "name": "existing",
        "region": REGION,
        "network": {"source": "existing", "vpc_id": vpc, "subnet_ids": [subnet], "security_group_id": group},
        "lustre": {"source": "existing", **things.lustre(subnet, group)},
        "bucket": {"source": "existing", "name": things.bucket("sagemaker-existing")},
        "role": {"source": "existing", "arn": things.role("nodes", TRUST)},
        "cluster": {
            "instance_groups": [
                {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1},
                {
                    "name": "workers",
                    "role": "compute",
                    "instance_type": "ml.g5.12xlarge",
                    "count": 2,
                    "partition": "gpu",
                },
            ]
        },
    }


@pytest.fixture
def judge(aws: AwsStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Return the findings of ``check --live`` that ``check`` does not have."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)

    def run(settings: Mapping[str, Any]) -> list[Finding]:
        file = tmp_path / "cluster.yaml"
        file.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
        report = check(file)
        assert {finding.code for finding in report.findings} <= {"rights-of-existing-role", "existing-bucket"}
        return [finding for finding in check_live(report).findings if finding not in report.findings]

    return run


def changed(settings: Mapping[str, Any], section: str, **values: Any) -> dict[str, Any]:
    """The settings with other values in one section."""
    copy = deepcopy(dict(settings))
    copy[section] |= values
    return copy


def summaries(findings: list[Finding]) -> list[tuple[str, str, str]]:
    """Level, code and path of each finding."""
    return [(finding.level.value, finding.code, dotted(finding.path)) for finding in findings]


def test_nothing_to_say_of_a_good_account(judge: Judge, existing: dict[str, Any]):
    """Resources that exist and fit give no finding."""
    assert judge(existing) == []


def test_the_quota_counts_other_clusters(judge: Judge, aws: AwsStandIn, existing: dict[str, Any]):
    """More nodes than the quota of their type are refused, with the number that there may be."""
    client, name = aws.client("service-quotas"), "ml.g5.12xlarge for cluster usage"
    quotas = client.list_aws_default_service_quotas(ServiceCode="sagemaker")["Quotas"]
    (quota,) = [item for item in quotas if item["QuotaName"] == name]
    for value, expected in ((1, 1), (quota["Value"], 0)):
        client.request_service_quota_increase(ServiceCode="sagemaker", QuotaCode=quota["QuotaCode"], DesiredValue=value)
        found = judge(existing)
        assert len(found) == expected
        for finding in found:
            assert summaries([finding]) == [("error", "cluster-quota", "cluster.instance_groups[1].instance_type")]
            assert f"the quota {name} is 1, the file has 2" in finding.message


def test_the_zone_must_have_the_type(judge: Judge, aws: AwsStandIn, existing: dict[str, Any]):
    """A type that EC2 does not offer in the subnets' zone is refused at its group."""
    pages = aws.client("ec2").get_paginator("describe_instance_type_offerings")
    filters = [{"Name": "location", "Values": [ZONE_ID]}]
    offers = pages.paginate(LocationType="availability-zone-id", Filters=filters).build_full_result()
    offered = {f"ml.{item['InstanceType']}" for item in offers["InstanceTypeOfferings"]}
    absent = next(name for name in cluster_instance_types() if name not in offered)
    settings = deepcopy(existing)
    settings["cluster"]["instance_groups"][1]["instance_type"] = absent
    (finding,) = [item for item in judge(settings) if item.code == "zone-offers-type"]
    assert finding.message == f"instance_type: {absent} is not offered in {ZONE_ID}"


def test_ids_of_nothing(judge: Judge, things: Things, existing: dict[str, Any]):
    """A subnet that is not there, and a group of another VPC, are refused at their places, and only there."""
    foreign = things.group(things.vpc(), "foreign")
    subnets = [*existing["network"]["subnet_ids"], "subnet-0123456789abcdef0"]
    found = judge(changed(existing, "network", subnet_ids=subnets, security_group_id=foreign))
    assert summaries(found) == [
        ("error", "network-exists", "network.security_group_id"),
        ("error", "network-exists", "network.subnet_ids[1]"),
    ]
    assert f"need {existing['network']['vpc_id']}" in found[0].message


def test_ports_are_named_one_by_one(judge: Judge, things: Things, existing: dict[str, Any]):
    """Each missing rule of a existing security group is a finding with its numbers; the rule for all is no number."""
    vpc = existing["network"]["vpc_id"]
    bare = judge(changed(existing, "network", security_group_id=things.group(vpc, "bare", ports=False, members=False)))
    assert [finding.level for finding in bare] == [Level.ERROR] * 4
    words = ("no inbound rule", "no outbound rule", "TCP 988 of Lustre is not", "TCP 1018-1023 of Lustre is not")
    for finding, word in zip(bare, words, strict=True):
        assert word in finding.message
    unnamed = things.group(vpc, "unnamed", ports=False)
    found = judge({**changed(existing, "network", security_group_id=unnamed), "openzfs": {"source": "create"}})
    assert [(finding.level, finding.code) for finding in found] == [(Level.WARNING, "security-group-rules")] * 3
    assert "TCP 2049 of OpenZFS is open only through a rule for all traffic" in found[2].message


def test_free_addresses(judge: Judge, things: Things, existing: dict[str, Any]):
    """A subnet with fewer free addresses than nodes is refused; EFA's interfaces are counted for a warning."""
    small = things.subnet(existing["network"]["vpc_id"], "10.0.1.0/28")
    settings = changed(existing, "network", subnet_ids=[small])
    settings["cluster"]["instance_groups"][1]["count"] = 11
    (finding,) = judge(settings)
    assert finding.message == "subnet_ids: 11 addresses are free, 12 nodes are to come"
    settings["cluster"]["instance_groups"][1] |= {"count": 10, "instance_type": "ml.p4d.24xlarge"}
    (finding,) = [finding for finding in judge(settings) if finding.code == "free-addresses"]
    assert finding.message == "subnet_ids: 11 addresses are free; with EFA the nodes to come may take 41"
    assert finding.level is Level.WARNING


def test_a_vpc_without_names(judge: Judge, things: Things, existing: dict[str, Any]):
    """DNS host names that are off are refused with the command that turns them on; so is a block that is taken."""
    vpc = things.vpc(dns=False)
    things.subnet(vpc, "10.0.32.0/20")
    network = {
        "source": "existing_vpc",
        "vpc_id": vpc,
        "availability_zone_id": ZONE_ID,
        "private_subnet_cidr": "10.0.32.0/22",
        "nat_gateway_id": "nat-0123456789abcdef0",
    }
    lustre = {"source": "create"}
    found = judge({**existing, "network": network, "lustre": lustre})
    assert sorted(summaries(found)) == [
        ("error", "new-subnet-fits", "network.private_subnet_cidr"),
        ("error", "vpc-dns", "network.vpc_id"),
    ]
    assert any(finding.hint.endswith(f"--vpc-id {vpc} --enable-dns-hostnames") for finding in found)
    found = judge({**existing, "network": {**network, "private_subnet_cidr": "10.1.0.0/22"}, "lustre": lustre})
    assert any(finding.hint == "the VPC has 10.0.0.0/16" for finding in found)


def test_no_way_to_s3(judge: Judge, things: Things, existing: dict[str, Any]):
    """A subnet whose route table leads neither to S3 nor out is refused."""
    lonely = things.subnet(existing["network"]["vpc_id"], "10.0.2.0/24", s3=False)
    found = judge(changed(existing, "network", subnet_ids=[lonely]))
    assert summaries(found) == [("error", "s3-route", "network.subnet_ids[0]")]


def test_buckets_elsewhere(judge: Judge, things: Things, existing: dict[str, Any]):
    """A bucket of another region, or of nobody, is refused."""
    things.bucket("sagemaker-elsewhere", "eu-west-1")
    (finding,) = judge(changed(existing, "bucket", name="sagemaker-elsewhere"))
    assert finding.message == f"name: the bucket is in eu-west-1, the cluster in {REGION}"
    (finding,) = judge(changed(existing, "bucket", name="sagemaker-nobodys"))
    assert finding.message == "name: there is no bucket sagemaker-nobodys"


def test_roles_for_others(judge: Judge, things: Things, existing: dict[str, Any]):
    """A role that trusts EC2 alone, or that is not there, is refused."""
    other = deepcopy(TRUST)
    other["Statement"]["Principal"] = {"Service": ["ec2.amazonaws.com"]}  # type: ignore[index]
    (finding,) = judge(changed(existing, "role", arn=things.role("for-ec2", other)))
    assert "does not let SageMaker assume it" in finding.message
    (finding,) = judge(changed(existing, "role", arn="arn:aws:iam::123456789012:role/absent"))
    assert finding.message == "arn: there is no role absent in this account"


def test_a_role_that_cannot_read_the_bucket_of_the_scripts(judge: Judge, things: Things, existing: dict[str, Any]):
    """A bucket outside AWS's policy for nodes is no error: IAM says whether the role reads it."""
    data = changed(existing, "role", arn=things.role("scripts", TRUST))
    data = {**data, "bucket": {"source": "existing", "name": "corp-scripts"}}
    messages = [finding.message for finding in judge(data) if finding.code == "role-rights"]
    assert messages == ["arn: scripts may not s3:GetObject in the bucket corp-scripts"]
    allowed = {"Effect": "Allow", "Action": "s3:Get*", "Resource": "arn:aws:s3:::corp-*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    things.iam.put_role_policy(RoleName="scripts", PolicyName="s3", PolicyDocument=policy)
    assert "role-rights" not in {finding.code for finding in judge(data)}


def test_rights_that_a_role_lacks(judge: Judge, things: Things, existing: dict[str, Any]):
    """A role without the rights to record sessions is warned of, action by action; with them it passes."""
    wanted = {**changed(existing, "role", arn=things.role("silent", TRUST)), "session": {"log_retention_days": 90}}
    found = [finding for finding in judge(wanted) if finding.code == "role-rights"]
    logs = "logs:CreateLogStream, logs:DescribeLogGroups, logs:DescribeLogStreams, logs:PutLogEvents"
    group = f"/podwright/sessions/podwright-{existing['name']}"
    assert [finding.message for finding in found] == [f"arn: silent may not {logs} on the log group {group}"]
    allowed = {"Effect": "Allow", "Action": "logs:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    things.iam.put_role_policy(RoleName="silent", PolicyName="logs", PolicyDocument=policy)
    assert "role-rights" not in {finding.code for finding in judge(wanted)}


def test_file_systems(judge: Judge, things: Things, existing: dict[str, Any]):
    """A wrong mount name, a file system of another VPC and one of nobody are reported."""
    found = judge(changed(existing, "lustre", mount_name="wrong123"))
    assert [finding.hint for finding in found] == [f"write {existing['lustre']['mount_name']}"]
    vpc = things.vpc(block="10.9.0.0/16")
    elsewhere = things.lustre(things.subnet(vpc, "10.9.0.0/24"), things.group(vpc, "elsewhere"))
    found = judge(changed(existing, "lustre", **elsewhere))
    assert summaries(found) == [("warning", "file-system-available", "lustre.dns_name")]
    nobodys = f"fs-0123456789abcdef0.fsx.{REGION}.amazonaws.com"
    (finding,) = judge(changed(existing, "lustre", dns_name=nobodys))
    assert finding.message == "dns_name: there is no file system fs-0123456789abcdef0"


def test_without_credentials(judge: Judge, existing: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Missing credentials are one finding at the region, with what to do."""
    (tmp_path / "empty").touch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "empty"))
    (finding,) = judge(existing)
    assert summaries([finding]) == [("error", "account-unanswered", "region")]
    assert "aws sts get-caller-identity" in finding.hint
    monkeypatch.setenv("AWS_PROFILE", "absent")
    (finding,) = judge(existing)
    assert "The config profile (absent) could not be found" in finding.message


class Denying(BaseHTTPRequestHandler):
    """A service that lets nobody ask."""

    def do_POST(self) -> None:
        body = b'{"__type": "AccessDeniedException", "message": "no"}'
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_other_rules_go_on(judge: Judge, existing: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """One denied question and one service without an answer are a finding each; everything else is judged."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_FSX", "http://127.0.0.1:9")  # where nobody listens
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", f"http://127.0.0.1:{server.server_port}")
        found = judge(changed(existing, "bucket", name="sagemaker-nobodys"))
        server.shutdown()
        thread.join()
    assert sorted(summaries(found)) == [
        ("error", "account-unanswered", "region"),
        ("error", "bucket-in-region", "bucket.name"),
        ("warning", "account-unanswered", "region"),
    ]
    denied = "AWS denied servicequotas:ListAWSDefaultServiceQuotas"
    assert denied in {finding.message for finding in found}
    assert any(finding.message.startswith(f"fsx in {REGION} does not answer: ") for finding in found)


def test_the_command(aws: AwsStandIn, existing: dict[str, Any], tmp_path: Path):
    """``check --live --json`` prints findings of the account like all others, with their place, and exits with 1."""
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(changed(existing, "bucket", name="sagemaker-nobodys")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "podwright", "check", "--live", "--json", file],
        env={**os.environ, **aws.environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["code"], finding["path"], finding["line"]) == ("bucket-in-region", "bucket.name", 2)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("running", "configured", "messages"),
    [
        (None, "continuous", []),
        ({"NodeProvisioningMode": "Continuous"}, "continuous", []),
        ({}, None, []),
        ({}, "continuous", ["runs with no value, and AWS does not change it to continuous"]),
        (
            {"NodeProvisioningMode": "Continuous"},
            None,
            ["runs with continuous, and AWS does not change it to no value"],
        ),
    ],
)
def test_a_running_cluster_keeps_its_provisioning(
    existing: dict[str, Any], running: dict[str, str] | None, configured: str | None, messages: list[str]
):
    """An edit of node_provisioning is a warning for a cluster that runs; a cluster that is not there may have any."""
    settings = Settings.model_validate(changed(existing, "cluster", node_provisioning=configured))
    account = SimpleNamespace(cluster=lambda name: running if name == "existing" else None)
    found = list(live.provisioning_of_cluster(settings, cast("Account", account)))
    assert [finding.message.partition("existing ")[2] for finding in found] == messages


def test_every_rule_says_how_to_look_by_hand():
    """Each rule of the account explains what is asked, when it passes and fails, and the command to look with."""
    for rule in rules.live_rules():
        meaning = codes()[rules.code(rule)]
        for word in ("Asked: ", "Passes: ", "Fails: ", "By hand: aws "):
            assert f"\n{word}" in meaning, rule
