"""The rules: each is in the list, explained, and found broken by settings made for it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from podwright.check import rules
from podwright.check.checked_settings import codes
from podwright.check.findings import Level
from podwright.check.incomplete import incomplete
from podwright.check.load import load
from podwright.check.rules import addresses
from podwright.check.rules import rule as rule_module
from podwright.checkout import ROOT
from podwright.planning.on_demand import on_demand
from podwright.settings import names, regions
from podwright.settings.root import Settings
from podwright_constructs import checks, facts, rds_certificates
from podwright_constructs.catalog import InstanceType, cluster_instance_types
from podwright_constructs.problems import dotted
from podwright_training.config.sources import load_file
from podwright_training.config.train_config import PRESETS
from podwright_training.jobs.spec import JobSpec, Model

CONTROLLER = {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1}
WORKERS = {"name": "workers", "role": "compute", "instance_type": "ml.g5.xlarge", "count": 2, "partition": "gpu"}
LOGIN = {"name": "login", "role": "login", "instance_type": "ml.m5.xlarge", "count": 1}
NETWORK = {"source": "create", "availability_zone_id": "usw2-az1"}
EXISTING_NETWORK = {
    "source": "existing",
    "vpc_id": "vpc-00000001",
    "subnet_ids": ["subnet-00000001"],
    "security_group_id": "sg-00000001",
}
NEW_SUBNET = {
    "source": "existing_vpc",
    "vpc_id": "vpc-00000001",
    "availability_zone_id": "usw2-az1",
    "private_subnet_cidr": "10.0.16.0/20",
    "nat_gateway_id": "nat-00000001",
}
SECOND_ZONE = {"extra_private_subnets": [{"availability_zone_id": "usw2-az2", "cidr": "10.0.32.0/20"}]}
FSX_LOGS = "arn:aws:logs:us-west-2:123456789012:log-group:/aws/fsx/research"
EXISTING_LUSTRE = {"source": "existing", "dns_name": "fs-0a1b2c3d.fsx.us-west-2.amazonaws.com", "mount_name": "fsx"}

KEY = "arn:aws:kms:us-west-2:210987654321:key/1234abcd-12ab-34cd-56ef-1234567890ab"
DEPLOYER = "arn:aws:iam::210987654321:role/deployer"
EXISTING_ROLE = {"source": "existing", "arn": "arn:aws:iam::210987654321:role/nodes"}
EXISTING_ACCOUNTING = {
    "source": "existing",
    "endpoint": "slurm.abc.us-west-2.rds.amazonaws.com",
    "secret_arn": "arn:aws:secretsmanager:us-west-2:210987654321:secret:slurm",
}
TWO_SUBNETS = {"subnet_ids": ["subnet-00000001", "subnet-00000002"]}
EXISTING_PROMETHEUS = {
    "source": "existing",
    "arn": "arn:aws:aps:us-west-2:210987654321:workspace/ws-1",
    "remote_write_url": "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1/api/v1/remote_write",
}
BUNDLED = {"downloads": {"source": "bundle"}}
MEASURED: dict[str, Any] = {"observability": {}}
API = {"source": "api", "strategy": "managed"}
OWN_API = {**API, "init_script": {"source_s3_uri": "s3://sagemaker-mine/x", "on_init_complete": "a.sh"}}
SCRIPTS = {"source": "existing", "source_s3_uri": "s3://sagemaker-mine/src"}
TOPIC = "arn:aws:sns:us-west-2:210987654321:landing-zone"
IDLE = {"email": "me@llm.test", "idle_hours": 6}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK6+ly6vY0Ll95HGzYzNcDhWAP5jvz2VHncW3ucpbMEX ada@laptop"
ADA = {"name": "ada", "uid": 2001}
LDAP = {"uri": "ldaps://ldap.corp.net", "search_base": "dc=corp,dc=net", "probe_user": "eve"}
BIND = {"bind_dn": "cn=reader", "bind_secret_arn": "arn:aws:secretsmanager:us-west-2:210987654321:secret:ldap"}
CORPORA = {"bucket": "corpora", "prefix": "c4/", "path": "/mnt/c4"}


DATABASE = {
    "accounting": {"source": "create", "subnet_cidrs": {"usw2-az1": "10.0.1.0/28", "usw2-az2": "10.0.1.16/28"}},
    "training": {"source": "none"},
}
OFFLINE_NETWORK = {**NETWORK, "internet": "none", "endpoints": ["standard"]}
PLAN = "arn:aws:sagemaker:us-west-2:210987654321:training-plan/p1"
P5 = {**WORKERS, "instance_type": "ml.p5.48xlarge"}
P5EN = {**WORKERS, "name": "newer", "instance_type": "ml.p5en.48xlarge", "partition": "newer"}
GB200 = "ml.p6e-gb200.36xlarge"
ARM_CONTROLLER = {**CONTROLLER, "instance_type": "ml.c7g.4xlarge"}
P5_GROUPS: dict[str, Any] = {"cluster": {"instance_groups": [CONTROLLER, P5]}}
HEAD = "cluster.instance_groups[0]"


def content(**changes: Any) -> dict[str, Any]:
    """A good settings file as data, with other sections."""
    good = {
        "name": "demo",
        "region": "us-west-2",
        "network": NETWORK,
        "lustre": {"source": "create"},
        "bucket": {"source": "create"},
        "role": {"source": "create"},
        "cluster": {"instance_groups": [CONTROLLER, WORKERS]},
    }
    return {**good, **changes}


def groups(*instance_groups: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that change when the instance groups do."""
    return {"cluster": {"instance_groups": list(instance_groups)}}


def existing(**changes: Any) -> dict[str, Any]:
    """The sections that change in a VPC that exists, where other things may exist too."""
    return {"network": EXISTING_NETWORK, **changes}


