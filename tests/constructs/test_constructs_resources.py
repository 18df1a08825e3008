"""Each construct's resources, as Terraform's JSON has them."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cdktf import App, TerraformProvider, TerraformProviderGeneratorMetadata, TerraformStack

import podwright_common
from podwright.diagram.stack_resources import decoded
from podwright_bootstrap.contract import ClusterFacts, InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import Hook, NodeFeatures, User
from podwright_constructs import facts
from podwright_constructs.arguments.data_repository import DataRepository
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_constructs.bucket import ExistingBucket, TrainingBucket, sha256_of
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup, ScheduledUpdate
from podwright_constructs.flow_logs import CloudWatchFlowLogs
from podwright_constructs.key import EncryptionKey, ExistingKey
from podwright_constructs.lifecycle import ExistingLifecycleScripts, LifecycleBundle
from podwright_constructs.lustre import ExistingLustre, LustreFileSystem
from podwright_constructs.network import ExistingNetwork, PrivateNetwork, TrainingNetwork
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.openzfs import ExistingOpenZfs, OpenZfsFileSystem
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.problems import InvalidArgumentsError
from podwright_constructs.role import ExecutionRole, ExistingRole
from podwright_constructs.s3_access import S3Access
from podwright_constructs.session import SessionDocument
from podwright_constructs.slurm import ApiSlurm
from podwright_constructs.subnet_configuration import SubnetConfiguration
from podwright_rehearsal.aws import cluster_schema

REPOSITORY = Path(__file__).parents[2]
ZONE = "usw2-az1"
NETWORK = ExistingNetwork(
    vpc_id="vpc-00000001", subnet_ids=["subnet-00000001", "subnet-00000002"], security_group_id="sg-00000001"
)
BUCKET = ExistingBucket(name="sagemaker-mine")
ROLE = ExistingRole(arn="arn:aws:iam::111122223333:role/nodes")
SCRIPTS = ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-mine/scripts")
USERS = (User("ada", 2001),)
LUSTRE = ExistingLustre(dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", mount_name="abcdefgh")
OPENZFS = ExistingOpenZfs(dns_name="fs-0fedcba9876543210.fsx.us-west-2.amazonaws.com", mount_path="/homes")
KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
CONTROLLER = InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1)
LOGIN = InstanceGroup(name="login", role="login", instance_type="ml.c5.large", count=1)
WORKERS = InstanceGroup(name="workers", role="compute", instance_type="ml.p5.48xlarge", count=4, partition="gpu")


def resources(stack: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """All resources of a type."""
    return list(stack["resource"].get(kind, {}).values())


def addresses(stack: Mapping[str, Any], kind: str) -> set[str]:
    """Return the names by which ``depends_on`` refers to the resources of a type."""
    return {f"{kind}.{name}" for name in stack["resource"].get(kind, {})}


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder of lifecycle scripts with things in it that are no scripts."""
    folder = tmp_path / "scripts"
    for name in (
        "on_create.sh",
        "podwright_bootstrap/__main__.py",
        "podwright_bootstrap/steps/lustre.py",
        "podwright_bootstrap/__pycache__/__main__.cpython-310.pyc",
        "podwright_bootstrap/py.typed",
        "pyproject.toml",
        "tests/test_boot.py",
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n")
    (folder / "on_create.sh").write_text("#!/bin/bash\narchive_sha256=\n")
    return folder


# ---- network -----------------------------------------------------------------------------------


def test_security_group_lets_efa_and_lustre_through(synthesize) -> None:
    """Members reach each other with every protocol in both directions, Lustre's ports are named, and egress is open."""
    stack = synthesize(lambda stack: TrainingNetwork(stack, "network", name="demo", availability_zone_id=ZONE))
    (group,) = addresses(stack, "aws_security_group")
    itself = f"${{{group}.id}}"
    ingress = resources(stack, "aws_vpc_security_group_ingress_rule")
    egress = resources(stack, "aws_vpc_security_group_egress_rule")
    assert {rule["security_group_id"] for rule in ingress + egress} == {itself}
    assert {rule["referenced_security_group_id"] for rule in ingress} == {itself}
    assert [(rule["ip_protocol"], rule.get("from_port")) for rule in ingress if rule["ip_protocol"] == "-1"] == [
        ("-1", None)
    ]
    lustre = {(rule["from_port"], rule["to_port"]) for rule in ingress if rule["ip_protocol"] == "tcp"}
    assert lustre == {(988, 988), (1018, 1023)} == set(map(tuple, facts.LUSTRE_PORTS))
    assert {
        (rule["ip_protocol"], rule.get("referenced_security_group_id"), rule.get("cidr_ipv4")) for rule in egress
    } == {
        ("-1", itself, None),
        ("-1", None, "0.0.0.0/0"),
    }


def test_nodes_reach_s3_and_the_internet_without_public_addresses(synthesize) -> None:
    """Both subnets lie in one zone; the private one goes out through NAT; S3 is on both route tables; DNS is on."""
    stack = synthesize(lambda stack: TrainingNetwork(stack, "network", name="demo", availability_zone_id=ZONE))
    (vpc,) = resources(stack, "aws_vpc")
    subnets = resources(stack, "aws_subnet")
    (endpoint,) = resources(stack, "aws_vpc_endpoint")
    assert vpc["enable_dns_support"] is True
    assert vpc["enable_dns_hostnames"] is True
    assert [subnet["availability_zone_id"] for subnet in subnets] == [ZONE, ZONE]
    assert not any(subnet.get("map_public_ip_on_launch") for subnet in subnets)
    tables = {f"${{{address}.id}}" for address in addresses(stack, "aws_route_table")}
    assert set(endpoint["route_table_ids"]) == tables
    assert len(tables) == 2
    ways = {
        route["route_table_id"]: set(route) & {"gateway_id", "nat_gateway_id"}
        for route in resources(stack, "aws_route")
    }
    assert sorted(map(sorted, ways.values())) == [["gateway_id"], ["nat_gateway_id"]]


def test_a_subnet_waits_for_the_block_it_may_lie_in(synthesize) -> None:
    """Every subnet depends on the association of the VPC's further block; the default security group is closed."""
    further = SubnetConfiguration(availability_zone_id="usw2-az2", cidr="100.64.0.0/20")
    stack = synthesize(
        lambda stack: TrainingNetwork(
            stack,
            "network",
            name="demo",
            availability_zone_id=ZONE,
            secondary_cidrs=["100.64.0.0/16"],
            extra_private_subnets=[further],
        )
    )
    (association,) = addresses(stack, "aws_vpc_ipv4_cidr_block_association")
    subnets = resources(stack, "aws_subnet")
    assert [subnet["depends_on"] for subnet in subnets] == [[association]] * 3
    assert sorted(subnet["availability_zone_id"] for subnet in subnets) == [ZONE, ZONE, "usw2-az2"]
    (closed,) = resources(stack, "aws_default_security_group")
    assert not {"ingress", "egress"} & set(closed)


def test_without_internet_nodes_reach_the_apis_alone(synthesize) -> None:
    """No public subnet, no gateway; each API has an endpoint in every zone that members reach on port 443."""
    places = [
        SubnetConfiguration(availability_zone_id=zone, cidr=f"10.0.{number}.0/24")
        for number, zone in ((32, ZONE), (33, "usw2-az2"))
    ]
    stack = synthesize(
        lambda stack: TrainingNetwork(
            stack,
            "network",
            name="demo",
            availability_zone_id=ZONE,
            internet="none",
            endpoints=["standard", "kms"],
            extra_private_subnets=places,
        )
    )
    assert not {"aws_internet_gateway", "aws_nat_gateway", "aws_eip", "aws_route"} & set(stack["resource"])
    endpoints = [item for item in resources(stack, "aws_vpc_endpoint") if item["vpc_endpoint_type"] == "Interface"]
    assert {item["service_name"].partition("id}.")[2] for item in endpoints} == {*facts.STANDARD_ENDPOINTS, "kms"}
    assert {len(item["subnet_ids"]) for item in endpoints} == {2}
    (rule,) = [
        rule
        for rule in resources(stack, "aws_vpc_security_group_ingress_rule")
        if [rule["security_group_id"]] == endpoints[0]["security_group_ids"]
    ]
    assert (rule["from_port"], rule["to_port"]) == (443, 443)
    assert rule["referenced_security_group_id"] != rule["security_group_id"]


@pytest.mark.parametrize(
    ("way", "made"),
    [
        ({"nat_gateway_id": "nat-00000001"}, {"aws_route_table", "aws_route", "aws_vpc_endpoint"}),
        ({"route_table_id": "rtb-00000001"}, set()),
    ],
)
def test_a_new_subnet_in_a_vpc_of_yours(synthesize, way: dict[str, str], made: set[str]) -> None:
    """With a NAT gateway the subnet gets routes and S3 of its own, with a route table it follows that and adds none."""
    arguments = {"vpc_id": "vpc-00000001", "availability_zone_id": ZONE, "private_subnet_cidr": "10.0.16.0/20"}
    stack = synthesize(lambda stack: PrivateNetwork(stack, "network", name="demo", nfs=True, **arguments, **way))
    assert {"aws_route_table", "aws_route", "aws_vpc_endpoint"} & set(stack["resource"]) == made
    (association,) = resources(stack, "aws_route_table_association")
    (table,) = {f"${{{address}.id}}" for address in addresses(stack, "aws_route_table")} or {"rtb-00000001"}
    assert association["route_table_id"] == table
    ports = {rule.get("from_port") for rule in resources(stack, "aws_vpc_security_group_ingress_rule")}
    assert facts.NFS_PORT in ports


def test_flow_logs_come_after_the_permission_to_write_them(synthesize) -> None:
    """The role is the service's, of this account; the log group is encrypted and kept for a year."""
    key = ExistingKey(arn=KEY)
    stack = synthesize(lambda stack: CloudWatchFlowLogs(stack, "logs", name="demo", vpc_id="vpc-00000001", key=key))
    (flow_log,) = resources(stack, "aws_flow_log")
    (group,) = resources(stack, "aws_cloudwatch_log_group")
    assert set(flow_log["depends_on"]) == addresses(stack, "aws_iam_role_policy")
    assert (flow_log["traffic_type"], group["kms_key_id"], group["retention_in_days"]) == ("ALL", KEY, 365)
    trust, permissions = sorted(
        stack["data"]["aws_iam_policy_document"].values(), key=lambda item: len(item["statement"])
    )
    assert trust["statement"][0]["principals"][0]["identifiers"] == ["vpc-flow-logs.amazonaws.com"]
    assert "logs:PutLogEvents" in permissions["statement"][0]["actions"]


# ---- file system -------------------------------------------------------------------------------


def test_file_system_waits_for_the_rules(synthesize) -> None:
    """FSx looks for rules on port 988, so the file system depends on every rule and not only on the group."""

    def build(stack: TerraformStack) -> None:
        network = TrainingNetwork(stack, "network", name="demo", availability_zone_id=ZONE)
        arguments = LustreArguments(capacity_gib=2400, throughput_mbps_per_tib=500)
        LustreFileSystem(stack, "lustre", arguments, network=network)

    stack = synthesize(build)
    (lustre,) = resources(stack, "aws_fsx_lustre_file_system")
    rules = addresses(stack, "aws_vpc_security_group_ingress_rule") | addresses(
        stack, "aws_vpc_security_group_egress_rule"
    )
    assert set(lustre["depends_on"]) == rules
    assert (lustre["storage_capacity"], lustre["per_unit_storage_throughput"]) == (2400, 500)


def test_defaults_are_those_of_the_type(synthesize) -> None:
    """Arguments that are left out get the defaults of the deployment type: capacity, throughput and metadata."""

    def build(stack: TerraformStack) -> None:
        kinds: dict[str, dict[str, Any]] = {
            "a": {},
            "b": {"deployment_type": "SCRATCH_2"},
            "c": {"deployment_type": "PERSISTENT_1", "storage_type": "HDD"},
            "d": {"storage_type": "INTELLIGENT_TIERING", "read_cache": True},
            "e": {"efa": True, "throughput_mbps_per_tib": 500, "metadata_iops": 12_000},
        }
        for name, arguments in kinds.items():
            LustreFileSystem(stack, name, LustreArguments(**arguments), network=NETWORK)

    keys = ("storage_capacity", "per_unit_storage_throughput", "throughput_capacity", "metadata_configuration")
    made = [tuple(item.get(key) for key in keys) for item in resources(synthesize(build), "aws_fsx_lustre_file_system")]
    assert made == [
        (1200, 250, None, {"mode": "AUTOMATIC"}),
        (1200, None, None, None),
        (1800, 40, None, None),
        (None, None, 4000, {"mode": "USER_PROVISIONED", "iops": 6000}),
        (9600, 500, None, {"mode": "USER_PROVISIONED", "iops": 12_000}),
    ]


def test_a_folder_shows_a_bucket(synthesize) -> None:
    """Changes travel only in the directions that were asked for, and unlinking leaves the files where they are."""
    links = [
        DataRepository(path="/in", s3_uri="s3://corpus"),
        DataRepository(path="/out", s3_uri="s3://results/runs", import_changes=False, export_changes=True),
    ]
    arguments = LustreArguments(data_repositories=links)
    stack = synthesize(lambda stack: LustreFileSystem(stack, "lustre", arguments, network=NETWORK))
    coming, going = resources(stack, "aws_fsx_data_repository_association")
    assert (set(coming["s3"]), coming["batch_import_meta_data_on_create"]) == ({"auto_import_policy"}, True)
    assert (set(going["s3"]), going["batch_import_meta_data_on_create"]) == ({"auto_export_policy"}, False)
    assert [link["delete_data_in_filesystem"] for link in (coming, going)] == [False, False]


def test_openzfs_of_two_zones_prefers_the_first(synthesize) -> None:
    """It takes two subnets, prefers the first, adds its routes to their tables, and keeps a last backup if asked."""
    network = replace(NETWORK, route_table_ids=["rtb-00000001", "rtb-00000002"])
    arguments = OpenZfsArguments(deployment_type="MULTI_AZ_1", on_destroy="backup")
    stack = synthesize(
        lambda stack: OpenZfsFileSystem(stack, "homes", arguments, network=network, key=ExistingKey(arn=KEY))
    )
    (homes,) = resources(stack, "aws_fsx_openzfs_file_system")
    assert (homes["subnet_ids"], homes["preferred_subnet_id"]) == (
        ["subnet-00000001", "subnet-00000002"],
        "subnet-00000001",
    )
    assert (homes["route_table_ids"], homes["throughput_capacity"]) == (["rtb-00000001", "rtb-00000002"], 160)
    assert (homes["skip_final_backup"], homes.get("delete_options"), homes["kms_key_id"]) == (False, None, KEY)


@pytest.mark.parametrize("on_destroy", ["retain", "backup", "destroy"])
def test_terraform_keeps_a_retained_file_system(synthesize, on_destroy: Any) -> None:
    """Retained files are protected from every plan, others are not; only a backup is made before a deletion."""

    def build(stack: TerraformStack) -> None:
        LustreFileSystem(stack, "lustre", LustreArguments(on_destroy=on_destroy), network=NETWORK)
        OpenZfsFileSystem(stack, "homes", OpenZfsArguments(on_destroy=on_destroy), network=NETWORK)

    stack = synthesize(build)
    for kind in ("aws_fsx_lustre_file_system", "aws_fsx_openzfs_file_system"):
        (made,) = resources(stack, kind)
        assert made["lifecycle"].get("prevent_destroy", False) is (on_destroy == "retain")
        assert made["skip_final_backup"] is (on_destroy != "backup")


class OwnProvider(TerraformProvider):
    """A provider class of somebody else's, with what `cdktf get` writes into it."""

    def __init__(self, scope: TerraformStack) -> None:
        super().__init__(
            scope,
            "mine",
            terraform_resource_type="aws",
            terraform_provider_source="hashicorp/aws",
            terraform_generator_metadata=TerraformProviderGeneratorMetadata(
                provider_name="aws", provider_version="~> 5.100"
            ),
        )

    @property
    def alias(self) -> str | None:
        """The default provider."""
        return None

    def _synthesize_attributes(self) -> dict[str, object]:
        return {"region": "us-west-2"}


@pytest.mark.terraform
def test_one_construct_alone_in_another_stack(tmp_path: Path, terraform: Mapping[str, str]) -> None:
    """A file system on a network of yours, in a stack of yours with a provider of yours, is valid for Terraform."""

    class Mine(TerraformStack):
        def __init__(self, scope: App) -> None:
            super().__init__(scope, "mine")
            OwnProvider(self)
            network = ExistingNetwork(
                vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001"
            )
            LustreFileSystem(self, "scratch", LustreArguments(capacity_gib=2400), network=network)

    app = App(outdir=str(tmp_path))
    Mine(app)
    app.synth()
    folder = tmp_path / "stacks" / "mine"
    subprocess.run(["terraform", "init"], cwd=folder, env=terraform, check=True, capture_output=True)
    answer = subprocess.run(
        ["terraform", "validate", "-json"], cwd=folder, env=terraform, check=True, capture_output=True, text=True
    )
    assert json.loads(answer.stdout)["valid"] is True


# ---- bucket and role ---------------------------------------------------------------------------


def test_bucket_is_private_encrypted_versioned_and_tls_only(synthesize) -> None:
    """The bucket's name begins as SageMaker asks, and nobody reads it in public, in the clear, or over plain HTTP."""
    stack = synthesize(lambda stack: TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-demo-"))
    (bucket,) = resources(stack, "aws_s3_bucket")
    (access,) = resources(stack, "aws_s3_bucket_public_access_block")
    (versioning,) = resources(stack, "aws_s3_bucket_versioning")
    (encryption,) = resources(stack, "aws_s3_bucket_server_side_encryption_configuration")
    (document,) = stack["data"]["aws_iam_policy_document"].values()
    (statement,) = document["statement"]
    assert bucket["bucket_prefix"] == "sagemaker-demo-"
    assert [access[key] for key in access if key.startswith(("block", "ignore", "restrict"))] == [True] * 4
    assert versioning["versioning_configuration"] == {"status": "Enabled"}
    assert encryption["rule"] == [{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}]
    assert (statement["effect"], statement["actions"]) == ("Deny", ["s3:*"])
    assert statement["condition"] == [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}]


@pytest.mark.parametrize("on_destroy", ["retain", "destroy"])
def test_bucket_is_emptied_only_if_asked(synthesize, on_destroy: Any) -> None:
    """Terraform deletes a bucket's objects only when the user said destroy."""
    stack = synthesize(
        lambda stack: TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-demo-", on_destroy=on_destroy)
    )
    (bucket,) = resources(stack, "aws_s3_bucket")
    assert bucket["force_destroy"] is (on_destroy == "destroy")


def test_one_key_encrypts_and_nodes_may_decrypt(synthesize) -> None:
    """The bucket's objects are encrypted with the key, and the nodes' role may use it through S3 alone."""

    def build(stack: TerraformStack) -> None:
        bucket = TrainingBucket(
            stack, "bucket", bucket_prefix="sagemaker-demo-", key=EncryptionKey(stack, "key", alias="demo")
        )
        ExecutionRole(stack, "role", name="nodes", bucket=bucket, network=NETWORK)

    stack = synthesize(build)
    (key,) = resources(stack, "aws_kms_key")
    (encryption,) = resources(stack, "aws_s3_bucket_server_side_encryption_configuration")
    (address,) = addresses(stack, "aws_kms_key")
    (rule,) = encryption["rule"]
    assert key["enable_key_rotation"] is True
    assert rule["apply_server_side_encryption_by_default"] == {
        "sse_algorithm": "aws:kms",
        "kms_master_key_id": f"${{{address}.arn}}",
    }
    statements = [s for d in stack["data"]["aws_iam_policy_document"].values() for s in d["statement"]]
    (use,) = [statement for statement in statements if statement.get("sid") == "UseKeyOfBucket"]
    assert use["actions"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert use["resources"] == [f"${{{address}.arn}}"]
    (through,) = use["condition"]
    assert through["variable"] == "kms:ViaService"
    assert [service.split(".")[0] for service in through["values"]] == ["s3"]


def test_bucket_lets_go_of_what_is_left_behind(synthesize) -> None:
    """Old versions and abandoned uploads go, requests are written down, logs are delivered to their folder alone."""
    stack = synthesize(
        lambda stack: TrainingBucket(
            stack,
            "bucket",
            bucket_prefix="sagemaker-demo-",
            noncurrent_version_expiration_days=30,
            access_log_bucket="logs",
            receives_logs=True,
        )
    )
    (lifecycle,) = resources(stack, "aws_s3_bucket_lifecycle_configuration")
    (rule,) = lifecycle["rule"]
    assert rule["noncurrent_version_expiration"] == [{"noncurrent_days": 30}]
    assert rule["abort_incomplete_multipart_upload"] == [{"days_after_initiation": 7}]
    (logging,) = resources(stack, "aws_s3_bucket_logging")
    assert logging["target_bucket"] == "logs"
    (document,) = stack["data"]["aws_iam_policy_document"].values()
    (delivery,) = [statement for statement in document["statement"] if statement["actions"] == ["s3:PutObject"]]
    assert "/AWSLogs/" in delivery["resources"][0]


def test_nodes_cannot_write_what_nodes_run(synthesize) -> None:
    """The role reads its own prefixes of its bucket, and writes where nothing lies that a node runs."""
    made = {"bucket": BUCKET, "network": NETWORK, "read_prefixes": ["a/lifecycle"], "write_prefixes": ["a/runs"]}
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", **made))
    permissions = role_permissions(stack)
    on_s3 = {
        action: {resource.split(":::")[1] for resource in statement["resources"]}
        for statement in permissions["statement"]
        for action in statement["actions"]
        if action.startswith("s3:") and "effect" not in statement
    }
    written = {"sagemaker-mine/a/runs/*"}
    assert on_s3 == {
        "s3:ListBucket": {"sagemaker-mine"},
        "s3:GetObject": {"sagemaker-mine/a/lifecycle/*"} | written,
        "s3:PutObject": written,
        "s3:AbortMultipartUpload": written,
    }
    (listing,) = [item for item in permissions["statement"] if item["actions"] == ["s3:ListBucket"]]
    assert {"test": "StringLike", "variable": "s3:prefix", "values": ["a/lifecycle/*", "a/runs/*"]} in listing[
        "condition"
    ]
    allowed = [statement for statement in permissions["statement"] if "effect" not in statement]
    every_action = [action for statement in allowed for action in statement["actions"]]
    assert not [action for action in every_action if "*" in action]


@pytest.mark.parametrize("write", ["a/lifecycle", "a", "a/lifecycle/runs"])
def test_a_role_that_could_write_what_nodes_run_is_refused(stack: TerraformStack, write: str) -> None:
    """A prefix to write must not be, hold or lie in one that nodes run."""
    with pytest.raises(ValueError, match=r"write_prefixes\[0\]"):
        ExecutionRole(
            stack,
            "role",
            name="nodes",
            bucket=BUCKET,
            network=NETWORK,
            read_prefixes=["a/lifecycle"],
            write_prefixes=[write],
        )


def test_role_uses_mounted_buckets_as_they_are_mounted(synthesize) -> None:
    """Nodes only read a read-only prefix, and also write and delete below any other."""
    key = "arn:aws:kms:us-west-2:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    wanted = [
        S3Access(bucket="corpora", prefix="c4/", key_arn=key),
        S3Access(bucket="results", read_only=False),
    ]
    stack = synthesize(
        lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK, s3_access=wanted)
    )
    by_sid = {statement["sid"]: statement for statement in role_permissions(stack)["statement"]}
    (below,) = by_sid["ListMount0"]["condition"]
    assert (below["variable"], below["values"]) == ("s3:prefix", ["c4/*"])
    assert by_sid["UseMount0"]["actions"] == ["s3:GetObject"]
    assert [resource.partition(":s3:::")[2] for resource in by_sid["UseMount0"]["resources"]] == ["corpora/c4/*"]
    assert "condition" not in by_sid["ListMount1"]
    assert by_sid["UseMount1"]["actions"] == [
        "s3:GetObject",
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:PutObject",
    ]
    assert [resource.partition(":s3:::")[2] for resource in by_sid["UseMount1"]["resources"]] == ["results/*"]
    assert by_sid["UseKeysOfMounts"]["resources"] == [key]


