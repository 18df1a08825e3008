"""The epilog ends what a user's jobs have left; test_slurm_node_features.py has it after real jobs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwright_bootstrap.slurm import epilog
from podwright_bootstrap.slurm.job import Job
from podwright_rehearsal.hosts.waiting import wait_for

JOB = Job(id="1", uid=0x7FFF_0001, node="here")  # of a user whom this machine does not have
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for a user")


@contextmanager
def program(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that waits, and end it."""
    with subprocess.Popen(["sleep", "600"], user=uid) as process:
        try:
            yield process
        finally:
            process.kill()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a program stands still."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_only_the_users_programs_stand_still():
    """Root's go on, whatever the epilog's own real id, and so do other users'."""
    with program(JOB.uid) as users, program(0) as roots, program(JOB.uid + 1) as others:
        epilog._signal_all(JOB, signal.SIGSTOP)
        wait_for(lambda: is_stopped(users), timeout_s=60, what=lambda: "a stopped program")
        assert [is_stopped(process) for process in (roots, others)] == [False, False]
        epilog._signal_all(JOB, signal.SIGCONT)
        wait_for(lambda: not is_stopped(users), timeout_s=60, what=lambda: "a program that goes on")


@pytest.mark.slow
def test_epilogs_of_two_jobs_do_not_stop_each_other():
    """Jobs of one user that end at once are all cleared away."""
    with program(JOB.uid) as users, ThreadPoolExecutor(4) as epilogs:
        for _ in range(25):
            list(epilogs.map(lambda number: epilog._signal_all(JOB, number), [signal.SIGSTOP, signal.SIGCONT] * 2))
        epilog._signal_all(JOB, signal.SIGCONT)
        wait_for(lambda: not is_stopped(users), timeout_s=60, what=lambda: "a program that goes on")


def test_a_login_does_not_stand_still():
    """A program that no job started is never stopped: su, sudo and shells would leave it so."""

    def was_stopped(process: subprocess.Popen[bytes]) -> bool:
        return os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOHANG) is not None

    with program(JOB.uid) as login:
        epilog._end_the_swift(JOB)
        assert not was_stopped(login)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            epilog._signal_all(JOB, number)
        wait_for(lambda: was_stopped(login), timeout_s=60, what=lambda: "the kernel to say that it was stopped")


def test_memory_that_outlives_programs_goes():
    """The user's System V segments, queues and semaphores are removed; another user's stay."""

    def owners(kind: str) -> list[str]:
        header, *rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()]
        return [row[header.index("uid")] for row in rows]

    for uid in (JOB.uid, JOB.uid + 1):
        subprocess.run(["ipcmk", "--shmem", "4096", "--queue", "--semaphore", "1"], user=uid, check=True)
    try:
        epilog._remove_ipc(JOB)
        for kind in epilog.IPC:
            assert str(JOB.uid) not in owners(kind)
            assert str(JOB.uid + 1) in owners(kind)
    finally:
        epilog._remove_ipc(Job(id="2", uid=JOB.uid + 1, node="here"))
