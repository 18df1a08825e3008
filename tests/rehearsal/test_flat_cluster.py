"""Slurm without namespaces: as any user, on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from podwright_rehearsal.clusters.flat import FlatCluster
from podwright_rehearsal.hosts.debian import DebianError
from podwright_rehearsal.hosts.errors import HostError
from podwright_rehearsal.hosts.slurm_packages import PACKAGES, SlurmPackages, fetch_slurm
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.processes import marked
from podwright_testing.metrics import logged
from podwright_testing.programs import started
from podwright_training.jobs.spec import load
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder
from podwright_training.slurm import batch_script

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
NOBODY = 65534
FIRST, SECOND = "127.0.0.11", "127.0.0.12"

# Two tasks that wait for a file, and a script that fails as soon as the test says so.
JOB = """#!/bin/bash
#SBATCH --partition gpu --nodes 2 --ntasks-per-node 1 --gres gpu:2 --requeue --open-mode append --output {shared}/%j.out
srun --auto-resume=1 bash -c 'echo run $SLURM_RESTART_COUNT on $SLURMD_NODENAME
  until [[ -e {shared}/go ]]; do sleep 0.1; done' &
until [[ -e {shared}/fail || -e {shared}/go ]]; do sleep 0.1; done
[[ ! -e {shared}/fail ]] && wait
"""

# What a user without any right does: a cluster, a step on both hosts, a lost host, a job that completes.
AS_ANY_USER = """
import sys
from pathlib import Path
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.clusters.flat import FlatCluster
from podwright_rehearsal.processes import MARKER
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.hosts.slurm_packages import SlurmPackages

home = Path.cwd()
roles = {"ip-10-0-16-5": "controller", "ip-10-0-16-6": "compute", "ip-10-0-16-7": "compute"}
nodes = [
    Node(hostname=name, private_ip="10.0.16.5", instance_id=name, instance_group=role, instance_type="", role=role,
         partition="gpu" if role == "compute" else None)
    for name, role in roles.items()
]
environment = {"HOME": str(home), MARKER: str(home)}
with FlatCluster(directory=home / "cluster", packages=SlurmPackages(home / "slurm"), cluster_name="demo", nodes=nodes,
                 environment=environment) as cluster:
    print(sorted(cluster.node_states().items()))
    print(sorted(cluster.run("srun --nodes 2 id --user").stdout.split()), flush=True)
    (home / "job").write_text("#!/bin/bash\\nuntil [[ -e go ]]; do sleep 0.1; done\\n")
    job_id = int(cluster.run("sbatch --parsable --nodes 2 --requeue job").stdout)
    cluster.wait_for_job(job_id, frozenset({"RUNNING"}), timeout_s=600)
    if sys.argv[1:] == ["wait"]:
        print("waiting", flush=True)
        sys.stdin.read()
    cluster.srun_takes_auto_resume = False  # this job has no step that could ask for it
    cluster.kill("127.0.0.12")
    print(cluster.auto_resume(job_id, new_instance_id=lambda host: "i-new", timeout_s=600).replaced)
    (home / "go").touch()
    job = cluster.wait_for_job(job_id, restarts=1, timeout_s=600)
    print(job["JobState"], job["Restarts"])
"""


@pytest.fixture(scope="session")
def packages() -> SlurmPackages:
    """Slurm, kept in the checkout's cache between runs."""
    return fetch_slurm(CHECKOUT / ".cache/podwright/slurm")


@pytest.fixture(scope="module")
def running(packages: SlurmPackages, tmp_path_factory: pytest.TempPathFactory, make_node: Callable) -> Iterator:
    """A cluster of a controller and two compute hosts."""
    nodes = [
        make_node("ip-10-0-16-5", role="controller"),
        make_node("ip-10-0-16-6"),
        make_node("ip-10-0-16-7"),
        make_node("ip-10-0-16-8", role="login"),
    ]
    directory = tmp_path_factory.mktemp("flat")
    with FlatCluster(directory=directory, packages=packages, cluster_name="demo", nodes=nodes) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: FlatCluster) -> Iterator[FlatCluster]:
    """The module's cluster, idle, before and after."""
    for name in ("go", "fail"):
        (running.directory / name).unlink(missing_ok=True)
    running.wait_until_idle(timeout_s=600)
    yield running
    running.run("scancel --user $USER")
    running.wait_until_idle(timeout_s=600)


