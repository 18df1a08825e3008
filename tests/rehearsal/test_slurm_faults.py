"""A cluster that fails: dead hosts, replacements, auto-resume, a killed owner, leftovers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Resumption
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_rehearsal.hosts.leftovers import clean, leftovers
from podwright_rehearsal.hosts.permission import why_not

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"

# Two tasks that wait for a file: the job ends only when the test lets it.
JOB = """#!/bin/bash
#SBATCH --partition gpu --nodes 2 --ntasks-per-node 1 --gres gpu:2 --requeue --open-mode append
#SBATCH --output /fsx/scratch/%j.out
srun --auto-resume={auto_resume} bash -c 'echo run $SLURM_RESTART_COUNT on $(hostname)
  until [[ -e /fsx/scratch/go ]]; do sleep 0.1; done'
"""


@pytest.fixture(scope="module")
def shared(booted: Callable[..., NamespacedCluster], lifecycle: Path) -> NamespacedCluster:
    """A booted cluster, shared by the tests of this module."""
    return booted(lifecycle)


@pytest.fixture
def cluster(shared: NamespacedCluster) -> Iterator[NamespacedCluster]:
    """The module's cluster, idle, before and after."""
    (shared.directory / "fsx/scratch/go").unlink(missing_ok=True)
    shared.wait_until_idle(timeout_s=600)
    yield shared
    shared.run("scancel --user ubuntu")
    shared.wait_until_idle(timeout_s=600)


def submit(cluster: NamespacedCluster, auto_resume: int = 1) -> int:
    """Submit JOB and wait until both of its tasks have begun."""
    cluster.path(CONTROLLER, "/fsx/scratch/job.sbatch").write_text(JOB.format(auto_resume=auto_resume))
    job_id = int(cluster.run("sbatch --parsable /fsx/scratch/job.sbatch").stdout)
    cluster.wait_for_job(job_id, frozenset({"RUNNING"}), timeout_s=600)
    cluster.run(f"until [[ $(grep -c ^run /fsx/scratch/{job_id}.out) == 2 ]]; do sleep 0.1; done", timeout_s=600)
    return job_id


@pytest.mark.parametrize("how", ["power", "processes", "network", "heartbeat"])
def test_a_job_survives_a_host(cluster: NamespacedCluster, lifecycle: Path, how: str) -> None:
    """Whatever way a host dies, it is replaced and its job runs again on both hosts and completes."""
    job_id = submit(cluster)
    cluster.run("echo old > /etc/old", host=SECOND, user="root")
    old_key = cluster.path(SECOND, "/etc/ssh/ssh_host_ed25519_key.pub").read_text()
    cluster.kill(SECOND, how=how)
    done = cluster.auto_resume(
        job_id, lifecycle=lifecycle, new_instance_id=lambda host: f"i-new-{how}-{host}", timeout_s=600
    )
    assert done.replaced == (SECOND,)
    (cluster.directory / "fsx/scratch/go").touch()
    job = cluster.wait_for_job(job_id, timeout_s=600, restarts=1)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1")
    output = (cluster.directory / f"fsx/scratch/{job_id}.out").read_text()
    for line in (f"run on {FIRST}", f"run on {SECOND}", f"run 1 on {FIRST}", f"run 1 on {SECOND}"):
        assert line in output.replace("run 0", "run").replace("run  on", "run on")
    assert not cluster.path(SECOND, "/etc/old").exists()
    assert cluster.path(SECOND, "/etc/ssh/ssh_host_ed25519_key.pub").read_text() != old_key
    for host in (CONTROLLER, FIRST, SECOND):
        assert f"i-new-{how}-{SECOND}" in cluster.path(host, "/opt/ml/config/resource_config.json").read_text()


def test_nodes_marked_by_an_operator_are_replaced_or_rebooted(cluster: NamespacedCluster, lifecycle: Path) -> None:
    """State=fail with reason "Action:Replace" or "Action:Reboot", and no other, is a fault, though the host answers."""
    job_id = submit(cluster)

    def resume(first: str, second: str, timeout_s: float) -> Resumption:
        for host, reason in ((FIRST, first), (SECOND, second)):
            cluster.run(["scontrol", "update", f"NodeName={host}", "State=FAIL", f"Reason={reason}"], user="root")
        return cluster.auto_resume(
            job_id, lifecycle=lifecycle, new_instance_id=lambda host: f"i-marked-{host}", timeout_s=timeout_s
        )

    with pytest.raises(HostError, match=r"after 1 s still waiting for a node to fail; job \d+ is RUNNING"):
        resume("Action:Replace please", "action:reboot", 1)
    cluster.run("touch /root/on-disk", host=SECOND, user="root")
    done = resume("Action:Replace", "Action:Reboot", 600)
    assert (done.replaced, done.rebooted) == ((FIRST,), (SECOND,))
    config = cluster.path(FIRST, "/opt/ml/config/resource_config.json").read_text()
    assert f"i-marked-{FIRST}" in config
    assert f"i-marked-{SECOND}" not in config
    assert cluster.path(SECOND, "/root/on-disk").exists()


def test_a_jobs_own_error_is_not_resumed(cluster: NamespacedCluster, lifecycle: Path) -> None:
    """A job that fails on healthy nodes is not resumed."""
    job_id = int(cluster.run("sbatch --parsable -o /dev/null -p gpu --wrap 'srun --auto-resume=1 false'").stdout)
    cluster.wait_for_job(job_id, timeout_s=600)
    with pytest.raises(HostError, match=f"job {job_id} is FAILED and every node is healthy"):
        cluster.auto_resume(job_id, lifecycle=lifecycle, new_instance_id=lambda _: "i-none", timeout_s=5)


