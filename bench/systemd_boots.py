"""Boot hosts of the rehearsal for bootstrap.py: real systemd, Slurm, MariaDB and sshd of Debian 13 in namespaces.

    python bench/systemd_boots.py

Prints the seconds of each step of a controller, of the node that builds the environment and of one that joins, as JSON.

Smallest: python bench/systemd_boots.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from boots import HOSTS, cluster

from podwright_bootstrap.report import SKIPPED
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node, Role
from podwright_rehearsal.hosts.debian_root import RELEASES
from podwright_rehearsal.hosts.image import WHEELS
from podwright_rehearsal.run.supplies import node_image

BUCKET, REGION = "sagemaker-test", "us-west-2"  # as the parameters of the plain hosts name them
CREDENTIALS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
ADDRESSES = {"controller": "10.1.0.10", "builder": "10.1.0.5", "joining": "10.1.0.57"}  # in the order of the boots


def host(name: str) -> Node:
    """Return a host like the plain one of this name."""
    role: Role = "controller" if name == "controller" else "compute"
    return Node(
        hostname=f"ip-{ADDRESSES[name].replace('.', '-')}",
        private_ip=ADDRESSES[name],
        instance_id=f"i-{name}",
        instance_group="controller" if role == "controller" else "workers",
        instance_type="ml.m5.xlarge" if role == "controller" else "ml.g5.12xlarge",
        role=role,
        partition="gpu" if role == "compute" else None,
        accelerators=4 if role == "compute" else 0,
        vcpus=48,
        memory_mib=190_000,
    )


def seconds_by_step(folder: Path) -> dict[str, dict[str, float]]:
    """Boot the hosts one after another, as the plain ones; return the seconds of the steps that each ran."""
    cloud, make_plain = cluster(folder)
    cloud.contract["podwright"]["lustre_mount_path"] = "/fsx"
    scripts = make_plain(cloud, folder / "plain").scripts
    with AwsStandIn(directory=folder / "aws", region=REGION) as aws:
        account = aws.environment()
        s3 = aws.client("s3")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        for path in cloud.bucket.iterdir():
            s3.upload_file(str(path), BUCKET, path.name)
        hosts = NamespacedCluster(
            directory=folder / "cluster",
            image=node_image(RELEASES["debian-13"]),
            cluster_name=cloud.contract["podwright"]["cluster_name"],
            cluster_arn=f"arn:aws:sagemaker:{REGION}:111122223333:cluster/abcdefghijkl",
            subnet_cidr="10.1.0.0/24",
            nodes=[host(name) for name in ADDRESSES],
            shared=folder / "cluster" / "fsx",
            relay=("127.0.0.1", int(aws.endpoint_url.rpartition(":")[2])),
            environment={"AWS_REGION": REGION, **{name: account[name] for name in CREDENTIALS}},
            binds=[(cloud.index, WHEELS)],
        )
        with hosts:
            return {name: _boot(hosts, host(name).hostname, scripts) for name in ADDRESSES}


def _boot(hosts: NamespacedCluster, hostname: str, scripts: Path) -> dict[str, float]:
    result = hosts.boot_one(hostname, scripts)
    text = result.log.read_text(encoding="utf-8")
    if not result.ok:
        sys.exit(text)
    events = [json.loads(line) for line in text.splitlines() if line.startswith('{"event": "step"')]
    return {event["step"]: event["seconds"] for event in events if event["outcome"] != SKIPPED}


def main() -> None:
    """Boot once and print."""
    with tempfile.TemporaryDirectory() as name:
        taken = seconds_by_step(Path(name))
    print(json.dumps({host: taken[host] for host in HOSTS}))


if __name__ == "__main__":
    main()