def submit(cluster: FlatCluster) -> int:
    """Submit JOB and wait until both of its tasks have begun."""
    script = cluster.directory / "job.sbatch"
    script.write_text(JOB.format(shared=cluster.directory))
    job_id = int(cluster.run(["sbatch", "--parsable", str(script)]).stdout)
    cluster.wait_for_job(job_id, frozenset({"RUNNING"}), timeout_s=600)
    cluster.run(f"until [[ $(grep -c ^run {cluster.directory}/{job_id}.out) == 2 ]]; do sleep 0.1; done", timeout_s=600)
    return job_id


def test_a_step_runs_on_every_host(cluster: FlatCluster) -> None:
    """The compute nodes are known by loopback names in the deployed partition, and a step reaches both."""
    assert cluster.node_states() == {FIRST: "idle", SECOND: "idle"}
    answer = cluster.run("srun --partition gpu --nodes 2 --gres gpu:2 printenv SLURMD_NODENAME").stdout
    assert sorted(answer.split()) == [FIRST, SECOND]
    assert cluster.run("scontrol show hostnames '127.0.0.[11-12]'").stdout.split() == [FIRST, SECOND]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_a_job_survives_a_host(cluster: FlatCluster, state: str) -> None:
    """A job that lost a host runs again on both, even if its peers' broken connections have failed it meanwhile."""
    job_id = submit(cluster)
    cluster.kill(SECOND)
    if state == "COMPLETING":
        (cluster.directory / "fail").touch()
        cluster.wait_for_job(job_id, frozenset({state}), timeout_s=600)
        (cluster.directory / "fail").unlink()
    done = cluster.auto_resume(job_id, new_instance_id=lambda host: f"i-new-{host}", timeout_s=600)
    assert done.replaced == (SECOND,)
    assert cluster.nodes[SECOND].instance_id == f"i-new-{SECOND}"
    (cluster.directory / "go").touch()
    job = cluster.wait_for_job(job_id, timeout_s=600, restarts=1)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1")
    output = (cluster.directory / f"{job_id}.out").read_text()
    assert f"run 1 on {FIRST}" in output
    assert f"run 1 on {SECOND}" in output


def test_an_operators_mark_is_a_fault(cluster: FlatCluster) -> None:
    """A node with the reason Action:Replace is replaced and used again, though it answers."""
    job_id = submit(cluster)
    cluster.run(["scontrol", "update", f"NodeName={FIRST}", "State=FAIL", "Reason=Action:Replace"])
    assert cluster.auto_resume(job_id, new_instance_id=lambda _: "i-marked", timeout_s=600).replaced == (FIRST,)


PYTHONPATH = f"PYTHONPATH={CHECKOUT}/training:{CHECKOUT}"
PLAIN = CHECKOUT / "bench" / "other_trainers"


def test_another_trainer_survives_a_host(cluster: FlatCluster, tmp_path: Path) -> None:
    """A script for torchrun goes on from its checkpoint after a host is lost, and its steps are in the metrics."""
    job, run = tmp_path / "job.yaml", RunFolder(tmp_path / "run")
    text = (PLAIN / "plain.yaml").read_text().replace("ENVIRONMENT", sys.prefix)
    job.write_text(text.replace("PROGRAMS", str(PLAIN)))
    words = [sys.executable, "-m", "podwright_training", "launch", f"--job={job}", f"--run-dir={run.root}", "--json"]
    more = [f"--environment={sys.prefix}", "--accelerator=cpu", "--partition=gpu", "--auto-resume"]
    job_id = json.loads(cluster.run(["env", PYTHONPATH, *words, *more]).stdout)["job"]
    wait_for(
        lambda: any(event["step"] > 5 for event in logged(run, "train")),
        timeout_s=600,
        description=lambda: f"step 6 in {run.log.read_text() if run.log.exists() else 'a log'}",
    )
    cluster.kill(SECOND)
    cluster.auto_resume(job_id, new_instance_id=lambda _: "i-new", timeout_s=600)
    assert cluster.wait_for_job(job_id, timeout_s=600, restarts=1)["JobState"] == "COMPLETED"
    history = History.of(run)
    assert [restart.resumed_after % 5 for restart in history.restarts] == [0]  # it saves each fifth step
    assert [event.step for event in history.train] == list(range(1, 41))
    assert history.train[-1].loss < history.train[0].loss / 10


