"""Claim a run's folder, so that one job at a time writes it.

A claim is a numbered file that can be made only once (``write_once``), so of several jobs that start at the same
instant one gets it. The newest claim counts. The next one may be made if the owner of the newest has given it back, is
the same job (requeued, started again by HyperPod, or another host of an elastic run), or has ended:

- Slurm says whether a job is still there, wherever it runs;
- on the same machine the process table says whether a process is;
- elsewhere a process that has not renewed its claim for ``SILENT_S`` has ended. Clocks of hosts are not compared: the
  reader waits for a change.

An owner that was frozen meanwhile finds a newer claim when it renews its own, and ends.
"""

from __future__ import annotations

import enum
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from podwright_common.exit_status import WRONG_INPUT
from podwright_common.process import is_alive
from podwright_common.regular_file import UnreadableFileError, open_regular
from podwright_training.config.train_config import TrainConfig
from podwright_training.errors import UserError
from podwright_training.folder_listing import paths_in
from podwright_training.json_values import loads
from podwright_training.ranks import host_name
from podwright_training.run_folder import RunFolder, write_atomically, write_once

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

CLAIMED_BY = "PODWRIGHT_CLAIMED_BY"  # variable: process whose claim the program that it starts may take
RENEWAL_S = 10.0
SILENT_S = 60.0  # The owner of a claim that was not renewed for this long is presumed gone.
ABANDONED_S = 3600.0  # After this long without renewal, by the file system's clock, nobody waits for the next one.
CLAIM_BYTES = 64 << 10  # A claim has some hundreds.
LOOK_S = 0.5  # between two looks at a claim that may be renewed, or given on
SLURM_S = 30  # limit of a question to Slurm
NEWEST = 10  # claims that are not deleted
REPLACED_STATUS = WRONG_INPUT  # Another process has claimed this process's run.
ENDED_STATES = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
}
UNKNOWN_JOB = "Invalid job id"  # Slurm's words on a job that it does not know, or no longer


class OwnedRunError(UserError):
    """Another job trains the run; the message names it."""


class OwnerKind(str, enum.Enum):
    """Kinds of owners."""

    PROCESS = "process"
    LAUNCH = "launch"  # a process that submits a job, to which it gives the claim
    JOB = "job"  # in Slurm's queue, or without a process of ours
    ELASTIC = "elastic"  # hosts that share the claim
    EXPORT = "export"  # a process that writes a model


class Standing(enum.Enum):
    """Answers to whether the next claim may be made."""

    FREE = enum.auto()
    OWNED = enum.auto()
    BRIEF = enum.auto()  # the owner is about to give it to a job
    UNKNOWN = enum.auto()  # renewals will show


@dataclass(frozen=True)
class Owner:
    """A process, or a job of Slurm."""

    kind: OwnerKind
    host: str
    machine: str  # boot of a kernel and namespace of processes: where ``pid`` counts
    pid: int
    began: int  # ticks of the machine's clock, as a pid is used again
    uid: int
    since: float  # seconds since 1970, for people
    job: str = ""  # Slurm's id, of an array's task 12_3; of an elastic run the array's
    job_name: str = ""
    cluster: str = ""  # Slurm's name of it: another cluster numbers its jobs from 1, too
    restart: int = 0  # how often Slurm requeued the job
    step: str = ""  # Slurm's step of the job
    claimed_by: int = 0  # process that has the claim, and started this one to launch the job
    released: bool = False

    @classmethod
    def of_this_process(cls, kind: OwnerKind = OwnerKind.PROCESS) -> Owner:
        """Return this process, and the job that it belongs to."""
        variables = os.environ
        job, array = variables.get("SLURM_JOB_ID", ""), variables.get("SLURM_ARRAY_JOB_ID", "")
        if kind == OwnerKind.ELASTIC:
            job = array
        elif array:  # the id of an array's last task is the array's own, and would mean every task
            job = f"{array}_{variables.get('SLURM_ARRAY_TASK_ID', '')}"
        return cls(
            kind=kind,
            host=host_name(),
            machine=_machine(),
            pid=os.getpid(),
            began=_began(os.getpid()) or 0,
            uid=os.geteuid(),
            since=time.time(),
            job=job,
            job_name=variables.get("SLURM_JOB_NAME", ""),
            cluster=variables.get("SLURM_CLUSTER_NAME", ""),
            restart=_whole(variables.get("SLURM_RESTART_COUNT", "")),
            step=variables.get("SLURM_STEP_ID", ""),
            claimed_by=_whole(variables.get(CLAIMED_BY, "")),
        )

    def is_same_job(self, owner: Owner) -> bool:
        """Return whether both are of one job of one cluster."""
        is_same_cluster = "" in (self.cluster, owner.cluster) or self.cluster == owner.cluster
        return bool(self.job) and self.job == owner.job and self.uid == owner.uid and is_same_cluster

    def shares_with(self, owner: Owner) -> bool:
        """Return whether both are hosts of one elastic run."""
        are_elastic = self.kind == owner.kind == OwnerKind.ELASTIC
        return are_elastic and (self.is_same_job(owner) or not (self.job or owner.job))

    def __str__(self) -> str:
        """Return the owner as a message names it."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        if self.kind == OwnerKind.JOB:
            return f"job {self.job}, submitted {since}"
        name = f"job {self.job}" if self.job else f"process {self.pid}"
        return f"{name} on {self.host} since {since}"

    @property
    def ending(self) -> str:
        """Return how to end the owner's job or process."""
        return f"cancel it (scancel {self.job})" if self.job else f"end it (kill {self.pid} on {self.host})"


