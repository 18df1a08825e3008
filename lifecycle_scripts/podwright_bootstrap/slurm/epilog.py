"""After a job: its processes end, its files in memory and on the node's own disks go. slurmd runs it as root.

It never fails, because that would drain the node: what it fails to clear away is in slurmd's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Set, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError, ProvisioningParameters
from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.slurm import gpu_jobs
from podwright_bootstrap.slurm.job import Job, folder_of
from podwright_bootstrap.slurm.user import NodeUser

PROC = Path("/proc")
# A job's files there are taken away.
EVERYBODYS = tuple(map(Path, ("/dev/shm", "/dev/mqueue", "/run/lock", "/tmp", "/var/tmp")))  # noqa: S108
IPC = {"shm": "--shmem-id", "msg": "--queue-id", "sem": "--semaphore-id"}  # kinds of sysvipc(7), ipcrm's options
LINGERING = Path("/var/lib/systemd/linger")  # loginctl(1) enable-linger makes a file of the user's name there
NOBODYS_IDS = 0xF000_0000  # and above; users' end far below: https://systemd.io/UIDS-GIDS/
READ_LIMIT_S = 10
SWEEP_LIMIT_S = 60
REMOVE_LIMIT_S = 200
CONTINUE_S = 1.0  # in which a su(1) may still stop after its shell did
# Control groups: slurmd.service, slurmstepd.scope, or /slurm of version 1.
SLURMS = rb"/slurm"
# systemd's services that start programs of users: cron's, at's, and those of a user who lingers.
SERVICES = rb"/crond?\.service|/atd\.service|/user@"
# From its beginning: further down, users name the units of their own service manager as they like.
LOGINS = rb"^\d+:[^:\n]*:/user\.slice/user-%d\.slice/session-"
COMPLETING = "CG"  # If two jobs end at once, each counts as the last.


def main() -> int:
    """Clear away, and do all of it that can be done; always 0."""
    try:
        parameters = contract.parameters_of_this_node()
        job = Job.of_environment()
    except (ContractError, OSError, KeyError, ValueError) as error:
        log.say(f"epilog: {error!r}")
        return 0
    if parameters.nodes.prolog and parameters.nodes.prolog.clean and job.uid >= contract.FIRST_USER_ID:
        _try(lambda: _clean(job))
    _try(lambda: _remove_folder(job, parameters))
    _try(lambda: gpu_jobs.remove(job))
    return 0


def _try(clear: Callable[[], None]) -> None:
    """Run a clean-up; if a user has made it impossible, log that and continue."""
    try:
        clear()
    except (BootstrapError, OSError, ValueError) as error:
        log.say(f"epilog: {error}")


def _remove_folder(job: Job, parameters: ProvisioningParameters) -> None:
    folder = folder_of(job, parameters)
    if folder and os.path.lexists(folder):
        process.run("rm", "-rf", "--one-file-system", folder, timeout_s=REMOVE_LIMIT_S)


def _clean(job: Job) -> None:
    """Kill the job's processes; after the user's last job here, also all that jobs started, and temporary files."""
    user = NodeUser.of(job.uid)
    programs = list(_programs(user))  # before the question, or a job that begins now would be among them
    is_last = _is_last(job)
    _kill(_of_job(job, programs) | (_started(user, programs) if is_last else set()))
    if is_last:
        _try(lambda: _kill_fork_bombs(job, user))
        _try(lambda: _remove_files(user))
        _try(lambda: _remove_ipc(user))
        _try(lambda: _end_lingering(user))


def _remove_files(user: NodeUser) -> None:
    tests = ("-mindepth", "1", "-xdev", *user.find_words, "-delete")
    process.run("find", *filter(Path.exists, EVERYBODYS), *tests, timeout_s=SWEEP_LIMIT_S)


def _remove_ipc(user: NodeUser) -> None:
    """Remove System V's shared memory, queues and semaphores of the user: they outlive all programs."""
    options = []
    for kind, option in IPC.items():
        header, *rows = [line.split() for line in (PROC / "sysvipc" / kind).read_text().splitlines()]
        owner = header.index("uid")
        options += [f"{option}={row[1]}" for row in rows if user.owns(int(row[owner]))]
    if options:
        process.run("ipcrm", *options, timeout_s=SWEEP_LIMIT_S)


def _end_lingering(user: NodeUser) -> None:
    """Let no service of the user start at the node's next boot, before any job."""
    if user.name and (LINGERING / user.name).exists():
        process.run("loginctl", "disable-linger", user.name, timeout_s=SWEEP_LIMIT_S)


def _kill_fork_bombs(job: Job, user: NodeUser) -> None:
    """Kill programs that fork faster than we can list them: stop all of the user's programs first.

    Not beside a login, whose shell, or root's su(1) or sudo(8), takes the stop for the user's and stays stopped. A
    login may still begin between the look and the stop: its su(1) or sudo(8) is continued. A shell of root's has sent
    it to the background then.
    """
    programs = list(_programs(user))
    if _started(user, programs) != {program.pid for program in programs}:
        return
    owners = {user.uid, *(program.uid for program in programs)}
    callers: Set[int] = set()
    _signal_all(owners, signal.SIGSTOP)
    try:
        stopped = list(_programs(user))
        callers = _callers(stopped)
        remaining_pids = _started(user, stopped)
        if remaining_pids and _is_last(job):
            _kill(remaining_pids)
    finally:
        _signal_all(owners, signal.SIGCONT)
        _continue(callers)


