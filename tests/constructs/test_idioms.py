"""Idioms that users of a CDK expect of constructs and bindings."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from inspect import isclass, isfunction
from pathlib import Path
from typing import Any
from unittest import mock

import jsii
import pytest
from cdktf import (
    Aspects,
    IAspect,
    TerraformCount,
    TerraformElement,
    TerraformIterator,
    TerraformOutput,
    TerraformResourceLifecycle,
    TerraformStack,
    TerraformVariable,
    Token,
)
from cdktf import Testing as KitTesting  # a class that pytest would take for tests
from constructs import Construct, IConstruct

from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.aws.iam_role import IamRole
from podwright_constructs.aws.provider import AwsProvider
from podwright_constructs.aws.s3_bucket import S3Bucket
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.connections import Connections
from podwright_constructs.construct import CheckedConstruct, IneffectiveAssignmentError
from podwright_constructs.facts import PortRange
from podwright_constructs.key import EncryptionKey
from podwright_constructs.lifecycle import ExistingLifecycleScripts
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import ExistingNetwork, TrainingNetwork
from podwright_constructs.openzfs import OpenZfsFileSystem
from podwright_constructs.problems import InvalidArgumentsError
from podwright_constructs.role import ExecutionRole, GrantedRole
from podwright_constructs.s3_access import S3Access
from podwright_constructs.subnet import RoutedSubnet

REPOSITORY = Path(__file__).parents[2]
KEY = "arn:aws:kms:us-west-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
EXAMPLES = runpy.run_path(str(REPOSITORY / "examples" / "constructs" / "each_construct.py"))


@jsii.implements(IAspect)
class TeamTag:
    """The aspect of the kit's documentation: a tag for whatever takes tags."""

    def visit(self, node: IConstruct) -> None:
        """Add the tag."""
        if hasattr(node, "tags_input"):
            node.tags = {"team": "llm", **(node.tags_input or {})}  # type: ignore[attr-defined] # of some


def test_an_aspect_tags_what_takes_tags(synthesize: Any) -> None:
    """The tag is beside those that a resource has, and nowhere that Terraform would refuse it."""

    def build(stack: TerraformStack) -> None:
        TrainingNetwork(stack, "network", name="research", availability_zone_id="usw2-az1")
        Aspects.of(stack).add(TeamTag())

    resources = synthesize(build)["resource"]
    assert resources["aws_vpc"]["network_vpc_4E8F0223"]["tags"] == {"Name": "research", "team": "llm"}
    assert "tags" not in next(iter(resources["aws_route_table_association"].values()))


def test_the_kits_tests_find_our_resources(stack: TerraformStack) -> None:
    """A binding's type has the name by which the kit's assertions take it."""
    TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-research-")
    text = KitTesting.synth(stack)
    assert KitTesting.to_have_resource(text, S3Bucket.TF_RESOURCE_TYPE)
    assert KitTesting.to_have_resource_with_properties(text, S3Bucket.TF_RESOURCE_TYPE, {"force_destroy": False})


def test_a_configuration_for_an_import(synthesize: Any) -> None:
    """The kit's import block names type, id and provider; a made resource can be imported as well."""

    def build(stack: TerraformStack) -> None:
        west = AwsProvider(stack, "west", region="us-west-1", alias="west")
        S3Bucket.generate_config_for_import(stack, "imported", "their-bucket", west)
        S3Bucket(stack, "ours", bucket="ours").import_from("ours")

    first, second = sorted(synthesize(build)["import"], key=lambda item: str(item["id"]), reverse=True)
    assert first == {"id": "their-bucket", "provider": "aws.west", "to": "aws_s3_bucket.imported"}
    assert second["id"] == "ours"


