"""Another user attacks the ports of training jobs on rehearsed hosts, with PyTorch: no code of hers runs.

The jobs are those of each template, one of them queued again, and one that a user starts by hand.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwright_bootstrap.contract import InstanceFacts, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures, User
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.rehearsed import Node
from podwright_rehearsal.hosts.host_errors import tail
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run.supplies import SHARDS
from podwright_testing import trainer
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
CONTROLLER, LOGIN, FIRST, SECOND = "ip-10-0-16-5", "ip-10-0-16-8", "ip-10-0-16-6", "ip-10-0-16-7"
ATTACKER = Path(__file__).parents[1] / "training" / "socket_attacker.py"
ENVIRONMENT = "/fsx/environment"
MARKS = "/fsx/runs/marks"
MOST_STARTS = 3  # of a job that the attack ends
PARAMETERS = ProvisioningParameters(
    cluster_name="demo",
    region="us-west-2",
    controller_group="controller",
    login_group="login",
    worker_groups=[WorkerGroup("workers", "gpu")],
    fsx_dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    fsx_mountname="abcdefgh",
    instance_facts={"workers": InstanceFacts("gpu", 2, "A10G", 1)},
    nodes=NodeFeatures(users=(User("ada", 2001), User("mallory", 2002))),
)
OPTIONS = (
    f"--preset=tiny --dataset={trainer.DATASET} --dataset-config-name=en --tokenizer={trainer.DATASET}/tokenizer "
    f"--data-streams={SHARDS} --checkpoint-freq=10 --validation-freq=1000 --validation-batches=1"
)
# A script that exchanges only numbers: the rendezvous and the store are all that could run a stranger's code.
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, int(sys.argv[1]) + 1):
    number = torch.tensor([1.0])
    dist.all_reduce(number)
    if dist.get_rank() == 0:
        print(f"step {step} loss {1 / step:.4f} of {int(number)}", flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
"""
JOB = """
command: {command}
launcher: {launcher}
nodes: 2
ranks_per_node: 1
environment: /fsx/environment
log:
  patterns: {{step: 'step (\\d+)', loss: 'loss ([\\d.]+)'}}
model: {{parameters: 8, tokens_per_step: 16, steps: 30}}
"""
# Started by hand; the second is what SECURITY.md warns of, and shows that the attack works where nothing prevents it.
ADDRESS = """
export TORCH_ELASTIC_WORKER_IDENTICAL=1
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000))
"""
STATIC = '--node-rank="$SLURM_NODEID" --master-addr="$first" --master-port=$port'
C10D = '--rdzv-backend=c10d --rdzv-endpoint="$first:$port"'
STEPS = 30
LONG_STEPS = 100_000  # of a job that ends when its test has seen enough, however slow the attacker is


