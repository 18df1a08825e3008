"""Render a job's batch script from a template."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from podwright_common.exit_status import DIVERGED
from podwright_training import shell_templates
from podwright_training.elastic.membership import FAILED, FINISHED, LEFT, UNABLE, USER_ERROR
from podwright_training.elastic.offenders import MOST_FAILURES, WITHIN_S
from podwright_training.jobs.spec import JobSpec
from podwright_training.run_folder import RunFolder

SAVE_S = 600  # limit of the last checkpoint
SIGNAL_LEAD_S = SAVE_S + 60  # Slurm signals so long before the time limit
TEMPLATE, ELASTIC_TEMPLATE, JOB_TEMPLATE = "train.sbatch", "elastic.sbatch", "job.sbatch"


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """The fewest nodes of an elastic job, and its spare nodes, which replace lost ones."""

    min_nodes: int
    spares: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Inputs of the batch script."""

    run: RunFolder
    nodes: int
    nproc_per_node: int  # ranks: one per accelerator
    environment: Path  # virtual environment, visible on all nodes
    partition: str | None = None
    accelerator: str = ""  # "" | "gpu" | "neuron"
    efa: bool = False
    auto_resume: bool = False  # HyperPod's srun option; stock Slurm refuses it
    gres: str | None = None  # Where Slurm counts GPUs, a step sees only those that the job requested.
    time_limit: str | None = None
    trainer_arguments: tuple[str, ...] = ()
    elastic: Elastic | None = None
    spec: JobSpec | None = None  # job of another program than our trainer

    @property
    def tasks_per_node(self) -> int:
        """Return the processes that srun starts on each node: launchers, or the ranks themselves."""
        return self.nproc_per_node if self.spec and self.spec.launcher == "srun" else 1

    @property
    def program(self) -> Path:
        """Return the command that the batch script starts on each node."""
        return self.environment / "bin" / ("podwright-train" if self.elastic or self.spec else "torchrun")

    @property
    def output(self) -> str:
        """Return the files of the job's output, a shell's pattern if there are several."""
        return str(self.run.host_log("*")) if self.elastic else shlex.quote(str(self.run.log))


def render(job: Job) -> str:
    """Render the batch script."""
    name = ELASTIC_TEMPLATE if job.elastic else JOB_TEMPLATE if job.spec else TEMPLATE
    return shell_templates.render(
        Path(__file__).with_name(name),
        job=job,
        save_s=SAVE_S,
        signal_lead_s=SIGNAL_LEAD_S,
        torchrun=shlex.quote(str(job.program)),
        podwright_train=shlex.quote(str(job.program)),
        failures=shlex.quote(str(job.run.elastic / "host-failures")),
        most_failures=MOST_FAILURES,
        within_s=WITHIN_S,
        left_status=LEFT,
        unable_status=UNABLE,
        ended_statuses=[FINISHED, USER_ERROR, DIVERGED, FAILED],
        run_dir=shlex.quote(str(job.run.root)),
        trainer_arguments=shlex.join(job.trainer_arguments),
        **(_of_container(job, job.spec) if job.spec else {}),
    )


def _of_container(job: Job, spec: JobSpec) -> dict[str, str]:
    files = dict.fromkeys(str(Path(path).expanduser()) for path in spec.secrets.values())
    mounts = ",".join([f"{job.run.root}:{job.run.root}", *(f"{file}:{file}:ro" for file in files), *spec.mounts])
    return {
        "log": shlex.quote(str(job.run.log)),
        "start": shlex.quote(str(job.run.start)),
        "container": shlex.quote(spec.container),
        "mounts": shlex.quote(mounts),
    }
