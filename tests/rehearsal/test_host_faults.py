"""Faults of running hosts, and their end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_testing.faults import NEVER, Download, Faults

pytestmark = pytest.mark.hosts
FIRST, SECOND = "ip-10-0-16-6", "ip-10-0-16-7"
GREETING = f"bash -c 'exec 3<>/dev/tcp/{SECOND}/22 && echo connected && head -c 3 <&3'"
LOOK_UP = "getent ahostsv4 fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
LARGE = hashlib.sha256(bytes(8 << 20)).hexdigest()


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster], lifecycle: Path, web_server: tuple[str, int]
) -> NamespacedCluster:
    """A booted cluster that may fetch from a web server."""
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{web_server[1]}"}
    return booted(lifecycle, relay=web_server, environment=environment)


def test_a_hung_host_accepts_connections_and_says_nothing(cluster: NamespacedCluster) -> None:
    """Its kernel answers, sshd does not, Slurm calls the node down; afterwards the same processes go on."""
    pid = cluster.run("systemctl show -p MainPID --value slurmd", host=SECOND, user="root").stdout
    with Faults(cluster).hung(SECOND):
        assert cluster.run(f"timeout 3 {GREETING}", check=False).stdout == "connected\n"
        with pytest.raises(HostError, match=f"{SECOND} hangs"):
            cluster.run("true", host=SECOND)
        cluster.run(f"until [[ $(sinfo -hn {SECOND} -o %T -p gpu) == down* ]]; do sleep 0.2; done", timeout_s=600)
    assert cluster.run(GREETING).stdout == "connected\nSSH"
    cluster.wait_until_idle(timeout_s=600)
    assert cluster.run("systemctl show -p MainPID --value slurmd", host=SECOND, user="root").stdout == pid


def test_a_host_that_is_cut_off_lives(cluster: NamespacedCluster) -> None:
    """Nobody reaches it, what runs on it goes on, and it is back with the network."""
    with Faults(cluster).cut_off(SECOND):
        assert cluster.run(f"timeout 3 {GREETING}", check=False).returncode != 0
        assert cluster.run("hostname", host=SECOND).stdout == f"{SECOND}\n"
    assert cluster.run(GREETING).stdout == "connected\nSSH"


def test_a_full_disk_takes_nothing_more(cluster: NamespacedCluster) -> None:
    """Writing fails on that host alone; what was there is there and writable afterwards."""
    write = "head -c 100000 /dev/zero > /opt/large"
    with Faults(cluster).full_disk(FIRST):
        refused = cluster.run(write, host=FIRST, user="root", check=False)
        assert "No space left on device" in refused.stderr
        assert cluster.run(write, host=SECOND, user="root").returncode == 0
    assert cluster.run(write, host=FIRST, user="root").returncode == 0


@pytest.mark.parametrize("hostnames", [[FIRST], []], ids=["one host", "all hosts"])
def test_the_shared_file_system_is_read_only(cluster: NamespacedCluster, hostnames: list[str]) -> None:
    """New files are refused where it is read-only, reading goes on, and afterwards it is one mount again."""
    mounts = cluster.run("findmnt --noheadings /fsx", host=FIRST).stdout
    with Faults(cluster).read_only(*hostnames, path="/fsx"):
        refused = cluster.run("touch /fsx/scratch/new", host=FIRST, check=False)
        assert "Read-only file system" in refused.stderr
        assert "scratch" in cluster.run("ls /fsx", host=FIRST).stdout
        elsewhere = cluster.run("touch /fsx/scratch/new", host=SECOND, check=False)
        assert (elsewhere.returncode == 0) is bool(hostnames)
    assert cluster.run("touch /fsx/scratch/new", host=FIRST).returncode == 0
    assert cluster.run("findmnt --noheadings /fsx", host=FIRST).stdout == mounts


def test_opening_waits_where_files_are_slow(cluster: NamespacedCluster) -> None:
    """An open that never ends waits until the fault does; other files, other hosts and open files do not wait."""
    cluster.run("echo old > /fsx/scratch/slow; echo old > /fsx/scratch/fast")
    with Faults(cluster).slow_files(FIRST, path="/fsx", delay_s=NEVER, containing="slow"):
        assert cluster.run("timeout 1 cat /fsx/scratch/slow", host=FIRST, check=False).returncode == 124
        assert cluster.run("cat /fsx/scratch/fast", host=FIRST).stdout == "old\n"
        assert cluster.run("cat /fsx/scratch/slow", host=SECOND).stdout == "old\n"
        cluster.run("nohup cat /fsx/scratch/slow > /tmp/read 2>&1 & sleep 0.2; test ! -s /tmp/read", host=FIRST)
    cluster.run("timeout 600 bash -c 'until grep -q old /tmp/read; do sleep 0.1; done'", host=FIRST)
    with Faults(cluster).slow_files(path="/fsx", delay_s=0.5):
        began = time.monotonic()
        assert cluster.run("cat /fsx/scratch/fast", host=SECOND).stdout == "old\n"
        assert time.monotonic() - began >= 0.5


def test_a_fault_ends_with_an_error_of_its_user(cluster: NamespacedCluster) -> None:
    """Whoever leaves the context by an exception leaves a healthy host."""
    with pytest.raises(ZeroDivisionError), Faults(cluster).hung(FIRST):
        _ = 1 // 0
    assert cluster.run("hostname", host=FIRST).stdout == f"{FIRST}\n"


def test_names_come_late(cluster: NamespacedCluster) -> None:
    """AWS's names resolve, after the delay; where it is longer than a resolver waits, mounting fails by name."""
    assert cluster.run(LOOK_UP, host=FIRST).stdout.split()[0] == "10.0.16.1"
    assert cluster.run("getent hosts example.org", host=FIRST, check=False).returncode == 2
    with Faults(cluster).slow_dns(delay_s=1.5):
        assert cluster.run(f"timeout 1 {LOOK_UP}", host=FIRST, check=False).returncode == 124
        assert cluster.run(LOOK_UP, host=FIRST).stdout.split()[0] == "10.0.16.1"
    with Faults(cluster).slow_dns(delay_s=60):
        mount = "mount -t lustre fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com@tcp:/abcdefgh /mnt"
        refused = cluster.run(mount, host=FIRST, user="root", check=False)
    assert (refused.returncode, "Can't parse NID" in refused.stderr) == (32, True)


