"""The training job on a real Slurm of two hosts: whatever fails, it ends with the same numbers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Failure
from podwright_rehearsal.hosts.errors import tail
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.supplies import SHARDS, dataset
from podwright_testing.faults import NEVER, Faults
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder

pytestmark = pytest.mark.hosts
CONTROLLER, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-6", "ip-10-0-16-7"
CHECKOUT = Path(__file__).parents[2]
PYTHON, PACKAGES, TRAINER, COMMON = (
    "/opt/python",
    "/opt/packages",
    "/opt/training",
    "/opt/common",
)  # of this machine, on the hosts
ENVIRONMENT = Path("/fsx/scratch/environment")
SLURMCTLD_LOG = Path("/var/log/slurm/slurmctld.log")
ONE_THREAD = "OMP_NUM_THREADS=1"  # each host takes the machine's processors to be its own: their threads would spin
MAX_STEPS, CHECKPOINT_FREQ = 24, 3
WAITS_S = 600.0  # of a busy machine
LOST: tuple[tuple[str, Failure], ...] = ((FIRST, "heartbeat"), (SECOND, "power"), (SECOND, "network"))
WHAT_COUNTS = ("loss", "grad_norm", "batch_digest")


@pytest.fixture(scope="module")
def cluster(booted: Callable[..., NamespacedCluster], lifecycle: Path) -> NamespacedCluster:
    """A booted cluster on whose shared file system the trainer and a dataset lie."""
    packages = Path(torch.__file__).parents[1]
    binds = [(Path(sys.base_prefix), PYTHON), (packages, PACKAGES)]
    binds += [(CHECKOUT / "training", TRAINER), (CHECKOUT / "common", COMMON)]
    cluster = booted(lifecycle, binds=[*binds, (dataset(), "/opt/dataset")])
    for name, module in (("torchrun", "torch.distributed.run"), ("podwright-train", "podwright_training")):
        program = cluster.directory / "fsx/scratch/environment/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        interpreter = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        program.write_text(
            f"#!/bin/bash\nexport LD_LIBRARY_PATH={PYTHON}/lib PYTHONPATH={TRAINER}:{COMMON}:{PACKAGES} {ONE_THREAD}\n"
            f'exec {interpreter} -m {module} "$@"\n'
        )
        program.chmod(0o755)
    return cluster


@pytest.fixture
def launch(cluster: NamespacedCluster) -> Callable[[str], tuple[int, RunFolder]]:
    """Submit the job as a user does; its number and its run folder."""

    def call(name: str) -> tuple[int, RunFolder]:
        said = cluster.run(
            f"{ENVIRONMENT}/bin/podwright-train launch --run-dir=/fsx/scratch/{name} --environment={ENVIRONMENT} "
            "--nodes=2 --nproc-per-node=1 --partition=gpu --accelerator=cpu --auto-resume -- "
            "--preset=tiny --dataset=/opt/dataset --dataset-config-name=en --tokenizer=/opt/dataset/tokenizer "
            f"--max-steps={MAX_STEPS} --checkpoint-freq={CHECKPOINT_FREQ} --validation-freq={MAX_STEPS} "
            f"--validation-batches=1 --data-streams={SHARDS}"
        ).stdout
        return int(re.findall(r"submitted job (\d+)", said)[0]), RunFolder(cluster.directory / "fsx/scratch" / name)

    return call


@pytest.fixture
def undisturbed(cluster: NamespacedCluster, launch) -> dict[str, Any]:
    """The numbers of an undisturbed job."""
    job_id, run = launch("undisturbed")
    completed(cluster, job_id, run)
    return computed(run)


def completed(cluster: NamespacedCluster, job_id: int, run: RunFolder) -> dict[str, str]:
    job = cluster.wait_for_job(job_id, timeout_s=WAITS_S)
    assert job["JobState"] == "COMPLETED", run.log.read_text()[-5000:]
    return job


def computed(run: RunFolder) -> dict[str, Any]:
    """Every number of every step as it counts in the end; floats are compared with all of their bits.

    `pytest -rP` shows the last ones.
    """
    steps = {event["step"]: [event[name] for name in WHAT_COUNTS] for event in logged(run, "train")}
    assert sorted(steps) == list(range(1, MAX_STEPS + 1))
    validation = list(logged(run, "validation"))[-1]["loss"]
    begun = [event["step"] for event in logged(run, "start")]
    print(f"{run.root.name}: began at steps {begun}, last loss {steps[MAX_STEPS][0]!r}, validation {validation!r}")
    return {"steps": steps, "validation": validation}


def wait_for_step(cluster: NamespacedCluster, run: RunFolder, step: int, *, starts: int) -> None:
    """Wait until the job has taken a step since it started for the last of so many times."""

    def reached() -> bool:
        events = list(logged(run))
        begun = [number for number, event in enumerate(events) if event["event"] == "start"]
        return len(begun) == starts and any(event.get("step", 0) >= step for event in events[begun[-1] + 1 :])

    def missing() -> str:
        return f"step {step}\n{tail(run.log)}\n{tail(cluster.path(CONTROLLER, SLURMCTLD_LOG), 100)}"

    wait_for(reached, timeout_s=WAITS_S, description=missing)


def test_a_job_survives_lost_hosts_and_a_requeue(
    cluster: NamespacedCluster, lifecycle: Path, launch, undisturbed: dict[str, Any]
) -> None:
    """Requeued while it writes a checkpoint, then on hosts that hang, die and lose their network: no number changes."""
    half_written = f".step-{2 * CHECKPOINT_FREQ:08}.partial"
    with Faults(cluster).slow_files(FIRST, SECOND, path="/fsx", delay_s=NEVER, containing=f"{half_written}/"):
        job_id, run = launch("disturbed")
        written = f"/fsx/scratch/disturbed/checkpoints/{half_written}/*"
        cluster.run(f"until ls {written} 2> /dev/null; do sleep 0.05; done", timeout_s=WAITS_S)
        cluster.run(["scontrol", "requeue", str(job_id)], user="root")
        cluster.wait_for_job(job_id, frozenset({"PENDING", "RUNNING"}), timeout_s=WAITS_S, restarts=1)
    for restarts, (victim, how) in enumerate(LOST, start=1):
        wait_for_step(cluster, run, (restarts + 1) * CHECKPOINT_FREQ + 2, starts=restarts + 1)
        cluster.kill(victim, how=how)
        done = cluster.auto_resume(job_id, lifecycle=lifecycle, new_instance_id=lambda _: "i-new", timeout_s=WAITS_S)
        assert (how, done.replaced) == (how, (victim,))
    assert completed(cluster, job_id, run)["Restarts"] == str(1 + len(LOST))
    resumed = [event["step"] for event in logged(run, "start")]
    assert resumed[:2] == [0, CHECKPOINT_FREQ]
    assert all(step > 0 for step in resumed[1:])
    assert computed(run) == undisturbed


def test_a_curation_survives_a_lost_host(cluster: NamespacedCluster) -> None:
    """Its jobs run on both hosts, one of which loses its power; the output is byte for byte that of one machine."""
    scratch = cluster.directory / "fsx/scratch"
    (scratch / "raw").mkdir()
    for part in range(2):
        lines = [f"part {part}, document {number // 2} of some more, half of them twice" for number in range(40)]
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (scratch / "raw" / f"{part}.jsonl").write_text(text)
    command = (
        f"{ENVIRONMENT}/bin/podwright-train curate --dataset=/fsx/scratch/raw --dataset-config-name=none --filters "
        "--tokenizer=/opt/dataset/tokenizer --keep-near --validation-fraction=0.2 --workers=2"
    )
    cluster.run(f"{command} --output=/fsx/scratch/alone", timeout_s=WAITS_S)
    cluster.wait_until_idle(timeout_s=WAITS_S)
    submit = f"SBATCH_EXCLUSIVE=exclusive {command} --output=/fsx/scratch/slurm --partition=gpu --memory-gib=1"
    begun = scratch / "slurm.partial/logs/documents"
    faults = Faults(cluster)
    never = {"path": "/fsx", "delay_s": NEVER, "containing": "slurm.partial/documents/"}
    with faults.slow_files(SECOND, **never):
        with faults.slow_files(FIRST, **never):  # no task ends before both have begun
            job_id = int(re.findall(r"jobs up to (\d+) write", cluster.run(submit).stdout)[0])
            wait_for(
                lambda: running_on(cluster) == [FIRST, SECOND], timeout_s=WAITS_S, description=lambda: tail_of(begun)
            )
        wait_for(
            lambda: len(list(begun.glob("completions/*"))) == 1, timeout_s=WAITS_S, description=lambda: tail_of(begun)
        )
        again = cluster.run(submit, check=False)
        assert "are queued already; wait for them, or scancel them" in again.stderr
        assert running_on(cluster) == [SECOND]
        cluster.kill(SECOND, how="power")
    wait_for((scratch / "slurm/manifest.json").exists, timeout_s=WAITS_S, description=lambda: tail_of(begun.parent))
    assert cluster.wait_for_job(job_id, timeout_s=WAITS_S)["JobState"] == "COMPLETED"
    assert contents(scratch / "slurm") == contents(scratch / "alone")
    steps = {step["step"]: step for step in json.loads((scratch / "slurm/manifest.json").read_text())["steps"]}
    assert (steps["read"]["documents"], steps["exact duplicates"]["removed"]) == (80, 40)


def running_on(cluster: NamespacedCluster) -> list[str]:
    """The host of each running task."""
    return sorted(cluster.run(["squeue", "--noheader", "--states=RUNNING", "--format=%N"]).stdout.split())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tail_of(folder: Path) -> str:
    """The last lines of the newest job's output."""
    outputs = sorted(folder.rglob("slurm_logs/*.out"), key=lambda path: path.stat().st_mtime)
    return tail(outputs[-1]) if outputs else "no job has begun"
