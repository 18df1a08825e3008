"""People of an LDAP server and metrics on hosts with systemd: real SSSD, node_exporter and Prometheus, as units."""

from __future__ import annotations

import dataclasses
import http.server
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_bootstrap.contract import InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import Ldap, NodeFeatures, Observability
from podwright_bootstrap.software import programs
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.description import File
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing.boots import require_booted
from podwright_testing.debians import unpacked
from podwright_testing.repository import PLACE, SOURCE, repository
from podwright_testing.web_server import Quiet, serving
from tests.bootstrap.test_observability import NVIDIA_SMI

pytestmark = pytest.mark.hosts
CONTROLLER, WORKER = HOSTS = ["ip-10-0-16-5", "ip-10-0-16-6"]
DIRECTORY = Path(__file__).parents[1] / "bootstrap" / "ldap"
ADDRESS = "10.0.16.5"  # of the host where slapd runs
GATEWAY = "10.0.16.1"  # where hosts reach this machine's server
SECRET = "arn:aws:secretsmanager:us-west-2:111122223333:secret:ldap"  # noqa: S105
PASSWORD = "hush-hush"  # noqa: S105 (of people.ldif)
PACKAGES = ("slapd", "sssd-ldap", "libnss-sss", "libpam-sss")
UNITS = ("podwright-node-exporter", "podwright-collectors", "podwright-prometheus-agent")
EXPORTERS = "/opt/rehearsal/prometheus"
# Debian's Prometheus is of the generation before, which has another name for the option.
AGENT = f'#!/bin/bash\nexec {EXPORTERS}/usr/bin/prometheus "${{@/#--agent/--enable-feature=agent}}"\n'
INSTALL = """#!/bin/bash
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q -y --no-install-recommends install "$@"
systemctl stop slapd # the package's own directory
"""
# Who asks without the key of the directory's ada has no other way in.
SSH = (
    "ssh -i /opt/ldap/ada -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null"
)
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    region="us-west-2",
    controller_group="controller",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    instance_facts={"workers": InstanceFacts("gpu", 4, "A10G")},
)
LDAP = Ldap(
    uri="ldaps://directory.test",
    search_base="dc=corp,dc=net",
    bind_dn="cn=reader,dc=corp,dc=net",
    bind_secret_arn=SECRET,
    allowed_groups=("research",),
    sudo_groups=("research",),
    ssh_key_attribute="sshPublicKey",
    probe_user="ada",
)


@dataclasses.dataclass
class Received:
    """The metrics that hosts sent to the workspace."""

    writes: list[bytes] = dataclasses.field(default_factory=list)  # protocol buffers

    def hosts_of(self, metric: str) -> set[str]:
        """Return the hosts that sent a metric."""
        found: set[str] = set()
        for content in self.writes:
            for series in content.split(b"\x0a\x08__name__\x12")[1:]:  # then a label's length and value
                if series[1 : 1 + series[0]] == metric.encode():
                    host = series.partition(b"\x0a\x08instance\x12")[2]
                    found.add(host[1 : 1 + host[0]].decode())
        return found


def uncompressed(data: bytes) -> bytes:
    """Return the content of a block of Snappy: https://github.com/google/snappy/blob/main/format_description.txt."""
    at, content = next(i for i, byte in enumerate(data) if byte < 0x80) + 1, bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:
                size = length - 60
                length, at = int.from_bytes(data[at : at + size], "little") + 1, at + size
            content += data[at : at + length]
            at += length
            continue
        size = {1: 1, 2: 2, 3: 4}[kind]
        offset, at = int.from_bytes(data[at : at + size], "little"), at + size
        if kind == 1:
            length, offset = 4 + (tag >> 2 & 7), (tag >> 5) << 8 | offset
        for _ in range(length):
            content.append(content[-offset])
    return bytes(content)


@pytest.fixture(scope="module")
def received() -> Received:
    """The content of the workspace so far."""
    return Received()


