"""A rehearsed cluster of five compute nodes and elastic runs on it, for the test and for the benchmark."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright_rehearsal.aws.stand_in import AwsStandIn
from podwright_rehearsal.clusters.namespaced import NamespacedCluster
from podwright_rehearsal.clusters.profile import Profile
from podwright_rehearsal.clusters.rehearsed import Failure, Node
from podwright_rehearsal.hosts.host_errors import HostError, tail
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_testing import trainer
from podwright_testing.faults import Faults
from podwright_testing.host_limits import limit_network
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import as_flag

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

CONTROLLER = "ip-10-0-16-5"
WORKERS = tuple(f"ip-10-0-16-{number}" for number in range(6, 11))
ENVIRONMENT = "/fsx/scratch/environment"
WAITS_S = 600.0  # of a busy machine
LOOK_S = 0.3  # between two looks at a run: each reads all events anew, milliseconds of a processor that steps share
AWS_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
SOURCE = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com@tcp:/abcdefgh"
CONFIGURATION = "/opt/slurm/etc/slurm.conf"
CONTROLLER_LOG = "/var/log/slurm/slurmctld.log"
SLURMD_TIMEOUT_S = 120  # Slurm must not lose nodes of a busy machine, and elastic runs do not wait for it
TCP_TIMEOUT_S = 2  # a kill that is still on its way to a lost node must not reach its replacement, seconds later
GRACE_S = 60  # from Slurm's SIGTERM to the end of a preempted job
# Jobs of partition urgent take the nodes of those of partition gpu, which Slurm requeues.
ON_CREATE = f"""#!/bin/bash
set -euo pipefail
mkdir -p /fsx
mount -t lustre -o noatime,flock {SOURCE} /fsx
mkdir -p -m 1777 /fsx/scratch
if [[ $(hostname) == {CONTROLLER} ]]; then
  sed -i -e '/^PartitionName=gpu /s/$/ PriorityTier=1 GraceTime={GRACE_S}/' \\
    -e 's/^SlurmdTimeout=.*/SlurmdTimeout={SLURMD_TIMEOUT_S}/' \\
    -e 's/^MessageTimeout=.*/MessageTimeout=20/' -e 's/^TCPTimeout=.*/TCPTimeout={TCP_TIMEOUT_S}/' {CONFIGURATION}
  cat >> {CONFIGURATION} <<'END'
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes={",".join(WORKERS)} PriorityTier=10 PreemptMode=OFF
END
  systemctl enable --now slurmctld
else
  echo "SLURMD_OPTIONS=--conf-server 10.0.16.5" > /etc/default/slurmd
  systemctl daemon-reload
  until timeout 1 bash -c "exec 3<>/dev/tcp/10.0.16.5/6817" 2>/dev/null; do sleep 0.1; done
  systemctl enable --now slurmd