def api(slurm: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The sections that change when HyperPod sets Slurm up itself."""
    cluster = {"instance_groups": [CONTROLLER, WORKERS], "slurm": slurm, **changes}
    return {"cluster": cluster, "training": {"source": "none"}}


def offline(**changes: Any) -> dict[str, Any]:
    """Nodes that measure themselves and have no internet; they get programs from the bucket unless changed."""
    return {"network": OFFLINE_NETWORK, "nodes": {"observability": {}, "downloads": {"source": "bundle"}, **changes}}


def api_continuous() -> dict[str, Any]:
    """The same with continuous provisioning, which has no strategy."""
    return api({"source": "api"}, node_provisioning="continuous")


def accounting(subnet_cidrs: Mapping[str, str]) -> dict[str, Any]:
    """A created accounting database with these subnets."""
    return {**api_continuous(), "accounting": {"source": "create", "subnet_cidrs": subnet_cidrs}}


def users(*people: Mapping[str, Any], **features: Any) -> dict[str, Any]:
    """The section that changes when people do, who are ada unless they say otherwise."""
    return {"nodes": {"users": [{**ADA, **person} for person in people], **features}}


def ldap(**changes: Any) -> dict[str, Any]:
    """An LDAP server, changed."""
    return {"nodes": {"ldap": LDAP | changes}}


def extra_groups(*ids: str) -> dict[str, Any]:
    """A cluster with these security groups beside the network's."""
    return {"cluster": {"instance_groups": [CONTROLLER, WORKERS], "extra_security_group_ids": ids}}


def database_in(*subnet_ids: str) -> dict[str, Any]:
    """A created accounting database in existing subnets."""
    return {**api_continuous(), "accounting": {"source": "create", "subnet_ids": subnet_ids}}


GITLAB = "https://llm.test/api/v4/projects/7/terraform/state"


def backend(type_: str, **arguments: Any) -> dict[str, Any]:
    """A state in a backend of any type."""
    return {"state": {"source": "backend", "type": type_, "arguments": arguments}}


def statement(action: str, resource: str) -> dict[str, Any]:
    """A created role with this statement."""
    return {"role": {"source": "create", "statements": [{"actions": [action], "resources": [resource]}]}}


def s3(**changes: Any) -> dict[str, Any]:
    """A bucket as a folder, changed."""
    return {"nodes": {"s3_mounts": [CORPORA | changes]}}


def existing_accounting(**changes: Any) -> dict[str, Any]:
    """An accounting database that exists, changed."""
    return {**api_continuous(), "network": EXISTING_NETWORK, "accounting": EXISTING_ACCOUNTING | changes}


def broken(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Code and path of every finding."""
    return [(item.code, dotted(item.path)) for item in rules.apply(Settings.model_validate(data))]


# Code, the changed sections, and where the finding is.
BROKEN = [
    ("scratch-path", {"nodes": {"scratch": {"mount_path": "scratch"}}}, "nodes.scratch.mount_path"),
    ("mount-paths", {"nodes": {"scratch": {"mount_path": "/fsx/scratch"}}}, "nodes.scratch.mount_path"),
    (
        "mount-paths",
        {"nodes": {"scratch": {"mount_path": "/mnt"}, "s3_mounts": [CORPORA]}},
        "nodes.s3_mounts[0].path",
    ),
    ("scratch-path", {"nodes": {"scratch": {"mount_path": "/etc"}}}, "nodes.scratch.mount_path"),
    (
        "scratch-disks",
        {"nodes": {"scratch": {}}, **groups(CONTROLLER, {**WORKERS, "instance_type": "ml.c5.large"})},
        "nodes.scratch",
    ),
    ("node-limits", {"nodes": {"limits": {"open_files": 1024}}}, "nodes.limits.open_files"),
    ("node-limits", {"nodes": {"limits": {"open_files": 2000000}}}, "nodes.limits.open_files"),
    ("node-limits", {"nodes": {"limits": {"neigh_gc_thresh3": 512}}}, "nodes.limits.neigh_gc_thresh3"),
    (
        "lustre-efa-connections",
        {
            "network": EXISTING_NETWORK,
            "lustre": {**EXISTING_LUSTRE, "efa": True},
            **groups(
                CONTROLLER,
                {**WORKERS, "instance_type": "ml.p5.48xlarge", "count": 129, "network_interface": "efa-only"},
            ),
        },
        "lustre.efa",
    ),
    ("neuron-nodes", {"nodes": {"neuron": {}}}, "nodes.neuron"),
    (
        "neuron-nodes",
        {
            "nodes": {"neuron": {"tools_version": "latest"}},
            **groups(CONTROLLER, {**WORKERS, "instance_type": "ml.trn1.32xlarge"}),
        },
        "nodes.neuron.tools_version",
    ),
    ("known-region", {"region": "us-wst-2a"}, "region"),
    ("known-region", {"region": "us-west-7", "network": {**NETWORK, "availability_zone_id": "usw7-az1"}}, "region"),
    ("zone-in-region", {"region": "us-east-1"}, "network.availability_zone_id"),
    ("cluster-name", {"name": "demo-"}, "name"),
    ("cluster-name", {"name": "d" * 64}, "name"),
    ("tag-limits", {"tags": {"aws:team": "a"}}, "tags.aws:team"),
    ("tag-limits", {"tags": {f"t{number}": "" for number in range(facts.MAX_CLUSTER_TAGS)}}, "tags"),
    ("created-network", {"network": {**NETWORK, "cidr": "10.0.0.1/16"}}, "network.cidr"),
    ("created-network", {"network": {**NETWORK, "public_subnet_cidr": "10.1.0.0/24"}}, "network.public_subnet_cidr"),
    ("created-network", {"network": {**NETWORK, "public_subnet_cidr": "10.0.16.0/24"}}, "network.private_subnet_cidr"),
    ("created-network", {"network": {**NETWORK, "secondary_cidrs": ["10.0.128.0/20"]}}, "network.secondary_cidrs[0]"),
    ("created-network", {"network": {**NETWORK, "secondary_cidrs": ["172.16.0.0/16"]}}, "network.secondary_cidrs[0]"),
    ("created-network", {"network": {**NETWORK, "secondary_cidrs": ["198.19.1.0/24"]}}, "network.secondary_cidrs[0]"),
    (
        "created-network",
        {"network": {**NETWORK, "extra_private_subnets": [{"availability_zone_id": "b", "cidr": "10.0.32.0/20"}]}},
        "network.extra_private_subnets[0].availability_zone_id",
    ),
    (
        "created-network",
        {
            "network": {
                **NETWORK,
                "extra_private_subnets": [{"availability_zone_id": "usw2-az2", "cidr": "10.0.24.0/24"}],
            }
        },
        "network.extra_private_subnets[0].cidr",
    ),
    ("created-network", {"nodes": BUNDLED, "network": {**NETWORK, "internet": "none"}}, "network.endpoints"),
    ("created-network", {"network": {**NETWORK, "endpoints": ["standard", "smm"]}}, "network.endpoints[1]"),
    ("created-subnet", {"network": {**NEW_SUBNET, "nat_gateway_id": None}}, "network.nat_gateway_id"),
    ("created-subnet", {"network": {**NEW_SUBNET, "route_table_id": "rtb-00000001"}}, "network.nat_gateway_id"),
    (
        "created-subnet",
        {"network": {**NEW_SUBNET, "private_subnet_cidr": "10.0.16.0/29"}},
        "network.private_subnet_cidr",
    ),
    (
        "zone-in-region",
        {
            "network": {
                **NETWORK,
                "extra_private_subnets": [{"availability_zone_id": "use1-az2", "cidr": "10.0.32.0/20"}],
            }
        },
        "network.extra_private_subnets[0].availability_zone_id",
    ),
    ("zone-in-region", {"network": {**NEW_SUBNET, "availability_zone_id": "use1-az2"}}, "network.availability_zone_id"),
    ("existing-network", {"network": {**EXISTING_NETWORK, "vpc_id": ""}}, "network.vpc_id"),
    (
        "existing-network",
        {"network": {**EXISTING_NETWORK, "subnet_ids": ["subnet-00000001", "2"]}},
        "network.subnet_ids[1]",
    ),
    ("existing-network", {"network": {**EXISTING_NETWORK, "subnet_ids": []}}, "network.subnet_ids"),
    ("created-lustre", {"lustre": {"source": "create", "capacity_gib": 1000}}, "lustre.capacity_gib"),
    ("created-lustre", {"lustre": {"source": "create", "mount_path": "fsx"}}, "lustre.mount_path"),
    ("existing-lustre", existing(lustre={**EXISTING_LUSTRE, "mount_name": "too long a name"}), "lustre.mount_name"),
    (
        "existing-file-system-in-region",
        existing(lustre={**EXISTING_LUSTRE, "dns_name": "fs-0a1b2c3d.fsx.us-east-1.amazonaws.com"}),
        "lustre.dns_name",
    ),
    *(
        ("created-lustre", {"lustre": {"source": "create", "efa": True, **changes}, **P5_GROUPS}, f"lustre.{argument}")
        for argument, changes in (
            ("capacity_gib", {"capacity_gib": 2400}),
            ("efa", {"deployment_type": "PERSISTENT_1"}),
        )
    ),
    *(
        ("created-lustre", {"lustre": {"source": "create", **changes}}, f"lustre.{argument}")
        for argument, changes in (
            ("storage_type", {"storage_type": "HDD"}),
            ("throughput_mbps_per_tib", {"throughput_mbps_per_tib": 200}),
            ("throughput_mbps_per_tib", {"deployment_type": "SCRATCH_2", "throughput_mbps_per_tib": 250}),
            ("throughput_mbps", {"throughput_mbps": 4000}),
            ("throughput_mbps", {"storage_type": "INTELLIGENT_TIERING", "throughput_mbps": 5000}),
            ("capacity_gib", {"storage_type": "INTELLIGENT_TIERING", "capacity_gib": 1200}),
            ("capacity_gib", {"deployment_type": "PERSISTENT_1", "storage_type": "HDD", "capacity_gib": 2400}),
            ("read_cache", {"read_cache": True}),
            ("file_system_type_version", {"file_system_type_version": "2.10"}),
            ("file_system_type_version", {"file_system_type_version": "2.12", "metadata_iops": 6000}),
            (
                "file_system_type_version",
                {
                    "deployment_type": "SCRATCH_2",
                    "file_system_type_version": "2.10",
                    "data_repositories": [{"path": "/data", "s3_uri": "s3://data"}],
                },
            ),
            ("metadata_iops", {"metadata_iops": 5000}),
            ("metadata_iops", {"deployment_type": "SCRATCH_2", "metadata_iops": 6000}),
            ("automatic_backup_retention_days", {"automatic_backup_retention_days": 91}),
            ("automatic_backup_retention_days", {"deployment_type": "SCRATCH_2", "automatic_backup_retention_days": 7}),
            ("on_destroy", {"on_destroy": "backup", "data_repositories": [{"path": "/data", "s3_uri": "s3://data"}]}),
            ("weekly_maintenance_start_time", {"weekly_maintenance_start_time": "8:03:00"}),
            ("root_squash", {"root_squash": "0:65534"}),
            ("root_squash", {"root_squash": "1:4294967295"}),
            ("no_squash_nids", {"no_squash_nids": ["10.0.0.1@tcp"]}),
            ("no_squash_nids[0]", {"root_squash": "1:1", "no_squash_nids": ["10.0.0.0/16"]}),
            ("no_squash_nids[1]", {"root_squash": "1:1", "no_squash_nids": ["10.0.0.1@tcp", "10.0.[9-1].1@tcp"]}),
            ("no_squash_nids", {"root_squash": "1:1", "no_squash_nids": ["10.0.0.1@tcp"] * 65}),
            ("log_group_arn", {"log_group_arn": FSX_LOGS}),
            ("log_group_arn", {"log_level": "WARN_ERROR", "log_group_arn": FSX_LOGS.replace("/aws/fsx", "/fsx")}),
            ("data_repositories[0].path", {"data_repositories": [{"path": "data", "s3_uri": "s3://data"}]}),
            ("data_repositories[0].s3_uri", {"data_repositories": [{"path": "/data", "s3_uri": "data"}]}),
            (
                "data_repositories[1].path",
                {
                    "data_repositories": [
                        {"path": "/data", "s3_uri": "s3://data"},
                        {"path": "/data/more", "s3_uri": "s3://more"},
                    ]
                },
            ),
            (
                "data_repositories",
                {"data_repositories": [{"path": f"/{n}", "s3_uri": f"s3://data-{n}"} for n in range(9)]},
            ),
        )
    ),
    *(
        ("created-openzfs", {"openzfs": {"source": "create", **changes}}, f"openzfs.{argument}")
        for argument, changes in (
            ("capacity_gib", {"capacity_gib": 63}),
            ("capacity_gib", {"capacity_gib": 524289}),
            ("throughput_mbps", {"throughput_mbps": 64}),
            ("throughput_mbps", {"deployment_type": "SINGLE_AZ_1", "throughput_mbps": 160}),
            ("automatic_backup_retention_days", {"automatic_backup_retention_days": -1}),
            ("weekly_maintenance_start_time", {"weekly_maintenance_start_time": "7:3:00"}),
            ("mount_path", {"mount_path": "home"}),
        )
    ),
    ("existing-openzfs", existing(openzfs={"source": "existing", "dns_name": "homes"}), "openzfs.dns_name"),
    ("openzfs-zones", {"openzfs": {"source": "create", "deployment_type": "MULTI_AZ_1"}}, "openzfs.deployment_type"),
    (
        "openzfs-zones",
        {
            "openzfs": {"source": "create", "deployment_type": "MULTI_AZ_1"},
            "network": {**EXISTING_NETWORK, "subnet_ids": ["subnet-00000001", "subnet-00000002"]},
        },
        "openzfs.deployment_type",
    ),
    ("mount-paths", {"openzfs": {"source": "create", "mount_path": "/fsx/home"}}, "openzfs.mount_path"),
    (
        "unused-settings",
        {
            "network": {
                **NETWORK,
                "internet": "none",
                "endpoints": ["standard"],
                "public_subnet_cidr": "10.0.0.0/24",
            },
            "nodes": BUNDLED,
        },
        "network.public_subnet_cidr",
    ),
    (
        "unused-settings",
        {"network": {**EXISTING_NETWORK, "route_table_ids": ["rtb-00000001"]}},
        "network.route_table_ids",
    ),
    (
        "scratch-key",
        {"key": {"source": "create"}, "lustre": {"source": "create", "deployment_type": "SCRATCH_2"}},
        "lustre.deployment_type",
    ),
    ("existing-key", {"key": {"source": "existing", "arn": KEY.replace("key/", "alias/")}}, "key.arn"),
    (
        "arns-in-region",
        {"key": {"source": "existing", "arn": KEY.replace("us-west-2", "us-east-1")}},
        "key.arn",
    ),
    (
        "arns-in-region",
        {"bucket": {"source": "existing", "name": "sagemaker-x", "key_arn": KEY.replace("us-west-2", "us-east-1")}},
        "bucket.key_arn",
    ),
    (
        "created-bucket",
        {"bucket": {"source": "create", "noncurrent_version_expiration_days": 0}},
        "bucket.noncurrent_version_expiration_days",
    ),
    ("created-bucket", {"bucket": {"source": "create", "access_log_bucket": "Logs"}}, "bucket.access_log_bucket"),
    ("created-bucket", {"bucket": {"source": "create", "access_log_prefix": "x"}}, "bucket.access_log_prefix"),
    ("existing-bucket", {"bucket": {"source": "existing", "name": "sagemaker-x", "key_arn": "k"}}, "bucket.key_arn"),
    ("existing-bucket", {"bucket": {"source": "existing", "name": "scripts"}}, "bucket.name"),
    ("existing-role", existing(role={"source": "existing", "arn": "arn:aws:iam::1:user/me"}), "role.arn"),
    ("account-of-deployment", {"account_id": "2109876543210"}, "account_id"),
    ("account-of-deployment", {"account_id": ""}, "account_id"),
    (
        "arns-of-one-account",
        {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, "account_id": "333344445555"},
        "role.arn",
    ),
    (
        "arns-of-one-account",
        {"network": EXISTING_NETWORK, "role": {**EXISTING_ROLE, "login_arn": "arn:aws:iam::333344445555:role/login"}},
        "role.login_arn",
    ),
    ("named-users", {"nodes": {"metadata_access": {"users": ["nobody-knows"]}}}, "nodes.metadata_access.users[0]"),
    (
        "named-users",
        {"nodes": {"controller_logins": {"admins": ["nobody-knows"]}}},
        "nodes.controller_logins.admins[0]",
    ),
    (
        "source-of-slurm",
        {"nodes": {"pam_slurm_adopt": {"slurm_source_sha256": "24.11.5"}}},
        "nodes.pam_slurm_adopt.slurm_source_sha256",
    ),
    (
        "role-of-login-nodes",
        {**groups(CONTROLLER, LOGIN, WORKERS), **users({}, metadata_access={"everybody": True})},
        "nodes.metadata_access.everybody",
    ),
    (
        "controller-logins",
        users({}, controller_logins={"everybody": False}),
        "nodes.controller_logins.everybody",
    ),
    ("instance-group", groups({**CONTROLLER, "count": 0}, WORKERS), "cluster.instance_groups[0].count"),
    (
        "types-with-bundle",
        groups(CONTROLLER, {**WORKERS, "other_instance_types": ["ml.g6.xlarge"]}),
        "cluster.instance_groups[1].other_instance_types",
    ),
    ("multi-head", groups({**CONTROLLER, "count": 2}, WORKERS), "cluster.instance_groups[0].count"),
    (
        "instance-group",
        groups(CONTROLLER, {**WORKERS, "instance_type": "x"}),
        "cluster.instance_groups[1].instance_type",
    ),
    ("instance-group", groups(CONTROLLER, {**WORKERS, "volume_gib": -1}), "cluster.instance_groups[1].volume_gib"),
    ("instance-group", groups({**CONTROLLER, "partition": "a"}, WORKERS), "cluster.instance_groups[0].partition"),
    (
        "instance-group",
        groups(CONTROLLER, {**WORKERS, "scheduled_update": {"schedule": "daily"}}),
        "cluster.instance_groups[1].scheduled_update.schedule",
    ),
    (
        "instance-group",
        groups(CONTROLLER, {**WORKERS, "subnet_ids": ["subnet-00000001", "vpc-00000001"]}),
        "cluster.instance_groups[1].subnet_ids[1]",
    ),
    ("compute-partition", groups(CONTROLLER, {**WORKERS, "partition": None}), "cluster.instance_groups[1]"),
    ("group-composition", groups(WORKERS), "cluster.instance_groups"),
    ("group-composition", groups(CONTROLLER), "cluster.instance_groups"),
    ("group-composition", groups(CONTROLLER, WORKERS, WORKERS), "cluster.instance_groups[2].name"),
    (
        "spot-head",
        {
            "cluster": {
                "instance_groups": [{**CONTROLLER, "capacity": "spot"}, WORKERS],
                "node_provisioning": "continuous",
            }
        },
        "cluster.instance_groups[0].capacity",
    ),
    ("api-slurm", api({"source": "api"}), "cluster.slurm.strategy"),
    ("api-slurm", api(API, node_provisioning="continuous"), "cluster.slurm.strategy"),
    ("api-slurm", existing(**api(API), accounting=EXISTING_ACCOUNTING), "accounting.source"),
    ("training-without-scripts", {**api(OWN_API), "training": {"source": "bundled"}}, "training.source"),
    ("training-without-scripts", {**api(SCRIPTS), "training": {"source": "bundled"}}, "training.source"),
    ("existing-scripts", api({**SCRIPTS, "source_s3_uri": "s3://mine/src"}), "cluster.slurm.source_s3_uri"),
    ("nodes-without-scripts", {**api(SCRIPTS), "nodes": {"motd": True}}, "nodes.motd"),
    (
        "managed-partitions",
        {**api(API), "nodes": {"slurm": {"partitions": [{"name": "gpu", "max_minutes": 600}]}}},
        "nodes.slurm.partitions",
    ),
    (
        "api-slurm",
        api({**API, "init_script": {"source_s3_uri": "s3://mine/x", "on_init_complete": "a.sh"}}),
        "cluster.slurm.init_script.source_s3_uri",
    ),
    ("provisioning", groups(CONTROLLER, {**WORKERS, "capacity": "spot"}), "cluster.instance_groups[1].capacity"),
    (
        "blocks-of-network",
        {"network": {**NETWORK, "secondary_cidrs": [f"100.{number}.0.0/16" for number in range(64, 69)]}},
        "network.secondary_cidrs",
    ),
    ("provisioning", groups(CONTROLLER, {**WORKERS, "key_arn": KEY}), "cluster.instance_groups[1].key_arn"),
    ("provisioning", groups(CONTROLLER, {**WORKERS, "min_count": 1}), "cluster.instance_groups[1].min_count"),
    (
        "updates-in-batches",
        groups(CONTROLLER, {**WORKERS, "scheduled_update": {"schedule": "cron(0 3 ? * SUN *)", "max_count": 1}}),
        "cluster.instance_groups[1].scheduled_update",
    ),
    (
        "created-role",
        {"role": {"source": "create", "permissions_boundary_arn": "limits"}},
        "role.permissions_boundary_arn",
    ),
    ("created-accounting", accounting({"usw2-az1": "10.0.1.0/28"}), "accounting.subnet_cidrs"),
    (
        "created-accounting",
        accounting({"usw2-az1": "10.0.1.0/28", "usw2-az2": "10.0.1.16/29"}),
        "accounting.subnet_cidrs.usw2-az2",
    ),
    (
        "accounting-in-network",
        accounting({"usw2-az1": "10.1.1.0/28", "usw2-az2": "10.0.1.16/28"}),
        "accounting.subnet_cidrs.usw2-az1",
    ),
    (
        "accounting-in-network",
        accounting({"usw2-az1": "10.0.1.0/28", "usw2-az2": "10.0.16.0/28"}),
        "accounting.subnet_cidrs.usw2-az2",
    ),
    ("created-accounting", existing(**database_in("subnet-00000001")), "accounting.subnet_ids"),
    ("created-accounting", existing(**database_in("subnet-00000001", "subnet-00000001")), "accounting.subnet_ids[1]"),
    ("created-accounting", existing(**database_in("subnet-00000001", "sn-00000002")), "accounting.subnet_ids[1]"),
    ("created-accounting", {**DATABASE, "accounting": DATABASE["accounting"] | TWO_SUBNETS}, "accounting.subnet_ids"),
    ("name-of-schema", existing_accounting(database_name="slurm-db"), "accounting.database_name"),
    (
        "name-of-schema",
        existing(accounting={**EXISTING_ACCOUNTING, "database_name": "slurm"}),
        "accounting.database_name",
    ),
    ("existing-accounting", existing_accounting(endpoint="db:3306"), "accounting.endpoint"),
    ("existing-accounting", existing_accounting(secret_arn="mine"), "accounting.secret_arn"),
    ("unused-accounting", {**api(API), "accounting": {"source": "none"}}, "accounting.source"),
    (
        "existing-prometheus",
        {"nodes": MEASURED, "prometheus": {**EXISTING_PROMETHEUS, "arn": "ws-1"}},
        "prometheus.arn",
    ),
    (
        "rights-of-existing-role",
        {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, "prometheus": {"source": "create"}, "nodes": MEASURED},
        "role.arn",
    ),
    (
        "rights-of-existing-role",
        {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, **existing_accounting()},
        "role.arn",
    ),
    (
        "rights-of-existing-role",
        {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, "session": {"log_retention_days": 90}},
        "role.arn",
    ),
    (
        "rights-of-existing-role",
        {
            "network": EXISTING_NETWORK,
            "role": {**EXISTING_ROLE, "controller_arn": f"{EXISTING_ROLE['arn']}s"},
            **existing_accounting(),
        },
        "role.controller_arn",
    ),
    ("rights-of-existing-role", {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, **s3()}, "role.arn"),
    ("rights-of-existing-role", {"network": EXISTING_NETWORK, "role": EXISTING_ROLE, **ldap(**BIND)}, "role.arn"),
    (
        "rights-of-existing-role",
        {
            "network": EXISTING_NETWORK,
            "role": {**EXISTING_ROLE, "controller_arn": f"{EXISTING_ROLE['arn']}s"},
            **ldap(**BIND),
        },
        "role.controller_arn",
    ),
    *(
        ("names-of-people", users({"name": name}), "nodes.users[0].name")
        for name in ("Ada", "1a", "a" * 33, "ubuntu", "a b")
    ),
    ("names-of-people", users({}, groups=[{"name": "ada", "gid": 3001}]), "nodes.groups[0].name"),
    *(("ids-of-people", users({"uid": uid}), "nodes.users[0].uid") for uid in (0, 1000, 60001)),
    ("ids-of-people", users({}, {"name": "bob"}), "nodes.users[1].uid"),
    ("ids-of-people", users({}, groups=[{"name": "research", "gid": 2001}]), "nodes.groups[0].gid"),
    ("groups-of-people", users({"groups": ["docker"]}), "nodes.users[0].groups[0]"),
    *(
        ("ssh-keys-of-people", users({"ssh_keys": [PUBLIC_KEY, key]}), "nodes.users[0].ssh_keys[1]")
        for key in (
            "",
            "ssh-dss AAAA",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            PUBLIC_KEY[:40],
            PUBLIC_KEY.replace("ssh-ed25519 ", "ssh-rsa "),
            f"{PUBLIC_KEY}\n{PUBLIC_KEY}",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
        )
    ),
    *(
        ("homes-of-people", users({"home": home}), "nodes.users[0].home")
        for home in (
            "/data/ada",
            "/fsx",
            "/fsx/home",
            "/fsx/runs/ada",
            "/fsx/podwright",
            "/fsx/../etc",
            "/fsx/a:b",
            "ada",
        )
    ),
    ("homes-of-people", users({}, {"name": "bob", "uid": 2002, "home": "/fsx/home/ada"}), "nodes.users[1].home"),
    *(
        ("ldap", ldap(**{key: value}), f"nodes.ldap.{key}{'[0]' if isinstance(value, list) else ''}")
        for key, value in (
            ("uri", "http://ldap.corp.net"),
            ("uri", "ldaps://"),
            ("uri", "ldaps://ldap.corp.net:99999"),
            ("uri", "ldaps://ldap.corp.net/dc=corp"),
            ("search_base", "corp.net"),
            ("bind_dn", "cn=reader,dc=corp,dc=net"),
            ("bind_secret_arn", "arn:aws:secretsmanager:us-west-2:210987654321:secret:ldap"),
            ("allowed_groups", ["research, guests"]),
            ("access_filter", "employeeType=staff"),
            ("sudo_groups", ["admins, guests"]),
            ("ssh_key_attribute", "ssh key"),
            ("probe_user", "-x"),
            ("certificate", "ca.pem"),
        )
    ),
    ("ldap", ldap(bind_dn="cn=reader", bind_secret_arn="ldap"), "nodes.ldap.bind_secret_arn"),
    ("ldap", ldap(allowed_groups=["research"], access_filter="(uid=ada)"), "nodes.ldap.access_filter"),
    ("ldap", ldap(probe_user=None), "nodes.ldap"),
    ("ldap", {"nodes": {"ldap": LDAP | {"probe_user": "ada"}, "users": [ADA]}}, "nodes.ldap.probe_user"),
    (
        "ldap-without-internet",
        {
            "network": {**NETWORK, "internet": "none", "endpoints": ["standard"]},
            "training": {"source": "none"},
            **ldap(**BIND),
        },
        "nodes.ldap.bind_secret_arn",
    ),
    ("nodes-without-scripts", {**api(OWN_API), **users({})}, "nodes.users"),
    *(
        ("s3-mounts", s3(**{key: value}), f"nodes.s3_mounts[0].{key}")
        for key, value in (
            ("bucket", "Corpora"),
            ("prefix", "c4"),
            ("prefix", "c4/*/"),
            ("path", "c4"),
            ("path", "/mnt/../etc"),
            ("key_arn", "alias/corpora"),
        )
    ),
    (
        "s3-mounts",
        s3(bucket="sagemaker-demo-us-west-2", prefix="demo/lifecycle/", read_only=False),
        "nodes.s3_mounts[0].prefix",
    ),
    (
        "s3-mounts",
        {
            "bucket": {"source": "existing", "name": "sagemaker-x"},
            **s3(bucket="sagemaker-x", prefix="", read_only=False),
        },
        "nodes.s3_mounts[0].prefix",
    ),
    ("remediation", {"nodes": {"remediation": {"max_percent": 60}}}, "nodes.remediation.max_percent"),
    ("resumed-jobs", {"nodes": {"prolog": {}}, "training": {"source": "none"}}, "nodes.prolog"),
    (
        "ultraserver-nodes",
        groups(ARM_CONTROLLER, {**WORKERS, "instance_type": GB200, "training_plan_arn": PLAN}),
        "cluster.instance_groups[1].instance_type",
    ),
    (
        "ultraserver-capacity",
        groups(CONTROLLER, WORKERS, {"name": "login", "role": "login", "instance_type": GB200, "count": 1}),
        "cluster.instance_groups[2].instance_type",
    ),
    ("hooks", {"nodes": {"hooks": [{"script": "missing.sh"}]}}, "nodes.hooks[0].script"),
    *(
        ("training-requirements", {"training": training}, "training.requirements")
        for training in (
            {"source": "bundled", "requirements": "missing.lock"},
            {"source": "none", "requirements": "packages.lock"},
        )
    ),
    ("skipped-steps", {"nodes": {"skip": ["ssh", "lusture"]}}, "nodes.skip[1]"),
    ("skipped-steps", {"nodes": {"skip": ["slurm"]}}, "nodes.skip[0]"),
    ("slurm-policy", {"nodes": {"slurm": {"partitions": [{"name": "cpu"}]}}}, "nodes.slurm.partitions[0].name"),
    ("slurm-policy", {"nodes": {"slurm": {"settings": {"include": "x"}}}}, "nodes.slurm.settings.include"),
    ("accounts-of-directory", {"nodes": {"ldap": LDAP, "slurm": {"qos": [{"name": "urgent"}]}}}, "nodes.slurm"),
    ("mount-paths", s3(path="/fsx/c4"), "nodes.s3_mounts[0].path"),
    ("s3-mounts", s3(path="/usr"), "nodes.s3_mounts[0].path"),
    (
        "mount-paths",
        {"nodes": {"s3_mounts": [CORPORA, {"bucket": "more", "path": "/mnt/c4/more"}]}},
        "nodes.s3_mounts[1].path",
    ),
    ("log-retention", {"logs": {"retention_days": 31}}, "logs.retention_days"),
    ("notices-address", {"notices": {"email": "me"}}, "notices.email"),
    ("notices-address", {"notices": IDLE | {"idle_hours": 169}}, "notices.idle_hours"),
    ("notices-address", {"notices": {"warnings": True}}, "notices.email"),
    ("notices-address", {"notices": {"topic_arn": TOPIC + ".fifo"}}, "notices.topic_arn"),
    ("arns-in-region", {"notices": {"topic_arn": TOPIC.replace("us-west-2", "us-east-1")}}, "notices.topic_arn"),
    ("idle-without-jobs", {"notices": IDLE, **api(OWN_API)}, "notices.idle_hours"),
    ("idle-without-jobs", {"notices": IDLE, **api(SCRIPTS)}, "notices.idle_hours"),
    ("idle-without-jobs", {"notices": IDLE, "nodes": {"skip": ["running_jobs"]}}, "notices.idle_hours"),
    ("budget-limits", {"budget": {"monthly_usd": 0, "email": "me@llm.test"}}, "budget.monthly_usd"),
    ("session-length", {"session": {"idle_minutes": 90}}, "session.idle_minutes"),
    (
        "unused-docker-access",
        {"nodes": {"containers": {"docker": False, "docker_for_job_user": True}}},
        "nodes.containers.docker_for_job_user",
    ),
    (
        "unused-image-cache",
        {"nodes": {"containers": {"enroot": False, "shared_cache": True}}},
        "nodes.containers.shared_cache",
    ),
    ("metrics-interval", {"nodes": {"observability": {"interval_s": 1}}}, "nodes.observability.interval_s"),
    (
        "unpinned-downloads",
        {
            **groups(CONTROLLER | {"instance_type": "ml.m7g.xlarge"}, WORKERS | {"instance_type": "ml.m7g.xlarge"}),
            "nodes": {"containers": {}},
        },
        "cluster.instance_groups[1].instance_type",
    ),
    ("unsent-metrics", {"prometheus": {"source": "create"}}, "prometheus.source"),
    ("workspace-endpoint", {**offline(), "prometheus": {"source": "create"}}, "network.endpoints"),
    ("downloads-without-internet", offline(downloads=None), "network.internet"),
    ("downloads-without-internet", offline(downloads={"source": "internet"}), "network.internet"),
    (
        "secret-endpoint",
        {**offline(observability=None), **DATABASE},
        "network.endpoints",
    ),
    (
        "notices-endpoint",
        {
            **offline(observability=None),
            **DATABASE,
            **groups({**CONTROLLER, "count": 2}, WORKERS),
            "network": {**OFFLINE_NETWORK, "endpoints": ["standard", "secretsmanager"]},
            "notices": {"email": "me@llm.test"},
        },
        "network.endpoints",
    ),
    ("other-network", {"lustre": EXISTING_LUSTRE}, "lustre.source"),
    ("root-squash", {"lustre": {"source": "create", "root_squash": "1:1"}}, "lustre.root_squash"),
    (
        "root-squash",
        {"lustre": {"source": "create", "root_squash": "1:1", "no_squash_nids": ["10.0.16.[0-255]@tcp"]}},
        "lustre.root_squash",
    ),
    ("other-network", {"openzfs": {"source": "existing", "dns_name": EXISTING_LUSTRE["dns_name"]}}, "openzfs.source"),
    ("other-network", {**api_continuous(), "accounting": EXISTING_ACCOUNTING}, "accounting.source"),
    ("lustre-efa-connections", existing(lustre={**EXISTING_LUSTRE, "efa": True}), "lustre.efa"),
    (
        "accounting-in-network",
        existing(**accounting({"usw2-az1": "10.0.1.0/24", "usw2-az2": "10.0.1.16/28"})),
        "accounting.subnet_cidrs.usw2-az2",
    ),
    (
        "accounting-in-network",
        {"network": NEW_SUBNET, **accounting({"usw2-az1": "10.0.16.0/28", "usw2-az2": "10.0.1.16/28"})},
        "accounting.subnet_cidrs.usw2-az1",
    ),
    (
        "controller-accelerator",
        groups({**CONTROLLER, "instance_type": "ml.g5.xlarge"}, WORKERS),
        f"{HEAD}.instance_type",
    ),
    (
        "type-of-plan",
        groups(CONTROLLER, {**P5, "training_plan_arn": PLAN}, {**P5EN, "training_plan_arn": PLAN}),
        "cluster.instance_groups[2].training_plan_arn",
    ),
    (
        "mixed-partition",
        groups(CONTROLLER, WORKERS, {**WORKERS, "name": "more", "instance_type": "ml.g6.xlarge"}),
        "cluster.instance_groups[2].partition",
    ),
    (
        "mixed-partition",
        groups(
            CONTROLLER,
            {**WORKERS, "instance_type": "ml.c6i.xlarge"},
            {**WORKERS, "name": "more", "instance_type": "ml.c7g.xlarge"},
        ),
        "cluster.instance_groups[2].partition",
    ),
    (
        "mixed-partition",
        groups(CONTROLLER, P5, {**P5, "name": "more", "subnet_ids": ["subnet-00000002"]}),
        "cluster.instance_groups[2].partition",
    ),
    *(
        ("takeover-by-jobs", statement(action, resource), "role.statements[0].actions")
        for action, resource in (
            ("iam:*", "*"),
            ("iam:PassRole", "*"),
            ("iam:passrole", "arn:aws:iam::*:role/*"),
            ("sts:AssumeRole", "arn:aws:iam::210987654321:*"),
            ("sts:*", "arn:aws:iam::*:role/*"),
            ("iam:Create*", "*"),
            ("iam:CreateAccessKey", "arn:aws:iam::*:user/*"),
            ("iam:UpdateLoginProfile", "arn:aws:iam::210987654321:user/*"),
            ("iam:AddUserToGroup", "arn:aws:iam::*:group/*"),
            ("iam:CreatePolicyVersion", "arn:aws:iam::210987654321:policy/*"),
        )
    ),
    *(
        (
            "state-read-by-jobs",
            {**statement(action, resource), "state": {"source": "s3", "bucket": "tf-states"}},
            "role.statements[0].resources",
        )
        for action, resource in (
            ("s3:GetObject", "*"),
            ("s3:*", "arn:aws:s3:::*"),
            ("s3:Get*", "arn:aws:s3:::tf-states/*"),
            ("s3:GetObjectVersion", "arn:aws:s3:::tf-states/*"),
            ("s3:GetObject", "arn:aws:s3:::tf-states/demo/us-west-2/demo-cluster.tfstate"),
        )
    ),
    (
        "state-read-by-jobs",
        {
            "role": {"source": "create", "policy_arns": ["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"]},
            "state": {"source": "s3", "bucket": "tf-states"},
        },
        "role.policy_arns[0]",
    ),
    ("existing-bucket", {"bucket": {"source": "existing", "name": "scripts"}}, "bucket.name"),
    (
        "existing-bucket",
        {"bucket": {"source": "existing", "name": "sagemaker-a", "account_id": "12345"}},
        "bucket.account_id",
    ),
    ("created-role", {"role": {"source": "create", "path": "teams"}}, "role.path"),
    ("existing-role", existing(role={**EXISTING_ROLE, "path": "/teams"}), "role.path"),
    *(
        (
            "secrets-read-by-jobs",
            {**statement("secretsmanager:GetSecretValue", "*"), **changes},
            "role.statements[0].resources",
        )
        for changes in (existing_accounting(), ldap(**BIND), DATABASE)
    ),
    (
        "machine-of-image",
        groups(
            {**CONTROLLER, "image_id": "ami-0a1b2c3d"},
            {**WORKERS, "instance_type": "ml.c7g.xlarge", "image_id": "ami-0a1b2c3d"},
        ),
        "cluster.instance_groups[1].image_id",
    ),
    ("roles-beside-existing", {"role": EXISTING_ROLE}, "role.source"),
    ("roles-beside-existing", existing(role=EXISTING_ROLE, logs={"retention_days": 30}), "role.source"),
    ("tag-limits", {"tags": {f"t{number}": "" for number in range(48)}}, "tags"),
    ("s3-state", {"state": {"source": "s3", "bucket": "My_States"}}, "state.bucket"),
    (
        "extra-security-groups",
        {"network": EXISTING_NETWORK, **extra_groups("sg-00000001")},
        "cluster.extra_security_group_ids[0]",
    ),
    ("extra-security-groups", extra_groups("sg-00000001", "sg-00000001"), "cluster.extra_security_group_ids[1]"),
    ("extra-security-groups", extra_groups("license"), "cluster.extra_security_group_ids[0]"),
    (
        "extra-security-groups",
        extra_groups(*(f"sg-0000000{number}" for number in range(1, 6))),
        "cluster.extra_security_group_ids",
    ),
    ("role-of-deployment", {"assume_role": {"role_arn": "deployer"}}, "assume_role.role_arn"),
    ("role-of-deployment", {"assume_role": {"role_arn": DEPLOYER, "external_id": "x"}}, "assume_role.external_id"),
    ("role-of-deployment", {"assume_role": {"role_arn": DEPLOYER, "session_name": "a b"}}, "assume_role.session_name"),
    (
        "arns-of-one-account",
        {
            "assume_role": {"role_arn": DEPLOYER},
            "role": {"source": "create", "policy_arns": ["arn:aws:iam::310987654321:policy/datasets"]},
        },
        "assume_role.role_arn",
    ),
    ("ignored-tags", {"ignore_tags": {"keys": ["podwright:cluster"]}}, "ignore_tags.keys[0]"),
    ("ignored-tags", {"ignore_tags": {"key_prefixes": ["corp:", "pod"]}}, "ignore_tags.key_prefixes[1]"),
    ("backend-state", backend("HTTP", address="https://llm.test/{stack}"), "state.type"),
    ("backend-state", backend("local", path="{stack}"), "state.type"),
    ("backend-state", backend("http", address="https://llm.test/state"), "state.arguments"),
    ("backend-state", backend("cloud", organization="llm", hostname="{stack}"), "state.arguments"),
    ("backend-state", backend("gcs", prefix="{stack}/{name}"), "state.arguments.prefix"),
    ("backend-state", backend("http", address="{stack}", password="planted"), "state.arguments.password"),
    ("backend-state", backend("http", address="{stack}", lock_address="{stack}"), "state.arguments.lock_address"),
    (
        "backend-state",
        backend("http", **dict.fromkeys(("address", "lock_address", "unlock_address"), f"{GITLAB}/{{stack}}")),
        "state.arguments.lock_address",
    ),
    (
        "backend-state",
        backend("http", address="https://llm.test", lock_address="{stack}", unlock_address="{stack}"),
        "state.arguments",
    ),
    ("backend-state", backend("s3", bucket="b", key="one", assume_role={"session_name": "{stack}"}), "state.arguments"),
    (
        "backend-state",
        backend("gcs", bucket="b", prefix="{stack}", access_token="planted"),
        "state.arguments.access_token",
    ),
    (
        "backend-state",
        backend("s3", bucket="b", key="{stack}", sse_customer_key="x"),
        "state.arguments.sse_customer_key",
    ),
    ("backend-state", backend("kubernetes", secret_suffix="{stack}", client_key="x"), "state.arguments.client_key"),
    ("backend-state", backend("consul", path="{stack}", http_auth="ada:x"), "state.arguments.http_auth"),
    ("backend-state", backend("pg", schema_name="{stack}", conn_str="postgres://a:b@c/d"), "state.arguments.conn_str"),
    ("backend-state", backend("http", address="{stack}", password=123456), "state.arguments.password"),
    (
        "backend-state",
        {
            "bucket": {"source": "existing", "name": "sagemaker-mine"},
            **backend("s3", bucket="sagemaker-mine", key="{stack}"),
        },
        "state.arguments.bucket",
    ),
    (
        "placeholders",
        {
            "cluster": {
                "instance_groups": [
                    CONTROLLER,
                    {
                        **WORKERS,
                        "scheduled_update": {"schedule": "cron(0 3 ? * SUN *)", "rollback_alarms": ["<alarm>"]},
                    },
                ],
                "node_provisioning": "continuous",
            }
        },
        "cluster.instance_groups[1].scheduled_update.rollback_alarms[0]",
    ),
    ("placeholders", {"notices": {"email": "you@example.com"}}, "notices.email"),
    ("placeholders", existing(role={"source": "existing", "arn": "arn:aws:iam::111122223333:role/nodes"}), "role.arn"),
    ("tag-limits", {"tags": {"team": "a&b"}}, "tags.team"),
    ("tag-limits", {"tags": {"team": "a" * 257}}, "tags.team"),
    (
        "trainium-nodes",
        groups(CONTROLLER, {**WORKERS, "instance_type": "ml.trn1.32xlarge"}),
        "cluster.instance_groups[1].instance_type",
    ),
    (
        "addresses",
        {"network": {**NETWORK, "private_subnet_cidr": "10.0.16.0/28"}, **groups(CONTROLLER, {**WORKERS, "count": 11})},
        "network.private_subnet_cidr",
    ),
]


@pytest.mark.parametrize(("code", "changes", "path"), BROKEN)
def test_broken_rule_is_found(code: str, changes: Mapping[str, Any], path: str):
    """Settings that break one rule give one finding with the rule's code, at the value."""
    assert broken(content(**changes)) == [(code, path)]


def test_every_rule_is_in_the_list():
    """No rule of the package is forgotten in RULES, run_rules() or live_rules()."""
    written = [
        function
        for found in pkgutil.iter_modules(rules.__path__, "podwright.check.rules.")
        if found.name != rule_module.__name__
        for module in [importlib.import_module(found.name)]
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.signature(function).return_annotation == "Iterator[Finding]"
    ]
    listed = rules.all_rules()
    assert set(written) == set(listed)
    assert len(listed) == len(set(listed))


def test_every_rule_has_a_case_and_a_meaning():
    """Each rule has a case in BROKEN, and ``explain`` can say what its code means."""
    every = {rules.code(rule) for rule in rules.RULES}
    assert {code for code, _, _ in BROKEN} == every, "BROKEN, above, needs each code of RULES, and no other"
    assert all(codes()[code] for code in every)


@pytest.mark.parametrize(
    ("options", "path", "hint"),
    [
        ({"train_batch_size": 16}, "instance_type", "use --train-batch-size=6"),
        ({"activation_checkpointing": False}, "instance_type", "use --activation-checkpointing --train-batch-size=1"),
        ({"data_streams": 63}, "count", "set --data-streams=64"),
        ({"expert_parallel": 2}, "count", "change these options of the run, or the count"),
    ],
)
def test_a_run_is_held_against_the_cluster(options: Mapping[str, Any], path: str, hint: str):
    """Too much memory is reported at the instance type, a batch or layout that does not divide at the count."""
    run = replace(load_file(PRESETS / "seed_1b.yaml"), train_batch_size=1)
    settings = Settings.model_validate(content())
    assert rules.apply(settings, run) == []
    (found,) = rules.apply(settings, replace(run, **options))
    assert (found.code, dotted(found.path)) == ("run-fits", f"cluster.instance_groups[1].{path}")
    assert found.hint == hint


LLAMA_OF_TRN1 = {"train_batch_size": 1, "global_batch_size": 1024, "activation_checkpointing_mode": "selective"}


def test_a_run_on_trn1_is_one_of_nxd_training():
    """The published job is taken, and the remark has the command that submits it."""
    run = replace(load_file(PRESETS / "llama3_8b.yaml"), **LLAMA_OF_TRN1)
    (found,) = rules.apply(load(ROOT / "examples" / "trainium" / "cluster.yaml"), run)
    assert (found.level, dotted(found.path)) == (Level.INFO, "cluster.instance_groups[1].instance_type")
    assert found.hint == "podwright submit run.yaml --nodes 1 --launch-arguments=--backend=nxdt"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 8}, "memory: podwright plan predicts 35.0 GB of a device's 34.3 with tensor_parallel 8"),
        ({"tensor_parallel": 16}, "tensor_parallel 16: ml.trn1.32xlarge has collectives among 1, 2, 8 or 32 cores"),
        ({"tensor_parallel": 5}, "tensor_parallel 5 does not divide the 32 heads"),
        ({"global_batch_size": 3, "pipeline_parallel": 4}, "x context_parallel 1 = 128 does not divide the 32 ranks"),
        ({"ema_decay": 0.9}, "--ema-decay: NxD Training has no such option"),
    ],
)
def test_a_run_that_nxd_training_refuses_is_an_error(options: Mapping[str, Any], message: str):
    """Heads, ranks, memory and options are checked where cluster.yaml is, before a node sees the run."""
    run = replace(load_file(PRESETS / "llama3_8b.yaml"), **{**LLAMA_OF_TRN1, **options})
    found = rules.apply(load(ROOT / "examples" / "trainium" / "cluster.yaml"), run)
    assert {finding.level for finding in found} == {Level.ERROR}
    assert any(message in finding.message for finding in found)