@pytest.fixture(scope="module")
def server(received: Received) -> Iterator[tuple[str, int]]:
    """Secrets Manager, as far as one secret, and a workspace for metrics."""

    class Aws(Quiet, http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/v1/remote_write":
                received.writes.append(uncompressed(asked))
            body = json.dumps({"ARN": SECRET, "Name": "ldap", "SecretString": PASSWORD}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Aws) as address:
        yield address


@pytest.fixture(scope="module")
def cluster(
    make_cluster: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    bundle: Callable[[ProvisioningParameters], Path],
    node_image: Path,
    server: tuple[str, int],
) -> NamespacedCluster:
    """A cluster that booted twice beside an LDAP server; apt has SSSD for it, and the workspace takes its metrics."""
    exporter = f'#!/bin/sh\nexec {EXPORTERS}/usr/bin/prometheus-node-exporter "$@"\n'
    cluster = make_cluster(
        nodes=[make_node(CONTROLLER, role="controller"), dataclasses.replace(make_node(WORKER), accelerators=4)],
        relay=server,
        binds=[
            (repository("directory", node_image, PACKAGES), PLACE),
            (unpacked("prometheus", ("prometheus-node-exporter", "prometheus")), EXPORTERS),
        ],
        image_lacks=("/etc/apt/sources.list.d/*",),
        image_has={
            "/etc/apt/sources.list": File(SOURCE),
            "/opt/install.sh": File(INSTALL, mode=0o755),
            "/opt/rehearsal/shims/nvidia-smi": File(NVIDIA_SMI, mode=0o755),
            str(programs.path_of("node_exporter")): File(exporter, mode=0o755),
            str(programs.path_of("prometheus")): File(AGENT, mode=0o755),
        },
        environment={
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server[1]}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
        },
    )
    cluster.start()
    shutil.copytree(DIRECTORY, cluster.path(CONTROLLER, "/opt/ldap"))
    serve = f"/opt/ldap/serve.sh {ADDRESS} >/opt/ldap/log 2>&1 || {{ tail -n 20 /opt/ldap/log; exit 1; }}"
    cluster.run(serve, user="root")
    log = "mknod -m 644 /dev/kmsg c 1 11"  # which hosts lack: the collectors have the right to read the real one
    cluster.run(f"echo {ADDRESS} directory.test >>/etc/hosts; {log}", host=WORKER, user="root")
    certificate = cluster.path(CONTROLLER, "/opt/ldap/authority.pem").read_text()
    nodes = NodeFeatures(ldap=dataclasses.replace(LDAP, certificate=certificate), observability=Observability(5))
    url = f"http://{GATEWAY}:{server[1]}/api/v1/remote_write"
    scripts = bundle(dataclasses.replace(PARAMETERS, nodes=nodes, prometheus_remote_write_url=url))
    for _ in range(2):
        require_booted(cluster.boot(scripts, timeout_s=600).values())
    cluster.wait_until_idle(timeout_s=600)
    return cluster


def output(cluster: NamespacedCluster, line: str, *, host: str = CONTROLLER, user: str = "root") -> str:
    """Return what a command prints, and its exit status unless that is 0."""
    done = cluster.run(line, host=host, user=user, check=False)
    return f"{done.stdout.strip()} {f'(exit {done.returncode})' if done.returncode else ''}".strip()


@pytest.mark.parametrize("host", HOSTS)
def test_a_second_boot_changes_nothing(cluster: NamespacedCluster, host: str) -> None:
    """SSSD came by the host's own apt, every unit runs, none has failed; a second boot finds all as it should be."""
    first, second = ((cluster.directory / f"{host}-boot-{number}.log").read_text() for number in (1, 2))
    assert "installed sssd-ldap, libnss-sss, libpam-sss" in first
    assert ", 0 changes, " in second
    assert "WARNING" not in second
    assert output(cluster, f"systemctl is-active sssd {' '.join(UNITS)}", host=host).split() == ["active"] * 4
    assert output(cluster, "systemctl --failed --no-legend", host=host) == ""
    assert PASSWORD not in first + second


