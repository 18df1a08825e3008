"""Facts, catalog and checks find the arguments that AWS refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from cdktf import TerraformStack
from hypothesis import given
from hypothesis import strategies as st

from podwright_bootstrap.contract import ClusterFacts
from podwright_constructs import checks, facts
from podwright_constructs.accounting import AccountingMariaDb, ExistingAccountingDatabase
from podwright_constructs.arguments.lustre import ExistingLustreArguments, LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_constructs.bucket import ExistingBucket, TrainingBucket
from podwright_constructs.budget import ClusterBudget
from podwright_constructs.catalog import InstanceType, UnknownInstanceTypeError, cluster_instance_types
from podwright_constructs.cluster import HyperPodCluster
from podwright_constructs.cluster_properties import create_only
from podwright_constructs.endpoints import InterfaceEndpoints
from podwright_constructs.instance_group import InstanceGroup, ScheduledUpdate, in_order
from podwright_constructs.key import EncryptionKey, ExistingKey
from podwright_constructs.lifecycle import ExistingLifecycleScripts, LifecycleBundle
from podwright_constructs.log_group import ClusterLogGroup
from podwright_constructs.lustre import ExistingLustre, LustreFileSystem
from podwright_constructs.network import ExistingNetwork, PrivateNetwork, TrainingNetwork
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.openzfs import ExistingOpenZfs, OpenZfsFileSystem
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.problems import InvalidArgumentsError, dotted
from podwright_constructs.prometheus import ExistingPrometheus, PrometheusWorkspace
from podwright_constructs.role import ExecutionRole, ExistingRole
from podwright_constructs.session import SessionDocument
from podwright_constructs.slurm import ApiSlurm, InitScript
from podwright_rehearsal.aws import cluster_schema

NETWORK = ExistingNetwork(vpc_id="vpc-00000001", subnet_ids=["subnet-00000001"], security_group_id="sg-00000001")
BUCKET = ExistingBucket(name="sagemaker-mine")
ROLE = ExistingRole(arn="arn:aws:iam::111122223333:role/nodes")
SCRIPTS = ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-mine/scripts")
LUSTRE = ExistingLustre(dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", mount_name="abcdefgh")
CONTROLLER = InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1)
SUNDAYS = ScheduledUpdate(schedule="cron(0 3 ? * SUN *)")
ACCOUNTING = ExistingAccountingDatabase(
    endpoint="db.us-west-2.rds.amazonaws.com", secret_arn="arn:aws:secretsmanager:us-west-2:210987654321:secret:a"
)
WORKERS = InstanceGroup(name="workers", role="compute", instance_type="ml.p5.48xlarge", count=4)


@pytest.fixture(scope="module")
def sagemaker() -> Any:
    """SageMaker's own API model."""
    return botocore.session.get_session().get_service_model("sagemaker")


MOST_THREADS_PER_CORE = max(InstanceType.of(name).max_threads_per_core for name in cluster_instance_types())


