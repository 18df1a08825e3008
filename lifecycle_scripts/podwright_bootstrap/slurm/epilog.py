"""After a job: its processes end, its files in memory and on the node's own disks go. slurmd runs it as root.

It never fails, because that would drain the node: what cannot be cleared away is said in slurmd's log.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Collection, Dict, Iterator, List, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.slurm.job import Job, folder_of

# A job's files there are taken away.
EVERYBODYS = tuple(map(Path, ("/dev/shm", "/dev/mqueue", "/run/lock", "/tmp", "/var/tmp")))  # noqa: S108
IPC = {"shm": "--shmem-id", "msg": "--queue-id", "sem": "--semaphore-id"}  # kinds of sysvipc(7), ipcrm's options
LINGERING = Path("/var/lib/systemd/linger")  # loginctl(1) enable-linger makes a file of the user's name there
FIRST_PERSON = 1000  # below are the system's own users
NOBODYS_IDS = 0xF000_0000  # and above; users' end far below: https://systemd.io/UIDS-GIDS/
SWEEP_LIMIT_S = 60
REMOVE_LIMIT_S = 200
SLURMS_GROUP = b"/slurm"  # slurmd.service, slurmstepd.scope, or /slurm of cgroups of version 1
# systemd's services that start programs of users: cron's, at's, and those of a user who lingers.
BACKGROUND = (b"/cron.service", b"/crond.service", b"/atd.service", b"/user@")
LOGIN = b"/session-"
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
    """End what carries the job's id. With a user's last job here go all that jobs started, and files of everybody's."""
    if not parameters.nodes.prolog or not parameters.nodes.prolog.clean or job.uid < FIRST_PERSON:
        return
    started = _started(job)  # before the question, or a job that begins now would be among them
    is_last = _is_last(job)
    _kill([pid for pid, has_id in started.items() if has_id or is_last], job)
    if is_last:
        _end_the_swift(job)
        own = ("-mindepth", "1", "-xdev", "-uid", str(job.uid), "-delete")
        shell.run("find", *filter(Path.exists, EVERYBODYS), *own, timeout_s=SWEEP_LIMIT_S)
        _remove_ipc(job)
        _end_lingering(job)


def _end_lingering(job: Job) -> None:
    """Let no service of the user start at the node's next boot, before any job."""
    name = shell.run("id", "--name", "--user", str(job.uid), timeout_s=SWEEP_LIMIT_S).output.strip()
    if (LINGERING / name).exists():
        shell.run("loginctl", "disable-linger", name, timeout_s=SWEEP_LIMIT_S)


def _remove_ipc(job: Job) -> None:
    """Remove System V's shared memory, queues and semaphores of the user: they outlive all programs."""
    options = []
    for kind, option in IPC.items():
        header, *rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()]
        owner = header.index("uid")
        options += [f"{option}={row[1]}" for row in rows if row[owner] == str(job.uid)]
    if options:
        shell.run("ipcrm", *options, timeout_s=SWEEP_LIMIT_S)


def _end_the_swift(job: Job) -> None:
    """End programs that fork faster than anybody looks: while all of the user's stand still, none can.

    Not beside a login, whose shell, or root's su(1) or sudo(8), takes the stop for the user's and stays stopped.
    """
    groups = dict(_groups(job)).values()
    if not all(_is_started(group, groups) for group in groups):
        return
    _signal_all(job, signal.SIGSTOP)
    try:
        left = list(_started(job))
        if left and _is_last(job):
            _kill(left, job)
    finally:
        _signal_all(job, signal.SIGCONT)


def _signal_all(job: Job, number: signal.Signals) -> None:
    """Signal all processes of the user at once, from a process of its own.

    kill(2) also reaches processes of the sender's real id: root's daemons, if that were root. An id that two of these
    processes share would let them stop each other.
    """
    pid = os.fork()
    if pid == 0:
        try:
            own = NOBODYS_IDS + os.getpid()
            os.setresuid(own, job.uid, own)
            os.kill(-1, number)
        finally:  # the user has no process; nothing may return from here
            os._exit(0)
    os.waitpid(pid, 0)


def _kill(pids: List[int], job: Job) -> None:
    for pid in pids:
        shell.say(f"ending process {pid} of job {job.id}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _started(job: Job) -> Dict[int, bool]:
    """Return the user's processes that jobs or services started, and whether they say that it was this job.

    A program can drop its environment, but not leave the control group of slurmd. Logins are in other groups, and
    while there is one, the user's services are the login's.
    """
    mark = f"SLURM_JOB_ID={job.id}".encode()
    groups = dict(_groups(job))
    started = {}
    for pid, group in groups.items():
        try:
            has_id = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended by itself
        if has_id or _is_started(group, groups.values()):
            started[pid] = has_id
    return started


def _is_started(group: bytes, groups: Collection[bytes]) -> bool:
    """Return whether a job or a service started the program in this group, of all groups that the user's are in."""
    services = () if any(LOGIN in other for other in groups) else BACKGROUND
    return any(part in group for part in (SLURMS_GROUP, *services))


def _groups(job: Job) -> Iterator[Tuple[int, bytes]]:
    """Give the user's processes and their control groups."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == job.uid and b") Z" not in (folder / "stat").read_bytes():
                yield int(folder.name), (folder / "cgroup").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def _is_last(job: Job) -> bool:
    """Return whether the user has no other job on this node that goes on; False if the controller does not answer."""
    command = ("squeue", "--noheader", "--format=%A:%t", f"--user={job.uid}", f"--nodelist={job.node}")
    listed = shell.run(*command, timeout_s=20, check=False)
    others = {row.split(":")[0] for row in listed.output.split() if not row.endswith(f":{COMPLETING}")}
    return listed.exit_code == 0 and others <= {job.id}


if __name__ == "__main__":
    sys.exit(main())