def test_people_of_the_directory_log_in_and_run_jobs(cluster: NamespacedCluster) -> None:
    """The key in the directory opens its owner's account; Slurm runs her jobs; users of other groups are refused."""
    home = output(cluster, f"{SSH} ada@{WORKER} 'pwd; id -un; stat --format=%U .'")
    assert home.split() == ["/fsx/home/ada", "ada", "ada"]
    assert output(cluster, "srun --partition gpu sh -c 'hostname; id -un'", user="ada").split() == [WORKER, "ada"]
    assert output(cluster, "echo open-sesame | sudo -S -p '' id -un", host=WORKER, user="ada") == "root"
    assert "(exit" in output(cluster, "true", host=WORKER, user="mallory")
    for stranger in ("mallory", "ubuntu", "root"):
        assert "(exit 255)" in output(cluster, f"{SSH} {stranger}@{WORKER} true")


def test_metrics_of_each_host_arrive(cluster: NamespacedCluster, received: Received) -> None:
    """The workspace gets node_exporter's values and our collectors'; Debian's Prometheus has no part that signs."""
    metrics = ("node_load1", "podwright_collected_timestamp_seconds")
    wait_for(
        lambda: all(received.hosts_of(metric) == set(HOSTS) for metric in metrics),
        timeout_s=600,
        description=lambda: f"metrics of all hosts, got {[received.hosts_of(metric) for metric in metrics]}",
    )
    assert received.hosts_of("podwright_slurm_nodes") == {CONTROLLER}
    assert received.hosts_of("podwright_gpu_utilization_ratio") == {WORKER}
    for host in HOSTS:
        shown = output(cluster, f"curl --silent http://{cluster.nodes[host].private_ip}:9100/metrics", host=host)
        broken = re.findall(r"^podwright_collector_works\{.*\} 0$", shown, re.MULTILINE)
        assert broken == []


def test_a_service_that_dies_comes_back(cluster: NamespacedCluster) -> None:
    """Systemd starts the exporter again after its end."""
    pid = output(cluster, f"systemctl show --property MainPID --value {UNITS[0]}", host=WORKER)
    output(cluster, f"systemctl kill --signal KILL {UNITS[0]}", host=WORKER)
    url = f"http://{cluster.nodes[WORKER].private_ip}:9100/metrics"
    wait_for(
        lambda: "node_load1" in output(cluster, f"curl --silent {url}", host=WORKER),
        timeout_s=600,
        description=lambda: f"the exporter: {output(cluster, f'systemctl status {UNITS[0]}', host=WORKER)}",
    )
    assert output(cluster, f"systemctl show --property MainPID --value {UNITS[0]}", host=WORKER) != pid


def test_a_rebooted_node_knows_people_and_measures_itself(cluster: NamespacedCluster) -> None:
    """No lifecycle script runs after a reboot: when the node takes jobs, SSSD and all services are there."""
    cluster.reboot(WORKER)
    cluster.wait_until_idle([WORKER], timeout_s=600)
    assert output(cluster, "srun --partition gpu id -un", user="ada") == "ada"
    assert output(cluster, f"systemctl is-active sssd {' '.join(UNITS)}", host=WORKER).split() == ["active"] * 4
    assert output(cluster, "systemctl --failed --no-legend", host=WORKER) == ""


def test_directory_and_metrics_leave_a_node(
    cluster: NamespacedCluster, bundle: Callable[[ProvisioningParameters], Path]
) -> None:
    """A boot without both ends SSSD and all units; the directory's people are unknown, and no key is left."""
    require_booted([cluster.boot_one(WORKER, bundle(PARAMETERS))])
    assert "(exit" in output(cluster, "id ada", host=WORKER)
    assert "(exit 255)" in output(cluster, f"{SSH} ada@{WORKER} true")
    left = "ls /etc/sudoers.d/podwright-ldap /etc/ssh/sshd_config.d/podwright-ldap.conf /etc/sssd/sssd.conf"
    assert output(cluster, f"{left} 2>/dev/null", host=WORKER) == "(exit 2)"
    assert output(cluster, f"systemctl is-active sssd {' '.join(UNITS)}", host=WORKER).count("inactive") == 4
    assert output(cluster, "srun --partition gpu hostname", user="ubuntu") == WORKER
