"""One example for each construct: a function of its name, which adds it to a scope whose stack has an AWS provider.

`docs/constructs.md` shows each function and the resources that it makes, and a test runs them all.
"""

import tempfile
from pathlib import Path

from constructs import Construct

from podwright_constructs.accounting import AccountingMariaDb
from podwright_constructs.arguments.lustre import LustreArguments
from podwright_constructs.arguments.openzfs import OpenZfsArguments
from podwright_constructs.bucket import TrainingBucket
from podwright_constructs.budget import ClusterBudget
from podwright_constructs.cluster import HyperPodCluster, InstanceGroup
from podwright_constructs.connections import Connections
from podwright_constructs.dashboard import ClusterDashboard
from podwright_constructs.endpoints import InterfaceEndpoints, S3Endpoint
from podwright_constructs.facts import PortRange
from podwright_constructs.flow_logs import BucketFlowLogs, CloudWatchFlowLogs
from podwright_constructs.key import EncryptionKey
from podwright_constructs.lifecycle import ExistingLifecycleScripts, LifecycleBundle
from podwright_constructs.log_group import ClusterLogGroup
from podwright_constructs.lustre import LustreFileSystem
from podwright_constructs.network import PrivateNetwork, TrainingNetwork
from podwright_constructs.notices import ClusterNotices
from podwright_constructs.openzfs import OpenZfsFileSystem
from podwright_constructs.payload import TrainingPayload
from podwright_constructs.prometheus import PrometheusWorkspace
from podwright_constructs.replacement_guard import ReplacementGuard
from podwright_constructs.role import ExecutionRole, GrantedRole
from podwright_constructs.security_group import ClusterSecurityGroup
from podwright_constructs.session import SessionDocument
from podwright_constructs.subnet import RoutedSubnet

CHECKOUT = Path(__file__).parents[2]
GIB = 1024**3
VPC = "vpc-0a1b2c3d4e5f60718"
TOPIC = "arn:aws:sns:us-west-2:123456789012:operators"
NETWORK = TrainingNetwork.from_ids(
    vpc_id=VPC, subnet_ids=["subnet-0a1b2c3d4e5f60718"], security_group_id="sg-0a1b2c3d4e5f60718"
)
BUCKET = TrainingBucket.from_name("sagemaker-research")
GROUPS = [
    InstanceGroup(name="controller", role="controller", instance_type="ml.m5.xlarge", count=1),
    InstanceGroup(name="workers", role="compute", instance_type="ml.g5.12xlarge", count=2, partition="gpu"),
]


def training_network(scope: Construct) -> None:
    """A VPC with a private and a public subnet."""
    network = TrainingNetwork(scope, "network", name="research", availability_zone_id="usw2-az1")
    CloudWatchFlowLogs(scope, "flow_logs", name="research", vpc_id=network.vpc_id)


def looked_up_network(scope: Construct) -> None:
    """A file system in a network that is found by tags."""
    network = TrainingNetwork.from_lookup(
        scope,
        "network",
        vpc_tags={"Name": "research"},
        subnet_tags={"tier": "private"},
        availability_zone_ids=["usw2-az1"],
        security_group_tags={"Name": "nodes"},
    )
    LustreFileSystem(scope, "files", LustreArguments(), network=network)


def connections(scope: Construct) -> None:
    """Members of the nodes' group are reached by a monitor, at one port, and by an office, at a range."""
    nodes = Connections(scope, "nodes", security_group_id=NETWORK.security_group_id)
    nodes.allow_from("monitor", security_group_id="sg-0fedcba9876543210", ports=9100)
    nodes.allow_from("office", cidr="10.8.0.0/16", ports=PortRange(8888, 8889), description="Notebooks")


def private_network(scope: Construct) -> None:
    """A private subnet in a VPC that exists."""
    PrivateNetwork(
        scope,
        "network",
        name="research",
        vpc_id=VPC,
        availability_zone_id="usw2-az1",
        private_subnet_cidr="10.0.16.0/20",
        nat_gateway_id="nat-0a1b2c3d4e5f60718",
    )


def routed_subnet(scope: Construct) -> None:
    """One subnet with a route to a NAT gateway."""
    RoutedSubnet(
        scope,
        "subnet",
        name="more",
        vpc_id=VPC,
        availability_zone_id="usw2-az2",
        cidr="10.0.32.0/20",
        nat_gateway_id="nat-0a1b2c3d4e5f60718",
    )


