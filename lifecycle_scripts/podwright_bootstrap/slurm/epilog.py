"""After a job: its processes end, its files in memory and on the node's own disks go. Run by slurmd as root.

It never fails, because that would drain the node: what cannot be cleared away is said in slurmd's log.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.slurm.job import Job, folder_of

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (what a job left there is taken away)
FIRST_PERSON = 1000  # below are the system's own users
REMOVE_LIMIT_S = 240


def main() -> int:
    """Clear away, and do all of it that can be done; always 0."""
    try:
        parameters = ProvisioningParameters.from_json(contract.installed_parameters().read_text())
        job = Job.of_environment()
    except (ContractError, OSError, KeyError, ValueError) as error:
        shell.say(f"epilog: {error!r}")
        return 0
    for clear in (_clean, _remove_folder, _forget_gpus):
        try:
            clear(job, parameters)
        except (BootstrapError, OSError, ValueError) as error:
            shell.say(f"epilog: {error}")
    return 0


def _forget_gpus(job: Job, _: ProvisioningParameters) -> None:
    gpu_jobs.remove(job)


def _remove_folder(job: Job, parameters: ProvisioningParameters) -> None:
    folder = folder_of(job, parameters)
    if folder and os.path.lexists(folder):
        shell.run("rm", "-rf", "--one-file-system", folder, timeout_s=REMOVE_LIMIT_S)


def _clean(job: Job, parameters: ProvisioningParameters) -> None:
    """End what carries the job's id. With his last job here a user's shared memory is nobody's any more."""
    if not parameters.nodes.prolog or not parameters.nodes.prolog.clean or job.uid < FIRST_PERSON:
        return
    for pid in _processes(job):
        shell.say(f"ending process {pid} of job {job.id}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if _is_last(job):
        shell.run("find", SHARED_MEMORY, "-mindepth", "1", "-xdev", "-uid", str(job.uid), "-delete", timeout_s=30)


def _processes(job: Job) -> Iterator[int]:
    """The user's processes that were started in the job: a login of his own, or another job of his, goes on."""
    mark = f"SLURM_JOB_ID={job.id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == job.uid and mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended by itself


def _is_last(job: Job) -> bool:
    """Return whether the user has no other job on this node; False if the controller does not answer."""
    command = ("squeue", "--noheader", "--format=%A", f"--user={job.uid}", f"--nodelist={job.node}")
    listed = shell.run(*command, timeout_s=20, check=False)
    return listed.exit_code == 0 and set(listed.output.split()) <= {job.id}


if __name__ == "__main__":
    sys.exit(main())