@pytest.mark.parametrize(
    ("asked", "path", "message"),
    [
        ({"nodes": 3}, "count", "the job needs 3 nodes, and partition gpu has 2"),
        ({"ranks_per_node": 4}, "instance_type", "the job starts 4 ranks on a node, and ml.g5.xlarge has A10G for 1"),
        (
            {"model": Model(accelerator="H100")},
            "instance_type",
            "the job computes MFU for H100, but ml.g5.xlarge has A10G",
        ),
    ],
)
def test_a_job_is_held_against_the_cluster(asked: Mapping[str, Any], path: str, message: str):
    """More nodes or ranks than a partition has, or another accelerator: one finding each."""
    settings = Settings.model_validate(content())
    job = JobSpec(command=("train.py",), nodes=2, model=Model(accelerator="A10G"))
    assert rules.apply(settings, job) == []
    (found,) = rules.apply(settings, replace(job, **asked))
    assert (found.code, dotted(found.path)) == ("job-fits", f"cluster.instance_groups[1].{path}")
    assert found.message == message


def test_a_job_needs_one_partition_that_fits():
    """Another partition may be too small; on nodes without accelerators the job says how many ranks it starts."""
    others = {**WORKERS, "name": "others", "instance_type": "ml.c5.xlarge", "partition": "cpu", "count": 4}
    settings = Settings.model_validate(content(**groups(CONTROLLER, WORKERS, others)))
    job = JobSpec(command=("train.py",), nodes=2)
    assert rules.apply(settings, job) == []
    (found,) = rules.apply(settings, replace(job, nodes=4))
    assert found.message == "the job needs 4 nodes, and partition gpu has 2"
    assert rules.apply(settings, replace(job, nodes=4, ranks_per_node=8)) == []