@pytest.mark.parametrize(("how", "curl_says"), [("refused", {52, 56}), ("cut short", {18}), ("changed", {0})])
def test_a_download_goes_wrong_once(cluster: NamespacedCluster, how: Download, curl_says: set[int]) -> None:
    """The chosen file arrives wrong as often as it should and right afterwards; other files arrive."""
    fetch = "curl --silent $AWS_ENDPOINT_URL/large > /tmp/got; code=$?; sha256sum < /tmp/got | cut -c -64; exit $code"
    with Faults(cluster).download("large", how=how, times=1):
        assert cluster.run("curl --silent $AWS_ENDPOINT_URL/small", host=FIRST).stdout == "hello from the machine"
        wrong = cluster.run(fetch, host=FIRST, check=False)
        assert wrong.returncode in curl_says
        assert wrong.stdout.strip() != LARGE
        assert cluster.run(fetch, host=FIRST).stdout.strip() == LARGE


def test_a_download_comes_late(cluster: NamespacedCluster) -> None:
    """A late answer is whole, and too late for who does not wait."""
    fetch = "curl --silent --max-time {} $AWS_ENDPOINT_URL/large | sha256sum"
    with Faults(cluster).download("large", how="late", delay_s=1.5, times=2):
        assert LARGE not in cluster.run(fetch.format(1), host=FIRST).stdout
        assert LARGE in cluster.run(fetch.format(20), host=FIRST).stdout