@pytest.mark.parametrize("prefix", ["", "lifecycle/", "lifecycle/abc/"])
def test_a_mount_that_could_write_what_nodes_run_is_refused(stack: TerraformStack, prefix: str) -> None:
    """A folder that can be written must not show what nodes run; a read-only one may."""
    mine = S3Access(bucket=BUCKET.name, prefix=prefix, read_only=False)
    made: dict[str, Any] = {"name": "nodes", "bucket": BUCKET, "network": NETWORK}
    with pytest.raises(ValueError, match=r"s3_access\[0\]\.prefix"):
        ExecutionRole(stack, "role", **made, s3_access=[mine])
    assert ExecutionRole(stack, "role", **made, s3_access=[replace(mine, read_only=True)]).arn


def test_role_may_make_interfaces_wherever_a_group_is(synthesize) -> None:
    """The subnets and security groups of the network and of groups elsewhere, each once, and no others."""
    stack = synthesize(
        lambda stack: ExecutionRole(
            stack,
            "role",
            name="nodes",
            bucket=BUCKET,
            network=NETWORK,
            override_subnet_ids=["subnet-00000008", "subnet-00000009", "subnet-00000009"],
            override_security_group_ids=["sg-00000009"],
        )
    )
    (create,) = [item for item in role_permissions(stack)["statement"] if item["sid"] == "CreateInterfaces"]
    named = [resource.rpartition("/")[2] for resource in create["resources"]]
    assert named == [
        "*",
        NETWORK.security_group_id,
        "sg-00000009",
        *NETWORK.subnet_ids,
        "subnet-00000008",
        "subnet-00000009",
    ]
    (manage,) = [item for item in role_permissions(stack)["statement"] if item["sid"] == "ManageInterfaces"]
    ((condition),) = manage["condition"]
    assert (condition["test"], condition["variable"]) == ("ArnLike", "ec2:Subnet")
    assert [subnet.rpartition("/")[2] for subnet in condition["values"]] == named[3:]