@pytest.mark.parametrize(
    ("shape", "limits"),
    [
        ("ClusterName", {"max": facts.MAX_CLUSTER_NAME_LENGTH, "pattern": facts.CLUSTER_NAME_PATTERN.pattern}),
        ("ClusterInstanceGroupName", {"max": facts.MAX_CLUSTER_NAME_LENGTH}),
        ("ClusterInstanceGroupName", {"pattern": facts.CLUSTER_NAME_PATTERN.pattern}),
        ("ClusterPartitionName", {"pattern": facts.CLUSTER_NAME_PATTERN.pattern}),
        ("ClusterInstanceCount", {"min": facts.MIN_INSTANCE_COUNT, "max": facts.MAX_INSTANCE_COUNT}),
        ("ClusterEbsVolumeSizeInGB", {"min": facts.MIN_VOLUME_GIB, "max": facts.MAX_VOLUME_GIB}),
        ("ClusterThreadsPerCore", {"min": facts.MIN_THREADS_PER_CORE, "max": MOST_THREADS_PER_CORE}),
        ("ClusterInstanceGroupSpecifications", {"max": facts.MAX_INSTANCE_GROUPS}),
        ("ClusterInstanceTypes", {"max": facts.MAX_INSTANCE_TYPES}),
        ("Subnets", {"max": facts.MAX_SUBNETS}),
        ("TagList", {"max": facts.MAX_CLUSTER_TAGS}),
        ("TagKey", {"max": facts.MAX_TAG_KEY_LENGTH}),
        ("TagValue", {"max": facts.MAX_TAG_VALUE_LENGTH}),
        ("SecurityGroupIds", {"max": facts.MAX_SECURITY_GROUPS}),
        ("TrainingPlanArn", {"pattern": facts.TRAINING_PLAN_ARN_PATTERN.pattern}),
        ("ImageId", {"pattern": facts.IMAGE_ID_PATTERN.pattern}),
        ("WaitTimeIntervalInSeconds", {"max": facts.MAX_UPDATE_WAIT_S}),
        ("AutoRollbackAlarms", {"max": facts.MAX_ROLLBACK_ALARMS}),
    ],
)
def test_limits_are_those_of_the_api(sagemaker: Any, shape: str, limits: dict[str, object]) -> None:
    """A limit of ours is the one in SageMaker's API model."""
    assert limits.items() <= sagemaker.shape_for(shape).metadata.items()


def test_cluster_instance_types_are_those_of_the_api(sagemaker: Any) -> None:
    """The catalog allows in a cluster exactly what SageMaker's API model lists."""
    assert sorted(cluster_instance_types()) == sorted(sagemaker.shape_for("ClusterInstanceType").enum)


def test_training_plan_types_are_those_of_the_api(sagemaker: Any) -> None:
    """Training plans reserve exactly the types that SageMaker's API model lists."""
    assert sorted(facts.TRAINING_PLAN_TYPES) == sorted(sagemaker.shape_for("ReservedCapacityInstanceType").enum)


def test_catalog_knows_what_a_type_has() -> None:
    """A type's accelerators and EFA interfaces are those AWS documents for it."""
    p5 = InstanceType.of("ml.p5.48xlarge")
    assert (p5.accelerator, p5.accelerator_count, p5.accelerator_name, p5.efa_interfaces) == ("gpu", 8, "H100", 32)
    assert InstanceType.of("ml.trn1.32xlarge").accelerator == "neuron"
    assert InstanceType.of("ml.m6g.large").max_threads_per_core == 1


@pytest.mark.parametrize("spelling", ["ml.p5.48xlage", "p5.48xlarge", "ml.p5.48large"])
def test_unknown_type_is_answered_with_the_closest_name(spelling: str) -> None:
    """A misspelt instance type brings the right spelling in the message."""
    with pytest.raises(UnknownInstanceTypeError, match=r"Did you mean ml\.p5\.48xlarge"):
        InstanceType.of(spelling)


def test_checks_need_no_cdktf() -> None:
    """Settings can be judged without starting Node: the checks load the standard library alone."""
    program = "import sys, podwright_constructs.checks; print({'cdktf', 'jsii', 'constructs'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


@given(st.integers(min_value=-5000, max_value=50000))
def test_lustre_capacity_is_1200_or_a_multiple_of_2400(capacity_gib: int) -> None:
    """A capacity is accepted exactly if FSx sells it, and a refusal names the closest one that it does sell."""
    sold = {1200, *range(2400, 60000, 2400)}
    problems = checks.lustre_file_system(LustreArguments(capacity_gib=capacity_gib, throughput_mbps_per_tib=250))
    assert bool(problems) == (capacity_gib not in sold)
    for problem in problems:
        named = int(problem.hint.split()[-1].rstrip("."))
        assert abs(named - capacity_gib) == min(abs(size - capacity_gib) for size in sold)


BLOCKS = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False),
    st.integers(min_value=int(IPv4Network("10.0.0.0/14")[0]), max_value=int(IPv4Network("10.0.0.0/14")[-1])),
    st.integers(min_value=16, max_value=28),
)


