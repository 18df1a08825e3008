"""The rehearsal: the steps of a user on AWS, on this machine.

Each step has a name and a time and, after a failure, the host, the last lines of the log and the log's path.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from podwright.config_file import CONFIG_VARIABLE
from podwright.operations.deployment.terraform import TerraformError
from podwright.settings.root import Settings
from podwright_bootstrap.contract import RUNS_DIRECTORY, SHARED_DIRECTORY
from podwright_rehearsal import processes
from podwright_rehearsal.aws import AwsStandIn, AwsStandInError
from podwright_rehearsal.clusters.profile import Release
from podwright_rehearsal.clusters.releases import NEWEST
from podwright_rehearsal.hosts.host_errors import HostError
from podwright_rehearsal.hosts.waiting import wait_for
from podwright_rehearsal.run import cluster_status, operator, story
from podwright_rehearsal.run.deployment import Deployment
from podwright_rehearsal.run.hosting import Debian13Hosts, Hosts
from podwright_rehearsal.run.progress import Progress, StepFailed
from podwright_rehearsal.run.summary import Summary
from podwright_rehearsal.run.supplies import SHARDS, Supplies, emptied
from podwright_training.events import EndEvent, StartEvent, TrainEvent, ValidationEvent
from podwright_training.run_folder import RunFolder

RUN_NAME = "rehearsal"
LOGS = "logs"
RANKS = 4  # One small machine computes their steps in minutes, on any number of hosts.
MAX_STEPS = 60
CHECKPOINT_FREQ = 15
STEPS_PAST_CHECKPOINT = 5  # The kill loses these steps, which must be repeated identically.
TRAINER_ARGUMENTS = (
    "--preset=tiny",
    f"--max-steps={MAX_STEPS}",
    f"--checkpoint-freq={CHECKPOINT_FREQ}",
    f"--validation-freq={CHECKPOINT_FREQ}",
    f"--data-streams={SHARDS}",
    "--no-bf16",
)
PLAN_AGAIN = "plan again"  # runs while the nodes boot: neither waits for the other
AFTER_PLAN = "sinfo"
# Of clusters without a training program no job is rehearsed.
TRAINING_STEPS = (
    *("environment", "submit", "train", "lose a host", "train on"),
    *("consolidate", "evaluate", "generate", "report"),
)
NO_TRAINING = "training: nodes have no training program, so no job runs and no host is lost"
TRAIN_TIMEOUT_S = 900
DIGITS = 4  # to which perplexity must agree


@dataclass
class Rehearsal:
    """One rehearsal of one configuration: ``steps`` gives the order, and each step reads attributes of earlier ones."""

    config: Path
    settings: Settings
    supplies: Supplies
    progress: Progress
    keep: bool = False
    run_name: str = RUN_NAME
    kind_of_hosts: type[Hosts] = Debian13Hosts
    profile: Release = NEWEST
    directory: Path = field(init=False)
    summary: Summary = field(default_factory=Summary)
    aws: AwsStandIn = field(init=False)
    deployment: Deployment = field(init=False)
    hosts: Hosts = field(init=False)
    job_id: int | None = field(init=False, default=None)
    killed_at: int = field(init=False)
    plan: Future[None] = field(init=False)  # the second one

    def __post_init__(self) -> None:
        self.directory = self.kind_of_hosts.folder
        self.plan = Future()
        self.plan.set_result(None)

    @property
    def run(self) -> RunFolder:
        """The run folder, seen from this machine."""
        return RunFolder(self.hosts.shared / RUNS_DIRECTORY / self.run_name)

    @property
    def logs(self) -> Path:
        """The folder of all programs' logs."""
        return self.directory / LOGS

    @property
    def run_on_hosts(self) -> Path:
        """The run folder's path on the hosts."""
        return self.hosts.mount_path / RUNS_DIRECTORY / self.run_name

    def run_steps(self) -> Summary:
        """Run every step.

        Raises:
            StepFailed: a step failed. Everything that was started is ended before.
        """
        began = time.monotonic()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)  # Terraform's states, keys and the hosts' disks are nobody else's
        self.progress.foretell(story.before(self.directory))
        self._say_what_is_left_out()
        with ExitStack() as stack, self.progress.shown():
            executor = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(self._end_everything)
            for name, step in steps(self.kind_of_hosts, trains=trains(self.settings)).items():
                if name == "destroy" and self.keep:
                    continue
                if name == PLAN_AGAIN:
                    self.plan = executor.submit(self._run_step, name, step, stack)
                    continue
                if name == AFTER_PLAN:
                    self.plan.result()
                self._run_step(name, step, stack)
            self.summary.wall_time = f"{time.monotonic() - began:.0f} s"
            story.remember(self.directory, self.summary.wall_time)
            if self.keep:
                self._stay_up()
        return self.summary

    # ---- the steps -------------------------------------------------------------------------------------------------

    def start_aws(self, stack: ExitStack) -> str:
        """Start the AWS stand-in with an empty account."""
        self.aws = AwsStandIn(
            directory=emptied(self.directory / "aws"),
            region=self.settings.region,
            instant_deletion=True,
            order_seed=secrets.randbelow(2**32),  # aws.log has it
        )
        stack.callback(self.aws.stop)
        self.aws.start()
        return self.aws.endpoint_url

    def deploy(self, _: ExitStack) -> str:
        """Run ``cdktf deploy '*'`` with the real cdktf, Terraform and AWS provider."""
        self.deployment = Deployment(
            config=self.config,
            settings=self.settings,
            aws=self.aws,
            project=emptied(self.directory / "project"),
            logs=emptied(self.directory / LOGS),
            on_line=self.progress.note,
        )
        self.summary.resources_applied = self.deployment.deploy()
        return f"{self.summary.resources_applied} resources applied"

    def plan_again(self, _: ExitStack) -> str:
        """Synthesize and plan again; fail if Terraform wants any change."""
        self.deployment.plan_nothing()
        self.summary.second_plan = "No changes"
        return "No changes"

    def start_hosts(self, stack: ExitStack) -> str:
        """Start one host for each node that the SageMaker API lists."""
        self.hosts = self.kind_of_hosts(
            self.directory, self.settings, self.supplies, self.deployment, self.progress.note, self.profile
        )
        self.hosts.start()
        stack.callback(self.hosts.stop)
        roles = Counter(node.role for node in self.hosts.cluster.nodes.values())
        started = ", ".join(f"{count} {role}" for role, count in roles.items())
        return "; ".join(filter(None, (started, self.hosts.limits)))

    def prepare(self, name: str) -> str:
        """Prepare the hosts for the first job: run the lifecycle scripts, where hosts permit it."""
        detail = self.hosts.preparation[name](self.hosts)
        self.summary.preparation[name] = detail
        if self.hosts.boot_seconds:
            self.summary.preparation["bootstrap steps, slowest host"] = cluster_status.slowest_boot_steps(
                self.hosts.boot_seconds
            )
        return detail

    def look_at_slurm(self, _: ExitStack) -> str:
        """Wait until ``sinfo`` shows every compute node idle."""
        self.hosts.cluster.wait_until_idle()
        self.summary.nodes_idle = f"{len(self._compute())} of {len(self._compute())}"
        return f"{self.summary.nodes_idle} nodes idle"

    def submit(self, _: ExitStack) -> str:
        """Run ``podwright-train launch`` on the login node, if there is one, or else the controller."""
        data = self.hosts.mount_path / "data"
        nodes = self.hosts.cluster.nodes.values()
        hosts, ranks_per_host = job_size(sum(node.partition == self._partition() for node in nodes))
        answer = self._trainer(
            "launch",
            *(
                f"--run-dir={self.run_on_hosts}",
                f"--nodes={hosts}",
                f"--nproc-per-node={ranks_per_host}",
                f"--partition={self._partition()}",
                "--accelerator=cpu",
                *self.hosts.submit_flags,
            ),
            "--",
            *TRAINER_ARGUMENTS,
            *(f"--dataset={data}", "--dataset-config-name=en", f"--tokenizer={data}/tokenizer"),
        )
        self.job_id = int(re.findall(r"submitted job (\d+)", answer)[0])
        self.summary.ranks = f"{RANKS}, {ranks_per_host} on each of {hosts} of {len(self._compute())} compute nodes"
        return f"job {self.job_id}, ranks: {self.summary.ranks}"

    def train_until_kill(self, _: ExitStack) -> str:
        """Wait until the job is some steps past its second checkpoint."""
        target = 2 * CHECKPOINT_FREQ + STEPS_PAST_CHECKPOINT
        self._wait_for("the kill's step", lambda: self._last_step() >= target)
        self.killed_at = self._last_step()
        return f"step {self.killed_at}"

    def lose_host(self, _: ExitStack) -> str:
        """Fail a host of the job, then replace it and resume the job as HyperPod does."""
        victim = self.hosts.cluster.job_hosts(self._job())[-1]
        self.hosts.lose(victim)
        self.killed_at = self._last_step()
        self.hosts.auto_resume(self._job())
        self._wait_for("the resume", lambda: len(list(self.run.events_of(StartEvent))) > 1)
        resumed = list(self.run.events_of(StartEvent))[-1].step
        self.summary.kill = f"killed at step {self.killed_at}, resumed from step {resumed}"
        return f"{victim} {self.summary.kill}"

    def train_to_end(self, _: ExitStack) -> str:
        """Wait for the job's end; check the order of the data and that the loss has fallen."""
        self._wait_for("the end of training", lambda: any(True for _ in self.run.events_of(EndEvent)))
        self._wait_for("the job's end", lambda: self._state() == "COMPLETED")
        self._check_data_order()
        losses = [event.loss for event in last_per_step(self.run)]
        if losses[-1] > losses[0] - 1.0:
            raise StepFailed(
                f"the loss fell only from {losses[0]:.3f} to {losses[-1]:.3f}", host="compute", log=self.run.log
            )
        self.summary.loss = f"{losses[0]:.3f} -> {losses[-1]:.3f}"
        return f"{len(losses)} steps, loss {self.summary.loss}, data order unbroken"

    def consolidate(self, _: ExitStack) -> str:
        """Export the newest checkpoint as a Hugging Face model."""
        self._trainer("consolidate", "--run-dir", str(self.run_on_hosts))
        return f"{sum(file.stat().st_size for file in self.run.hf.iterdir()) / 1e6:.1f} MB in {self.run.hf}"

    def evaluate(self, _: ExitStack) -> str:
        """Evaluate the exported model with transformers; its perplexity must equal the trainer's."""
        answer = json.loads(self._trainer("evaluate", "--json", "--run-dir", str(self.run_on_hosts)))
        trainer = list(self.run.events_of(ValidationEvent))[-1].perplexity
        if f"{answer['perplexity']:.{DIGITS}g}" != f"{trainer:.{DIGITS}g}":
            raise StepFailed(
                f"perplexity is {answer['perplexity']:.6g} after consolidation, {trainer:.6g} in training",
                log=self.run.metrics,
            )
        self.summary.perplexity = f"{answer['perplexity']:.6g} (trainer {trainer:.6g})"
        return self.summary.perplexity

    def generate(self, _: ExitStack) -> str:
        """Generate a few lines with the exported model."""
        self._trainer("generate", "--run-dir", str(self.run_on_hosts))
        return self.run.samples.read_text().strip().splitlines()[-1][:70]

    def report(self, _: ExitStack) -> str:
        """Write the report: a page with every curve."""
        self._trainer("report", "--run-dir", str(self.run_on_hosts))
        return (self.run.report / "index.html").as_uri()

    def look_back(self, _: ExitStack) -> str:
        """Check that every compute node is idle again and runs a task."""
        self.hosts.cluster.wait_until_idle()
        self.summary.slurm = cluster_status.ask_slurm(self.hosts.cluster, self.job_id, partition=self._partition())
        return ", ".join(self.summary.slurm)

    def destroy(self, _: ExitStack) -> str:
        """Run ``cdktf destroy '*'``; fail if any resource is left in the account."""
        self.hosts.stop()
        with ThreadPoolExecutor(1) as executor:  # environments are a gigabyte, which the next rehearsal builds anew
            executor.submit(shutil.rmtree, self.hosts.shared / SHARED_DIRECTORY, ignore_errors=True)
            self.deployment.destroy()
        self.hosts.delete_logs()
        remaining = self.aws.inventory()
        if remaining:
            raise StepFailed(
                f"{len(remaining)} resources left: {'; '.join(remaining)}", log=self.deployment.log("destroy")
            )
        self.summary.resources_left = "0"
        return "0 resources left"

    def _say_what_is_left_out(self) -> None:
        lines = [*self.kind_of_hosts.omitted_parts(self.settings), *([] if trains(self.settings) else [NO_TRAINING])]
        for line in lines:
            self.progress.show(f"not rehearsed: {line}")
        if lines:
            self.summary.preparation["not rehearsed"] = "\n".join(lines)

    def _end_everything(self) -> None:
        """End every process, also those that a plan starts until it has failed."""
        processes.end_all(self.plan.done)

    def _run_step(self, name: str, step: Step, stack: ExitStack) -> None:
        with self.progress.step(name) as record:
            try:
                record.detail = step(self, stack)
            except StepFailed as failure:
                failure.step = name
                raise
            except (AwsStandInError, HostError, TerraformError) as error:
                raise StepFailed(str(error), step=name) from error

    # ---- how they do it --------------------------------------------------------------------------------------------

    def _stay_up(self) -> None:
        variables = self.hosts.operator_variables() | {CONFIG_VARIABLE: str(self.config)}
        file = operator.write(self.directory, variables)
        self.progress.show(f"up: AWS at {self.aws.endpoint_url}, run folder {self.run.root}; Ctrl-C ends everything")
        self.progress.show("in another terminal: podwright rehearse shell controller")
        self.progress.show(f"or any command there: . {file} && podwright status")
        try:
            while True:
                time.sleep(1)
        finally:
            file.unlink()

    def _compute(self) -> list[str]:
        return [name for name, node in self.hosts.cluster.nodes.items() if node.role == "compute"]

    def _partition(self) -> str:
        """Return the partition of the first compute group."""
        return next(node.partition for node in self.hosts.cluster.nodes.values() if node.partition)

    def _front(self) -> str:
        """Return the login node, or the controller in a cluster without login nodes."""
        logins = [name for name, node in self.hosts.cluster.nodes.items() if node.role == "login"]
        return logins[0] if logins else self.hosts.cluster.controller

    def _trainer(self, *arguments: str) -> str:
        """Run ``podwright-train`` from the environment that the bootstrap built."""
        command = [f"{self.hosts.environment}/bin/podwright-train", *arguments]
        answer = self.hosts.cluster.run(command, host=self._front(), check=False, timeout_s=TRAIN_TIMEOUT_S)
        log = self.logs / f"podwright-train-{arguments[0]}.log"
        log.write_text(answer.stdout + answer.stderr)
        if answer.returncode:
            raise StepFailed(
                f"podwright-train {arguments[0]} ended with exit code {answer.returncode}", host=self._front(), log=log
            )
        return answer.stdout

    def _wait_for(self, event: str, reached: Callable[[], bool]) -> None:
        def has_happened() -> bool:
            if reached():
                return True
            state = self._state()
            if state in {"FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}:
                raise StepFailed(f"job {self.job_id} is {state} before {event}", host="compute", log=self.run.log)
            if self.run.log.exists() and (lines := self.run.log.read_text(errors="replace").splitlines()):
                self.progress.note(lines[-1])
            return False

        wait_for(
            has_happened,
            timeout_s=TRAIN_TIMEOUT_S,
            description=lambda: f"{event}; the job is {self._state()}",
            pause_s=0.5,
        )

    def _state(self) -> str:
        return self.hosts.cluster.job(self._job())["JobState"]

    def _job(self) -> int:
        assert self.job_id is not None  # noqa: S101 -- the step that submits it comes before
        return self.job_id

    def _last_step(self) -> int:
        return max((event.step for event in self.run.events_of(TrainEvent)), default=0)

    def _check_data_order(self) -> None:
        """Check that every step ran, a repeated step saw the same tokens, and no two steps did."""
        digests: dict[int, set[str | None]] = {}
        for event in self.run.events_of(TrainEvent):
            digests.setdefault(event.step, set()).add(event.batch_digest)
        if sorted(digests) != list(range(1, MAX_STEPS + 1)):
            raise StepFailed(
                f"the metrics hold {len(digests)} different steps, not 1 to {MAX_STEPS}", log=self.run.metrics
            )
        changed = [step for step, digests_of_step in digests.items() if len(digests_of_step) > 1]
        if changed:
            raise StepFailed(f"steps {changed} saw other data after the resume than before", log=self.run.metrics)
        if len(set.union(*digests.values())) != MAX_STEPS:
            raise StepFailed("two steps saw the same data", log=self.run.metrics)


Step = Callable[[Rehearsal, ExitStack], str]


def job_size(compute_nodes: int) -> tuple[int, int]:
    """Return hosts of the job and ranks on each: the most hosts that share the ranks evenly."""
    hosts = max(number for number in range(1, min(compute_nodes, RANKS) + 1) if RANKS % number == 0)
    return hosts, RANKS // hosts


def trains(settings: Settings) -> bool:
    """Return whether nodes have the training program that the rehearsal's job runs."""
    return settings.training.source != "none"


def steps(kind_of_hosts: type[Hosts], *, trains: bool = True) -> dict[str, Step]:
    """Return the steps by name, in order; each kind of hosts has its own between start and first job."""

    def preparing(name: str) -> Step:
        return lambda rehearsal, _: rehearsal.prepare(name)

    named: dict[str, Step] = {
        "start AWS": Rehearsal.start_aws,
        "deploy": Rehearsal.deploy,
        PLAN_AGAIN: Rehearsal.plan_again,
        "start hosts": Rehearsal.start_hosts,
        **{name: preparing(name) for name in kind_of_hosts.preparation},
        AFTER_PLAN: Rehearsal.look_at_slurm,
        "submit": Rehearsal.submit,
        "train": Rehearsal.train_until_kill,
        "lose a host": Rehearsal.lose_host,
        "train on": Rehearsal.train_to_end,
        "consolidate": Rehearsal.consolidate,
        "evaluate": Rehearsal.evaluate,
        "generate": Rehearsal.generate,
        "report": Rehearsal.report,
        "look back": Rehearsal.look_back,
        "destroy": Rehearsal.destroy,
    }
    return {name: step for name, step in named.items() if trains or name not in TRAINING_STEPS}


def last_per_step(run: RunFolder) -> list[TrainEvent]:
    """Return the last event of each training step, in step order: steps after a checkpoint are repeated."""
    by_step = {event.step: event for event in run.events_of(TrainEvent)}
    return [by_step[step] for step in sorted(by_step)]