def test_slurm_accepts_every_ready_job(cluster: FlatCluster, tmp_path: Path) -> None:
    """The batch script of each job in examples/jobs, for as many nodes as there are here."""
    files = sorted((CHECKOUT / "examples" / "jobs").glob("*/job.yaml"))
    for file in files:
        job = batch_script.Job(
            run=RunFolder(tmp_path / file.parent.name), nodes=2, nproc_per_node=2, partition="gpu", spec=load(file),
            environment=Path(sys.prefix),
        )  # fmt: skip
        (tmp_path / f"{file.parent.name}.sbatch").write_text(batch_script.render(job))
    answer = cluster.run(f"for script in {tmp_path}/*.sbatch; do sbatch --test-only $script || exit; done")
    assert len(re.findall(r"to start at .* on nodes 127.0.0.\[11-12\]", answer.stderr)) == len(files) > 0


STAND_IN = """#!/bin/bash
echo "$(basename "$0") on $SLURMD_NODENAME, COMPILE=${{COMPILE:-}}, port ${{MASTER_PORT:-}}: $*" >>{calls}
"""


# What NxD Training's progress bar shows after the second step, with the names of its log_metrics.
PROGRESS = """echo "Epoch 0: 2/62, reduced_train_loss=6.930, lr=2.73e-5, gradient_norm=8.600, global_step=1.000,\
 consumed_samples=4.000, throughput=0.108, throughput_peak=0.108]"
"""


@pytest.fixture
def neuron(tmp_path: Path) -> Callable[..., tuple[str, dict[str, int]]]:
    """Launches Llama 3 8B on two trn1 whose programs record their calls; returns what it printed and the jobs."""
    words = [sys.executable, "-m", "podwright_training", "launch", "--backend=nxdt", "--instance=ml.trn1.32xlarge"]
    words += ["--preset=llama3_8b", "--nodes=2", f"--run-dir={tmp_path}/run", f"--environment={tmp_path}/podwright"]
    (tmp_path / f".nxdt-{os.geteuid()}").mkdir(mode=0o700)  # as launch makes it: the test fills it before

    def launch(cluster: FlatCluster, *more: str) -> tuple[str, dict[str, int]]:
        printed = cluster.run(["env", PYTHONPATH, *words, *more, "--", "--train-batch-size=1"]).stdout
        return printed, {step: int(job) for step, job in re.findall(r"(\w+) as job (\d+)", printed)}

    return launch


def stand_in_for_the_trainer(python: Path, calls: Path) -> None:
    """Write the environment's interpreter: it records its calls, and follows a log for real."""
    python.parent.mkdir(parents=True)
    follows = f'#!/bin/bash\n[[ $3 == follow ]] && exec {sys.executable} "$@"\n'
    python.write_text(STAND_IN.format(calls=calls).replace("#!/bin/bash\n", follows))
    python.chmod(0o755)