def test_count_and_for_each(synthesize: Any) -> None:
    """A binding takes both, and what they count in a text."""

    def build(stack: TerraformStack) -> None:
        three = TerraformCount.of(3)
        S3Bucket(stack, "counted", bucket=f"team-{Token.as_string(three.index)}", count=three)
        names = TerraformIterator.from_list(["a", "b"])
        S3Bucket(stack, "each", bucket=names.value, for_each=names)

    buckets = synthesize(build)["resource"]["aws_s3_bucket"]
    assert (buckets["counted"]["count"], buckets["counted"]["bucket"]) == (3, "team-${count.index}")
    assert (buckets["each"]["for_each"], buckets["each"]["bucket"]) == ('${toset(["a", "b"])}', "${each.value}")


def test_a_number_in_a_text_is_refused(stack: TerraformStack) -> None:
    """The kit's code for a number that only Terraform knows is no number in a text."""
    index = TerraformCount.of(3).index
    with pytest.raises(ValueError, match=r"Write Token.as_string\(number\) into a text"):
        S3Bucket(stack, "bucket", bucket=f"team-{index}")
    with pytest.raises(InvalidArgumentsError, match=r"Write Token.as_string\(number\) into a text"):
        TrainingBucket(stack, "other", bucket_prefix=f"sagemaker-{index}")


def test_assignments_without_effect_are_refused(stack: TerraformStack) -> None:
    """The error names what to give instead; whatever has a setter keeps it."""
    bucket = TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-research-")
    with pytest.raises(IneffectiveAssignmentError, match=r"TrainingBucket makes .*on_destroy.*add_override"):
        bucket.bucket.force_destroy = True
    with pytest.raises(IneffectiveAssignmentError, match=r"give it as an argument, TrainingBucket\(…, on_destroy=…\)"):
        bucket.on_destroy = "destroy"
    with pytest.raises(IneffectiveAssignmentError, match=r"the arguments of TrainingBucket are .*on_destroy"):
        bucket.key_arn = "arn:aws:kms:us-west-2:123456789012:key/1"
    alone = S3Bucket(stack, "alone", bucket="alone")
    with pytest.raises(IneffectiveAssignmentError, match=r"give it as an argument, S3Bucket\(…, force_destroy=…\)"):
        alone.force_destroy = True
    with pytest.raises(IneffectiveAssignmentError, match="alias"):
        AwsProvider(stack, "west", region="us-west-1", alias="west").alias = "east"  # type: ignore[misc]
    alone.lifecycle = TerraformResourceLifecycle(prevent_destroy=True)
    alone.count = 2


def test_no_attribute_of_a_construct_can_be_assigned(stack: TerraformStack) -> None:
    """Of every construct and of every resource in it."""
    for name, add in EXAMPLES.items():
        if isfunction(add):
            add(Construct(stack, name))
    constructs = [item for item in stack.node.find_all() if type(item).__module__.startswith("podwright_constructs")]
    assert len({type(item) for item in constructs}) > 60
    for construct in constructs:
        names = [name for name in vars(construct) if not name.startswith("_")]
        for name in names:
            with pytest.raises(IneffectiveAssignmentError):
                setattr(construct, name, None)


def test_a_class_of_yours_assigns_while_it_is_made(stack: TerraformStack) -> None:
    """A subclass of a construct has attributes of its own."""

    class Datasets(TrainingBucket):
        def __init__(self, scope: Construct, id_: str) -> None:
            super().__init__(scope, id_, bucket_prefix="sagemaker-datasets-")
            self.owner = "llm"

    datasets = Datasets(stack, "datasets")
    assert datasets.owner == "llm"
    datasets.owner = "ops"
    with mock.patch.object(datasets, "grant_read"):
        datasets.grant_read(None)  # type: ignore[arg-type] # of the mock
    with pytest.raises(IneffectiveAssignmentError, match=r"TrainingBucket|on_destroy"):
        datasets.name = "other"