@pytest.mark.parametrize("accelerator", ["A10G", ""])
def test_a_job_that_says_its_model_gets_speed_and_price(accelerator: str):
    """At 40 % of two A10Gs' 70 TFLOP/s a step of a million tokens takes 107 s; its price is EC2's of the nodes."""
    settings = Settings.model_validate(content())
    model = Model(parameters=1e9, tokens_per_step=1e6, accelerator=accelerator)
    job = JobSpec(command=("train.py",), nodes=2, model=model)
    (found,) = rules.apply(settings, job)
    assert (found.code, found.level) == ("job-costs", Level.INFO)
    assert dotted(found.path) == "cluster.instance_groups[1].instance_type"
    price = on_demand("ml.g5.xlarge", settings.region)
    assert price is not None
    usd = 2 * price.usd_per_hour / 3600 / (1e6 / 107.14) * 1e6
    text = (
        "the job on 2 ml.g5.xlarge, at 40% of A10G's peak, which is a guess: 107 s a step, 9.33k tokens/s, "
        f"{usd:.3g} $ per million tokens"
    )
    assert found.message == text
    (found,) = rules.apply(settings, replace(job, model=replace(model, steps=1000)))
    assert found.message == f"{text}; the run takes 29.8 h and {2 * price.usd_per_hour * 29.762:,.0f} $"
    assert [finding.code for finding in rules.apply(settings, replace(job, nodes=3))] == ["job-fits"]


