"""After a job: its processes end, its files in memory and on the node's own disks go. Run by slurmd as root.

It never fails, because that would drain the node: what cannot be cleared away is said in slurmd's log.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Iterator, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.slurm.job import Job, folder_of

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (what a job left there is taken away)
FIRST_PERSON = 1000  # below are the system's own users
REMOVE_LIMIT_S = 240
SLURMS_GROUP = b"/slurm"  # slurmd.service, slurmstepd.scope, or /slurm of cgroups of version 1
COMPLETING = "CG"  # of two jobs that end at once, either is the last


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
    """End what carries the job's id. With a user's last job here go all that jobs started, and the shared memory."""
    if not parameters.nodes.prolog or not parameters.nodes.prolog.clean or job.uid < FIRST_PERSON:
        return
    started = list(_processes(job))  # before the question, or a job that begins now would be among them
    is_last = _is_last(job)
    for pid in [pid for pid, has_id in started if has_id or is_last]:
        shell.say(f"ending process {pid} of job {job.id}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if is_last:
        shell.run("find", SHARED_MEMORY, "-mindepth", "1", "-xdev", "-uid", str(job.uid), "-delete", timeout_s=30)


def _processes(job: Job) -> Iterator[Tuple[int, bool]]:
    """Give the user's processes that Slurm's jobs started, and whether they say that it was this one.

    A program can drop its environment, but not leave the control group of slurmd. Logins are in other groups.
    """
    mark = f"SLURM_JOB_ID={job.id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != job.uid:
                continue
            has_id = mark in (folder / "environ").read_bytes().split(b"\0")
            if has_id or SLURMS_GROUP in (folder / "cgroup").read_bytes():
                yield int(folder.name), has_id
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended by itself


def _is_last(job: Job) -> bool:
    """Return whether the user has no other job on this node that goes on; False if the controller does not answer."""
    command = ("squeue", "--noheader", "--format=%A:%t", f"--user={job.uid}", f"--nodelist={job.node}")
    listed = shell.run(*command, timeout_s=20, check=False)
    others = {row.split(":")[0] for row in listed.output.split() if not row.endswith(f":{COMPLETING}")}
    return listed.exit_code == 0 and others <= {job.id}


if __name__ == "__main__":
    sys.exit(main())
