"""Render the jobs of a run of NxD Training, and submit them in order: each waits for the one before."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from podwright_training import shell_templates
from podwright_training.errors import UserError
from podwright_training.jobs.spec import JobSpec, Log, Model
from podwright_training.nxdt.config import model_config, nemo_config
from podwright_training.nxdt.plan import CACHE_RECORD, COMMIT, COMPILER, MEMBERS, PACKAGES, SOURCE, Plan
from podwright_training.private_folder import make_private
from podwright_training.run_claim import OwnerKind, claim_of_run
from podwright_training.run_folder import NXDT_STEPS, writable, write_atomically

ON_ALL_NODES = ("compile", "train")


class ChainError(UserError):
    """Slurm is missing, or refused a job."""


def files(plan: Plan) -> dict[str, str]:
    """Return the files of the run's folder ``nxdt`` by name."""
    import yaml  # --help does without

    return {
        "config.yaml": yaml.safe_dump(nemo_config(plan), sort_keys=False),
        "config.json": json.dumps(model_config(plan), indent=2) + "\n",
        "run.yaml": replace(plan.config, run_dir=str(plan.run.root)).with_absolute_paths().to_yaml(),
        **{f"{step}.sbatch": script(plan, step) for step in NXDT_STEPS},
    }


def script(plan: Plan, step: str) -> str:
    """Return the batch script of one of ``NXDT_STEPS``."""
    values: Mapping[str, object] = {
        "cache": plan.cache,
        "dataset": plan.dataset,
        "environment": plan.environment,
        "folder": plan.folder,
        "index": plan.index.rstrip("/"),
        "podwright": plan.podwright / "bin" / "python",
        "python": plan.python,
        "run_dir": plan.run.root,
        "source": SOURCE,
    }
    return shell_templates.render(
        Path(__file__).with_name("step.sbatch"),
        **{name: shlex.quote(str(value)) for name, value in values.items()},
        log=plan.run.step_log(step),
        plan=plan,
        step=step,
        nodes=plan.nodes if step in ON_ALL_NODES else 1,
        ranks=plan.layout.ranks // plan.nodes,
        packages=shlex.join(PACKAGES),
        commit=COMMIT,
        compiler=COMPILER,
        record=CACHE_RECORD,
        cache_is_remote="://" in plan.cache,
    )


def followed(plan: Plan) -> JobSpec:
    """Return the report's facts: the patterns of the training job's log, and the model."""
    config = plan.config
    model = Model(
        parameters=config.model.parameters,
        flops_per_token=config.model.flops_per_token(config.max_context_width),
        tokens_per_step=config.batch_sequences(plan.layout.data) * config.max_context_width,
        steps=config.max_steps,
        accelerator=MEMBERS[plan.instance_type],
    )
    return JobSpec(
        command=("training_orchestrator.py",),
        nodes=plan.nodes,
        ranks_per_node=plan.layout.ranks // plan.nodes,
        log=Log(parser="nxdt"),
        model=model,
    )


def submit(plan: Plan) -> dict[str, int]:
    """Write the files and submit the jobs, each after the success of the one before; return their numbers.

    Raises:
        ChainError: Slurm is missing, or refused one; those before it are cancelled.
        OwnedRunError: Another job trains the run, or waits to.
        UserError: The folder for environment, dataset and cache is another user's, or open to others.
    """
    with writable(plan.run.root), claim_of_run(plan.run, OwnerKind.LAUNCH) as claim:
        plan.folder.mkdir(parents=True, exist_ok=True)
        make_private(plan.shared)
        for name, content in files(plan).items():
            write_atomically(plan.folder / name, content)
        write_atomically(plan.run.job, followed(plan).to_json())
        jobs = _submit_steps(plan)
        claim.give_to_job(str(jobs[NXDT_STEPS[-1]]))  # it waits for all others
    return jobs


def _submit_steps(plan: Plan) -> dict[str, int]:
    """Submit the jobs of all steps; return their numbers."""
    jobs: dict[str, int] = {}
    for step in NXDT_STEPS:
        after = [f"--dependency=afterok:{[*jobs.values()][-1]}", "--kill-on-invalid-dep=yes"] if jobs else []
        command = ["sbatch", "--parsable", *after, str(plan.folder / f"{step}.sbatch")]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except FileNotFoundError as error:
            raise ChainError("sbatch not found: submit from a node of the cluster") from error
        except subprocess.CalledProcessError as error:
            if jobs:
                subprocess.run(["scancel", *map(str, jobs.values())], check=False)
            raise ChainError(f"Slurm rejected {step}.sbatch of {plan.folder}: {error.stderr.strip()}") from error
        jobs[step] = int(answer.split(";")[0])
    return jobs