def test_nxd_training_runs_as_a_chain_of_jobs(cluster: FlatCluster, neuron: Callable, tmp_path: Path) -> None:
    """Slurm accepts each job and runs them in order; a second launch finds environment and cache, and resumes."""
    calls, folder = tmp_path / "calls", tmp_path / "run" / "nxdt"
    stand_in_for_the_trainer(tmp_path / "podwright" / "bin" / "python", calls)
    printed, _ = neuron(cluster, "--print")
    environment = Path(re.findall(r"^environment=(.+)$", printed, re.MULTILINE)[0])
    (environment / "nxdt" / "examples").mkdir(parents=True)
    (environment / "complete").touch()
    standing_in = [environment / "bin" / name for name in ("torchrun", "neuron_parallel_compile", "neuronx-cc")]
    for program in standing_in:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(STAND_IN.format(calls=calls))
        program.chmod(0o755)
    (environment / "bin" / "torchrun").write_text(STAND_IN.format(calls=calls) + PROGRESS)
    (environment / "bin" / "neuron_parallel_compile").write_text(STAND_IN.format(calls=calls) + 'exec "$@"\n')
    compiler = environment / "bin" / "neuronx-cc"
    compiler.write_text("#!/bin/bash\necho NeuronX Compiler version 2.23.6484.0+3b612583\n")

    printed, jobs = neuron(cluster)
    assert "memory: 9.6 of 34.3 GB" in printed
    assert cluster.wait_for_job(jobs["train"], timeout_s=600)["JobState"] == "COMPLETED"
    (event,) = logged(RunFolder(folder.parent), "train")
    figures = {"step": 2, "loss": 6.93, "grad_norm": 8.6, "samples_per_s": 0.108, "tokens": 2 * 1 * 2 * 8192}
    assert {name: event[name] for name in figures} == figures
    for step in jobs:
        cluster.run(["sbatch", "--test-only", str(folder / f"{step}.sbatch")])
    made, *rest = calls.read_text().splitlines()
    assert made.startswith("python on ")
    assert "-m podwright_training.nxdt.dataset --out" in made
    kinds = [line.split(" on ")[0] + line[line.index("COMPILE=") :][:9] for line in rest]
    assert sorted(kinds[:4]) == ["neuron_parallel_compileCOMPILE=1"] * 2 + ["torchrunCOMPILE=1"] * 2
    assert f"-m podwright_training claim --run-dir={folder.parent} --job" in rest[4]
    assert kinds[5:] == ["torchrunCOMPILE=0"] * 2
    assert {line.split(" on ")[1].split(",")[0] for line in rest[5:]} == {FIRST, SECOND}
    assert all("port 41000: --nproc-per-node=32 " in line for line in rest[5:])
    for rank, host in enumerate((FIRST, SECOND)):
        (line,) = [line for line in rest[5:] if f" on {host}," in line]
        assert f" --nnodes=2 --node-rank={rank} --master-addr={FIRST} --master-port=41000 " in line
    assert all(line.endswith(f"--config-path={folder} --config-name=config") for line in rest[5:])

    _, jobs = neuron(cluster)
    assert cluster.wait_for_job(jobs["train"], timeout_s=600)["JobState"] == "COMPLETED"
    again = calls.read_text().splitlines()[1 + len(rest) :]
    assert [line.split(" on ")[0] for line in again] == ["python", "python", "torchrun", "torchrun"]
    assert "is complete already" in (folder / "compile.log").read_text()

    compiler.write_text("#!/bin/bash\necho NeuronX Compiler version 2.21.18209.0+043b1bf7\n")
    _, jobs = neuron(cluster)
    assert cluster.wait_for_job(jobs["compile"], timeout_s=600)["JobState"] == "FAILED"
    assert cluster.wait_for_job(jobs["train"], timeout_s=600)["JobState"] == "CANCELLED"
    last = (folder / "compile.log").read_text().splitlines()[-1]
    assert last.startswith(f"error: {environment} has neuronx-cc 2.21.18209.0, this run needs 2.23.6484.0")

    (environment / "complete").unlink()
    _, jobs = neuron(cluster, "--neuron-index=http://127.0.0.1:9")
    assert cluster.wait_for_job(jobs["environment"], timeout_s=600)["JobState"] == "FAILED"
    last = (folder / "environment.log").read_text().splitlines()[-1]
    assert last.startswith("error: --neuron-index: http://127.0.0.1:9 does not answer for neuronx-cc: name Neuron's")


@pytest.mark.parametrize("how", ["power", "network"])
def test_other_faults_are_refused(cluster: FlatCluster, how: str) -> None:
    """A flat host refuses faults other than the loss of its processes."""
    with pytest.raises(HostError, match=f"{SECOND} is a flat host: got how='{how}', only 'processes' is available"):
        cluster.kill(SECOND, how=how)


def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apt, the message names the packages and what to do."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DebianError, match=rf"apt-get, .* not found.*{', '.join(PACKAGES)}.*on Debian or Ubuntu"):
        fetch_slurm(tmp_path / "slurm")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def home(packages: SlurmPackages) -> Iterator[Path]:
    """A folder that an ordinary user may enter, of theirs, with this checkout's code and Slurm."""
    with tempfile.TemporaryDirectory(prefix="podwright-home-") as name:
        home = Path(name)
        shutil.copytree(packages.root, home / "slurm", symlinks=True)
        for package in (
            *("podwright", "common/podwright_common"),
            *("lifecycle_scripts/podwright_bootstrap", "rehearsal/podwright_rehearsal"),
        ):
            shutil.copytree(CHECKOUT / package, home / Path(package).name)
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        yield home


