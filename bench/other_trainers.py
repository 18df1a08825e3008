"""Run other trainers on two hosts of a cluster of processes, kill one host, and read the run's metrics.

    python bench/other_trainers.py [--trainers litgpt …] [--environments DIR]

Smallest: python bench/other_trainers.py --trainers plain

Each trainer has its own virtual environment in DIR, because litgpt needs another huggingface-hub than transformers
does; those that DIR lacks are installed. `plain` runs in this Python's.

A trainer that ends too early gets the error of its log: torchtitan 0.3.0 does not start without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from podwright_rehearsal.clusters.flat import FlatCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.slurm_packages import fetch_slurm
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_training.events import TrainEvent
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder

CHECKOUT = Path(__file__).parents[1]
JOBS = Path(__file__).parent / "other_trainers"
TORCH = "torch==2.13.0"
PACKAGES = {
    "plain": (),
    "huggingface": ("transformers==5.24.0", "accelerate==1.15.0"),
    "deepspeed": ("deepspeed==0.19.8", "transformers==5.24.0", "accelerate==1.15.0"),
    "litgpt": ("litgpt==0.5.13", "litdata==0.2.76", "requests==2.34.2"),
    "torchtitan": ("torchtitan==0.3.0", "triton==3.8.0"),
}
SECOND = "127.0.0.12"
KILLED_AFTER = 12  # steps
NODES: tuple[tuple[int, Literal["controller", "compute"]], ...] = ((5, "controller"), (6, "compute"), (7, "compute"))


def main() -> int:
    """Print a line for each trainer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=CHECKOUT / ".cache/podwright/other_trainers")
    parser.add_argument("--trainers", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    options = parser.parse_args()
    packages = fetch_slurm(CHECKOUT / ".cache/podwright/slurm")
    nodes = [_node(number, role) for number, role in NODES]
    with tempfile.TemporaryDirectory(prefix="podwright-bench-") as name:
        folder = Path(name)
        environment = {"PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT / "training", CHECKOUT / "common", CHECKOUT)))}
        with FlatCluster(
            directory=folder / "cluster", packages=packages, cluster_name="demo", nodes=nodes, environment=environment
        ) as cluster:
            cluster.srun_takes_auto_resume = False
            for trainer in options.trainers:
                made = _environment(trainer, options.environments.absolute())
                print(trainer, _run(cluster, trainer, folder / trainer, made), flush=True)
                cluster.wait_until_idle(timeout_s=600)
    return 0


def _node(number: int, role: Literal["controller", "compute"]) -> Node:
    address = f"10.0.16.{number}"
    return Node(
        hostname=f"ip-{address.replace('.', '-')}", private_ip=address, instance_id=f"i-{number}", instance_group=role,
        instance_type="ml.m5.xlarge", role=role, partition="cpu" if role == "compute" else None,
    )  # fmt: skip


def _environment(trainer: str, folder: Path) -> Path:
    """Return the virtual environment of a trainer, made if it is not there."""
    if not PACKAGES[trainer]:
        return Path(sys.prefix)
    made = folder / trainer
    if not (made / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", made], check=True)
        pip = [str(made / "bin/pip"), "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", TORCH, *PACKAGES[trainer]], check=True)
        # litdata's torchvision is for CUDA: it does not load beside torch for CPUs, and litgpt does without
        subprocess.run([*pip, "uninstall", "--yes", "torchvision"], check=True)
        (made / "complete").touch()
    return made


def _run(cluster: FlatCluster, trainer: str, root: Path, environment: Path) -> str:
    """Submit a job, kill a host in the middle, and return what the run's metrics say of it."""
    text = (JOBS / f"{trainer}.yaml").read_text().replace("ENVIRONMENT", str(environment))
    (root / "data").mkdir(parents=True)
    for name in ("first", "second", "third"):  # texts for the trainer that has none
        shutil.copy(CHECKOUT / "docs/glossary.md", root / "data" / f"{name}.txt")
    (root / "job.yaml").write_text(text.replace("PROGRAMS", str(JOBS)))
    words = [sys.executable, "-m", "podwright_training", "launch", f"--job={root}/job.yaml", f"--run-dir={root}"]
    launch = [*words, f"--environment={sys.prefix}", "--accelerator=cpu", "--json"]
    job_id = json.loads(cluster.run(launch).stdout)["job"]
    run = RunFolder(root)

    def ended() -> bool:
        state = cluster.run(f"squeue --noheader --jobs={job_id} --format=%T").stdout.strip()
        return state not in ("RUNNING", "PENDING", "CONFIGURING")

    def is_far() -> bool:
        steps = list(run.events_of(TrainEvent))
        return bool(steps and steps[-1].step >= KILLED_AFTER)

    wait_for(lambda: is_far() or ended(), timeout_s=900, description=lambda: f"step {KILLED_AFTER} in {_end_of(run)}")
    if not is_far():
        return f"ended: {_error_of(run)}"
    cluster.kill(SECOND)
    cluster.auto_resume(job_id, new_instance_id=lambda _: "i-new", timeout_s=600)
    job = cluster.wait_for_job(job_id, timeout_s=600, restarts=1)
    if job["JobState"] != "COMPLETED":
        return f"{job['JobState']} after it was resumed: {_error_of(run)}"
    history = History.of(run)
    subprocess.run(
        [sys.executable, "-m", "podwright_training", "report", f"--run-dir={root}", "--usd-per-hour=1"],
        check=True, env={**os.environ, "PYTHONPATH": f"{CHECKOUT}/training:{CHECKOUT}/common"},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (restart,) = history.restarts
    first, last = history.train[0], history.train[-1]
    figures = sorted(path.stem for path in run.report.glob("*.svg"))
    return (
        f"loss {first.loss:.3f} at step {first.step} to {last.loss:.3f} at step {last.step}; killed after "
        f"{restart.stopped_after}, resumed after {restart.resumed_after}; figures {', '.join(figures)}"
    )


def _end_of(run: RunFolder) -> str:
    return run.log.read_text()[-2000:]


def _error_of(run: RunFolder) -> str:
    """Return the last line of a log that names an error, or its end."""
    errors = [
        line.strip() for line in run.log.read_text().splitlines() if re.match(r"\s*(\[rank\d+\]: )?\w+Error: ", line)
    ]
    return errors[-1] if errors else _end_of(run)


if __name__ == "__main__":
    sys.exit(main())