def test_only_our_own_annotations_are_checked(stack: TerraformStack) -> None:
    """A subclass may annotate what it likes, and passes our arguments to our checks."""

    class Tagged(TrainingBucket):
        def __init__(self, scope: Unknown, id_: str, *readers: str, pair: tuple[str, int], **options: Any) -> None:  # type: ignore[name-defined] # noqa: ARG002, F821
            super().__init__(scope, id_, bucket_prefix="sagemaker-datasets-", **options)

    Tagged(stack, "tagged", "a", pair=("a", 1))
    with pytest.raises(InvalidArgumentsError, match="noncurrent_version_expiration_days: got 30, need a whole number"):
        Tagged(stack, "wrong", pair=("a", 1), noncurrent_version_expiration_days="30")


def test_wrong_types_are_named(stack: TerraformStack) -> None:
    """All arguments of wrong types are in one error, items of lists and of dataclasses too."""
    network = ExistingNetwork(vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001")
    known_later = TerraformVariable(stack, "known_later", type="list(string)").string_value
    arguments: Mapping[str, Any] = {
        "name": 5,
        "bucket": TrainingBucket.from_name("sagemaker-research"),
        "network": network,
        "read_prefixes": "lifecycle",
        "policy_arns": known_later,
        "s3_access": [7],
        "path": True,
    }
    give_items = "Give each item by itself: how many there are has to be known when the app runs."
    with pytest.raises(InvalidArgumentsError) as refused:
        ExecutionRole(stack, "role", **arguments)
    assert [str(problem) for problem in refused.value.problems] == [
        "name: got 5, need a text",
        "read_prefixes: got lifecycle, need a list",
        "s3_access[0]: got 7, need S3Access(…)",
        "path: got true, need a text",
        f"policy_arns: got a value that only Terraform will know, need a list. {give_items}",
    ]


def test_a_token_is_no_id(stack: TerraformStack) -> None:
    """The id of a construct is part of names that Terraform reads."""
    known_later = TerraformVariable(stack, "known_later", type="string").string_value
    with pytest.raises(InvalidArgumentsError, match="id_: got a value that only Terraform will know"):
        TrainingBucket(stack, known_later, bucket_prefix="sagemaker-research-")


def test_all_constructs_are_checked() -> None:
    """Whatever a module of ours makes in a scope has the base class that checks and refuses, or a binding's."""
    for path in sorted((REPOSITORY / "constructs" / "podwright_constructs").glob("*.py")):
        module = importlib.import_module(f"podwright_constructs.{path.stem}")
        for kind in vars(module).values():
            if isclass(kind) and issubclass(kind, Construct) and kind.__module__ == f"podwright_constructs.{path.stem}":
                assert issubclass(kind, CheckedConstruct | TerraformElement), kind


def test_an_unknown_argument_is_pythons_error(stack: TerraformStack) -> None:
    """Python names the class and the argument."""
    arguments: Mapping[str, Any] = {"nonsense": 1}
    with pytest.raises(TypeError, match=r"RoutedSubnet.*nonsense"):
        RoutedSubnet(stack, "subnet", name="a", vpc_id="v", availability_zone_id="z", cidr="c", **arguments)


def test_grants_attach_a_policy_to_a_role_made_elsewhere(synthesize: Any) -> None:
    """Its name is the end of its ARN, also of an ARN that only Terraform knows; keys come with the buckets."""

    def build(stack: TerraformStack) -> None:
        theirs = IamRole(stack, "theirs", name="theirs", assume_role_policy="{}")
        roles = [
            GrantedRole(stack, "known", arn="arn:aws:iam::123456789012:role/team/readers"),
            GrantedRole(stack, "later", arn=theirs.arn, policy_name="papers"),
        ]
        datasets = TrainingBucket.from_name("datasets", key_arn=KEY)
        for role in roles:
            datasets.grant_read(role, "papers/")
            EncryptionKey(role, "key", alias=f"key-of-{role.node.id}").grant_encrypt_decrypt(role)

    written = synthesize(build)
    known, later = written["resource"]["aws_iam_role_policy"].values()
    assert re.fullmatch(r"test-known-[0-9a-f]{8}-\$\{data\.aws_region\.\w+\.id\}", known["name"])
    assert known["role"] == "readers"
    assert (later["name"], later["role"]) == (
        "papers",
        '${element(reverse(split("/", aws_iam_role.theirs.arn)), 0)}',
    )
    documents = [
        document["statement"]
        for name, document in written["data"]["aws_iam_policy_document"].items()
        if "_permissions_" in name
    ]
    assert [len(statements) for statements in documents] == [4, 4]
    assert documents[0][2]["resources"] == [KEY]


def test_a_role_that_is_granted_nothing_is_refused(stack: TerraformStack) -> None:
    """IAM would refuse the empty policy in the middle of a deployment."""
    GrantedRole(stack, "unused", arn="arn:aws:iam::123456789012:role/readers")
    with pytest.raises(RuntimeError, match="nothing is granted to this role"):
        KitTesting.synth(stack, True)


def test_policy_variables_are_iams(synthesize: Any) -> None:
    """A statement with one is written as the data source writes it; a reference of Terraform's stays as it is."""

    def build(stack: TerraformStack) -> None:
        role = GrantedRole(stack, "role", arn="arn:aws:iam::123456789012:role/readers")
        bucket = TrainingBucket(stack, "bucket", bucket_prefix="sagemaker-research-")
        condition: Any = {"test": "StringLike", "variable": "s3:prefix", "values": ["${aws:username}/*", "${*}"]}
        resources = [f"{bucket.arn}/${{aws:PrincipalTag/team}}/*"]
        role.add_statement({"actions": ["s3:GetObject"], "resources": resources, "condition": [condition]})

    documents = synthesize(build)["data"]["aws_iam_policy_document"].items()
    (statement,) = next(document["statement"] for name, document in documents if name.startswith("role_permissions_"))
    assert re.fullmatch(
        r"\$\{aws_s3_bucket\.bucket_\w+\.arn\}/&\{aws:PrincipalTag/team\}/\*", statement["resources"][0]
    )
    assert statement["condition"][0]["values"] == ["&{aws:username}/*", "&{*}"]


def test_a_network_is_found_by_tags(synthesize: Any) -> None:
    """Terraform looks for one VPC, for one subnet in each zone, and for one security group in the VPC."""

    def build(stack: TerraformStack) -> None:
        network = TrainingNetwork.from_lookup(
            stack,
            "network",
            vpc_tags={"Name": "research"},
            subnet_tags={"tier": "private"},
            availability_zone_ids=["usw2-az1", "usw2-az2"],
            security_group_tags={"Name": "nodes"},
        )
        LustreFileSystem(stack, "files", LustreArguments(), network=network)

    written = synthesize(build)
    (vpc,) = written["data"]["aws_vpc"].values()
    assert vpc["tags"] == {"Name": "research"}
    subnets = written["data"]["aws_subnet"]
    assert [subnet["availability_zone_id"] for subnet in subnets.values()] == ["usw2-az1", "usw2-az2"]
    (files,) = written["resource"]["aws_fsx_lustre_file_system"].values()
    assert files["subnet_ids"] == [f"${{data.aws_subnet.{next(iter(subnets))}.id}}"]


def test_a_network_is_not_found_by_nothing(stack: TerraformStack) -> None:
    """A lookup without tags would take whatever there is one of."""
    with pytest.raises(InvalidArgumentsError) as refused:
        TrainingNetwork.from_lookup(
            stack,
            "n",
            vpc_tags={},
            subnet_tags={"a": "b"},
            availability_zone_ids=["us-west-2a"],
            security_group_tags={},
        )
    assert [problem.path[0] for problem in refused.value.problems] == [
        "vpc_tags",
        "security_group_tags",
        "availability_zone_ids",
    ]


def test_file_systems_by_id(synthesize: Any, stack: TerraformStack) -> None:
    """The DNS name is the id's in the region; the id is checked."""
    with pytest.raises(InvalidArgumentsError, match="file_system_id: got scratch"):
        LustreFileSystem.from_id(stack, "other", "scratch", mount_name="abcdefgh")

    def build(scope: TerraformStack) -> None:
        lustre = LustreFileSystem.from_id(scope, "lustre", "fs-0a1b2c3d4e5f60718", mount_name="abcdefgh")
        homes = OpenZfsFileSystem.from_id(scope, "homes", "fs-0a1b2c3d4e5f60719")
        TerraformOutput(scope, "Lustre", value=lustre.dns_name)
        TerraformOutput(scope, "Homes", value=homes.dns_name)

    outputs = {name: output["value"] for name, output in synthesize(build)["output"].items()}
    place = r"\.fsx\.\$\{data\.aws_region\.\w+\.id\}\.\$\{data\.aws_partition\.\w+\.dns_suffix\}"
    assert re.fullmatch(f"fs-0a1b2c3d4e5f60718{place}", outputs["Lustre"])
    assert re.fullmatch(f"fs-0a1b2c3d4e5f60719{place}", outputs["Homes"])


def test_connections_are_rules(synthesize: Any) -> None:
    """Each is one rule with one port, a range, or all traffic; the others are a group or a block, never both."""

    def build(stack: TerraformStack) -> None:
        nodes = Connections(stack, "nodes", security_group_id="sg-00000001")
        nodes.allow_from("monitor", security_group_id="sg-00000002", ports=9100)
        nodes.allow_from("office", cidr="10.8.0.0/16", ports=PortRange(8888, 8889))
        nodes.allow_to("anywhere", cidr="0.0.0.0/0")
        with pytest.raises(InvalidArgumentsError, match="cidr: got both"):
            nodes.allow_to("both", cidr="10.8.0.0/16", security_group_id="sg-00000002")
        with pytest.raises(InvalidArgumentsError, match="ports: got 0 to 70000"):
            nodes.allow_from("many", cidr="10.8.0.0/16", ports=PortRange(0, 70_000))

    resources = synthesize(build)["resource"]
    monitor, office = resources["aws_vpc_security_group_ingress_rule"].values()
    assert (monitor["referenced_security_group_id"], monitor["from_port"], monitor["to_port"]) == (
        "sg-00000002",
        9100,
        9100,
    )
    assert (office["cidr_ipv4"], office["ip_protocol"], office["to_port"]) == ("10.8.0.0/16", "tcp", 8889)
    (anywhere,) = resources["aws_vpc_security_group_egress_rule"].values()
    assert (anywhere["ip_protocol"], anywhere.get("from_port")) == ("-1", None)


def test_a_bucket_has_a_name_of_yours(synthesize: Any, stack: TerraformStack) -> None:
    """Either the whole name or a prefix."""
    with pytest.raises(InvalidArgumentsError, match="bucket_name: got research, need one of the two"):
        TrainingBucket(stack, "both", bucket_prefix="sagemaker-", bucket_name="research")
    with pytest.raises(InvalidArgumentsError, match="bucket_prefix: got nothing, need one of the two"):
        TrainingBucket(stack, "neither")
    with pytest.raises(InvalidArgumentsError, match="bucket_name: got Research"):
        TrainingBucket(stack, "wrong", bucket_name="Research")
    resources = synthesize(lambda scope: TrainingBucket(scope, "bucket", bucket_name="research-scripts"))["resource"]
    (bucket,) = resources["aws_s3_bucket"].values()
    assert (bucket["bucket"], "bucket_prefix" in bucket) == ("research-scripts", False)


def test_our_import_silences_nodes_banner(tmp_path: Path) -> None:
    """The kit's Node, which starts later, finds the variables; an app that sets them keeps its own."""
    names = [f"JSII_SILENCE_WARNING_{warning}_NODE_VERSION" for warning in ("DEPRECATED", "END_OF_LIFE")]
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), names[0]: "18"}
    code = f"import os, podwright_constructs; print(*(os.environ[name] for name in {names}))"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "18 18,20,22\n"