fi
"""
MODEL = {
    "preset": "tiny",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "max_context_width": 64,
    "dataset": trainer.DATASET,
    "dataset_config_name": "en",
    "tokenizer": f"{trainer.DATASET}/tokenizer",
    "global_batch_size": 12,
    "train_batch_size": 4,
    "data_streams": 12,
    "data_workers": 0,
    "validation_sequences": 12,
    "validation_freq": 1_000_000,
    "bf16": False,  # whose rounding differs with the micro-batches of a rank: 4e-5 of a gradient's norm in one step
}


def node(hostname: str) -> Node:
    """Return a node of the cluster."""
    worker = hostname != CONTROLLER
    return Node(
        hostname=hostname,
        private_ip=hostname.removeprefix("ip-").replace("-", "."),
        instance_id=f"i-of-{hostname}",
        instance_group="workers" if worker else "controller",
        instance_type="ml.g5.12xlarge" if worker else "ml.m5.xlarge",
        role="compute" if worker else "controller",
        partition="gpu" if worker else None,
        vcpus=48,
        memory_mib=190_000,
    )


class ElasticCluster:
    """Five compute nodes with the trainer; a context manager that boots and ends them.

    Args:
        directory: Of logs and of the shared file system.
        image: The hosts' image.
        mbit_s: What each compute node sends and receives at most: steps then take as long on any machine.
        aws: The account whose S3 the nodes reach.
    """

    def __init__(
        self, directory: Path, image: Path, *, mbit_s: int | None = None, aws: AwsStandIn | None = None
    ) -> None:
        self._mbit_s = mbit_s
        self.lifecycle = directory / "lifecycle"
        self.cluster = NamespacedCluster(
            directory=directory,
            image=image,
            cluster_name="demo",
            cluster_arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl",
            subnet_cidr="10.0.16.0/20",
            nodes=[node(CONTROLLER), *map(node, WORKERS)],
            shared=directory / "fsx",
            binds=trainer.binds(),
            profile=Profile(rewrites_slurm_conf=False),  # nobody would put back what ON_CREATE adds
            relay=("127.0.0.1", int(aws.endpoint_url.rpartition(":")[2])) if aws else None,
            environment={name: aws.environment()[name] for name in AWS_VARIABLES} if aws else None,
        )
        self.faults = Faults(self.cluster)
        self.scratch = directory / "fsx" / "scratch"
        self._instances = 0

    def __enter__(self) -> Self:
        self.lifecycle.mkdir(parents=True)
        (self.lifecycle / "on_create.sh").write_text(ON_CREATE)
        self.cluster.start()
        try:
            self._boot()
            self.limit_network(*WORKERS)
            trainer.install(self.scratch / "environment")
            self.cluster.wait_until_idle(timeout_s=WAITS_S)
        except BaseException:  # Ctrl-C too: no host stays
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()

    def limit_network(self, *hosts: str) -> None:
        """Let hosts send and receive no more than ``mbit_s``, if it was given."""
        for host in hosts if self._mbit_s else ():
            limit_network(self.cluster.fabric, host, mbit_s=self._mbit_s)

    def _boot(self) -> None:
        if failed := [result for result in self.cluster.boot(self.lifecycle).values() if not result.ok]:
            raise HostError("\n".join(result.describe() for result in failed))

    def launch(self, name: str, nodes: str, *flags: str, ranks: int = 1, **options: Any) -> ElasticRun:
        """Submit a run as a user does; ``flags`` are those of launch, ``options`` those of the trainer."""
        given = {name: value for name, value in {**MODEL, **options}.items() if value is not None}
        trained = " ".join(as_flag(name, value) for name, value in given.items())
        said = self.cluster.run(
            f"{ENVIRONMENT}/bin/podwright-train launch --run-dir=/fsx/scratch/{name} --environment={ENVIRONMENT} "
            f"--nodes={nodes} {' '.join(flags)} --nproc-per-node={ranks} --partition=gpu --accelerator=cpu -- {trained}"
        ).stdout
        return ElasticRun(self, int(re.findall(r"submitted job (\d+)", said)[0]), RunFolder(self.scratch / name))

    def lose_everything(self, run: ElasticRun) -> None:
        """Cut the power of all compute nodes, delete the run's folder, and bring the nodes back, empty."""
        for hostname in WORKERS:
            self.cluster.kill(hostname)
        shutil.rmtree(run.folder.root)
        self.cluster.run("scancel --user ubuntu")
        for hostname in WORKERS:  # one by one: each writes the new instance into the others' resource_config.json
            self.restore(hostname)
        self.end_jobs()

    def restore(self, hostname: str) -> None:
        """Bring a host that was lost back, as HyperPod replaces an instance."""
        self._instances += 1
        booted = self.cluster.replace(hostname, instance_id=f"i-new-{self._instances}", lifecycle=self.lifecycle)
        if not booted.ok:
            raise HostError(booted.describe())
        self.limit_network(hostname)

    def auto_resume(self, run: ElasticRun) -> None:
        """Act as HyperPod's agent for `srun --auto-resume`; raises ``HostError`` for a run that is not its affair."""
        self.cluster.auto_resume(run.job, lifecycle=self.lifecycle, new_instance_id=lambda _: "i-resumed", timeout_s=5)

    def jobs_of(self, run: ElasticRun) -> list[dict[str, str]]:
        """Return the fields of `scontrol show job` of each host's job."""
        shown = self.cluster.run(["scontrol", "show", "job", "--oneliner", str(run.job)]).stdout
        return [dict(re.findall(r"(\w[\w/:]*)=(\S*)", line)) for line in shown.splitlines()]

    def restarts(self, run: ElasticRun, *, on: str) -> int:
        """Return how often Slurm has requeued the job that runs on a host."""
        (job,) = [job for job in self.jobs_of(run) if job["JobState"] == "RUNNING" and job["NodeList"] == on]
        return int(job["Restarts"])

    def host_of_last_task(self, run: ElasticRun) -> str:
        """Return the host of the job that has the number of the whole array."""
        return next(job["NodeList"] for job in self.jobs_of(run) if job["JobId"] == str(run.job))

    def hosts_that_run(self, run: ElasticRun) -> int:
        """Return how many of the run's hosts have a node."""
        return sum(job["JobState"] == "RUNNING" for job in self.jobs_of(run))

    def end_jobs(self) -> None:
        """Cancel what runs, and wait until nodes are idle."""
        self.cluster.run("scancel --user ubuntu")
        left = "squeue --noheader --user=ubuntu"
        wait_for(
            lambda: not self.cluster.run(left).stdout,
            timeout_s=WAITS_S,
            description=lambda: self.cluster.run(left).stdout,
        )
        self.cluster.wait_until_idle(timeout_s=WAITS_S)