class Surroundings:
    """State of an owner as Slurm and this machine report it; ``None`` if they report none."""

    def has_job(self, owner: Owner) -> bool | None:
        """Return whether Slurm still has the owner's job, waiting or running.

        A job of its number and user that has another name may be the owner's, renamed, or another cluster's: no answer.
        """
        jobs = _jobs_of(owner.job)
        if jobs is None:
            return None
        jobs_of_owner = [job for job in jobs if job.uid == str(owner.uid)]
        states = {job.state for job in jobs_of_owner} - ENDED_STATES
        has_its_name = not owner.job_name or any(_printable(job.name) == owner.job_name for job in jobs_of_owner)
        if states == {"COMPLETING"}:  # its programs are being ended; on a lost node that takes long
            return None
        return bool(states) if has_its_name or not states else None

    def has_step(self, owner: Owner) -> bool | None:
        """Return whether Slurm still runs the owner's step of its job."""
        if not owner.step:
            return None
        output = _ask_slurm("squeue", "--noheader", "--steps", f"--jobs={owner.job}", "--format=%i")
        return None if output is None else any(step.endswith(f".{owner.step}") for step in output.split())

    def has_process(self, owner: Owner) -> bool | None:
        """Return whether the owner's process lives; ``None`` if the process is on another machine."""
        if owner.machine != _machine():
            return None
        return _began(owner.pid) == owner.began


def standing(owner: Owner, claimant: Owner, around: Surroundings) -> Standing:
    """Return whether ``claimant`` may make the next claim after that of ``owner``."""
    is_parent = owner.kind == OwnerKind.LAUNCH and (owner.machine, owner.pid) == (claimant.machine, claimant.claimed_by)
    if owner.released or is_parent or owner.shares_with(claimant):
        return Standing.FREE
    if owner.is_same_job(claimant):
        if owner.kind == OwnerKind.JOB or owner.restart < claimant.restart:
            return Standing.FREE
        lives = around.has_process(owner)
        lives = around.has_step(owner) if lives is None else lives
    else:
        lives = around.has_job(owner) if owner.job and owner.kind != OwnerKind.LAUNCH else None
        lives = around.has_process(owner) if lives is None and owner.kind != OwnerKind.JOB else lives
    if lives is None:
        return Standing.UNKNOWN
    if lives and owner.kind == OwnerKind.LAUNCH:
        return Standing.BRIEF
    return Standing.OWNED if lives else Standing.FREE


@dataclass(frozen=True)
class _Record:
    """A claim's file."""

    path: Path
    number: int
    owner: Owner
    changed: tuple[int, int]  # inode and time of its last change


