"""The systemctl of a host: what lifecycle scripts rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from podwright_rehearsal.clusters.namespaced import NamespacedCluster

pytestmark = pytest.mark.hosts
HOST = "ip-10-0-16-6"


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., NamespacedCluster]) -> Iterator[NamespacedCluster]:
    """Hosts as they are before any script runs."""
    with make_cluster(environment={"REGION": "us-west-2"}) as cluster:
        yield cluster


@pytest.fixture
def systemctl(cluster: NamespacedCluster) -> Callable[[str], tuple[int, str]]:
    """Run systemctl with the words given; exit status and all it printed."""

    def call(words: str) -> tuple[int, str]:
        done = cluster.run(f"systemctl {words}", host=HOST, user="root", check=False, timeout_s=600)
        return done.returncode, (done.stdout + done.stderr).strip()

    return call


@pytest.fixture
def write_unit(cluster: NamespacedCluster) -> Callable[..., None]:
    """Write a unit file: name, then lines of its [Service] section."""

    def write(name: str, *lines: str) -> None:
        text = "\n".join(("[Service]", *lines, "[Install]", "WantedBy=multi-user.target", ""))
        cluster.path(HOST, f"/etc/systemd/system/{name}").write_text(text)

    return write


def wait_until(cluster: NamespacedCluster, condition: str) -> None:
    """Return when a shell condition holds on the host, within 600 seconds."""
    cluster.run(f"timeout 600 bash -c 'until {condition}; do sleep 0.05; done'", host=HOST, user="root")


def test_a_fresh_host_runs_sshd_and_munge_but_no_slurm(systemctl) -> None:
    """As on the AMI: Slurm's daemons are there, neither enabled nor running."""
    assert [systemctl(f"is-active {unit}") for unit in ("ssh", "sshd", "munge")] == [(0, "active")] * 3
    assert [systemctl(f"is-active {unit}") for unit in ("slurmd", "slurmctld")] == [(3, "inactive")] * 2
    assert [systemctl(f"is-enabled {unit}") for unit in ("munge", "slurmd")] == [(0, "enabled"), (1, "disabled")]


def test_enable_now_and_disable_now(systemctl, write_unit) -> None:
    """--now starts and stops a unit as it is enabled and disabled; both may be repeated."""
    write_unit("plain.service", "ExecStart=/bin/sleep 1000")
    for _ in range(2):
        assert systemctl("enable --now plain") == (0, "")
        assert (systemctl("is-enabled plain"), systemctl("is-active plain.service")) == ((0, "enabled"), (0, "active"))
    for _ in range(2):
        assert systemctl("disable --now plain") == (0, "")
        assert (systemctl("is-enabled plain"), systemctl("is-active plain")) == ((1, "disabled"), (3, "inactive"))


def test_restart_is_a_new_process(systemctl, write_unit) -> None:
    """A restart also starts what did not run, and replaces what did."""
    write_unit("again.service", "ExecStart=/bin/sleep 1000")
    pids = []
    for _ in range(2):
        assert systemctl("restart again") == (0, "")
        pids.append(systemctl("show -p MainPID --value again")[1])
    assert len({"0", *pids}) == 3
    assert systemctl("stop again") == (0, "")
    assert systemctl("show -p ActiveState,MainPID again") == (0, "ActiveState=inactive\nMainPID=0")


def test_mask_refuses_what_systemd_refuses(systemctl, write_unit) -> None:
    """A masked unit does not start; a unit file of the administrator cannot be masked."""
    assert systemctl("mask absent") == (0, "")
    assert systemctl("is-enabled absent") == (1, "masked")
    assert systemctl("start absent") == (1, "Failed to start absent.service: Unit absent.service is masked.")
    assert systemctl("unmask absent") == (0, "")
    assert systemctl("start absent") == (5, "Failed to start absent.service: Unit absent.service is not-found.")
    write_unit("own.service", "ExecStart=/bin/true")
    status, said = systemctl("mask own")
    assert (status, "already exists" in said) == (1, True)