@given(BLOCKS, BLOCKS, BLOCKS)
def test_subnets_lie_in_the_vpc_and_apart(vpc: IPv4Network, public: IPv4Network, private: IPv4Network) -> None:
    """Subnets are accepted exactly if both lie in the VPC and share no address."""
    problems = checks.training_network(
        availability_zone_id="usw2-az1",
        cidr=str(vpc),
        public_subnet_cidr=str(public),
        private_subnet_cidr=str(private),
    )
    fits = all(vpc[0] <= block[0] and block[-1] <= vpc[-1] for block in (public, private))
    apart = public[-1] < private[0] or private[-1] < public[0]
    assert bool(problems) != (fits and apart)


@given(st.permutations([replace(WORKERS, name=name) for name in "abc"] + [CONTROLLER]))
def test_groups_have_one_order(groups: list[InstanceGroup]) -> None:
    """The order in which groups are written does not matter."""
    assert [group.name for group in in_order(groups)] == ["controller", "a", "b", "c"]


@pytest.mark.parametrize(
    ("groups", "argument"),
    [
        ([], "instance_groups"),
        ([WORKERS], "instance_groups"),
        ([CONTROLLER, replace(CONTROLLER, name="second"), WORKERS], "instance_groups"),
        ([CONTROLLER], "instance_groups"),
        ([CONTROLLER, WORKERS, WORKERS], "instance_groups[2].name"),
        ([replace(CONTROLLER, count=0), WORKERS], "instance_groups[0].count"),
        ([replace(CONTROLLER, count=2), WORKERS], "instance_groups[0].count"),
        ([CONTROLLER, replace(WORKERS, min_count=5)], "instance_groups[1].min_count"),
        ([CONTROLLER, replace(WORKERS, partition="dev")], "instance_groups[1].partition"),
        ([CONTROLLER, replace(WORKERS, name="Default")], "instance_groups[1].partition"),
        ([CONTROLLER, replace(WORKERS, capacity="cheap")], "instance_groups[1].capacity"),
        ([CONTROLLER, replace(WORKERS, auto_patch="never")], "instance_groups[1].auto_patch"),
        (
            [CONTROLLER, replace(WORKERS, other_instance_types=["ml.g5.9xlarge"])],
            "instance_groups[1].other_instance_types[0]",
        ),
        (
            [CONTROLLER, replace(WORKERS, other_instance_types=[WORKERS.instance_type])],
            "instance_groups[1].other_instance_types[0]",
        ),
        (
            [CONTROLLER, replace(WORKERS, other_instance_types=["ml.p4d.24xlarge"] * 20)],
            "instance_groups[1].other_instance_types",
        ),
        (
            [CONTROLLER, replace(WORKERS, threads_per_core=2, other_instance_types=["ml.m6g.large"])],
            "instance_groups[1].threads_per_core",
        ),
        ([CONTROLLER, replace(WORKERS, key_arn="mine")], "instance_groups[1].key_arn"),
        ([CONTROLLER, replace(WORKERS, training_plan_arn="mine")], "instance_groups[1].training_plan_arn"),
        ([CONTROLLER, replace(WORKERS, image_id="ami-mine")], "instance_groups[1].image_id"),
        ([CONTROLLER, replace(WORKERS, subnet_ids=["mine"])], "instance_groups[1].subnet_ids[0]"),
        ([CONTROLLER, replace(WORKERS, security_group_ids=["sg-00000001"])], "instance_groups[1].security_group_ids"),
        (
            [CONTROLLER, replace(WORKERS, subnet_ids=[f"subnet-{number}" for number in range(17)])],
            "instance_groups[1].subnet_ids",
        ),
        ([replace(CONTROLLER, network_interface="efa"), WORKERS], "instance_groups[0].network_interface"),
        (
            [replace(CONTROLLER, deep_health_checks=["instance-stress"]), WORKERS],
            "instance_groups[0].deep_health_checks",
        ),
        ([CONTROLLER, replace(WORKERS, deep_health_checks=["all"])], "instance_groups[1].deep_health_checks[0]"),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=ScheduledUpdate(schedule="daily"))],
            "instance_groups[1].scheduled_update.schedule",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=replace(SUNDAYS, max_percent=0))],
            "instance_groups[1].scheduled_update.max_percent",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=replace(SUNDAYS, max_percent=5, max_count=2))],
            "instance_groups[1].scheduled_update.max_count",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=replace(SUNDAYS, rollback_max_count=2))],
            "instance_groups[1].scheduled_update.rollback_max_count",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=replace(SUNDAYS, wait_s=3601))],
            "instance_groups[1].scheduled_update.wait_s",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=SUNDAYS, auto_patch="when-idle")],
            "instance_groups[1].auto_patch",
        ),
        ([replace(CONTROLLER, partition="gpu"), WORKERS], "instance_groups[0].partition"),
        ([CONTROLLER, replace(WORKERS, partition="g pu")], "instance_groups[1].partition"),
        ([CONTROLLER, replace(WORKERS, name="-w")], "instance_groups[1].name"),
        ([CONTROLLER, replace(WORKERS, name="w" * 64)], "instance_groups[1].name"),
        ([CONTROLLER, replace(WORKERS, instance_type="ml.p5.49xlarge")], "instance_groups[1].instance_type"),
        ([CONTROLLER, replace(WORKERS, instance_type="ml.inf2.xlarge")], "instance_groups[1].instance_type"),
        ([CONTROLLER, replace(WORKERS, count=6759)], "instance_groups[1].count"),
        ([CONTROLLER, replace(WORKERS, volume_gib=-1)], "instance_groups[1].volume_gib"),
        (
            [CONTROLLER, replace(WORKERS, instance_type="ml.m6g.large", threads_per_core=2)],
            "instance_groups[1].threads_per_core",
        ),
        ([CONTROLLER, replace(WORKERS, role="worker")], "instance_groups[1].role"),
        (
            [CONTROLLER, replace(WORKERS, other_instance_types=["#{TfToken[TOKEN.0]}"])],
            "instance_groups[1].other_instance_types[0]",
        ),
        (
            [CONTROLLER, replace(WORKERS, scheduled_update=replace(SUNDAYS, rollback_alarms=["#{TfToken[TOKEN.0]}"]))],
            "instance_groups[1].scheduled_update.rollback_alarms[0]",
        ),
    ],
)
def test_a_wrong_group_is_named(groups: list[InstanceGroup], argument: str) -> None:
    """Each rule about instance groups is in the check, and its problem says which argument is meant."""
    assert argument in {dotted(problem.path) for problem in checks.cluster_instance_groups(groups)}


