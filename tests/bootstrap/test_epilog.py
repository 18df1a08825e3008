"""The epilog ends what a user's jobs have left; test_slurm_node_features.py has it after real jobs."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from podwright_bootstrap import contract
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.slurm import epilog, user
from podwright_bootstrap.slurm.epilog import Program
from podwright_bootstrap.slurm.job import Job
from podwright_bootstrap.slurm.user import NodeUser
from podwright_rehearsal.hosts.waiting import wait_for

JOB = Job(id="1", uid=0x7FFF_0001, node="here")  # of a user whom this machine does not have
USER = NodeUser(JOB.uid)
ADA = NodeUser(2001, "ada")
LOGIN = b"0::/user.slice/user-2001.slice/session-3.scope\n"
OWN_SERVICE = b"0::/user.slice/user-2001.slice/user@2001.service/app.slice/session-3.scope\n"
JOBS = b"4:memory:/slurm/uid_2001/job_7/step_0\n0::/system.slice/slurmd.service\n"
CRON = b"0::/system.slice/cron.service\n"
BY_ROOT = b"0::/user.slice/user-0.slice/session-9.scope\n"  # root's sudo -u ada
EXIT = {"x86_64": 60, "aarch64": 93}  # numbers of _exit(2), which ends one thread
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
        epilog._signal_all([JOB.uid], signal.SIGSTOP)
        wait_for(lambda: is_stopped(users), timeout_s=60, description=lambda: "a stopped program")
        assert [is_stopped(process) for process in (roots, others)] == [False, False]
        epilog._signal_all([JOB.uid], signal.SIGCONT)
        wait_for(lambda: not is_stopped(users), timeout_s=60, description=lambda: "a program that goes on")


@pytest.mark.slow
def test_epilogs_of_two_jobs_do_not_stop_each_other():
    """Jobs of one user that end at once are all cleared away."""
    with program(JOB.uid) as users, ProcessPoolExecutor(4) as epilogs:
        for _ in range(25):
            list(epilogs.map(partial(epilog._signal_all, [JOB.uid]), [signal.SIGSTOP, signal.SIGCONT] * 2))
        epilog._signal_all([JOB.uid], signal.SIGCONT)
        wait_for(lambda: not is_stopped(users), timeout_s=60, description=lambda: "a program that goes on")


def test_a_login_does_not_stand_still():
    """A program that no job started is never stopped: su, sudo and shells would leave it so."""

    def was_stopped(process: subprocess.Popen[bytes]) -> bool:
        return os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOHANG) is not None

    with program(JOB.uid) as login:
        epilog._kill_fork_bombs(JOB, USER)
        assert not was_stopped(login)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            epilog._signal_all([JOB.uid], number)
        wait_for(lambda: was_stopped(login), timeout_s=60, description=lambda: "the kernel to say that it was stopped")


GAMES = "games"  # a user of every Debian, as whom no program runs
READ = "read -r line; echo $line"
SU = ("su", "--shell", "/bin/sh", GAMES, "--command", READ)
SU_IN_SU = ("su", "--shell", "/bin/sh", "root", "--command", "exec " + shlex.join(SU))
# As sudo(8) with a terminal of its own: when its command is stopped, it stops its process group.
SUDO = f"""
import os, pwd, signal
child = os.fork()
if not child:
    os.setsid()
    os.setuid(pwd.getpwnam({GAMES!r}).pw_uid)
    os.execv("/bin/sh", ["sh", "-c", {READ!r}])
while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
    os.killpg(0, signal.SIGSTOP)
"""
SUDO_INTO_TEE = ("bash", "-c", f"{shlex.join((sys.executable, '-c', SUDO))} | tee")


@pytest.mark.parametrize("command", [SU, SU_IN_SU, SUDO_INTO_TEE], ids=["su", "su in su", "sudo | tee"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "squeue fails"])
def test_a_login_that_begins_while_programs_stand_still_goes_on(command, fails, monkeypatch):
    """Programs of root's that stop when their command is stopped are continued, also where the rest fails."""
    games = NodeUser(pwd.getpwnam(GAMES).pw_uid, GAMES)
    signal_all, logins = epilog._signal_all, []

    def fail(*_: object) -> None:
        raise BootstrapError("squeue did not end within 20 s")

    def begin_a_login_first(owners: set[int], number: signal.Signals) -> None:
        if number == signal.SIGSTOP:
            # In a session of its own, as on a node: SIGCONT reaches all processes of the sender's session.
            pipe = subprocess.PIPE
            logins.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
            wait_for(lambda: list(epilog._programs(games)), timeout_s=60, description=lambda: "the login's program")
        signal_all(owners, number)
        if number == signal.SIGSTOP:
            wait_for(lambda: is_stopped(logins[0]), timeout_s=60, description=lambda: "a stopped caller")
            if fails:
                monkeypatch.setattr(epilog, "_started", fail)

    monkeypatch.setattr(epilog, "_signal_all", begin_a_login_first)
    try:
        with pytest.raises(BootstrapError) if fails else contextlib.nullcontext():
            epilog._kill_fork_bombs(replace(JOB, uid=games.uid), games)
        assert logins[0].communicate("done\n", timeout=60)[0] == "done\n"
    finally:
        for pid in (each.pid for each in epilog._programs(games)):
            os.kill(pid, signal.SIGKILL)
        for login in logins:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(login.pid, signal.SIGKILL)