def test_a_rank_of_trainium_has_a_core_s_peak():
    """32 ranks of a trn1 have the peak of its 16 devices, and so do fewer ranks a share of it."""
    settings = load(ROOT / "examples" / "trainium" / "cluster.yaml")
    job = JobSpec(command=("a",), model=Model(parameters=1e9, tokens_per_step=1e6))
    whole, half = (rules.apply(settings, replace(job, ranks_per_node=ranks))[0] for ranks in (0, 16))
    assert "at 30% of Trainium's peak, as half of the published runs reach: 6.58 s a step" in whole.message
    assert ": 13.2 s a step" in half.message


def test_good_settings_break_no_rule():
    """The settings that the cases start from are fine, and so are existing resources."""
    assert broken(content()) == []
    assert broken(content(network=EXISTING_NETWORK, lustre=EXISTING_LUSTRE)) == []
    pem = rds_certificates.of_region("us-west-2")
    mine = {"bucket": "sagemaker-demo-us-west-2", "prefix": "demo/runs/", "path": "/mnt/runs", "read_only": False}
    nodes = {
        "groups": [{"name": "research", "gid": 3001}],
        "users": [{**ADA, "groups": ["research"], "ssh_keys": [PUBLIC_KEY], "home": "/fsx/people/ada"}],
        "ldap": LDAP | {"certificate": pem, "ssh_key_attribute": "sshPublicKey", "sudo_groups": ["domain admins"]},
        "s3_mounts": [CORPORA, mine],
        "motd": True,
    }
    assert broken(content(nodes=nodes)) == []
    everything = {
        "network": {**NETWORK, **SECOND_ZONE, "internet": "none", "endpoints": ["standard", "kms"]},
        "nodes": BUNDLED,
        "openzfs": {"source": "create", "deployment_type": "MULTI_AZ_1", "throughput_mbps": 320},
        "key": {"source": "existing", "arn": KEY},
        "lustre": {"source": "create", "storage_type": "INTELLIGENT_TIERING", "read_cache": True},
    }
    assert broken(content(**everything)) == []
    assert broken(content(network=NEW_SUBNET)) == []
    role = {"source": "existing", "arn": EXISTING_ROLE["arn"]}
    found = broken(content(role=role, prometheus={"source": "create"}))
    assert "rights-of-existing-role" not in dict(found)  # no node writes metrics
    database = existing(accounting=EXISTING_ACCOUNTING, prometheus=EXISTING_PROMETHEUS, **api_continuous())
    assert broken(content(**database)) == []