def cluster_security_group(scope: Construct) -> None:
    """The security group of nodes and file systems."""
    ClusterSecurityGroup(scope, "nodes", name="research", vpc_id=VPC, nfs=True)


def s3_endpoint(scope: Construct) -> None:
    """S3 without the NAT gateway."""
    S3Endpoint(scope, "s3", name="research", vpc_id=VPC, route_table_ids=["rtb-0a1b2c3d4e5f60718"])


def interface_endpoints(scope: Construct) -> None:
    """Two of AWS's APIs at private addresses."""
    InterfaceEndpoints(
        scope,
        "endpoints",
        name="research",
        vpc_id=VPC,
        subnet_ids=NETWORK.subnet_ids,
        members_security_group_id=NETWORK.security_group_id,
        services=["ssm", "ssmmessages"],
    )


def bucket_flow_logs(scope: Construct) -> None:
    """Flow logs in a bucket that takes them."""
    logs = TrainingBucket(scope, "logs", bucket_prefix="sagemaker-logs-", receives_logs=True)
    BucketFlowLogs(scope, "flow_logs", name="research", vpc_id=VPC, bucket=logs)


def cloud_watch_flow_logs(scope: Construct) -> None:
    """Flow logs in CloudWatch, and an alarm on a day with more than 10 GiB."""
    logs = CloudWatchFlowLogs(scope, "flow_logs", name="research", vpc_id=VPC)
    logs.metric_incoming_bytes().alarm(
        scope,
        "many_logs",
        name="research-many-flow-logs",
        comparison="GreaterThanThreshold",
        threshold=10 * GIB / 288,  # of five minutes
        periods=288,
        topic_arns=[TOPIC],
    )


def encryption_key(scope: Construct) -> None:
    """A key for a bucket; a role also encrypts with it directly."""
    key = EncryptionKey(scope, "key", alias="research")
    TrainingBucket(scope, "bucket", bucket_prefix="sagemaker-research-", key=key)
    key.grant_encrypt_decrypt(ExecutionRole(scope, "role", name="research-nodes", bucket=BUCKET, network=NETWORK))


def training_bucket(scope: Construct) -> None:
    """A bucket, and a role that reads the papers of another one."""
    bucket = TrainingBucket(scope, "bucket", bucket_prefix="sagemaker-research-")
    role = ExecutionRole(scope, "role", name="research-nodes", bucket=bucket, network=NETWORK)
    TrainingBucket.from_name("sagemaker-datasets").grant_read(role, "papers/")


def execution_role(scope: Construct) -> None:
    """The role of nodes, with one more permission."""
    role = ExecutionRole(scope, "role", name="research-nodes", bucket=BUCKET, network=NETWORK)
    role.add_statement({"actions": ["ecr:GetAuthorizationToken"], "resources": ["*"]})


def granted_role(scope: Construct) -> None:
    """A role made elsewhere reads the papers of a bucket."""
    role = GrantedRole(scope, "readers", arn="arn:aws:iam::123456789012:role/team/readers")
    TrainingBucket.from_name("sagemaker-datasets").grant_read(role, "papers/")


def lustre_file_system(scope: Construct) -> None:
    """A file system that reports when less than a tenth of it is free."""
    files = LustreFileSystem(scope, "files", LustreArguments(capacity_gib=2400), network=NETWORK)
    files.metric_free_capacity().alarm(
        scope,
        "full",
        name="research-files-full",
        comparison="LessThanThreshold",
        threshold=240 * GIB,
        topic_arns=[TOPIC],
    )


def open_zfs_file_system(scope: Construct) -> None:
    """Home directories that report when they are nine tenths full."""
    homes = OpenZfsFileSystem(scope, "homes", OpenZfsArguments(capacity_gib=1024), network=NETWORK)
    homes.metric_used_capacity().alarm(
        scope,
        "full",
        name="research-homes-full",
        comparison="GreaterThanThreshold",
        threshold=0.9 * 1024 * GIB,
        topic_arns=[TOPIC],
    )