def make_environment(folder: Path) -> None:
    """Write a virtual environment, as jobs of other trainers need it: they start its Python with -I."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "trainer.pth").write_text(f"{trainer.TRAINER}\n{trainer.COMMON}\n{trainer.PACKAGES}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {trainer.PYTHON}/bin\n")
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "python3", version):
        (programs / name).symlink_to(f"{trainer.PYTHON}/bin/{version}")
    variables = f"LD_LIBRARY_PATH={trainer.PYTHON}/lib OMP_NUM_THREADS=1"
    for name, words in {"run-python": "", **{name: f"-m {module}" for name, module in trainer.MODULES.items()}}.items():
        (programs / name).write_text(f'#!/bin/bash\nexport {variables}\nexec {ENVIRONMENT}/bin/python {words} "$@"\n')
        (programs / name).chmod(0o755)


@pytest.fixture(scope="module")
def cluster(
    booted: Callable[..., NamespacedCluster],
    make_node: Callable[..., Node],
    bundle: Callable[[ProvisioningParameters], Path],
) -> NamespacedCluster:
    """A controller, a login node and two compute nodes with the trainer, for the users Ada and Mallory."""
    nodes = [
        make_node(CONTROLLER, role="controller"),
        make_node(LOGIN, role="login"),
        make_node(FIRST),
        make_node(SECOND),
    ]
    cluster = booted(bundle(PARAMETERS), nodes=nodes, binds=trainer.binds())
    runs = cluster.directory / "fsx" / "runs"
    make_environment(cluster.directory / "fsx" / "environment")
    shutil.copy(ATTACKER, runs / ATTACKER.name)
    (runs / "script.py").write_text(SCRIPT)
    cluster.run(f"mkdir --mode 1777 {MARKS}", user="mallory", host=LOGIN)
    return cluster


@pytest.fixture(autouse=True)
def no_jobs_left(cluster: NamespacedCluster) -> Iterator[None]:
    """End the jobs of a test that failed: those of the next would wait for their nodes."""
    yield
    cluster.run("scancel --user=ada", user="root")


@contextmanager
def attack(cluster: NamespacedCluster, *commands: str) -> Iterator[list[Path]]:
    """Let Mallory's programs run on the login node; yields their outputs."""
    outputs = []
    for number, words in enumerate(commands):
        output = f"/fsx/runs/attack-{number}"
        command = f"exec setsid bash -c 'sleep 3000 | {ENVIRONMENT}/bin/run-python /fsx/runs/{ATTACKER.name} {words}'"
        cluster.run(f"{{ {command}; }} >{output} 2>&1 </dev/null & true", user="mallory", host=LOGIN)
        outputs.append(cluster.directory / "fsx" / "runs" / f"attack-{number}")
    try:
        for output in outputs:
            wait_for(lambda output=output: "READY" in output.read_text(), timeout_s=600, description=output.read_text)
        yield outputs
    finally:
        cluster.run("kill -KILL -1", user="mallory", host=LOGIN, check=False)


def launch(cluster: NamespacedCluster, name: str, words: str) -> tuple[int, RunFolder]:
    """Submit a run as Ada."""
    said = cluster.run(
        f"{ENVIRONMENT}/bin/podwright-train launch --run-dir=/fsx/runs/{name} --environment={ENVIRONMENT} "
        f"--partition=gpu --accelerator=cpu {words}",
        user="ada",
        host=LOGIN,
    ).stdout
    return int(re.findall(r"submitted job (\d+)", said)[0]), RunFolder(cluster.directory / "fsx" / "runs" / name)


def job_of(cluster: NamespacedCluster, launcher: str) -> str:
    """Write the job of a script; return the words of launch."""
    file = cluster.directory / "fsx" / "runs" / f"{launcher}.yaml"
    command = "/fsx/runs/script.py" if launcher == "torchrun" else f"{ENVIRONMENT}/bin/python /fsx/runs/script.py"
    file.write_text(JOB.format(command=f"{command} {STEPS}", launcher=launcher))
    return f"--job=/fsx/runs/{file.name}"


def by_hand(cluster: NamespacedCluster, rendezvous: str, steps: int) -> int:
    """Submit torchrun without a template, as Ada."""
    torchrun = f"{ENVIRONMENT}/bin/torchrun --nnodes=2 --nproc-per-node=1 --rdzv-id=$SLURM_JOB_ID-0 {rendezvous}"
    script = cluster.directory / "fsx" / "runs" / "step.sh"
    script.write_text(f"{ADDRESS}exec {torchrun} /fsx/runs/script.py {steps}\n")
    words = [
        "sbatch",
        "--parsable",
        "--partition=gpu",
        "--nodes=2",
        "--exclusive",
        "--output=/fsx/runs/hand-%j",
    ]
    return int(cluster.run([*words, "--wrap", f"srun bash /fsx/runs/{script.name}"], user="ada", host=LOGIN).stdout)


def marks(cluster: NamespacedCluster) -> set[str]:
    """Return the users in whose name Mallory's code has run."""
    return set(cluster.run(f"stat --format=%U {MARKS}/* 2>/dev/null || true", user="root").stdout.split())


def next_job(cluster: NamespacedCluster) -> int:
    """Return the number that Slurm gives to the next job, as any user can learn it."""
    return (
        int(cluster.run("sbatch --parsable --hold --output=/dev/null --wrap true", user="mallory", host=LOGIN).stdout)
        + 1
    )