class ElasticRun:
    """A run on the cluster."""

    def __init__(self, cluster: ElasticCluster, job: int, folder: RunFolder) -> None:
        self.job, self.folder = job, folder
        self._cluster = cluster

    def submit_again(self) -> None:
        """Submit the run's script as a user does whose job has failed."""
        script = f"/fsx/scratch/{self.folder.root.name}/train.sbatch"
        self.job = int(self._cluster.cluster.run(["sbatch", "--parsable", script]).stdout)

    def steps(self) -> dict[int, dict[str, Any]]:
        """Return each step as it counts in the end."""
        return {event["step"]: event for event in logged(self.folder, "train")}

    def memberships(self) -> list[dict[str, Any]]:
        """Return the generations that have taken a step, or ended before one."""
        return list(logged(self.folder, "membership"))

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that train."""
        return list(self.memberships()[-1]["hosts"])

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so; else raise ``HostError`` with what every host said."""
        wait_for(
            lambda: bool(condition()),
            timeout_s=WAITS_S,
            description=lambda: f"{what}\n{self.said()}",
            pause_s=LOOK_S,
        )

    def said(self) -> str:
        """Return the last lines of each host, and what Slurm says of jobs and nodes."""
        logs = sorted([*self.folder.elastic.glob("host-*.log"), *self.folder.root.glob("train.log")])
        asked = f"scontrol show job --oneliner {self.job}; sinfo --Node --long; tail -n 200 {CONTROLLER_LOG}; date"
        shown = self._cluster.cluster.run(asked, user="root", check=False).stdout
        return "\n".join([*(f"--- {log.name}\n{tail(log)}" for log in logs), "--- Slurm", shown])

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is done."""
        self.wait(lambda: max(self.steps(), default=0) >= step, f"step {step}")

    def wait_for_nodes(self, number: int, *, after: int = 0) -> dict[str, Any]:
        """Wait until so many nodes train, in a generation after that; return its event."""

        def there() -> bool:
            found = self.memberships()
            return bool(found) and found[-1]["nodes"] == number and found[-1]["generation"] > after

        self.wait(there, f"{number} nodes")
        return self.memberships()[-1]

    def next_step_after(self, at: float) -> float:
        """Wait for the first step that a new start has taken since a time; return the seconds from then."""

        def found() -> float | None:
            started = False
            for event in logged(self.folder):
                if event["event"] == "start" and event["time"] > at:
                    started = True
                elif event["event"] == "train" and started:
                    return float(event["time"]) - at
            return None

        self.wait(lambda: found() is not None, "a step after a start")
        return found() or 0.0

    def wait_for_end(self) -> None:
        """Wait until the run is complete, for as long as it takes steps."""
        while not self._ended():
            self._wait_after(max(self.steps(), default=0))
        self._cluster.cluster.wait_until_idle(timeout_s=WAITS_S)

    def _ended(self) -> bool:
        return any(True for _ in logged(self.folder, "end"))

    def _wait_after(self, step: int) -> None:
        self.wait(lambda: self._ended() or max(self.steps(), default=0) > step, f"a step after {step}, or the end")


@contextmanager
def lost(cluster: ElasticCluster, hostname: str, how: Failure) -> Iterator[float]:
    """Lose a host; yield when that was; at the end bring it back."""
    at = time.time()
    cluster.cluster.kill(hostname, how=how)
    try:
        yield at
    finally:
        cluster.restore(hostname)


def difference(steps: Mapping[int, Mapping[str, Any]], undisturbed: Mapping[int, Mapping[str, Any]]) -> float:
    """Return the largest difference of a step's loss from the undisturbed run, which may have gone further.

    Raises:
        AssertionError: A step is missing, or its sequences differ.
    """
    assert sorted(steps) == list(range(1, max(steps) + 1))
    for step, event in steps.items():
        for name in ("batch_digest", "sequences"):
            assert undisturbed[step][name] == event[name], f"{name} of step {step}"
    return max(abs(float(undisturbed[step]["loss"]) - float(event["loss"])) for step, event in steps.items())