def test_right_groups_have_no_problem() -> None:
    """Controller, login and compute groups, one of them empty, are accepted."""
    login = InstanceGroup(name="login", role="login", instance_type="ml.c5.large", count=2)
    spare = replace(WORKERS, name="spare", count=0, partition="gpu", threads_per_core=2)
    large = replace(login, name="large", instance_type="ml.c5.4xlarge")
    assert checks.cluster_instance_groups([CONTROLLER, login, large, WORKERS, spare]) == []


NOWHERE = Path("/nonexistent")
INVALID: dict[str, tuple[Any, set[str]]] = {
    "ExistingNetwork": (
        lambda _: ExistingNetwork(vpc_id="v", subnet_ids=["s", "subnet-00000001"], security_group_id="g"),
        {"vpc_id", "subnet_ids[0]", "security_group_id"},
    ),
    "TrainingNetwork": (
        lambda stack: TrainingNetwork(
            stack, "x", name="x", availability_zone_id="us-west-2a", cidr="10.0.0.1/16", public_subnet_cidr="10.0.0.0/8"
        ),
        {"availability_zone_id", "cidr", "public_subnet_cidr"},
    ),
    "ExistingLustre": (
        lambda _: ExistingLustre(dns_name="d", mount_name="too-long-a-name", mount_path="fsx"),
        {"dns_name", "mount_name", "mount_path"},
    ),
    "LustreFileSystem": (
        lambda stack: LustreFileSystem(
            stack,
            "x",
            LustreArguments(
                capacity_gib=1000,
                throughput_mbps_per_tib=300,
                mount_path="fsx",
                weekly_maintenance_start_time="Sunday",
                root_squash="nobody",
                log_level="ALL",
                log_group_arn="mine",
            ),
            network=NETWORK,
        ),
        {
            *("capacity_gib", "throughput_mbps_per_tib", "mount_path", "weekly_maintenance_start_time"),
            *("root_squash", "log_level", "log_group_arn"),
        },
    ),
    "PrivateNetwork": (
        lambda stack: PrivateNetwork(
            stack, "x", name="x", vpc_id="v", availability_zone_id="us-west-2a", private_subnet_cidr="10.0.0.0/8"
        ),
        {"vpc_id", "availability_zone_id", "private_subnet_cidr", "nat_gateway_id"},
    ),
    "InterfaceEndpoints": (
        lambda stack: InterfaceEndpoints(
            stack,
            "x",
            name="x",
            vpc_id="vpc-00000001",
            subnet_ids=["subnet-00000001"],
            members_security_group_id="sg-00000001",
            services=["standard", "s4", "ssmm"],
        ),
        {"services[1]", "services[2]"},
    ),
    "ExistingKey": (lambda _: ExistingKey(arn="alias/mine"), {"arn"}),
    "EncryptionKey": (lambda stack: EncryptionKey(stack, "x", alias="aws/mine"), {"alias"}),
    "ExistingOpenZfs": (lambda _: ExistingOpenZfs(dns_name="d", mount_path="home"), {"dns_name", "mount_path"}),
    "OpenZfsFileSystem": (
        lambda stack: OpenZfsFileSystem(
            stack,
            "x",
            OpenZfsArguments(
                deployment_type="MULTI_AZ_1",
                capacity_gib=1,
                throughput_mbps=1,
                data_compression_type="GZIP",
                automatic_backup_retention_days=100,
                on_destroy="keep",
                mount_path="home",
            ),
            network=NETWORK,
        ),
        {
            "deployment_type",
            "capacity_gib",
            "throughput_mbps",
            "data_compression_type",
            "automatic_backup_retention_days",
            "on_destroy",
            "mount_path",
        },
    ),
    "ExistingBucket": (lambda _: ExistingBucket(name="Mine", account_id="1"), {"name", "account_id"}),
    "TrainingBucket": (
        lambda stack: TrainingBucket(stack, "x", bucket_prefix="mine-", on_destroy="keep"),
        {"bucket_prefix", "on_destroy"},
    ),
    "ExistingRole": (lambda _: ExistingRole(arn="arn:aws:iam::1:user/me"), {"arn"}),
    "ExecutionRole": (
        lambda stack: ExecutionRole(stack, "x", name="a b", bucket=BUCKET, network=NETWORK),
        {"name"},
    ),
    "ExistingLifecycleScripts": (
        lambda _: ExistingLifecycleScripts(source_s3_uri="s3://mine/scripts", on_create=""),
        {"source_s3_uri", "on_create"},
    ),
    "LifecycleBundle": (
        lambda stack: LifecycleBundle(
            stack, "x", scripts=NOWHERE, bucket=BUCKET, cluster_name="x", instance_groups=[], lustre=LUSTRE
        ),
        {"scripts", "instance_groups"},
    ),
    "LifecycleBundle by the API": (
        lambda stack: LifecycleBundle(
            stack,
            "x",
            scripts=NOWHERE,
            bucket=BUCKET,
            cluster_name="x",
            instance_groups=[CONTROLLER, WORKERS],
            lustre=LUSTRE,
            accounting=ACCOUNTING,
            facts=ClusterFacts(slurm_by_api=True),
        ),
        {"scripts", "accounting"},
    ),
    "InitScript": (
        lambda _: InitScript(source_s3_uri="s3://mine/scripts", on_init_complete=""),
        {"source_s3_uri", "on_init_complete"},
    ),
    "ExistingAccountingDatabase": (
        lambda _: ExistingAccountingDatabase(endpoint="db:3306", secret_arn="mine", port=0, certificates="x"),
        {"endpoint", "secret_arn", "port", "certificates"},
    ),
    "AccountingMariaDb": (
        lambda stack: AccountingMariaDb(
            stack,
            "x",
            name="Slurm--db",
            network=NETWORK,
            region="us-west-9",
            subnet_cidrs={"us-west-2a": "10.0.0.0/8"},
            instance_class="large",
            storage_gib=5,
            key_arn="mine",
            on_destroy="keep",
        ),
        {
            *("name", "region", "subnet_cidrs", "subnet_cidrs.us-west-2a", "instance_class", "storage_gib"),
            *("key_arn", "on_destroy"),
        },
    ),
    "ExistingPrometheus": (
        lambda _: ExistingPrometheus(arn="ws-1", remote_write_url="https://mine"),
        {"arn", "remote_write_url"},
    ),
    "PrometheusWorkspace": (lambda stack: PrometheusWorkspace(stack, "x", name="x", key_arn="mine"), {"key_arn"}),
    "ClusterLogGroup": (
        lambda stack: ClusterLogGroup(
            stack, "x", name="a b", cluster_name="x", cluster_id="y", retention_days=31, key_arn="mine"
        ),
        {"name", "retention_days", "key_arn"},
    ),
    "ClusterNotices": (
        lambda stack: ClusterNotices(stack, "x", name="a b", cluster_name="x", email="me", key_arn="mine"),
        {"name", "email", "key_arn"},
    ),
    "ClusterBudget": (
        lambda stack: ClusterBudget(stack, "x", name="a:b", monthly_usd=0, email="me", tag_key="a", tag_value="b"),
        {"name", "monthly_usd", "email"},
    ),
    "SessionDocument": (
        lambda stack: SessionDocument(stack, "x", name="a b", idle_minutes=0),
        {"name", "idle_minutes"},
    ),
    "TrainingPayload": (
        lambda stack: TrainingPayload(stack, "x", bucket=BUCKET, wheel=NOWHERE, requirements=NOWHERE),
        {"wheel", "requirements"},
    ),
    "HyperPodCluster": (
        lambda stack: HyperPodCluster(
            stack,
            "x",
            cluster_name="-x",
            instance_groups=[replace(CONTROLLER, count=0)],
            network=NETWORK,
            role=ROLE,
            lifecycle=SCRIPTS,
            node_recovery="maybe",
            tags={"aws:mine": "1"},
        ),
        {"cluster_name", "node_recovery", "tags.aws:mine", "instance_groups[0].count", "instance_groups"},
    ),
    "HyperPodCluster by the API": (
        lambda stack: HyperPodCluster(
            stack,
            "x",
            cluster_name="x",
            instance_groups=[replace(CONTROLLER, count=2), WORKERS],
            network=NETWORK,
            role=ROLE,
            slurm=ApiSlurm(strategy="managed", accounting=ACCOUNTING),
            lifecycle=None,
            node_provisioning="sometimes",
        ),
        {"instance_groups[0].count", "instance_groups", "strategy", "node_provisioning"},
    ),
    "HyperPodCluster by a bundle of the API": (
        lambda stack: HyperPodCluster(
            stack,
            "x",
            cluster_name="x",
            instance_groups=[CONTROLLER, WORKERS],
            network=NETWORK,
            role=ROLE,
            lifecycle=LifecycleBundle(
                stack,
                "scripts",
                scripts=Path(__file__).parents[2] / "lifecycle_scripts",
                bucket=BUCKET,
                cluster_name="x",
                instance_groups=[CONTROLLER, WORKERS],
                lustre=LUSTRE,
                facts=ClusterFacts(slurm_by_api=True),
            ),
        ),
        {"lifecycle"},
    ),
    "HyperPodCluster by both": (
        lambda stack: HyperPodCluster(
            stack,
            "x",
            cluster_name="x",
            instance_groups=[CONTROLLER, WORKERS],
            network=NETWORK,
            role=ROLE,
            slurm=ApiSlurm(),
            lifecycle=SCRIPTS,
        ),
        {"slurm"},
    ),
}