def test_role_tags_no_interface_outside_of_its_subnets(synthesize) -> None:
    """Each statement that allows ec2:CreateTags is for new interfaces, or for those of the cluster's subnets."""
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK))
    allowed = [item for item in role_permissions(stack)["statement"] if "ec2:CreateTags" in item["actions"]]
    conditions = [(condition["variable"], condition["values"]) for item in allowed for condition in item["condition"]]
    assert len(conditions) == len(allowed) == 2
    (_, action), (_, subnets) = sorted(conditions)
    assert action == ["CreateNetworkInterface"]
    assert [subnet.rpartition("/")[2] for subnet in subnets] == list(NETWORK.subnet_ids)
    assert [variable for variable, _ in sorted(conditions)] == ["ec2:CreateAction", "ec2:Subnet"]


def test_role_may_write_the_logs_of_its_cluster_alone(synthesize) -> None:
    """With a cluster's name the role makes and writes no log group of another cluster."""
    stack = synthesize(
        lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK, cluster_name="demo")
    )
    by_sid = {statement["sid"]: statement for statement in role_permissions(stack)["statement"]}
    assert by_sid["CreateLogGroups"]["resources"][0].endswith(":log-group:/aws/sagemaker/Clusters/demo/*")
    assert by_sid["WriteLogs"]["resources"][0].endswith(":log-group:/aws/sagemaker/Clusters/demo/*:log-stream:*")