class Claim:
    """This process's claim of a folder; renewed by a thread until it is released.

    Args:
        folder: Folder of the claims.
        name: The claimed thing, as messages name it: ``run first``.
        owner: Who claims it. Default: this process.
        around: What is known of other owners.
        alternative: What to do instead, as messages say it.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        owner: Owner | None = None,
        *,
        around: Surroundings | None = None,
        alternative: str = "choose another --run-dir",
    ) -> None:
        self._folder, self._name, self._alternative = folder, name, alternative
        self._owner = owner or Owner.of_this_process()
        self._around = around or Surroundings()
        self._record: _Record | None = None
        self._ended_number = 0  # number of the newest claim whose owner has ended
        self._released = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> Self:
        """Make the next claim, also after an earlier one of this process.

        Raises:
            OwnedRunError: Another job has the newest.
        """
        self._released.set()
        self._record, self._released = None, threading.Event()
        while self._record is None:
            newest_claim = _newest(self._folder)
            if newest_claim:
                self._await_end(newest_claim)
            number = newest_claim.number + 1 if newest_claim else 1
            path = self._folder / f"{number:08}.json"
            if write_once(path, json.dumps(asdict(self._owner))):
                self._record = self._verified(path, number)
            else:
                time.sleep(LOOK_S / 10)  # a folder's entries may be cached: the next look shows the other claim
        for path, number in _paths(self._folder):
            if number <= self._record.number - NEWEST:
                path.unlink(missing_ok=True)
        return self

    def check(self) -> None:
        """Raise ``OwnedRunError`` if another job has the newest claim; do not make one."""
        if newest_claim := _newest(self._folder):
            self._await_end(newest_claim)

    def __enter__(self) -> Self:
        self.take()
        self._renewing = threading.Thread(target=self._renew_until, args=[self._released], name="claim", daemon=True)
        self._renewing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the claim, so that another job can claim the run."""
        self._replace(replace(self._owner, released=True))

    def give_to_job(self, job: str) -> None:
        """Transfer the claim to a submitted job, which makes a claim of its own when it starts."""
        self._replace(replace(self._owner, kind=OwnerKind.JOB, job=job, job_name="", restart=0, step="", cluster=""))

    def verify(self) -> None:
        """Raise ``OwnedRunError`` if another job claimed the run while this process was frozen or cut off."""
        newest = _newest(self._folder)
        if newest and self._record and newest.number > self._record.number:
            if newest.owner.shares_with(self._owner) or self._owner.kind == OwnerKind.LAUNCH:
                self._released.set()  # the host that leads now, or the job, has its own
                return
            raise OwnedRunError(
                f"{self._name} was claimed by {newest.owner}, when this process had been silent: it ends"
            )

    def _replace(self, owner: Owner) -> None:
        self._released.set()
        if self._renewing and self._renewing is not threading.current_thread():
            self._renewing.join(RENEWAL_S)
        if self._record and self._record.path.exists():
            with suppress(OSError):  # a full or lost disk: that the process has ended says it too
                write_atomically(self._record.path, json.dumps(asdict(owner)))
        self._record = None

    def _verified(self, path: Path, number: int) -> _Record | None:
        """Return the claim, unless it was made so late that newer ones had been made and this number deleted."""
        record = _read(path, number)
        newest = _newest(self._folder)
        if newest and newest.number > number:
            path.unlink(missing_ok=True)
            return None
        return record

    def _await_end(self, claim: _Record) -> None:
        """Return when the owner of a claim has ended, or another claim is the newest.

        Raises:
            OwnedRunError: It lives.
        """
        began = time.monotonic()
        is_abandoned = claim.number <= self._ended_number
        while True:
            state = standing(claim.owner, self._owner, self._around)
            if state == Standing.FREE:
                return
            if state == Standing.OWNED:
                raise self._owned(claim.owner)
            if state == Standing.UNKNOWN and not is_abandoned:
                is_abandoned = _age_s(claim) > ABANDONED_S
            if is_abandoned or time.monotonic() - began > SILENT_S:
                if state == Standing.BRIEF:
                    raise self._owned(claim.owner)
                self._ended_number = claim.number
                return
            time.sleep(LOOK_S)
            newest = _newest(self._folder)
            if newest is None or newest.number != claim.number:
                return
            if newest.owner == claim.owner and newest.changed != claim.changed and claim.owner.kind != OwnerKind.LAUNCH:
                raise self._owned(claim.owner)
            claim = newest

    def _owned(self, owner: Owner) -> OwnedRunError:
        verb = {
            OwnerKind.JOB: "belongs to",
            OwnerKind.LAUNCH: "is being submitted by",
            OwnerKind.EXPORT: "is being written by",
        }
        words = verb.get(owner.kind, "is being trained by")
        return OwnedRunError(f"{self._name} {words} {owner}: {owner.ending}, wait for it, or {self._alternative}")

    def _renew_until(self, released: threading.Event) -> None:
        while not released.wait(RENEWAL_S):
            try:
                self.verify()
                if self._record:
                    os.utime(self._record.path)
            except OwnedRunError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                os._exit(REPLACED_STATUS)  # nothing of this process may write any more
            except (OSError, UserError):
                continue  # The shared file system may come back.