@pytest.mark.parametrize("construct", INVALID)
def test_one_error_lists_everything(construct: str, stack: TerraformStack) -> None:
    """A construct with invalid arguments lists all its problems in one error: what was given, what is needed."""
    make, arguments = INVALID[construct]
    with pytest.raises(InvalidArgumentsError) as caught:
        make(stack)
    assert {dotted(problem.path) for problem in caught.value.problems} == arguments
    assert str(caught.value).startswith(f"{construct.split(maxsplit=1)[0]} has invalid arguments:")
    assert all(str(problem) in str(caught.value) and problem.need for problem in caught.value.problems)


def test_a_problem_is_one_sentence_and_data() -> None:
    """A problem's message stands alone; its code and path, zone ids with hyphens too, are data."""
    (problem,) = checks.accounting_maria_db(
        name="x",
        region="us-west-2",
        subnet_cidrs={"usw2-az1": "10.0.0.0/8", "usw2-az2": "10.1.0.0/28"},
        instance_class="db.t4g.medium",
        storage_gib=50,
        key_arn=None,
        on_destroy="retain",
    )
    assert (problem.code, problem.path) == ("range", ("subnet_cidrs", "usw2-az1"))
    need = "an IPv4 block of /16 to /28, like 10.0.0.0/16"
    assert problem.message == f"subnet_cidrs.usw2-az1: got 10.0.0.0/8, need {need}"
    assert dotted(problem.below("accounting", 0).path) == "accounting[0].subnet_cidrs.usw2-az1"