def test_role_with_many_groups_fits_into_its_policy(synthesize) -> None:
    """As many subnets as the check accepts make a policy that IAM accepts, with the longest names; more are refused."""

    def build(stack: TerraformStack, subnets: int) -> ExecutionRole:
        name = "n" * facts.MAX_CLUSTER_NAME_LENGTH
        return ExecutionRole(
            stack,
            f"role-{subnets}",
            name="nodes",
            bucket=ExistingBucket(name="sagemaker-" + "b" * 53, key_arn=KEY),
            network=NETWORK,
            cluster_name=name,
            read_prefixes=[f"{name}/lifecycle", f"{name}/training", f"{name}/bundle"],
            write_prefixes=[f"{name}/runs", f"{name}/logs"],
            secret_arns=[f"arn:aws:secretsmanager:us-west-2:210987654321:secret:{name}-{n}" for n in range(2)],
            secret_key_arn=KEY,
            prometheus_workspace_arn="arn:aws:aps:us-west-2:210987654321:workspace/ws-" + "a" * 36,
            override_subnet_ids=[f"subnet-{number:017x}" for number in range(subnets)],
        )

    most = 23
    statements = role_permissions(synthesize(lambda stack: build(stack, most)))["statement"]
    text = json.dumps([{"effect": "Allow", **item} for item in statements], separators=(",", ":"))
    written = re.sub(r"\$\{[^}]+\}", "ap-northeast-1", text)  # a region is longer than an account or a partition
    assert 8_000 < len(written) < facts.MAX_ROLE_POLICY_LENGTH
    with pytest.raises(InvalidArgumentsError, match="policy: got up to 10"):
        synthesize(lambda stack: build(stack, most + 1))