def claim_of_run(folder: RunFolder, kind: OwnerKind = OwnerKind.PROCESS) -> Claim:
    """Return this process's claim of a run, not taken yet."""
    return Claim(folder.claims, f"run {folder.root.absolute().name}", Owner.of_this_process(kind))


def claims_of_training(config: TrainConfig) -> list[Claim]:
    """Return this process's claims of what training writes: the run and, if that is elsewhere, its checkpoints."""
    folder, checkpoints = RunFolder(Path(config.run_dir)), config.checkpoints.absolute()
    claims = [claim_of_run(folder)]
    if not checkpoints.is_relative_to(folder.root.absolute()):
        name, alternative = f"checkpoint_dir {checkpoints}", "choose another --checkpoint-dir"
        claims.append(Claim(checkpoints / folder.claims.name, name, alternative=alternative))
    return claims


def _newest(folder: Path) -> _Record | None:
    """Return the claim with the highest number.

    Raises:
        UserError: Its file is damaged.
    """
    for _ in range(20):
        path, number = max(_paths(folder), key=lambda numbered_path: numbered_path[1], default=(None, 0))
        if path is None:
            return None
        with suppress(FileNotFoundError):  # a later owner has removed it
            try:
                return _read(path, number)
            except UnreadableFileError as error:
                raise UserError(f"{error}: remove it, if no job trains the run") from error
            except (ValueError, TypeError, KeyError, OverflowError):  # it may be half written
                time.sleep(LOOK_S / 5)
    raise UserError(
        f"{path} is damaged, or another version of podwright wrote it: end the run's jobs, remove it, and start again"
    )


def _paths(folder: Path) -> list[tuple[Path, int]]:
    return [(path, int(path.stem)) for path in paths_in(folder, "[0-9]*.json") if path.stem.isdecimal()]


def _read(path: Path, number: int) -> _Record:
    with open_regular(path) as file:
        status, values = os.fstat(file.fileno()), loads(file.read(CLAIM_BYTES))
    if not isinstance(values, dict):
        raise TypeError("no object")
    kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool, "OwnerKind": str}
    names = {field.name: kinds[str(field.type)] for field in fields(Owner)}
    owner_values: dict[str, Any] = {name: values[name] for name in names if name in values}
    if not all(isinstance(value, names[name]) for name, value in owner_values.items()):
        raise ValueError("a value is of another type")
    texts = {name: _printable(value) for name, value in owner_values.items() if isinstance(value, str)}
    time.localtime(owner_values.get("since", 0.0))  # Raise if no message can show it.
    owner = Owner(**{**owner_values, **texts, "kind": OwnerKind(values["kind"])})
    return _Record(path, number, owner, (status.st_ino, status.st_mtime_ns))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _age_s(record: _Record) -> float:
    """Return the seconds since the last renewal, by the clock of the file system."""
    probe = record.path.with_name(f".probe.{secrets.token_hex(8)}")
    try:
        probe.touch(exist_ok=False)
        return (probe.stat().st_mtime_ns - record.changed[1]) / 1e9
    except OSError:
        return 0.0
    finally:
        with suppress(OSError):
            probe.unlink()


class _Job(NamedTuple):
    """A job, or a task of an array, that Slurm has."""

    uid: str
    state: str
    name: str


def _jobs_of(number: str) -> list[_Job] | None:
    """Return the jobs of a number; ``None`` if Slurm does not answer. A name may have line ends: a mark is between."""
    mark = f"~{secrets.token_hex(16)}~"
    columns = ",".join(f"{column}:{mark}" for column in ("userid", "state", "name"))
    output = _ask_slurm("squeue", "--noheader", "--states=all", f"--jobs={number}", SQUEUE_FORMAT2=columns)
    if output is None:
        return None
    *cells, _ = output.split(mark)
    width = len(_Job._fields)
    if len(cells) % width:
        return None
    return [_Job(cells[at].strip(), *cells[at + 1 : at + width]) for at in range(0, len(cells), width)]


def _ask_slurm(*command: str, **variables: str) -> str | None:
    """Return what a command of Slurm prints; ``None`` if Slurm does not answer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")} | variables
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=SLURM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return "" if UNKNOWN_JOB in done.stderr else None
    return done.stdout


def _machine() -> str:
    """Return the boot of this kernel and this process's namespace of process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux
        return socket.gethostname()


def _began(pid: int) -> int | None:
    """Return when a process began, in ticks of the machine's clock; ``None`` if it has ended."""
    try:
        state, *values = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0 if not Path("/proc/self").exists() and is_alive(pid) else None
    return None if state in "ZX" else int(values[18])


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