def test_good_settings_of_shared_plans_partitions_and_permissions():
    """One plan for two groups of its type, equal groups of a partition, limited statements and 47 tags are fine."""
    roomy = {**NETWORK, "private_subnet_cidr": "10.0.64.0/18"}
    planned = {**P5, "training_plan_arn": PLAN}
    assert broken(content(network=roomy, **groups(CONTROLLER, planned, {**planned, "name": "more"}))) == []
    in_subnet = {**P5, "subnet_ids": ["subnet-00000002"]}
    assert broken(content(network=roomy, **groups(CONTROLLER, in_subnet, {**in_subnet, "name": "more"}))) == []
    state = {"source": "s3", "bucket": "tf-states"}
    for action, resource in (
        ("iam:Get*", "*"),
        ("sts:AssumeRole", "arn:aws:iam::210987654321:role/reader"),
        ("s3:PutObject", "*"),
        ("s3:GetObject", "arn:aws:s3:::datasets/*"),
        ("secretsmanager:GetSecretValue", "*"),
    ):
        assert broken(content(state=state, **statement(action, resource))) == []
    elsewhere = statement("sts:AssumeRole", "arn:aws:iam::999988887777:role/*")
    assert broken(content(account_id="210987654321", **elsewhere)) == []
    limited = statement("iam:PassRole", "*")
    limited["role"]["statements"][0]["conditions"] = [
        {"test": "StringEquals", "variable": "iam:PassedToService", "values": ["sagemaker.amazonaws.com"]}
    ]
    assert broken(content(**limited)) == []
    assert broken(content(tags={f"t{number}": "" for number in range(47)})) == []
    assert broken(content(tags={"Name": "", **{f"t{number}": "" for number in range(47)}})) == []
    boundary = {**EXISTING_ROLE, "permissions_boundary_arn": "arn:aws:iam::210987654321:policy/boundary"}
    assert broken(content(role=boundary)) == []
    images = [{**group, "image_id": "ami-0a1b2c3d"} for group in (CONTROLLER, WORKERS)]
    own_images = rules.apply(Settings.model_validate(content(**offline(downloads=None), **groups(*images))))
    assert [(item.code, item.level) for item in own_images] == [("downloads-without-internet", Level.WARNING)]