def test_role_has_no_more_than_it_needs(synthesize) -> None:
    """Keys, secret and metrics are each one ARN in the policy, grants are for AWS alone, and the boundary is set."""
    volumes, secrets = "arn:aws:kms:::key/1", "arn:aws:kms:::key/2"
    secret, workspace = "arn:aws:secretsmanager:::secret:a", "arn:aws:aps:::workspace/w"
    boundary = "arn:aws:iam::210987654321:policy/limits"
    stack = synthesize(
        lambda stack: ExecutionRole(
            stack,
            "role",
            name="nodes",
            bucket=BUCKET,
            network=NETWORK,
            secret_arns=[secret],
            secret_key_arn=secrets,
            volume_key_arns=[volumes],
            prometheus_workspace_arn=workspace,
            permissions_boundary_arn=boundary,
        )
    )
    by_sid = {statement["sid"]: statement for statement in role_permissions(stack)["statement"]}
    for sid, action, resource in (
        ("UseKeyOfSecrets", "kms:Decrypt", secrets),
        ("UseKeysOfVolumes", "kms:GenerateDataKeyWithoutPlaintext", volumes),
        ("GrantKeysOfVolumes", "kms:CreateGrant", volumes),
        ("ReadSecrets", "secretsmanager:GetSecretValue", secret),
        ("WriteToPrometheus", "aps:RemoteWrite", workspace),
    ):
        assert action in by_sid[sid]["actions"]
        assert by_sid[sid]["resources"] == [resource]
    through, for_services = by_sid["GrantKeysOfVolumes"]["condition"]
    assert [service.split(".")[0] for service in through["values"]] == ["ec2", "sagemaker"]
    assert (for_services["variable"], for_services["values"]) == ("kms:GrantIsForAWSResource", ["true"])
    (role,) = resources(stack, "aws_iam_role")
    assert role["permissions_boundary"] == boundary


def test_role_reads_a_bucket_of_another_account(synthesize) -> None:
    """The bucket's account replaces the role's in each condition, and the role has its path."""
    bucket = ExistingBucket(name="scripts", account_id="333344445555")
    stack = synthesize(
        lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=bucket, network=NETWORK, path="/teams/llm/")
    )
    by_sid = {statement["sid"]: statement for statement in role_permissions(stack)["statement"]}
    for sid in ("ListPrefixes", "ReadPrefixes", "WritePrefixes"):
        (account,) = (item for item in by_sid[sid]["condition"] if item["variable"] == "aws:ResourceAccount")
        assert account["values"] == ["333344445555"]
    (role,) = resources(stack, "aws_iam_role")
    assert role["path"] == "/teams/llm/"


def test_a_role_gets_what_it_is_granted(synthesize) -> None:
    """Policies are attached; grants and statements join the permissions, with the bucket's key."""
    policy = "arn:aws:iam::aws:policy/AmazonBedrockReadOnly"

    def build(stack: TerraformStack) -> None:
        role = ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK, policy_arns=[policy])
        TrainingBucket.from_name("sagemaker-papers", key_arn=KEY).grant_read(role, "english/")
        TrainingBucket(stack, "results", bucket_prefix="sagemaker-results-").grant_read_write(role)
        role.add_statement({"sid": "Ours", "actions": ["bedrock:InvokeModel"], "resources": ["*"]})
        with pytest.raises(InvalidArgumentsError, match=r"actions\[0\]: got \*, need SERVICE:ACTION"):
            role.add_statement({"actions": ["*"], "resources": ["*"]})
        with pytest.raises(InvalidArgumentsError, match="read_only: true, because it overlaps lifecycle"):
            BUCKET.grant_read_write(role)

    stack = synthesize(build)
    (attached,) = resources(stack, "aws_iam_role_policy_attachment")
    assert attached["policy_arn"] == policy
    by_sid = {statement["sid"]: statement for statement in role_permissions(stack)["statement"]}
    assert by_sid["ListGranted0"]["condition"][0]["values"] == ["english/*"]
    assert by_sid["UseGranted0"]["actions"] == ["s3:GetObject"]
    assert by_sid["UseGranted0"]["resources"][0].endswith(":s3:::sagemaker-papers/english/*")
    assert by_sid["UseKeyOfGranted0"]["resources"] == [KEY]
    assert "s3:PutObject" in by_sid["UseGranted1"]["actions"]
    assert by_sid["Ours"]["actions"] == ["bedrock:InvokeModel"]