def test_environment_comes_from_the_manager_the_unit_and_its_files(
    cluster: NamespacedCluster, systemctl, write_unit
) -> None:
    """Drop-ins count, a missing file is an error unless its name begins with -, $NAME is split and ${NAME} is not."""
    write_unit("env.service", "Type=oneshot", "EnvironmentFile=-/nowhere", "ExecStart=/bin/false")
    drop_in = cluster.path(HOST, "/etc/systemd/system/env.service.d/override.conf")
    drop_in.parent.mkdir()
    lines = [
        'Environment="TWO=a b" ONE=x',
        "ExecStart=",
        "ExecStart=/bin/sh -c 'echo $0 $# $REGION' ${TWO} $TWO ${ONE}",
    ]
    drop_in.write_text("\n".join(["[Service]", *lines, ""]))
    assert systemctl("start env") == (0, "")
    log = cluster.path(HOST, "/opt/rehearsal/log/env.service.log")
    assert log.read_text() == "a b 3 us-west-2\n"
    drop_in.write_text("[Service]\nEnvironmentFile=/nowhere\n")
    status, said = systemctl("start env")
    assert (status, "/nowhere" in said) == (1, True)


def test_a_failing_start_is_reported(systemctl, write_unit) -> None:
    """The exit status is in the message, the unit is failed, status shows the end of its log."""
    write_unit("bad.service", "Type=oneshot", "ExecStart=/bin/sh -c 'echo because; exit 4'")
    status, said = systemctl("start bad")
    assert status == 1
    assert "non-zero exit status 4" in said
    assert systemctl("is-active bad") == (3, "failed")
    status, said = systemctl("status bad")
    assert (status, said.splitlines()[-1]) == (3, "because")


def test_restart_on_failure(cluster: NamespacedCluster, systemctl, write_unit) -> None:
    """A killed service with Restart=on-failure comes back with another process; a stopped one stays away."""
    write_unit("phoenix.service", "ExecStart=/bin/sleep 1000", "Restart=on-failure", "RestartSec=0.1s")
    systemctl("start phoenix")
    before = systemctl("show -p MainPID --value phoenix")[1]
    cluster.run(f"kill -KILL {before}", host=HOST, user="root")
    wait_until(cluster, f"[[ $(systemctl show -p MainPID --value phoenix) != @(0|{before}) ]]")
    assert systemctl("is-active phoenix") == (0, "active")
    assert systemctl("stop phoenix") == (0, "")
    assert systemctl("is-active phoenix") == (3, "inactive")


def test_a_service_that_always_fails_is_given_up(cluster: NamespacedCluster, systemctl, write_unit) -> None:
    """After five starts in ten seconds it is left failed, as systemd does."""
    write_unit("hopeless.service", "ExecStart=/bin/sh -c 'echo try; exit 1'", "Restart=on-failure", "RestartSec=0.01")
    systemctl("start hopeless")
    log = cluster.path(HOST, "/opt/rehearsal/log/hopeless.service.log")
    wait_until(cluster, "[[ $(grep -c try /opt/rehearsal/log/hopeless.service.log) == 5 ]]")
    wait_until(cluster, "[[ $(systemctl is-active hopeless) == failed ]]")
    assert log.read_text() == "try\n" * 5


def test_a_service_runs_as_its_user_in_its_directory(cluster: NamespacedCluster, systemctl, write_unit) -> None:
    """User=, RuntimeDirectory= and WorkingDirectory= are honoured."""
    lines = ["Type=oneshot", "User=ubuntu", "RuntimeDirectory=mine", "WorkingDirectory=/run", "RemainAfterExit=yes"]
    write_unit("user.service", *lines, "ExecStart=/bin/sh -c 'pwd; id -un; echo x > /run/mine/file'")
    assert systemctl("start user") == (0, "")
    assert systemctl("is-active user") == (0, "active")
    assert cluster.path(HOST, "/opt/rehearsal/log/user.service.log").read_text() == "/run\nubuntu\n"
    assert cluster.path(HOST, "/run/mine/file").exists()


def test_calls_are_recorded(cluster: NamespacedCluster, systemctl) -> None:
    """Every call can be read back from outside, the unknown ones too."""
    assert systemctl("daemon-reload") == (0, "")
    assert systemctl("frobnicate x")[0] == 2
    assert cluster.shim_calls(HOST)[-2:] == ["systemctl daemon-reload", "systemctl frobnicate x"]