def accounting_maria_db(scope: Construct) -> None:
    """A database whose password the controllers' role reads, and an alarm on its disk."""
    database = AccountingMariaDb(
        scope,
        "accounting",
        name="research-accounting",
        network=NETWORK,
        region="us-west-2",
        subnet_cidrs={"usw2-az1": "10.0.48.0/28", "usw2-az2": "10.0.48.16/28"},
    )
    role = ExecutionRole(scope, "role", name="research-controllers", bucket=BUCKET, network=NETWORK)
    database.grant_read_password(role)
    database.metric_free_storage().alarm(
        scope, "full", name="research-accounting-full", comparison="LessThanThreshold", threshold=5 * GIB
    )


def training_payload(scope: Construct) -> None:
    """A training program of yours; here an empty file stands for its wheel."""
    wheel = Path(tempfile.mkdtemp()) / "research-1.0-py3-none-any.whl"
    wheel.touch()
    requirements = CHECKOUT / "training" / "requirements.lock"
    TrainingPayload(scope, "training", bucket=BUCKET, wheel=wheel, requirements=requirements)


def lifecycle_bundle(scope: Construct) -> None:
    """The checkout's lifecycle scripts, for a cluster's groups."""
    LifecycleBundle(
        scope,
        "lifecycle",
        scripts=CHECKOUT / "lifecycle_scripts",
        bucket=BUCKET,
        cluster_name="research",
        instance_groups=GROUPS,
        lustre=LustreFileSystem.from_names(dns_name="fs-0a1b2c3d.fsx.us-west-2.amazonaws.com", mount_name="abcdefgh"),
    )


def hyper_pod_cluster(scope: Construct) -> None:
    """A cluster with scripts that exist, and an alarm when no job ran for six hours."""
    cluster = HyperPodCluster(
        scope,
        "cluster",
        cluster_name="research",
        instance_groups=GROUPS,
        network=NETWORK,
        role=ExecutionRole.from_arn("arn:aws:iam::123456789012:role/hyperpod-nodes"),
        lifecycle=ExistingLifecycleScripts(source_s3_uri="s3://sagemaker-research/lifecycle"),
    )
    cluster.metric_running_jobs().alarm(
        scope, "idle", name="research-idle", comparison="LessThanThreshold", threshold=1, periods=72, topic_arns=[TOPIC]
    )


def replacement_guard(scope: Construct) -> None:
    """Terraform refuses to replace a file system because of another zone."""
    subnet_id = NETWORK.subnet_ids[0]
    files = LustreFileSystem(scope, "files", LustreArguments(), network=NETWORK)
    ReplacementGuard(
        scope,
        "guard",
        resource=files.file_system,
        properties={"subnet_ids": [subnet_id]},
        consequence="loses all files",
    )


def cluster_log_group(scope: Construct) -> None:
    """The nodes' logs are kept for 90 days."""
    ClusterLogGroup(
        scope, "logs", name="research-logs", cluster_name="research", cluster_id="a1b2c3d4e5f6", retention_days=90
    )


def cluster_notices(scope: Construct) -> None:
    """Emails about the cluster; nodes may send some, too."""
    notices = ClusterNotices(
        scope, "notices", name="research", cluster_name="research", email="ops@example.com", idle_hours=6
    )
    notices.grant_publish(ExecutionRole(scope, "role", name="research-nodes", bucket=BUCKET, network=NETWORK))


def cluster_budget(scope: Construct) -> None:
    """An email at 80 % of 5,000 dollars a month."""
    ClusterBudget(
        scope,
        "budget",
        name="research",
        monthly_usd=5000,
        email="ops@example.com",
        tag_key="podwright:cluster",
        tag_value="research",
    )


def cluster_dashboard(scope: Construct) -> None:
    """A page of graphs of the file system, and the nodes' errors."""
    ClusterDashboard(
        scope,
        "dashboard",
        name="research",
        log_group="/aws/sagemaker/Clusters/research/a1b2c3d4e5f6",
        file_system_id="fs-0a1b2c3d",
    )


def prometheus_workspace(scope: Construct) -> None:
    """A workspace that nodes write to, and that they read for a dashboard."""
    workspace = PrometheusWorkspace(scope, "metrics", name="research")
    role = ExecutionRole(scope, "role", name="research-nodes", bucket=BUCKET, network=NETWORK)
    workspace.grant_remote_write(role)
    workspace.grant_query(role)


def session_document(scope: Construct) -> None:
    """Shells on nodes, recorded for 30 days."""
    document = SessionDocument(scope, "session", name="research-shell", log_retention_days=30)
    document.grant_logs(ExecutionRole(scope, "role", name="research-nodes", bucket=BUCKET, network=NETWORK))
