"""What each construct makes of its arguments, seen in the JSON that Terraform gets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cdktf import App, TerraformProvider, TerraformProviderGeneratorMetadata, TerraformStack

from podwright.rehearsal.aws import cluster_schema
from podwright_bootstrap.contract import InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_constructs import facts
from podwright_constructs.bucket import ExistingBucket, TrainingBucket, sha256_of
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.lifecycle import ExistingLifecycleScripts, LifecycleBundle
from podwright_constructs.lustre import ExistingLustre, LustreFileSystem
from podwright_constructs.network import ExistingNetwork, TrainingNetwork
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.role import ExecutionRole, ExistingRole

REPOSITORY = Path(__file__).parents[2]
ZONE = "usw2-az1"
NETWORK = ExistingNetwork(vpc_id="vpc-1", subnet_ids=["subnet-1", "subnet-2"], security_group_id="sg-1")
BUCKET = ExistingBucket(name="sagemaker-mine")
ROLE = ExistingRole(arn="arn:aws:iam::111122223333:role/nodes")
SCRIPTS = ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-mine/scripts")
LUSTRE = ExistingLustre(dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", mount_name="abcdefgh")
CONTROLLER = InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1)
LOGIN = InstanceGroup(name="login", role="login", instance_type="ml.c5.large", count=1)
WORKERS = InstanceGroup(name="workers", role="compute", instance_type="ml.p5.48xlarge", count=4, partition="gpu")


def resources(stack: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """All resources of a type."""
    return list(stack["resource"].get(kind, {}).values())


def addresses(stack: Mapping[str, Any], kind: str) -> set[str]:
    """What ``depends_on`` calls the resources of a type."""
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


# ---- file system -------------------------------------------------------------------------------


def test_file_system_waits_for_the_rules(synthesize) -> None:
    """FSx looks for rules on port 988, so the file system depends on every rule and not only on the group."""

    def build(stack: TerraformStack) -> None:
        network = TrainingNetwork(stack, "network", name="demo", availability_zone_id=ZONE)
        LustreFileSystem(stack, "lustre", network=network, capacity_gib=2400, throughput_mbps_per_tib=500)

    stack = synthesize(build)
    (lustre,) = resources(stack, "aws_fsx_lustre_file_system")
    rules = addresses(stack, "aws_vpc_security_group_ingress_rule") | addresses(
        stack, "aws_vpc_security_group_egress_rule"
    )
    assert set(lustre["depends_on"]) == rules
    assert (lustre["storage_capacity"], lustre["per_unit_storage_throughput"]) == (2400, 500)


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
            network = ExistingNetwork(vpc_id="vpc-1", subnet_ids=["subnet-1"], security_group_id="sg-1")
            LustreFileSystem(self, "scratch", network=network, capacity_gib=2400)

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


def test_nodes_cannot_write_what_nodes_run(synthesize) -> None:
    """The role reads its bucket alone, and no statement of it lets a node write to S3."""
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK))
    permissions = next(
        document
        for document in stack["data"]["aws_iam_policy_document"].values()
        if any("s3:GetObject" in statement["actions"] for statement in document["statement"])
    )
    on_s3 = [statement for statement in permissions["statement"] if any("s3" in a for a in statement["actions"])]
    assert sorted(action for statement in on_s3 for action in statement["actions"]) == ["s3:GetObject", "s3:ListBucket"]
    assert all(
        resource.split(":::")[1].split("/")[0] == "sagemaker-mine"
        for statement in on_s3
        for resource in statement["resources"]
    )
    every_action = [action for statement in permissions["statement"] for action in statement["actions"]]
    assert not [action for action in every_action if "*" in action]


def test_only_sagemaker_of_this_account_assumes_the_role(synthesize) -> None:
    """The trust policy names the service and the account, and no ARN fixes the partition."""
    stack = synthesize(lambda stack: ExecutionRole(stack, "role", name="nodes", bucket=BUCKET, network=NETWORK))
    documents = stack["data"]["aws_iam_policy_document"].values()
    (trust,) = [document for document in documents if document["statement"][0]["actions"] == ["sts:AssumeRole"]]
    (statement,) = trust["statement"]
    (condition,) = statement["condition"]
    (account,) = stack["data"]["aws_caller_identity"]
    assert statement["principals"] == [{"type": "Service", "identifiers": ["sagemaker.amazonaws.com"]}]
    assert (condition["variable"], condition["values"]) == (
        "aws:SourceAccount",
        [f"${{data.aws_caller_identity.{account}.account_id}}"],
    )
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
    }
    return LifecycleBundle(stack, "lifecycle", **(arguments | changes))


def keys(stack: Mapping[str, Any]) -> set[str]:
    """Keys of all objects."""
    return {item["key"] for item in resources(stack, "aws_s3_object")}


def test_bundle_holds_the_scripts_and_nothing_else(synthesize, scripts: Path) -> None:
    """Entry point, package and parameters are uploaded below one prefix; tests, caches and project files are not."""
    built = []
    stack = synthesize(lambda stack: built.append(bundle(stack, scripts)))
    prefix = built[0].source_s3_uri.removeprefix("s3://sagemaker-mine/")
    assert keys(stack) == {
        f"{prefix}/{name}"
        for name in (
            "on_create.sh",
            "podwright_bootstrap/__main__.py",
            "podwright_bootstrap/steps/lustre.py",
            "provisioning_parameters.json",
        )
    }


def test_prefix_changes_with_the_scripts_alone(scripts: Path, tmp_path: Path) -> None:
    """Another script gives another prefix, so that nodes know; another group does not, so that none is disturbed."""

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
        bundle(stack, scripts, training=payloads[0])

    stack = synthesize(build)
    (content,) = [item["content"] for item in resources(stack, "aws_s3_object") if "content" in item]
    assert ProvisioningParameters.from_json(json.dumps(evaluate(content))) == ProvisioningParameters(
        cluster_name="demo",
        controller_group="controller",
        login_group="login",
        worker_groups=[WorkerGroup(instance_group_name="workers", partition_name="gpu")],
        fsx_dns_name=LUSTRE.dns_name,
        fsx_mountname=LUSTRE.mount_name,
        region="us-west-2",
        instance_facts={
            "controller": InstanceFacts(),
            "login": InstanceFacts(),
            "workers": InstanceFacts("gpu", 8, "H100", 32),
        },
        training=payloads[0].contract,
    )


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
    assert model["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1", "subnet-2"]}
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