def test_levels():
    """A value that AWS may accept is a warning; one that it refuses is an error."""
    efa = {"network": {**NETWORK, "private_subnet_cidr": "10.0.16.0/26"}}
    h100 = {**WORKERS, "instance_type": "ml.p5.48xlarge"}
    found = rules.apply(Settings.model_validate(content(**efa, **groups(CONTROLLER, h100))))
    assert [(item.code, item.level) for item in found] == [("addresses", Level.WARNING)]


def test_rules_without_wrong_values_are_judged():
    """One wrong value of a section or group leaves its other values, and the other groups, judged."""
    data = content(
        region=["us-west-2"],
        lustre={"source": "create", "capacity_gib": "much", "throughput_mbps_per_tib": 300},
        cluster={
            "instance_groups": [
                {**CONTROLLER, "count": None, "instance_type": "ml.nothing"},
                {**WORKERS, "role": "worker"},
                {**WORKERS, "name": "more", "count": 7000},
                "no group",
            ]
        },
    )
    settings = incomplete(data)
    assert [(item.code, dotted(item.path)) for item in rules.apply(settings)] == [
        ("created-lustre", "lustre.throughput_mbps_per_tib"),
        ("instance-group", "cluster.instance_groups[0].instance_type"),
        ("instance-group", "cluster.instance_groups[2].count"),
    ]
    assert not settings.are_valid("region")