def test_a_role_may_publish_notices(synthesize) -> None:
    """The role may send to the topic, and use its key for Amazon SNS alone."""

    def build(stack: TerraformStack) -> None:
        role = ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK)
        notices = ClusterNotices(stack, "notices", name="n", cluster_name="n", email="a@llm.test", key_arn=KEY)
        notices.grant_publish(role)

    documents = synthesize(build)["data"]["aws_iam_policy_document"].values()
    by_sid = {statement.get("sid"): statement for document in documents for statement in document["statement"]}
    assert by_sid["PublishNotices"]["actions"] == ["sns:Publish"]
    assert by_sid["UseKeyOfNotices"]["resources"] == [KEY]
    assert by_sid["UseKeyOfNotices"]["condition"][0]["values"] == ["sns.*.amazonaws.com"]


@pytest.mark.parametrize(("warnings", "levels"), [(False, ["Error"]), (True, ["Warn", "Error"])])
def test_notices_of_warnings_are_asked_for(synthesize, *, warnings: bool, levels: list[str]) -> None:
    """Cluster events of level Warn are sent only if they are asked for."""
    stack = synthesize(
        lambda stack: ClusterNotices(
            stack, "notices", name="n", cluster_name="n", email="a@llm.test", warnings=warnings
        )
    )
    patterns = [rule["event_pattern"] for rule in resources(stack, "aws_cloudwatch_event_rule")]
    (pattern,) = [text for text in patterns if "EventLevel" in text]
    assert f'"EventLevel" = {json.dumps(levels)}' in pattern


def test_no_policy_lets_nodes_write_what_they_run(synthesize) -> None:
    """Writing the prefixes with programs is denied, so that no other policy of the role allows it."""
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK))
    (denied,) = [item for item in role_permissions(stack)["statement"] if item.get("effect") == "Deny"]
    assert [resource.rpartition(":::")[2] for resource in denied["resources"]] == [
        f"{BUCKET.name}/lifecycle/*",
        f"{BUCKET.name}/training/*",
    ]
    assert {"s3:DeleteObject*", "s3:PutObject*"} <= set(denied["actions"])


def test_controllers_and_login_nodes_may_have_roles_of_their_own(synthesize) -> None:
    """The controllers' groups get the controllers' role, login groups theirs, all others the other one."""
    of_controllers = ExistingRole(arn="arn:aws:iam::111122223333:role/controllers")
    of_login = ExistingRole(arn="arn:aws:iam::111122223333:role/login")
    login = InstanceGroup(name="login", role="login", instance_type="ml.m5.xlarge", count=1)
    stack = synthesize(
        lambda stack: HyperPodCluster(
            stack,
            "cluster",
            cluster_name="demo",
            instance_groups=[CONTROLLER, login, WORKERS],
            network=NETWORK,
            role=ROLE,
            controller_role=of_controllers,
            login_role=of_login,
            lifecycle=SCRIPTS,
        )
    )
    (cluster,) = resources(stack, "aws_cloudcontrolapi_resource")
    groups = decoded(cluster["desired_state"])["InstanceGroups"]
    assert {group["InstanceGroupName"]: group["ExecutionRole"] for group in groups} == {
        CONTROLLER.name: of_controllers.arn,
        "login": of_login.arn,
        WORKERS.name: ROLE.arn,
    }


def test_sessions_are_kept_where_nodes_may_write_them(synthesize) -> None:
    """With a retention the document names a log group of its own, and grant_logs lets a role write it alone."""

    def build(stack: TerraformStack) -> None:
        role = ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK)
        SessionDocument(stack, "session", name="podwright-demo", log_retention_days=30).grant_logs(role)
        SessionDocument(stack, "silent", name="podwright-silent").grant_logs(role)

    stack = synthesize(build)
    (group,) = resources(stack, "aws_cloudwatch_log_group")
    assert (group["name"], group["retention_in_days"]) == ("/podwright/sessions/podwright-demo", 30)
    recorded = [
        json.loads(document["content"])["inputs"].get("cloudWatchEncryptionEnabled")
        for document in resources(stack, "aws_ssm_document")
    ]
    assert recorded == [False, None]  # true would refuse a group without a key
    (write,) = [item for item in role_permissions(stack)["statement"] if item["sid"] == "WriteSessionLogs"]
    assert [resource.rpartition("}")[2] for resource in write["resources"]] == [":log-stream:*"]


def role_permissions(stack: Mapping[str, Any]) -> dict[str, Any]:
    """The policy document that is not the trust."""
    documents = stack["data"]["aws_iam_policy_document"].values()
    (found,) = [document for document in documents if len(document["statement"]) > 1]
    return dict(found)


def test_only_sagemaker_assumes_the_role(synthesize) -> None:
    """The trust policy names the service, has no condition that HyperPod may not meet, and fixes no partition."""
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK))
    documents = stack["data"]["aws_iam_policy_document"].values()
    (trust,) = [document for document in documents if document["statement"][0]["actions"] == ["sts:AssumeRole"]]
    (statement,) = trust["statement"]
    assert "condition" not in statement
    assert statement["principals"] == [{"type": "Service", "identifiers": ["sagemaker.amazonaws.com"]}]
    assert "arn:aws:" not in json.dumps(list(documents))


# ---- lifecycle scripts and payload -------------------------------------------------------------


def bundle(stack: TerraformStack, scripts: Path, **changes: Any) -> LifecycleBundle:
    """A lifecycle bundle on existing resources."""
    arguments: dict[str, Any] = {
        "scripts": scripts,
        "bucket": BUCKET,
        "cluster_name": "demo",
        "instance_groups": [CONTROLLER, LOGIN, WORKERS],
        "lustre": LUSTRE,
        "openzfs": OPENZFS,
    }
    return LifecycleBundle(stack, "lifecycle", **(arguments | changes))


def keys(stack: Mapping[str, Any]) -> set[str]:
    """Keys of all objects."""
    return {item["key"] for item in resources(stack, "aws_s3_object")}


def test_bundle_holds_the_scripts_and_nothing_else(synthesize, scripts: Path, tmp_path: Path) -> None:
    """Entry point, archive and parameters have one prefix; users, which nodes follow, stay where they are.

    The archive also has the package that all distributions share.
    """
    built = []
    stack = synthesize(lambda stack: built.append(bundle(stack, scripts)))
    prefix = built[0].source_s3_uri.removeprefix("s3://sagemaker-mine/")
    names = ("on_create.sh", "podwright_bootstrap.tar", "provisioning_parameters.json")
    assert keys(stack) == {"lifecycle/users.json", *(f"{prefix}/{name}" for name in names)}
    (archive,) = (tmp_path / "cdktf.out" / "lifecycle").glob("*/podwright_bootstrap.tar")
    with tarfile.open(archive) as members:
        names = members.getnames()
    own = [name for name in names if not name.startswith("podwright_common/")]
    assert own == ["podwright_bootstrap/__main__.py", "podwright_bootstrap/steps/lustre.py"]
    shared = Path(podwright_common.__file__).parent
    assert set(names) - set(own) == {f"podwright_common/{path.name}" for path in shared.glob("*.py")}