def as_any_user(home: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """AS_ANY_USER as nobody, who cannot use root's own Python, or as the user whom the tests run as."""
    root = os.geteuid() == 0
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"] if root else []
    python = "/usr/bin/python3" if root else sys.executable
    return started(
        [*drop, python, "-c", AS_ANY_USER, *arguments],
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_no_privilege_is_needed(home: Path) -> None:
    """A user without any right has a cluster, resumes a job on it, and leaves no process and no socket."""
    user = str(NOBODY if os.geteuid() == 0 else os.geteuid())
    with as_any_user(home) as process:
        output, _ = process.communicate(timeout=1500)
    assert output.splitlines() == [
        "[('127.0.0.11', 'idle'), ('127.0.0.12', 'idle')]",
        f"['{user}', '{user}']",
        "('127.0.0.12',)",
        "COMPLETED 1",
    ]
    assert marked(home) == []
    assert list(home.glob("podwright-munge-*")) == []


def test_it_ends_with_its_owner(home: Path) -> None:
    """No daemon and no process of a job outlives the cluster's owner, even a killed one."""
    with as_any_user(home, "wait") as process:
        for line in process.stdout or ():
            if line == "waiting\n":
                break
        assert len(marked(home)) > 5
        process.kill()
        process.wait()
    wait_for(lambda: not marked(home), timeout_s=600, description=lambda: f"the end of {marked(home)}")


CLAIM = """#!/bin/bash
#SBATCH --partition gpu --nodes 1 --requeue --job-name first --output {shared}/claim-%j.out --open-mode append
exec srun {python} -c '
import time
from pathlib import Path
from podwright_training.run_claim import claim_of_run
from podwright_training.run_folder import RunFolder
with claim_of_run(RunFolder(Path("{shared}/first"))):
    print("claimed", flush=True)
    time.sleep(600)
'
"""


def test_slurm_says_who_trains_a_run(cluster: FlatCluster) -> None:
    """A job that runs, or waits after a requeue, has its run; it goes on with it, and cancelled it frees the run."""
    script = cluster.directory / "claim.sbatch"
    script.write_text(CLAIM.format(shared=cluster.directory, python=sys.executable))
    jobs = [int(cluster.run(["sbatch", "--parsable", str(script)]).stdout)]

    def claimed(job_id: int, times: int) -> None:
        output = cluster.directory / f"claim-{job_id}.out"
        cluster.run(f"until [[ $(grep -c ^claimed {output}) == {times} ]]; do sleep 0.1; done", timeout_s=600)

    def owner() -> str:
        look = f"{sys.executable} -m podwright_training claim --run-dir {cluster.directory}/first 2>&1 || true"
        return cluster.run(look).stdout

    claimed(jobs[0], 1)
    assert f"error: run first is being trained by job {jobs[0]} on {FIRST} since " in owner()
    jobs.append(int(cluster.run(["sbatch", "--parsable", str(script)]).stdout))
    refused = cluster.wait_for_job(jobs[1], timeout_s=600)
    assert refused["JobState"] == "FAILED"
    assert f"job {jobs[0]} on {FIRST}" in (cluster.directory / f"claim-{jobs[1]}.out").read_text()
    cluster.run(f"scontrol requeuehold {jobs[0]}")
    cluster.wait_for_job(jobs[0], frozenset({"PENDING", "REQUEUE_HOLD"}), timeout_s=600)
    assert f"job {jobs[0]} on {FIRST}" in owner()
    cluster.run(f"scontrol release {jobs[0]}")
    claimed(jobs[0], 2)
    cluster.run(f"scancel {jobs[0]}")
    cluster.wait_for_job(jobs[0], timeout_s=600)
    assert owner() == "no job trains run first\n"
    jobs.append(int(cluster.run(["sbatch", "--parsable", str(script)]).stdout))
    claimed(jobs[2], 1)
