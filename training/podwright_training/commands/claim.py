"""``podwright-train claim``: say who trains a run, or claim it for a job of another trainer, or for a command."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from podwright_training.errors import UserError
from podwright_training.run_claim import CLAIMED_BY, Owner, OwnerKind, claim_of_run
from podwright_training.run_folder import RunFolder, writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``podwright-train claim``."""
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--job", action="store_true", help="claim the run for this job of Slurm until the job ends. Default: only look"
    )
    parser.add_argument(
        "program",
        nargs="*",
        metavar="word",
        help="after `--`: a command that changes the run's files, and may launch it",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0 if no other job trains the run; otherwise raise an error that names that job."""
    folder = RunFolder(args.run_dir)
    if args.program:
        with writable(folder.root), claim_of_run(folder, OwnerKind.LAUNCH):
            environment = {**os.environ, CLAIMED_BY: str(os.getpid())}
            return subprocess.run(args.program, env=environment, check=False).returncode
    claim = claim_of_run(folder)
    if not args.job:
        claim.check()
        print(f"no job trains run {args.run_dir.absolute().name}")
        return 0
    job = Owner.of_this_process().job
    if not job:
        raise UserError("--job: this is no job of Slurm, SLURM_JOB_ID is not set; call it in the batch script")
    with writable(args.run_dir):
        claim.take().give_to_job(job)
    return 0