def test_prefix_changes_with_the_scripts_alone(scripts: Path, tmp_path: Path) -> None:
    """Another script gives another prefix, so that nodes know; another group does not disturb them."""

    def prefix(number: int, **changes: Any) -> str:
        stack = TerraformStack(App(outdir=str(tmp_path / str(number))), "test")
        return bundle(stack, scripts, **changes).source_s3_uri

    first = prefix(1)
    assert prefix(2, instance_groups=[CONTROLLER, WORKERS]) == first
    (scripts / "podwright_bootstrap" / "steps" / "lustre.py").write_text("# changed\n")
    assert prefix(3) != first


@pytest.mark.terraform
def test_parameters_are_what_the_bootstrap_reads(synthesize, evaluate, scripts: Path, tmp_path: Path) -> None:
    """The file that Terraform writes is read by the nodes' own class and says what the arguments said."""
    wheel, requirements = tmp_path / "x-1-py3-none-any.whl", tmp_path / "requirements.lock"
    wheel.write_bytes(b"wheel")
    requirements.write_bytes(b"requirements")
    payloads = []

    def build(stack: TerraformStack) -> None:
        payloads.append(TrainingPayload(stack, "training", bucket=BUCKET, wheel=wheel, requirements=requirements))
        groups = [CONTROLLER, LOGIN, replace(LOGIN, name="notebooks"), WORKERS]
        nodes = NodeFeatures(users=USERS, motd=True)
        bundle(stack, scripts, instance_groups=groups, training=payloads[0], facts=ClusterFacts(nodes=nodes))

    stack = synthesize(build)
    objects = {item["key"].split("/")[-1]: item.get("content") for item in resources(stack, "aws_s3_object")}
    assert evaluate(objects["users.json"]) == {"users": [{"name": "ada", "uid": 2001, "groups": [], "ssh_keys": []}]}
    content = objects["provisioning_parameters.json"]
    assert ProvisioningParameters.from_json(json.dumps(evaluate(content))) == ProvisioningParameters(
        cluster_name="demo",
        controller_group="controller",
        login_group="login",
        more_login_groups=["notebooks"],
        worker_groups=[WorkerGroup(instance_group_name="workers", partition_name="gpu")],
        fsx_dns_name=LUSTRE.dns_name,
        fsx_mountname=LUSTRE.mount_name,
        fsx_openzfs_dns_name=OPENZFS.dns_name,
        openzfs_mount_path="/homes",
        region="us-west-2",
        instance_facts={
            "controller": InstanceFacts(vcpus=4, memory_gib=16),
            "login": InstanceFacts(vcpus=2, memory_gib=4),
            "notebooks": InstanceFacts(vcpus=2, memory_gib=4),
            "workers": InstanceFacts("gpu", 8, "H100", 32, 192, 2048, nvlink=True, nvme_disks=8),
        },
        training=payloads[0].contract,
        bundle_s3_uri="s3://sagemaker-mine/bundle",
        users_s3_uri="s3://sagemaker-mine/lifecycle/users.json",
        nodes=NodeFeatures(users=USERS, motd=True),
    )


def test_hooks_are_uploaded_by_their_content(synthesize, scripts: Path, tmp_path: Path) -> None:
    """A hook's key is its SHA-256, which the contract repeats; a hook without a file is refused."""
    hook = tmp_path / "site.sh"
    hook.write_text("#!/bin/sh\n")
    hooked = ClusterFacts(nodes=NodeFeatures(hooks=(Hook("site.sh"),)))
    stack = synthesize(lambda stack: bundle(stack, scripts, facts=hooked, hooks={"site.sh": hook}))
    assert f"lifecycle/hooks/{sha256_of(hook)}" in keys(stack)
    (content,) = [item["content"] for item in resources(stack, "aws_s3_object") if "hook_sha256" in str(item)]
    assert sha256_of(hook) in content
    with pytest.raises(InvalidArgumentsError, match=r"the file of site\.sh"):
        synthesize(lambda stack: bundle(stack, scripts, facts=hooked))


def test_windows_line_ends_are_refused(stack: TerraformStack, scripts: Path) -> None:
    """An entry point with carriage returns would fail on every node, so it fails here."""
    (scripts / "on_create.sh").write_bytes(b"#!/bin/bash\r\n")
    with pytest.raises(ValueError, match="carriage return"):
        bundle(stack, scripts)


def test_payload_keys_carry_the_hash(synthesize, tmp_path: Path) -> None:
    """Wheel and requirements lie under keys with their SHA-256, and the contract repeats both."""
    wheel, requirements = tmp_path / "x-1-py3-none-any.whl", tmp_path / "requirements.lock"
    wheel.write_bytes(b"wheel")
    requirements.write_bytes(b"requirements")
    payloads = []
    stack = synthesize(
        lambda stack: payloads.append(
            TrainingPayload(stack, "training", bucket=BUCKET, wheel=wheel, requirements=requirements)
        )
    )
    contract = payloads[0].contract
    assert keys(stack) == {
        f"training/{sha256_of(wheel)}/{wheel.name}",
        f"training/{sha256_of(requirements)}/{requirements.name}",
    }
    assert {contract.wheel_s3_uri, contract.requirements_s3_uri} == {
        f"s3://sagemaker-mine/{key}" for key in keys(stack)
    }
    assert (contract.wheel_sha256, contract.requirements_sha256) == (sha256_of(wheel), sha256_of(requirements))


def test_objects_take_no_default_tags(synthesize, scripts: Path) -> None:
    """S3 allows ten tags on an object and a provider may give more, so objects override the provider's."""
    stack = synthesize(lambda stack: bundle(stack, scripts))
    assert all(
        item["override_provider"] == {"default_tags": {"tags": {}}} for item in resources(stack, "aws_s3_object")
    )


# ---- cluster -----------------------------------------------------------------------------------


def cluster(stack: TerraformStack, **changes: Any) -> HyperPodCluster:
    """A cluster on existing resources."""
    arguments: dict[str, Any] = {
        "cluster_name": "demo",
        "instance_groups": [CONTROLLER, LOGIN, WORKERS],
        "network": NETWORK,
        "role": ROLE,
        "lifecycle": SCRIPTS,
        "tags": {"team": "research"},
    }
    return HyperPodCluster(stack, "cluster", **(arguments | changes))