def test_terraform_references_pass() -> None:
    """Values that Terraform alone knows are not judged by their placeholder."""
    reference = "${TfToken[TOKEN.0]}"
    assert checks.existing_network(vpc_id=reference, subnet_ids=[reference], security_group_id=reference) == []
    assert checks.existing_lustre(ExistingLustreArguments(dns_name=reference, mount_name=reference)) == []
    assert checks.existing_bucket(name=reference) == []
    assert checks.existing_role(arn=reference) == []


def test_a_number_that_terraform_will_know_is_named_as_such() -> None:
    """Also after int(), which apps write because the arguments are whole numbers."""
    for token in (-1.8881545897087503e289, int(-1.8881545897087503e289)):
        (problem,) = checks.cluster_instance_groups([CONTROLLER, replace(WORKERS, volume_gib=token)])
        assert problem.message == (
            "instance_groups[1].volume_gib: got a value that only Terraform will know, need 0 to 16384"
        )


def test_what_replaces_a_cluster_is_what_its_schema_says() -> None:
    """The properties that only a new cluster can have are those that AWS's schema of the cluster calls createOnly."""
    paths = cluster_schema.schema("us-west-2")["createOnlyProperties"]
    assert sorted(facts.CLUSTER_CREATE_ONLY) == sorted(path.removeprefix("/properties/") for path in paths)


def test_another_slurm_configuration_replaces_no_cluster() -> None:
    """Properties are compared by path: the Slurm part of the orchestrator is not the EKS cluster."""
    network = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    model = {"ClusterName": "a", "VpcConfig": network}
    for orchestrator in ({}, {"Slurm": {}}, {"Slurm": {"SlurmConfigStrategy": "Merge"}}):
        assert create_only({**model, "Orchestrator": orchestrator}) == create_only(model)
    eks = {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/a"}}
    assert create_only({**model, "Orchestrator": eks}) != create_only(model)