# ---- formulas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("region", sorted(RegionsAndZonesBackend.zones))
def test_zone_ids_of_every_region(region: str):
    """The zone ids that EC2 gives (as moto recorded them) begin with the computed prefix, no other region's."""
    ids = [zone.zone_id for zone in RegionsAndZonesBackend.zones[region]]
    prefix = regions.zone_id_prefix(region)
    assert {zone_id.rsplit("-", 1)[0] for zone_id in ids} == {prefix}
    assert [other for other in regions.REGIONS if regions.zone_id_prefix(other) == prefix] == [region]


def test_known_regions_are_those_of_ec2():
    """The list of regions is the one that moto recorded from EC2."""
    assert sorted(regions.REGIONS) == sorted(RegionsAndZonesBackend.zones)


@given(st.text() | st.from_regex(r"[a-z]{2}(-[a-z]+){0,3}-?\d?", fullmatch=True))
def test_unknown_regions_are_not_judged(region: str):
    """Any text as region gives a prefix of letters and a digit, or none; never an error."""
    prefix = regions.zone_id_prefix(region)
    assert prefix is None or (regions.looks_like_region(region) and prefix.isalnum())


@given(st.integers(16, 28), st.integers(0, 2**32 - 1))
def test_usable_addresses(prefix_length: int, address: int):
    """A subnet has its addresses less the network's, the broadcast's and AWS's three."""
    network = IPv4Network((address, prefix_length), strict=False)
    assert addresses.usable_addresses(str(network)) == len(range(int(network[4]), int(network[-1])))


@given(st.integers(21, 28), st.integers(-5, 5))
def test_too_few_addresses_are_reported(prefix_length: int, over: int):
    """The finding appears exactly when controller and workers are more than the addresses left for them."""
    nodes = 2 ** (32 - prefix_length) - 6 + over  # five are AWS's, one is the file system's
    network = {**NETWORK, "private_subnet_cidr": f"10.0.16.0/{prefix_length}"}
    data = content(network=network, **groups(CONTROLLER, {**WORKERS, "count": nodes - 1}))
    assert broken(data) == ([("addresses", "network.private_subnet_cidr")] if over > 0 else [])


@given(st.integers(-5000, 500_000))
def test_lustre_capacity(capacity_gib: int):
    """Exactly 1200 and the multiples of 2400 pass."""
    allowed = capacity_gib == 1200 or capacity_gib in range(2400, 500_001, 2400)
    data = content(lustre={"source": "create", "capacity_gib": capacity_gib})
    assert broken(data) == ([] if allowed else [("created-lustre", "lustre.capacity_gib")])


@given(st.sampled_from(cluster_instance_types()))
def test_every_instance_type_passes(instance_type: str):
    """Every type that the API accepts passes as a compute group, Trainium with what its nodes need.

    Nodes of an UltraServer have a warning.
    """
    roomy = {**NETWORK, "private_subnet_cidr": "10.0.128.0/17"}
    neuron = InstanceType.of(instance_type).accelerator == "neuron"
    nodes = {"neuron": {}, "containers": {}} if neuron else {}
    data = content(network=roomy, nodes=nodes, **groups(CONTROLLER, {**WORKERS, "instance_type": instance_type}))
    ultraserver = [
        ("ultraserver-nodes", "cluster.instance_groups[1].instance_type"),
        ("ultraserver-capacity", "cluster.instance_groups[1].instance_type"),
        ("ultraserver-capacity", "cluster.instance_groups[0].instance_type"),
    ]
    assert broken(data) == (ultraserver if instance_type.startswith("ml.p6e-") else [])


# ---- names -------------------------------------------------------------------------------------

NAMES = st.from_regex(facts.CLUSTER_NAME_PATTERN, fullmatch=True).filter(
    lambda name: name.isascii() and len(name) <= facts.MAX_CLUSTER_NAME_LENGTH
)


@given(NAMES)
def test_physical_names_are_allowed(name: str):
    """Whatever the cluster's name is, AWS accepts the bucket's and the role's."""
    assert checks.training_bucket(bucket_prefix=names.bucket_prefix(name), on_destroy="retain") == []
    for role_name in (names.role_name, names.controller_role_name, names.login_role_name):
        assert checks.execution_role(name=role_name(name, "ap-southeast-2")) == []
    assert facts.DATABASE_NAME_PATTERN.fullmatch(names.database_name(name))
    role = names.log_retention_name(name, "ap-southeast-2")
    assert checks.cluster_log_group(name=role, retention_days=30) == []
    operations = names.operations_name(name)
    assert checks.cluster_notices(name=names.notices_name(name), email="me@llm.test") == []
    assert checks.cluster_budget(name=f"{operations}-ap-southeast-2", monthly_usd=1, email="me@llm.test") == []
    assert checks.session_document(name=operations, idle_minutes=20) == []


@given(NAMES, NAMES)
def test_names_differ_where_clusters_do(one: str, other: str):
    """Two clusters share no stack, database or role, and nothing global with a namesake in another region."""
    made = (names.foundation_stack, names.cluster_stack, names.database_name, names.notices_name, names.scripts_prefix)
    for make in made:
        assert (make(one) == make(other)) == (one == other)
    for make_in in (
        names.role_name,
        names.controller_role_name,
        names.login_role_name,
        names.log_retention_name,
        names.dashboard_name,
    ):
        assert (make_in(one, "us-west-2") == make_in(other, "us-west-2")) == (one == other)
        assert make_in(one, "us-west-2") != make_in(one, "us-east-1")


def test_long_names_differ():
    """Two long names that begin alike stay two in buckets and roles."""
    one, other = "a" * 62 + "b", "a" * 62 + "c"
    assert names.role_name(one, "us-west-2") != names.role_name(other, "us-west-2")
    assert names.bucket_prefix(one) != names.bucket_prefix(other)


def test_tags_say_which_cluster():
    """The user's tags and the cluster's own are on everything."""
    settings = Settings.model_validate(content(tags={"team": "llm"}))
    assert names.tags(settings) == {"team": "llm", "podwright:cluster": "demo"}