@pytest.mark.parametrize("prefix", ["home/${aws:PrincipalTag/team}", "${aws:PrincipalTag/team}/"])
def test_a_policy_variable_leaves_a_prefix_checked(stack: TerraformStack, prefix: str) -> None:
    """Without the slash team a would write team ab's files; a variable alone could be the scripts' prefix."""
    network = ExistingNetwork(vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001")
    bucket = TrainingBucket.from_name("sagemaker-research")
    role = ExecutionRole(stack, "role", name="role", bucket=bucket, network=network)
    with pytest.raises(InvalidArgumentsError, match="prefix"):
        bucket.grant_read_write(role, prefix)
    bucket.grant_read_write(role, "home/${aws:PrincipalTag/team}/")


def test_a_granted_role_never_writes_what_nodes_run(synthesize: Any) -> None:
    """The cluster denies it, whatever the grants allow."""
    groups = [InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1)]
    groups += [InstanceGroup(name="workers", role="compute", instance_type="ml.g5.12xlarge", count=1)]

    def build(stack: TerraformStack) -> None:
        role = GrantedRole(stack, "granted", arn="arn:aws:iam::123456789012:role/nodes")
        TrainingBucket.from_name("sagemaker-research").grant_read_write(role)
        HyperPodCluster(
            stack,
            "cluster",
            cluster_name="research",
            instance_groups=groups,
            network=ExistingNetwork(
                vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001"
            ),
            role=role,
            lifecycle=ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-research/lifecycle"),
        )

    documents = synthesize(build)["data"]["aws_iam_policy_document"]
    (document,) = [item for name, item in documents.items() if name.startswith("granted_permissions")]
    (denied,) = [item for item in document["statement"] if item.get("effect") == "Deny"]
    assert denied["resources"][0].endswith(":s3:::sagemaker-research/lifecycle/*")
    assert "s3:PutObject*" in denied["actions"]


