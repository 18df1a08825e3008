"""Run other trainers on two hosts of a cluster of processes, kill one host, and read the run's metrics.

    python bench/other_trainers.py --environment DIR [--trainers huggingface …]

Smallest: python bench/other_trainers.py --trainers plain

DIR is a virtual environment with torch, transformers, accelerate, deepspeed and litgpt. `plain` needs torch alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from podwright_rehearsal.clusters.flat import FlatCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.slurm_packages import fetch_slurm
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder

CHECKOUT = Path(__file__).parents[1]
JOBS = Path(__file__).parent / "other_trainers"
TRAINERS = ("plain", "huggingface")
SECOND = "127.0.0.12"
KILLED_AFTER = 12  # steps
NODES: tuple[tuple[int, Literal["controller", "compute"]], ...] = ((5, "controller"), (6, "compute"), (7, "compute"))


def main() -> int:
    """Print a line for each trainer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=Path(sys.prefix))
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    options = parser.parse_args()
    packages = fetch_slurm(CHECKOUT / ".cache/podwright/slurm")
    nodes = [_node(number, role) for number, role in NODES]
    with tempfile.TemporaryDirectory(prefix="podwright-bench-") as name:
        folder = Path(name)
        environment = {"PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT / "training", CHECKOUT)))}
        with FlatCluster(
            directory=folder / "cluster", packages=packages, cluster_name="demo", nodes=nodes, environment=environment
        ) as cluster:
            cluster.srun_takes_auto_resume = False
            for trainer in options.trainers:
                print(trainer, _run(cluster, trainer, folder / trainer, options.environment.absolute()), flush=True)
                cluster.wait_until_idle(timeout_s=600)
    return 0


def _node(number: int, role: Literal["controller", "compute"]) -> Node:
    address = f"10.0.16.{number}"
    return Node(
        hostname=f"ip-{address.replace('.', '-')}", private_ip=address, instance_id=f"i-{number}", instance_group=role,
        instance_type="ml.m5.xlarge", role=role, partition="cpu" if role == "compute" else None,
    )  # fmt: skip


def _run(cluster: FlatCluster, trainer: str, root: Path, environment: Path) -> str:
    """Submit a job, kill a host in the middle, and return what the run's metrics say of it."""
    text = (JOBS / f"{trainer}.yaml").read_text().replace("ENVIRONMENT", str(environment))
    root.mkdir()
    (root / "job.yaml").write_text(text.replace("PROGRAMS", str(JOBS)))
    words = [
        sys.executable,
        "-m",
        "podwright_training",
        "launch",
        f"--job={root}/job.yaml",
        f"--run-dir={root}",
        "--json",
    ]
    job_id = int(
        cluster.run([*words, f"--environment={sys.prefix}", "--accelerator=cpu"])
        .stdout.split('"job": ')[1]
        .split(",")[0]
    )
    run = RunFolder(root)

    def steps() -> list[dict[str, float]]:
        return list(run.events("train"))

    def is_far() -> bool:
        state = cluster.run(f"squeue --noheader --jobs={job_id} --format=%T").stdout.strip()
        if state not in ("RUNNING", "PENDING", "CONFIGURING"):
            raise SystemExit(f"{trainer}: {state or 'ended'}\n{run.log.read_text()[-3000:]}")
        return bool(steps()) and steps()[-1]["step"] >= KILLED_AFTER

    wait_for(is_far, timeout_s=600, what=lambda: f"step {KILLED_AFTER} in {run.log.read_text()[-2000:]}")
    cluster.kill(SECOND)
    cluster.auto_resume(job_id, new_instance_id=lambda _: "i-new", timeout_s=600)
    job = cluster.wait_for_job(job_id, timeout_s=600, restarts=1)
    if job["JobState"] != "COMPLETED":
        raise SystemExit(f"{trainer}: {job['JobState']}\n{run.log.read_text()[-3000:]}")
    history = History.of(run)
    subprocess.run(
        [sys.executable, "-m", "podwright_training", "report", f"--run-dir={root}", "--usd-per-hour=1"],
        check=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT / "training")}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (restart,) = history.restarts
    first, last = history.train[0], history.train[-1]
    figures = sorted(path.stem for path in run.report.glob("*.svg"))
    return (
        f"loss {first['loss']:.3f} at step {first['step']} to {last['loss']:.3f} at step {last['step']}; killed after "
        f"{restart.stopped_after}, resumed after {restart.resumed_after}; figures {', '.join(figures)}"
    )


if __name__ == "__main__":
    sys.exit(main())