def _callers(programs: List[Program]) -> Set[int]:
    """Return the programs' ancestors that are others', without the first process of the node."""
    ancestors: Set[int] = set()
    for program in programs:
        pid = program.pid
        while pid > 1 and pid not in ancestors:
            ancestors.add(pid)
            pid = _state_and_parent(pid)[1]
    return ancestors - {program.pid for program in programs}


def _continue(pids: Set[int]) -> None:
    """Continue each of these processes that is stopped, again and again for ``CONTINUE_S``.

    With its process group, which sudo(8) stops with itself.
    """
    until = time.monotonic() + CONTINUE_S
    while pids and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if _state_and_parent(pid)[0] == "T":
                    os.killpg(os.getpgid(pid), signal.SIGCONT)
        time.sleep(CONTINUE_S / 10)


def _state_and_parent(pid: int) -> Tuple[str, int]:
    """Return a process's state and its parent's id, as in proc_pid_stat(5); of one that has ended, X and 0."""
    try:
        state, parent, *_ = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return state, int(parent)


def _signal_all(owners: Iterable[int], number: signal.Signals) -> None:
    """Signal all processes of each of these ids at once, from a process of its own.

    kill(2) also reaches processes of the sender's real id: root's daemons, if that were root. An id that two of these
    processes share would let them stop each other.
    """
    for owner in owners:
        pid = os.fork()
        if pid == 0:
            try:
                unused_id = NOBODYS_IDS + os.getpid()
                os.setresuid(unused_id, owner, unused_id)
                os.kill(-1, number)
            finally:  # the id has no process; nothing may return from here
                os._exit(0)
        os.waitpid(pid, 0)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        log.say(f"ending process {pid}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@dataclass(frozen=True)
class Program:
    """A process of the user's."""

    pid: int
    uid: int
    group: bytes  # the text of /proc/PID/cgroup


def _programs(user: NodeUser) -> Iterator[Program]:
    """Give the user's processes by their real id: by the effective one a su(1) that waits would be root's."""
    for folder in PROC.glob("[0-9]*"):
        try:
            status = (folder / "status").read_bytes()  # proc_pid_status(5), where a name has no line end
            uid = int(status.partition(b"\nUid:\t")[2].split()[0])
            if user.owns(uid) and not _has_ended(status):
                yield Program(int(folder.name), uid, (folder / "cgroup").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue


def _has_ended(status: bytes) -> bool:
    """Return whether nothing is left of a process but its exit status; its main thread may have ended before others."""
    return b"\nState:\tZ" in status and b"\nThreads:\t1\n" in status


def _of_job(job: Job, programs: List[Program]) -> Set[int]:
    """Return the programs that say that the job started them.

    A program can drop its environment, and it can make it a file that never answers, for whoever reads it.
    """
    mark = f"SLURM_JOB_ID={job.id}".encode()
    pids: List[int] = []

    def read() -> None:
        for program in programs:
            try:
                if mark in (PROC / str(program.pid) / "environ").read_bytes().split(b"\0"):
                    pids.append(program.pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended by itself

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(READ_LIMIT_S)
    return set(pids)


def _started(user: NodeUser, programs: List[Program]) -> Set[int]:
    """Return the programs that end with the user's last job, by their control groups, which they cannot leave.

    Services are the login's while there is one. Who may not be here without a job has no login either, as by su(1).
    """
    login = LOGINS % user.uid
    ending = [SLURMS]
    if not _may_stay(user):
        ending += [SERVICES, login]
    elif not any(_is_in(program, login) for program in programs):
        ending += [SERVICES]
    return {program.pid for program in programs if any(_is_in(program, group) for group in ending)}


def _is_in(program: Program, group: bytes) -> bool:
    return re.search(group, program.group, re.MULTILINE) is not None


def _may_stay(user: NodeUser) -> bool:
    """Return whether the user may be on this node without a job; with pam_slurm_adopt administrators alone may."""
    try:
        return not user.name or user.name in contract.LOGIN_ADMINS.read_text().split()
    except FileNotFoundError:
        return True


def _is_last(job: Job) -> bool:
    """Return whether the user has no other running job on this node; False if the controller does not answer."""
    command = ("squeue", "--noheader", "--format=%A:%t", f"--user={job.uid}", f"--nodelist={job.node}")
    listed = process.run(*command, timeout_s=20, check=False)
    running_job_ids = {row.split(":")[0] for row in listed.output.split() if not row.endswith(f":{COMPLETING}")}
    return listed.exit_code == 0 and running_job_ids <= {job.id}


if __name__ == "__main__":
    sys.exit(main())
