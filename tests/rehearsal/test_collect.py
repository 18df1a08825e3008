"""``podwright collect`` on rehearsed hosts: what it describes, which differences it names, and what it leaves out.

``pytest --update`` writes the rehearsal's profile, which comes with podwright, from this cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from podwright.cli import main
from podwright.operations.collection import cluster_profile
from podwright.operations.collection.cluster_profile import ClusterProfile
from podwright.operations.collection.comparison import OF_THE_MACHINE, differences
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_testing.boots import require_booted
from podwright_testing.hyperpod import BUCKET, ClusterMaker

pytestmark = pytest.mark.hosts
NAME = "acme-llm"
RECORD = Path(cluster_profile.__file__).parent / "data" / "rehearsed.json"
ROLES = {"acme-head": "controller", "acme-gpus": "compute", "acme-door": "login"}
TYPES = {"controller": "ml.m5.xlarge", "compute": "ml.g5.12xlarge", "login": "ml.m5.xlarge"}
# A point release of Debian changes these; the record has those of the day when it was written.
VERSIONS = {("system", "python"), ("system", "openssh"), ("system", "glibc")}
PASSWORD, SECRET_KEY, EMAIL, USER = (
    "hunter2-Xyzzy",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "ada@acme.example",
    "ada_l",
)
ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
PLANT = f"""set -e
cd /opt/slurm/etc
sed --in-place 's/^ReturnToService=.*/ReturnToService=0  # ask {EMAIL}/' slurm.conf
printf '%s\\n' 'MaxArraySize=4321' 'AccountingStoragePass={PASSWORD}' 'Epilog=/home/{USER}/epilog.sh' \
  'MailProg=/usr/bin/mail-{USER}' 'AccountingStorageUser={USER}' >>slurm.conf
printf '%s\\n' 'DbdHost=localhost' 'StoragePass={PASSWORD}' 'StorageHost=db.acme.internal' >slurmdbd.conf
printf '%s\\n' 'optional /opt/acme/{USER}.so token={PASSWORD}' >>plugstack.conf
printf '%s\\n' 'AWS_ACCESS_KEY_ID={ACCESS_KEY}' 'AWS_SECRET_ACCESS_KEY={SECRET_KEY}' >>/etc/environment
printf '%s\\n' 'SLURMCTLD_OPTIONS="-f /home/{USER}/slurm.conf --token={PASSWORD}"' \
  'AWS_SECRET_ACCESS_KEY={SECRET_KEY}' >/etc/default/slurmctld
printf '%s' '{{"version": "{PASSWORD}", "{USER}": {{"{USER}": "{EMAIL}"}}}}' \
  >/opt/ml/config/provisioning_parameters.json
printf '%s' '{{"ClusterArn": "{PASSWORD}", "{EMAIL}": 1}}' >/opt/ml/config/cluster_agent.json
rm /etc/systemd/system/slurmdbd.service /lib/systemd/system/slurmdbd.service
systemctl daemon-reload
awk '/^Package: /{{ package = $2 }} /^Version: / && package == "munge" {{ $2 = "9.9.9" }} {{ print }}' \
  /var/lib/dpkg/status >/tmp/status