def test_policies_that_iam_refuses_are_refused(stack: TerraformStack) -> None:
    """A name that IAM does not take, and a role that only a service changes."""
    arn = "arn:aws:iam::123456789012:role/readers"
    with pytest.raises(InvalidArgumentsError, match="policy_name: got my policy!"):
        GrantedRole(stack, "name", arn=arn, policy_name="my policy!")
    with pytest.raises(InvalidArgumentsError, match="a role of yours"):
        GrantedRole(stack, "service", arn="arn:aws:iam::123456789012:role/aws-service-role/x.amazonaws.com/X")


def test_a_roles_own_prefixes_have_policy_variables(synthesize: Any) -> None:
    """They are written as those of grants are."""
    network = ExistingNetwork(vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001")
    variable = "${aws:PrincipalTag/team}"

    def build(stack: TerraformStack) -> None:
        ExecutionRole(
            stack,
            "role",
            name="role",
            bucket=TrainingBucket.from_name("sagemaker-research"),
            network=network,
            write_prefixes=[f"runs/{variable}"],
            s3_access=[S3Access(bucket="datasets", prefix=f"home/{variable}/")],
        )

    text = str(synthesize(build)["data"]["aws_iam_policy_document"])
    assert variable not in text
    assert "runs/&{aws:PrincipalTag/team}/*" in text
    assert "home/&{aws:PrincipalTag/team}/*" in text


def test_wrong_types_of_methods_are_named(stack: TerraformStack) -> None:
    """A number for an id, a text for a port."""
    wrong: Any = 123
    with pytest.raises(InvalidArgumentsError, match="file_system_id: got 123"):
        LustreFileSystem.from_id(stack, "files", wrong, mount_name="abcdefgh")
    wrong = "443"
    with pytest.raises(InvalidArgumentsError, match="ports: got 443"):
        Connections(stack, "c", security_group_id="sg-00000001").allow_from("w", cidr="10.0.0.0/8", ports=wrong)