def test_a_job_without_auto_resume_is_refused(cluster: NamespacedCluster, lifecycle: Path) -> None:
    """--auto-resume=0 means that the agent leaves the job alone."""
    job_id = submit(cluster, auto_resume=0)
    with pytest.raises(HostError, match="was not started with srun --auto-resume=1"):
        cluster.auto_resume(job_id, lifecycle=lifecycle, new_instance_id=lambda _: "i-none", timeout_s=5)


def test_a_dead_host_is_reported(make_cluster: Callable[..., NamespacedCluster]) -> None:
    """A command for a host that is off says so; waiting for its Slurm is bounded and says what was waited for."""
    with make_cluster() as cluster:
        cluster.kill(FIRST)
        with pytest.raises(HostError, match=f"{FIRST} is off"):
            cluster.run("true", host=FIRST)
        with pytest.raises(HostError, match=f"after 0.1 s still waiting for {FIRST} to be idle; Slurm says nothing"):
            cluster.wait_until_idle([FIRST], timeout_s=0.1)


def test_stop_leaves_nothing_and_may_be_repeated(make_cluster: Callable[..., NamespacedCluster]) -> None:
    """After stop no process is left, not even when hosts were killed before, and a second stop does nothing."""
    cluster = make_cluster()
    cluster.start()
    assert leftovers(cluster.directory)
    cluster.kill(FIRST)
    cluster.kill(SECOND, how="processes")
    cluster.stop()
    assert leftovers(cluster.directory) == []
    cluster.stop()


def test_a_failed_start_leaves_nothing(make_cluster: Callable[..., NamespacedCluster], tmp_path: Path) -> None:
    """A host that cannot boot is named with its words, and nothing of the cluster is left."""
    cluster = make_cluster(binds=[(tmp_path / "missing", "/opt/missing")])
    why = "did not boot, its first process ended with status 1:"
    with pytest.raises(HostError, match=rf"(?s){CONTROLLER} {why}.*missing.*whole log: "):
        cluster.start()
    assert leftovers(cluster.directory) == []


OWNER = """
import sys, time
from pathlib import Path
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
node = Node(hostname="ip-10-0-16-5", private_ip="10.0.16.5", instance_id="i-1", instance_group="controller",
            instance_type="ml.m5.xlarge", role="controller")
directory = Path(sys.argv[2])
cluster = NamespacedCluster(directory=directory, image=Path(sys.argv[1]), cluster_name="demo", cluster_arn="arn:aws:::",
                       nodes=[node], subnet_cidr="10.0.16.0/20", shared=directory / "fsx", relay=("127.0.0.1", 9))
cluster.start()
if len(sys.argv) > 3:
    print("up", flush=True)
    cluster.boot(Path(sys.argv[3]))
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start_owner(node_image: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another process that starts a cluster in tmp_path / "cluster"; given a folder, it boots from that too."""
    with contextlib.ExitStack() as owners:

        def start(*lifecycle: Path) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", OWNER, str(node_image), str(tmp_path / "cluster"), *map(str, lifecycle)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = owners.enter_context(subprocess.Popen(command, text=True, env=environment, **pipes))
            owners.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == "up\n"
            return process

        yield start


def test_an_interrupted_boot_leaves_nothing(start_owner, tmp_path: Path) -> None:
    """SIGINT while scripts run ends the owner at once, with everything it started."""
    (tmp_path / "on_create.sh").write_text("#!/bin/bash\necho begun\nsleep 600\n")
    owner = start_owner(tmp_path)
    log = tmp_path / "cluster" / f"{CONTROLLER}-boot-1.log"
    subprocess.run(["timeout", "180", "bash", "-c", f"until grep -qs begun {log}; do sleep 0.05; done"], check=True)
    owner.send_signal(signal.SIGINT)
    _, stderr = owner.communicate(timeout=1500)
    assert "KeyboardInterrupt" in stderr
    assert leftovers(tmp_path) == []


def command_of(pid: int) -> str:
    """Return a process's command; nothing of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_killed_owner_leaves_nothing_that_runs(start_owner, tmp_path: Path) -> None:
    """SIGKILL of the process that owns a cluster ends all of it but empty control groups, which are cleaned."""
    owner = start_owner()
    pids = family(tmp_path)
    assert any("sshd" in command_of(pid) for pid in pids)
    owner.kill()
    owner.wait()
    assert ended(pids)
    assert {leftover.kind for leftover in clean(tmp_path)} == {"control group"}
    assert leftovers(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_clean_ends_a_living_cluster(start_owner, tmp_path: Path) -> None:
    """Cleaning ends what another process started below the folder, says what it was, and then finds nothing."""
    owner = start_owner()
    assert clean(tmp_path / "elsewhere") == []
    pids = family(tmp_path)
    found = clean(tmp_path, timeout_s=600)
    assert any("cluster_namespaces.py" in leftover.name for leftover in found)
    assert ended(pids)
    assert clean(tmp_path) == []
    assert owner.poll() is None  # the owner itself is nobody's leftover
    owner.send_signal(signal.SIGTERM)


def family(directory: Path) -> list[int]:
    """A cluster's own programs and all of their descendants: what runs on its hosts too."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = {leftover.pid for leftover in leftovers(directory) if leftover.kind == "process"}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def ended(pids: list[int], within_s: float = 600.0) -> bool:
    """Return True if all processes end in time; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(runs, pids))


def runs(pid: int) -> bool:
    """Return True if a process is neither gone nor a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def test_why_not_says_nothing_here() -> None:
    """On a machine that runs these tests nothing is missing."""
    assert why_not() is None