mv /tmp/status /var/lib/dpkg/status
"""


@dataclass(frozen=True)
class Collected:
    """A cluster and the profile that the command wrote before anything was planted."""

    hosts: NamespacedCluster
    aws: AwsStandIn
    folder: Path
    profile: ClusterProfile


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, node_image: Path, lifecycle: Path) -> Iterator[Collected]:
    """A cluster of a controller, a compute node and a login node, as the service and a small script set it up."""
    folder = tmp_path_factory.mktemp("collected")
    with AwsStandIn(directory=folder / "aws", transition_s=0.2) as aws, pytest.MonkeyPatch.context() as patch:
        arn = make(aws)
        with NamespacedCluster(
            directory=folder / "cluster",
            image=node_image,
            cluster_name=NAME,
            cluster_arn=arn,
            subnet_cidr="10.1.0.0/20",
            nodes=list(nodes(aws)),
            shared=folder / "fsx",
        ) as hosts:
            scripts = shutil.copytree(lifecycle, folder / "lifecycle")
            (scripts / "controller_ip").write_text(f"{hosts.nodes[hosts.controller].private_ip}\n")
            require_booted(hosts.boot(scripts, timeout_s=600).values())
            hosts.wait_until_idle(timeout_s=600)
            for name, value in aws.environment().items():
                patch.setenv(name, value)
            patch.setenv("PATH", f"{hosts.session_plugin()}:{os.environ['PATH']}")
            patch.chdir(folder)
            assert main(["collect", "--cluster", NAME]) == 0
            yield Collected(hosts, aws, folder, ClusterProfile.read(folder / f"{NAME}-profile.json"))


def make(aws: AwsStandIn) -> str:
    """Make the cluster in SageMaker, with scripts whose parameters have a login group; return its ARN."""
    controller, workers, login = ROLES
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": controller,
        "login_group": login,
        "worker_groups": [{"instance_group_name": workers, "partition_name": "acme-partition"}],
    }
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": aws.region})
    s3.put_object(Bucket=BUCKET, Key="acme/provisioning_parameters.json", Body=json.dumps(parameters).encode())
    s3.put_object(Bucket=BUCKET, Key="acme/on_create.sh", Body=b"#!/bin/sh\n")
    maker = ClusterMaker(aws)
    groups = [
        {
            "InstanceGroupName": group,
            "InstanceType": TYPES[role],
            "InstanceCount": 1,
            "ExecutionRole": maker.role_arn,
            "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/acme", "OnCreate": "on_create.sh"},
        }
        for group, role in ROLES.items()
    ]
    return maker.make(NAME, InstanceGroups=groups, Tags=[{"Key": "owner", "Value": EMAIL}])


def nodes(aws: AwsStandIn) -> Iterator[Node]:
    """Yield the cluster's nodes as the API describes them."""
    sagemaker = aws.client("sagemaker")
    for summary in sagemaker.list_cluster_nodes(ClusterName=NAME)["ClusterNodeSummaries"]:
        details = sagemaker.describe_cluster_node(ClusterName=NAME, NodeId=summary["InstanceId"])["NodeDetails"]
        role = ROLES[details["InstanceGroupName"]]
        yield Node(
            hostname=details["PrivateDnsHostname"].partition(".")[0],
            private_ip=details["PrivatePrimaryIp"],
            instance_id=details["InstanceId"],
            instance_group=details["InstanceGroupName"],
            instance_type=details["InstanceType"],
            role=role,
            partition="acme-partition" if role == "compute" else None,
            accelerators=2 if role == "compute" else 0,
            vcpus=48,
            memory_mib=190_000,
        )


def without_versions(profile: ClusterProfile) -> ClusterProfile:
    """Return a profile with the names of packages and without versions that change by the month."""
    sections = {
        role: {
            section: {
                key: "installed" if section == "packages" else value
                for key, value in values.items()
                if (section, key) not in VERSIONS
            }
            for section, values in node.items()
        }
        for role, node in profile.nodes.items()
    }
    api = {
        operation: {key: value for key, value in shape.items() if not key.endswith("ImageReleaseVersion")}
        for operation, shape in profile.api.items()
    }
    return ClusterProfile(sections, api)


def test_the_recorded_profile_is_that_of_todays_hosts(collected: Collected, pytestconfig: pytest.Config) -> None:
    """The rehearsal's profile that comes with podwright was collected from these hosts; there is no difference."""
    if collected.profile.nodes["controller"]["os-release"]["VERSION_CODENAME"] != "trixie":
        pytest.skip("the record is of Debian 13's hosts")
    if pytestconfig.getoption("--update"):
        node_facts = {
            role: {
                section: {key: value for key, value in values.items() if (section, key) not in OF_THE_MACHINE}
                for section, values in sections.items()
            }
            for role, sections in collected.profile.nodes.items()
        }
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(ClusterProfile(node_facts, collected.profile.api).text())
    expected = without_versions(ClusterProfile.rehearsed())
    lines = [item.line("the record") for item in differences(without_versions(collected.profile), expected)]
    assert lines == [], "`pytest --update` writes the record again"
    assert list(collected.profile.nodes) == ["compute", "controller", "login"]  # all are in the file


