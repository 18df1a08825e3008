"""Write a job's files into the run's folder, and submit its batch script to Slurm.

For another trainer's job these are ``job.json``, ``train.sbatch`` and ``start.sh``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from podwright_training.errors import LaunchError
from podwright_training.jobs.script import start_script
from podwright_training.jobs.spec import JobSpec, fill
from podwright_training.private_folder import make_closed, other_owner
from podwright_training.run_claim import OwnerKind, claim_of_run
from podwright_training.run_folder import writable, write_atomically
from podwright_training.run_secret import run_secret
from podwright_training.slurm.batch_script import Job, render


def _write_job(job: Job, spec: JobSpec) -> None:
    """Write the job, the script of its nodes, and its files into the run's folder."""
    values = {"run_dir": job.run.root, "nodes": job.nodes, "ranks_per_node": job.nproc_per_node}
    values["ranks"] = job.nodes * job.nproc_per_node
    write_atomically(job.run.job, spec.to_json())
    write_atomically(
        job.run.start, start_script(spec, values, environment=job.environment, accelerator=job.accelerator)
    )
    for name, content in spec.files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        write_atomically(job.run.root / name, fill(text, values))


def problems_of_job(spec: JobSpec, root: Path) -> Iterator[str]:
    """Yield problems of the folders and files that a job names, if they are on the run's own file system.

    Others may be there on the nodes alone.
    """
    environment, image = root / spec.environment, root / spec.container
    if spec.environment and _on_same_disk(environment, root) and not (environment / "bin").is_dir():
        yield f"environment: got {spec.environment}, which has no folder bin: name a virtual environment"
    if spec.container[:1] in ("/", ".") and _on_same_disk(image, root) and not image.is_file():
        yield f"container: got {spec.container}, which is not a file: name an image's file, or registry#image:tag"
    for name in spec.files:
        path = root / name
        if path.is_dir():
            yield f"files: {name} is a folder in {root}"
        above = [folder for folder in path.parents if folder.is_relative_to(root)]
        yield from (f"files: {name} needs the folder {folder}, which is a file" for folder in above if folder.is_file())


def _on_same_disk(path: Path, other_path: Path) -> bool:
    """Return whether two paths, or their nearest existing parents, are on one file system."""
    return _file_system_of(path) == _file_system_of(other_path)


def _file_system_of(path: Path) -> int:
    """Return the device number of the file system that has a path or its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if folder.exists()).stat().st_dev


def submit(job: Job) -> int:
    """Write the script into the run folder and submit it; return the job id.

    Raises:
        LaunchError: The environment or Slurm is missing, or Slurm rejects the job.
        OwnedRunError: Another job trains the run, or waits to.
    """
    if not job.program.exists():
        raise LaunchError(f"--environment {job.environment}: no {job.program}")
    if job.spec and (problems := list(problems_of_job(job.spec, job.run.root))):
        raise LaunchError("\n".join(problems))
    with writable(job.run.root):
        job.run.root.mkdir(parents=True, exist_ok=True)
        if owner := other_owner(job.run.root):  # who made it since it was not there
            raise LaunchError(f"--run-dir: {job.run.root} is {owner}'s")
        with claim_of_run(job.run, OwnerKind.LAUNCH) as claim:
            if job.elastic:
                make_closed(job.run.elastic)
            run_secret(job.run)
            if job.spec:
                _write_job(job, job.spec)
            write_atomically(job.run.sbatch, render(job))
            number = _submit_script(job)
            claim.give_to_job(str(number))
    return number


def _submit_script(job: Job) -> int:
    """Submit the run's script; return the job id."""
    command = ["sbatch", "--parsable", str(job.run.sbatch)]
    try:
        printed_job_id = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise LaunchError("sbatch not found: submit from a node of the cluster (Slurm is in /opt/slurm/bin)") from error
    except subprocess.CalledProcessError as error:
        raise LaunchError(f"Slurm rejected {job.run.sbatch}: {error.stderr.strip()}") from error
    return int(printed_job_id.split(";")[0])  # "number" or "number;cluster"