def test_a_program_whose_main_thread_has_ended_is_seen():
    """The kernel calls it a zombie, but its other threads run."""
    uid = JOB.uid + 6
    code = f"""
import ctypes, os, threading, time
os.setuid({uid})
threading.Thread(target=time.sleep, args=[600]).start()
ctypes.CDLL(None).syscall({EXIT[os.uname().machine]}, 0)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            status = Path(f"/proc/{process.pid}/status")
            wait_for(lambda: "Z (zombie)" in status.read_text(), timeout_s=60, description=status.read_text)
            assert [found.pid for found in epilog._programs(NodeUser(uid))] == [process.pid]
        finally:
            process.kill()
        wait_for(lambda: not list(epilog._programs(NodeUser(uid))), timeout_s=60, description=status.read_text)


def test_memory_that_outlives_programs_goes():
    """The user's System V segments, queues and semaphores are removed; another user's stay."""

    def owners(kind: str) -> list[str]:
        header, *rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()]
        return [row[header.index("uid")] for row in rows]

    for uid in (JOB.uid, JOB.uid + 1):
        subprocess.run(["ipcmk", "--shmem", "4096", "--queue", "--semaphore", "1"], user=uid, check=True)
    try:
        epilog._remove_ipc(USER)
        for kind in epilog.IPC:
            assert str(JOB.uid) not in owners(kind)
            assert str(JOB.uid + 1) in owners(kind)
    finally:
        epilog._remove_ipc(NodeUser(JOB.uid + 1))


def test_no_name_hides_a_program():
    """A program with the name that an ended one would have in /proc is seen."""
    uid, script = JOB.uid + 2, "printf 'a) Z' >/proc/$$/comm; echo; read"
    with subprocess.Popen(["bash", "-c", script], user=uid, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert [found.pid for found in epilog._programs(NodeUser(uid))] == [process.pid]
        process.kill()


def test_a_program_that_runs_as_root_for_the_user_is_the_users():
    """As su, which waits for a password and keeps the user's files open; one of root's that acts as the user is not."""
    uid = JOB.uid + 5
    for ids, found in (((uid, 0, 0), True), ((0, uid, 0), False)):
        become = partial(os.setresuid, *ids)
        with subprocess.Popen(["sleep", "600"], preexec_fn=become) as process:  # noqa: PLW1509 (one thread)
            assert (process.pid in {each.pid for each in epilog._programs(NodeUser(uid))}) == found
            process.kill()


def test_ids_of_a_users_containers_are_the_users(tmp_path, monkeypatch):
    """Programs with an id that newuidmap gives to the user are the user's; whoever has an account is somebody else."""
    monkeypatch.setattr(user, "SUBORDINATE", tmp_path / "subuid")
    own_id = JOB.uid + 3
    (tmp_path / "subuid").write_text(f"somebody:100000:65536\n{own_id}:65000:1000\nnonsense\n")
    found = NodeUser.of(own_id)
    assert [found.owns(uid) for uid in (own_id, 65000, 65999, 64999, 66000, 100000)] == [True] * 3 + [False] * 3
    assert not found.owns(pwd.getpwnam("nobody").pw_uid)
    with program(65001) as mine, program(100001), program(own_id) as own:
        assert {each.pid for each in epilog._programs(found)} == {mine.pid, own.pid}
        folder = tmp_path / "files"
        folder.mkdir()
        for uid in (65001, 100001, own_id):
            (folder / str(uid)).touch()
            os.chown(folder / str(uid), uid, uid)
        subprocess.run(["find", folder, "-mindepth", "1", *found.find_words, "-delete"], check=True)
        assert [path.name for path in folder.iterdir()] == ["100001"]


@pytest.mark.parametrize(
    ("groups", "admins", "ending"),
    [
        ((JOBS, CRON, OWN_SERVICE, BY_ROOT), None, (JOBS, CRON, OWN_SERVICE)),
        ((JOBS, OWN_SERVICE, LOGIN), None, (JOBS,)),  # the login's services
        ((JOBS, OWN_SERVICE, LOGIN, BY_ROOT), "ubuntu\n", (JOBS, OWN_SERVICE, LOGIN)),  # who has a job may log in
        ((JOBS, LOGIN), "ubuntu\nada\n", (JOBS,)),
    ],
)
def test_the_last_job_ends_what_jobs_and_services_started(groups, admins, ending, tmp_path, monkeypatch):
    """No unit of a user's own passes for a login, and a login is for who may be there without a job."""
    monkeypatch.setattr(contract, "LOGIN_ADMINS", tmp_path / "admins")
    if admins:
        (tmp_path / "admins").write_text(admins)
    programs = [Program(pid, ADA.uid, group) for pid, group in enumerate(groups)]
    assert epilog._started(ADA, programs) == {groups.index(group) for group in ending}


def test_a_program_whose_environment_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    """As where a user has mapped a file of a file system of their own there."""
    monkeypatch.setattr(epilog, "PROC", tmp_path)
    monkeypatch.setattr(epilog, "READ_LIMIT_S", 1)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "environ").write_bytes(b"A=1\0SLURM_JOB_ID=1\0")
    (tmp_path / "7").mkdir()
    os.mkfifo(tmp_path / "7" / "environ")
    assert epilog._of_job(JOB, [Program(pid, JOB.uid, b"") for pid in (8, 7)]) == {8}
    os.close(os.open(tmp_path / "7" / "environ", os.O_WRONLY))


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path, monkeypatch, capsys):
    """After a failure to delete files the user's memory goes all the same."""
    for name, script in {"squeue": "exit 0", "find": "echo busy >&2; exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = Job(id="1", uid=JOB.uid + 4, node="here")
    subprocess.run(["ipcmk", "--shmem", "4096"], user=job.uid, check=True)
    assert str(job.uid) in Path("/proc/sysvipc/shm").read_text().split()
    epilog._clean(job)
    assert str(job.uid) not in Path("/proc/sysvipc/shm").read_text().split()
    assert "epilog: find /dev/shm" in capsys.readouterr().out