def test_the_profile_describes_the_node(collected: Collected) -> None:
    """Slurm's version, keys and units are in it, and the roles differ: only the controller has slurm.conf."""
    controller, worker = (collected.profile.nodes[role] for role in ("controller", "compute"))
    assert controller["slurm.conf"]["ReturnToService"] in {"1", "2"}
    assert controller["slurm.conf"]["NodeName"].startswith("with ")
    assert controller["scontrol show config"]["SelectType"] == "select/cons_tres"
    assert controller["files"]["/etc/munge/munge.key"] == "file 0400 munge:munge"
    assert controller["units"]["slurmctld.service is"] == "active"
    assert controller["resource_config.json"]["ClusterType"] == "Standard"
    assert controller["resource_config.json"]["InstanceGroups[].Instances[].InstanceId"] == "text"
    assert "slurm.conf" not in worker
    assert worker["default/slurmd"] == {"SLURMD_OPTIONS": "--conf-server"}
    assert collected.profile.api["DescribeCluster"]["ClusterStatus"] == "InService"
    assert (collected.folder / f"{NAME}-profile.json").stat().st_mode & 0o777 == 0o600


def test_planted_differences_are_named_and_planted_secrets_are_left_out(
    collected: Collected, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another value, key, unit and version is a line each; no password, key, name, address or id is in the file."""
    hosts = collected.hosts
    hosts.run(["bash", "-c", PLANT], host=hosts.controller, user="root")
    path = collected.folder / "planted.json"
    assert main(["collect", "--cluster", NAME, "--output", str(path)]) == 0
    printed = capsys.readouterr().out
    lines = {item.line("it") for item in differences(ClusterProfile.read(path), collected.profile)}
    version = collected.profile.nodes["controller"]["packages"]["munge"]
    return_to_service = collected.profile.nodes["controller"]["slurm.conf"]["ReturnToService"]
    for line in (
        f"controller: slurm.conf: ReturnToService: 0; it has {return_to_service}",
        "controller: slurm.conf: MaxArraySize: 4321; it has nothing",
        "controller: slurm.conf: Epilog: path; it has nothing",
        "controller: slurmdbd.conf: StoragePass: hidden; it has nothing",
        f"controller: packages: munge: 9.9.9; it has {version}",
    ):
        assert line in lines
        assert line.replace("it has", "the rehearsal has") in printed or "munge" in line
    assert any(line.startswith("controller: units: slurmdbd.service: nothing; it has ") for line in lines)
    assert all(line.startswith("controller: ") for line in lines)  # the others' profiles are the same as before

    text = path.read_text() + printed.replace(str(path), "")
    sagemaker = collected.aws.client("sagemaker")
    description = sagemaker.describe_cluster(ClusterName=NAME)
    account = description["ClusterArn"].split(":")[4]
    private = [PASSWORD, SECRET_KEY, EMAIL, USER, ACCESS_KEY, NAME, BUCKET, "acme", account, description["ClusterArn"]]
    private += [*description["VpcConfig"]["Subnets"], *description["VpcConfig"]["SecurityGroupIds"]]
    private += [fact for node in hosts.nodes.values() for fact in (node.instance_id, node.private_ip, node.hostname)]
    assert [item for item in private if item in text] == []

    without_packages = [
        line for line in text.splitlines() if not re.search(r'^ *"(lib|mariadb|munge|py|slurm|systemd)', line)
    ]
    identifiers = r"(?<!\d)\d{12}(?!\d)|arn:aws|\bi-[0-9a-f]{8,}|\d+\.\d+\.\d+\.\d+|\bip-\d|@|s3://|\.internal"
    assert [line for line in without_packages if re.search(identifiers, line)] == []

    assert main(["collect", "--compare", str(path)]) == 1
    compared = capsys.readouterr().out
    assert "controller: slurm.conf: ReturnToService: 0; the rehearsal has " in compared