def plants(first: int, jobs: int) -> str:
    """Return the attack on the stores of the next jobs, and of their second starts."""
    starts = [f"{number}-{restart}" for number in range(first, first + jobs) for restart in range(2)]
    return f"plants {MARKS}/planted {FIRST} {' '.join(starts)}"


def completed(cluster: NamespacedCluster, job: int, log: Path) -> dict[str, str]:
    """Wait for a job that has to complete."""
    fields = cluster.wait_for_job(job)
    assert fields["JobState"] == "COMPLETED", tail(log, 60)
    return fields


def test_what_is_planted_in_the_rendezvous_is_run_in_no_job(cluster: NamespacedCluster) -> None:
    """Jobs of our trainer, of others and by hand complete beside it, one after it was queued again."""
    first = next_job(cluster)
    with attack(cluster, plants(first, 5)):
        flags = f"--nodes=2 --nproc-per-node=1 -- {OPTIONS}"
        ours, run = launch(cluster, "ours", f"{flags} --max-steps=30")
        assert ours == first
        wait_for(lambda: list(logged(run, "checkpoint")) != [], timeout_s=600, description=lambda: tail(run.log))
        cluster.run(["scontrol", "requeue", str(ours)], user="root")
        assert completed(cluster, ours, run.log)["Restarts"] == "1"
        for launcher in ("torchrun", "srun"):
            job, run = launch(cluster, launcher, job_of(cluster, launcher))
            completed(cluster, job, run.log)
            assert "step 30 loss 0.0333 of 2" in run.log.read_text()
        hand = by_hand(cluster, STATIC, STEPS)
        completed(cluster, hand, cluster.directory / "fsx" / "runs" / f"hand-{hand}")
    assert marks(cluster) == set()


def test_a_rendezvous_by_c10d_would_run_it(cluster: NamespacedCluster) -> None:
    """The attack works: where a user starts torchrun as SECURITY.md forbids it, Mallory's code runs in Ada's name."""
    first = next_job(cluster)
    with attack(cluster, plants(first, 1)):
        job = by_hand(cluster, C10D, LONG_STEPS)
        assert job == first
        wait_for(lambda: marks(cluster) == {"ada"}, timeout_s=300, description=lambda: "the attack to work")
        cluster.run(f"scancel {job}", user="root")
        cluster.wait_for_job(job)
    cluster.run(f"rm -f {MARKS}/*", user="root")


def test_a_sweep_over_all_ports_runs_nothing(cluster: NamespacedCluster) -> None:
    """Whatever is sent to stores, ranks, agents and checkpoints in memory: jobs may end, but no code runs."""
    with attack(cluster, f"sweep {MARKS}/swept {FIRST} {SECOND}") as (output,):
        flags = f"--nproc-per-node=1 -- {OPTIONS} --max-steps=200"
        job, run = launch(cluster, "swept", f"--nodes=2 {flags}")
        wait_for(lambda: "REACHED store" in output.read_text(), timeout_s=600, description=lambda: tail(run.log))
        cluster.run(f"scancel {job}", user="root")
        cluster.wait_for_job(job)
        assert [event for event in logged(run, "train") if event["loss"] > 100] == []

        job, run = launch(cluster, "elastic", f"--nodes=1-2 {flags} --memory-checkpoint-freq=1 --global-batch-size=8")
        wait_for(lambda: "REACHED agent" in output.read_text(), timeout_s=600, description=output.read_text)
        wait_for(
            lambda: len(list(logged(run, "train"))) >= 20,
            timeout_s=600,
            description=lambda: "\n".join(tail(log) for log in run.elastic.glob("host-*.log")),
        )
        cluster.run(f"scancel {job}", user="root")
    assert marks(cluster) == set()
    secrets = cluster.run("stat --format='%U %a' /fsx/runs/*/.secret", user="root").stdout.splitlines()
    assert set(secrets) == {"ada 600"}