@pytest.mark.terraform
def test_desired_state_is_valid_for_aws(synthesize, evaluate) -> None:
    """The model of the cluster is what AWS's own CloudFormation schema asks for, and says what the arguments said."""
    stack = synthesize(cluster)
    (resource,) = resources(stack, "aws_cloudcontrolapi_resource")
    model = evaluate(resource["desired_state"])
    assert cluster_schema.problems(model, region="us-west-2") == []
    assert resource["type_name"] == cluster_schema.CLUSTER_TYPE
    assert model["VpcConfig"] == {"SecurityGroupIds": ["sg-00000001"], "Subnets": ["subnet-00000001"]}  # one zone
    assert (model["NodeRecovery"], model["Tags"]) == ("Automatic", [{"Key": "team", "Value": "research"}])
    assert model["InstanceGroups"][2] == {
        "InstanceGroupName": "workers",
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 4,
        "ExecutionRole": ROLE.arn,
        "ThreadsPerCore": 1,
        "LifeCycleConfig": {"SourceS3Uri": SCRIPTS.source_s3_uri, "OnCreate": "on_create.sh"},
        "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}],
    }


@pytest.mark.terraform
def test_everything_the_api_offers_for_a_group(synthesize, evaluate) -> None:
    """Each argument of a group, and Slurm by the API, is where AWS's schema has it."""
    group = replace(
        WORKERS,
        min_count=2,
        key_arn="arn:aws:kms:us-west-2:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        training_plan_arn="arn:aws:sagemaker:us-west-2:210987654321:training-plan/mine",
        capacity="on-demand",
        deep_health_checks=["instance-stress"],
        network_interface="efa-only",
        subnet_ids=["subnet-00000009"],
        image_id="ami-0123456789abcdef0",
        scheduled_update=ScheduledUpdate(
            schedule="cron(0 3 ? * SUN *)", max_percent=25, rollback_max_count=8, wait_s=60, rollback_alarms=["a"]
        ),
    )
    slurm = ApiSlurm(strategy=None, lustre=LUSTRE)
    changes = {
        "instance_groups": [
            replace(CONTROLLER, auto_patch="when-all-idle", capacity="spot", other_instance_types=["ml.m5.2xlarge"]),
            group,
        ],
        "lifecycle": None,
        "slurm": slurm,
        "node_provisioning": "continuous",
        "extra_security_group_ids": ["sg-00000002"],
    }
    (resource,) = resources(synthesize(lambda stack: cluster(stack, **changes)), "aws_cloudcontrolapi_resource")
    model = evaluate(resource["desired_state"])
    assert cluster_schema.problems(model, region="us-west-2") == []
    assert (model["Orchestrator"], model["NodeProvisioningMode"]) == ({"Slurm": {}}, "Continuous")
    assert model["VpcConfig"]["SecurityGroupIds"] == ["sg-00000001", "sg-00000002"]
    controller, workers = model["InstanceGroups"]
    assert controller["SlurmConfig"] == {"NodeType": "Controller"}
    assert controller["CapacityRequirements"] == {"Spot": {}}
    assert controller["InstanceRequirements"] == {"InstanceTypes": [CONTROLLER.instance_type, "ml.m5.2xlarge"]}
    assert "InstanceType" not in controller
    assert controller["AutoPatchConfig"] == {"PatchingStrategy": "WhenAllIdle"}
    given = {"InstanceGroupName", "InstanceType", "InstanceCount", "ExecutionRole", "ThreadsPerCore"}
    assert {key: value for key, value in workers.items() if key not in given} == {
        "MinInstanceCount": 2,
        "TrainingPlanArn": group.training_plan_arn,
        "CapacityRequirements": {"OnDemand": {}},
        "OnStartDeepHealthChecks": ["InstanceStress"],
        "NetworkInterface": {"InterfaceType": "efa-only"},
        "OverrideVpcConfig": {"SecurityGroupIds": ["sg-00000001", "sg-00000002"], "Subnets": ["subnet-00000009"]},
        "ImageId": group.image_id,
        "ScheduledUpdateConfig": {
            "ScheduleExpression": "cron(0 3 ? * SUN *)",
            "DeploymentConfig": {
                "RollingUpdatePolicy": {
                    "MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25},
                    "RollbackMaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 8},
                },
                "WaitIntervalInSeconds": 60,
                "AutoRollbackConfiguration": [{"AlarmName": "a"}],
            },
        },
        "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["gpu"]},
        "InstanceStorageConfigs": [
            {"EbsVolumeConfig": {"VolumeSizeInGB": 500, "VolumeKmsKeyId": group.key_arn}},
            {"EbsVolumeConfig": {"RootVolume": True, "VolumeKmsKeyId": group.key_arn}},
            {
                "FsxLustreConfig": {
                    "DnsName": LUSTRE.dns_name,
                    "MountName": LUSTRE.mount_name,
                    "MountPath": LUSTRE.mount_path,
                }
            },
        ],
    }


def test_order_of_groups_does_not_change_the_cluster(tmp_path: Path) -> None:
    """The same groups in another order are the same cluster, and one more group leaves the others where they were."""

    def names(number: int, *groups: InstanceGroup) -> list[str]:
        stack = TerraformStack(App(outdir=str(tmp_path / str(number))), "test")
        cluster(stack, instance_groups=groups)
        state = stack.to_terraform()["resource"]["aws_cloudcontrolapi_resource"]
        text = next(iter(state.values()))["desired_state"]
        return [part.split('"')[2] for part in text.split("InstanceGroupName")[1:]]

    more = replace(WORKERS, name="xl", instance_type="ml.p5en.48xlarge")
    assert names(1, WORKERS, CONTROLLER, LOGIN) == names(2, LOGIN, WORKERS, CONTROLLER)
    assert names(3, more, WORKERS, LOGIN, CONTROLLER) == [*names(4, CONTROLLER, LOGIN, WORKERS), "xl"]


def test_cluster_comes_last_and_goes_first(synthesize, scripts: Path) -> None:
    """In one stack the cluster depends on rules, routes, permissions and every object its nodes download."""

    def build(stack: TerraformStack) -> None:
        network = TrainingNetwork(stack, "network", name="demo", availability_zone_id=ZONE)
        bucket = TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-demo-")
        role = ExecutionRole(stack, "role", name="nodes", bucket=bucket, network=network)
        cluster(stack, network=network, role=role, lifecycle=bundle(stack, scripts, bucket=bucket))

    stack = synthesize(build)
    (resource,) = resources(stack, "aws_cloudcontrolapi_resource")
    for kind in (
        "aws_s3_object",
        "aws_iam_role_policy",
        "aws_route",
        "aws_route_table_association",
        "aws_vpc_endpoint",
        "aws_vpc_security_group_ingress_rule",
        "aws_vpc_security_group_egress_rule",
    ):
        assert addresses(stack, kind) <= set(resource["depends_on"]), kind
    for item in resources(stack, "aws_s3_object"):
        assert addresses(stack, "aws_s3_bucket_policy") <= set(item["depends_on"])


# ---- the distribution --------------------------------------------------------------------------


def test_the_folder_stays_a_source_root() -> None:
    """An __init__.py in constructs/ would hide PyPI's constructs, which cdktf needs."""
    assert not (REPOSITORY / "constructs" / "__init__.py").exists()
