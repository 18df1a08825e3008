"""One job at a time trains in a run's folder: claims, their owners' ends, and races of real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podwright_testing.metrics import logged
from podwright_training import run_claim, run_folder
from podwright_training.__main__ import main
from podwright_training.run_claim import Claim, OwnedRunError, Owner, OwnerKind, Standing, Surroundings, standing
from podwright_training.run_folder import RunFolder, write_once

RACERS = 12
RACE = """
import sys, time
from pathlib import Path
from podwright_training.run_claim import claim_of_run
from podwright_training.run_folder import RunFolder
claim = claim_of_run(RunFolder(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
try:
    claim.__enter__()
except ValueError as error:
    print(error, flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
"""
SQUEUE = """#!/bin/sh
echo "$@" >> {folder}/questions
[ -e {folder}/jobs ] || {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
[ -s {folder}/jobs ] || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
case "$*" in *--steps*) cat {folder}/steps; exit;; esac
mark=${{SQUEUE_FORMAT2##*:}}
while read -r uid state name; do printf "%s$mark%s$mark%b$mark\\n" "$uid" "$state" "$name"; done < {folder}/jobs
"""


@pytest.fixture
def racer(tmp_path):
    """Starts processes that claim a run at a sign."""
    started = []

    def start(run_dir=tmp_path / "first"):
        command = [sys.executable, "-c", RACE, str(run_dir)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Answers of ``squeue``: the lines of its jobs and steps, or ``None`` if the controller is away."""
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(SQUEUE.format(folder=tmp_path))
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def answers(jobs="", steps=""):
        (tmp_path / "jobs").unlink(missing_ok=True)
        if jobs is not None:
            (tmp_path / "jobs").write_text(jobs and f"{jobs}\n")
        (tmp_path / "steps").write_text(steps)

    return answers


def _go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def _here(**values):
    return replace(Owner.of_this_process(), **values)


def _elsewhere(**values):
    return _here(machine="another", host="node-2", **values)


def _claim(folder, owner):
    return Claim(folder, "run first", owner)


@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_starts_at_one_instant_one_trains(tmp_path, racer, has_links, monkeypatch):
    """Each other process names the winner in one line; after its end the next start wins, killed or not."""
    if not has_links:
        monkeypatch.setenv("PYTHONPATH", str(_without_links(tmp_path)))
    racers = [racer() for _ in range(RACERS)]
    for process in racers:
        _go(process)
    answers = [process.stdout.readline() for process in racers]
    assert answers.count("won\n") == 1, answers
    winner = racers[answers.index("won\n")]
    line = f"run first is being trained by process {winner.pid} on "
    assert all(answer.startswith(line) and "--run-dir" in answer for answer in answers if answer != "won\n")
    winner.kill()
    winner.wait()
    following = [racer() for _ in range(3)]
    for process in following:
        _go(process)
    assert [process.stdout.readline() for process in following].count("won\n") == 1


def _without_links(folder):
    """Return a folder with a module that Python loads first, and that makes links fail as on a FAT file system."""
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import errno, os\ndef link(*_, **__): raise OSError(errno.EPERM, 'no links')\nos.link = link\n"
    )
    return hook


def test_two_trainers_of_one_folder(tmp_path, tiny_flags, start):
    """One trains; the other ends with exit status 2, writes nothing, and says which process trains."""
    flags = tiny_flags(tmp_path / "first", max_steps=6, checkpoint_freq=2)
    processes = [start("train", *flags) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], outputs
    loser = next(output for process, output in zip(processes, outputs, strict=True) if process.returncode)
    assert "error: run first is being trained by process" in loser
    assert "Traceback" not in loser
    steps = [event["step"] for event in logged(RunFolder(tmp_path / "first"), "train")]
    assert steps == sorted(set(steps))
    assert main(["claim", "--run-dir", str(tmp_path / "first")]) == 0


def test_checkpoints_of_two_runs_in_one_folder(tmp_path, racer, call_ranks, tiny_flags):
    """A run that names another run's folder of checkpoints is refused while that one trains."""
    holder = racer(tmp_path / "shared")  # claims the folder as if it were a run
    _go(holder)
    assert holder.stdout.readline() == "won\n"
    flags = tiny_flags(tmp_path / "second", ranks=1, checkpoint_dir=tmp_path / "shared")
    status, output = call_ranks(1, "train", *flags)
    assert status == 2
    assert f"checkpoint_dir {tmp_path / 'shared'} is being trained by process {holder.pid}" in output
    assert "--checkpoint-dir" in output


def test_a_released_claim_is_free(tmp_path):
    """A run that has ended is trained again, whoever and wherever its owner was."""
    with _claim(tmp_path, _elsewhere(job="7")):
        pass
    _claim(tmp_path, _here()).take()


def test_a_frozen_owner_ends_when_it_goes_on(tmp_path, racer, monkeypatch):
    """On another host it counts as lost once it does not renew its claim; then it may not write any more."""
    monkeypatch.setattr(run_claim, "SILENT_S", 2.0)
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "from podwright_training import run_claim\nrun_claim.RENEWAL_S = 0.2\nrun_claim._machine = lambda: 'another'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))
    owner = racer()
    _go(owner)
    assert owner.stdout.readline() == "won\n"
    claims = RunFolder(tmp_path / "first").claims
    with pytest.raises(OwnedRunError, match=f"process {owner.pid}"):  # it renews
        _claim(claims, _here()).take()
    os.kill(owner.pid, signal.SIGSTOP)
    _claim(claims, _here()).take()
    os.kill(owner.pid, signal.SIGCONT)
    assert owner.wait(60) == run_claim.REPLACED_STATUS


def test_an_abandoned_claim_is_not_waited_for(tmp_path):
    """One that was not renewed for an hour, by the file system's clock, costs no minute."""
    _claim(tmp_path, _elsewhere()).take()
    path = next(tmp_path.glob("*.json"))
    long_ago = time.time() - 2 * run_claim.ABANDONED_S
    os.utime(path, (long_ago, long_ago))
    began = time.monotonic()
    _claim(tmp_path, _here()).take()
    assert time.monotonic() - began < run_claim.SILENT_S


JOB = {"job": "7", "job_name": "first"}
UID = os.geteuid()


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (f"{UID} RUNNING first", Standing.OWNED),
        (f"{UID} PENDING first", Standing.OWNED),  # requeued
        (f"{UID} SUSPENDED first", Standing.OWNED),
        (f"{UID} CANCELLED first\n{UID} RUNNING first", Standing.OWNED),  # tasks of an array
        (f"{UID} CANCELLED first", Standing.FREE),
        (f"{UID} NODE_FAIL first", Standing.FREE),
        (f"{UID} COMPLETING first", Standing.UNKNOWN),
        (f"{UID + 1} RUNNING first", Standing.FREE),  # a job of this number, of somebody else
        (f"{UID} RUNNING something else", Standing.UNKNOWN),  # renamed, or of a cluster that numbers from 1 again
        (f"{UID} CANCELLED something else", Standing.FREE),
        ("", Standing.FREE),  # no such job
        (None, Standing.UNKNOWN),
    ],
)
def test_slurm_says_whether_a_job_is_there(slurm, jobs, expected):
    """A job that waits or runs has the run; one that has ended, or that Slurm does not know, has not."""
    slurm(jobs)
    assert standing(_elsewhere(**JOB), _here(), Surroundings()) == expected


@pytest.mark.parametrize("name", ["a b  ", " a", "a\\n1 CANCELLED a", "\\0033[2J\\0342\\0200\\0256", "~", "a|b"])
def test_a_job_has_the_run_whatever_its_name_is(slurm, tmp_path, name):
    """Spaces, line ends and control characters of a name leave a job that runs the run's owner."""
    shown = subprocess.run(["printf", "%b", name], capture_output=True, text=True, check=True).stdout
    claim = _claim(tmp_path, _elsewhere(job="7", job_name=shown))
    slurm(f"{UID} RUNNING {name}".replace("RUNNING  ", "RUNNING \\040").replace("b  ", "b\\040\\040"))
    claim.take()
    with pytest.raises(OwnedRunError, match="is being trained by job 7"):
        _claim(tmp_path, _here()).take()


def test_a_job_whose_controller_is_away_is_looked_at(slurm):
    """The process table of the same machine answers where Slurm does not."""
    slurm(None)
    assert standing(_here(**JOB), _here(pid=1), Surroundings()) == Standing.OWNED
    assert standing(_here(**JOB, began=1), _here(pid=1), Surroundings()) == Standing.FREE


@pytest.mark.parametrize(
    ("owner", "claimant", "expected"),
    [
        ({"restart": 0}, {"restart": 1}, Standing.FREE),  # requeued
        ({"restart": 1}, {"restart": 0}, Standing.OWNED),  # of a node that was lost, and has come back
        ({"step": "0"}, {"step": "1"}, Standing.OWNED),  # two steps of one job, side by side
        ({"step": "9"}, {"step": "10"}, Standing.FREE),  # HyperPod started the step again on another node
        ({"kind": OwnerKind.JOB}, {}, Standing.FREE),  # launch gave it to the job
    ],
)
def test_a_job_and_its_earlier_start(slurm, owner, claimant, expected):
    """A requeued or replaced step continues the run; two steps of one job do not train it both."""
    slurm(f"{UID} RUNNING first", steps="7.batch\n7.0\n7.1\n")
    owner = {"step": "0", **owner}
    assert standing(_elsewhere(**JOB, **owner), _here(**JOB, **claimant), Surroundings()) == expected


def test_hosts_of_an_elastic_run_share_a_claim(slurm):
    """Tasks of an array are one owner; another array's are not, and neither is a plain trainer."""
    slurm(f"{UID} RUNNING first")
    host, other = _elsewhere(kind=OwnerKind.ELASTIC, **JOB), _here(kind=OwnerKind.ELASTIC, job="8")
    assert standing(host, _here(kind=OwnerKind.ELASTIC, **JOB), Surroundings()) == Standing.FREE
    assert standing(host, other, Surroundings()) == Standing.OWNED
    assert standing(host, _here(), Surroundings()) == Standing.OWNED
    without_slurm = [_elsewhere(kind=OwnerKind.ELASTIC), _here(kind=OwnerKind.ELASTIC)]
    assert standing(*without_slurm, Surroundings()) == Standing.FREE


def test_a_launch_gives_its_claim_to_the_job(tmp_path, slurm):
    """Until the job starts, a second launch and a trainer beside it are refused; a cancelled job frees the run."""
    slurm(f"{UID} PENDING first")
    with _claim(tmp_path, _here(kind=OwnerKind.LAUNCH)) as launch:
        launch.give_to_job("7")
    for kind in (OwnerKind.LAUNCH, OwnerKind.PROCESS):
        with pytest.raises(OwnedRunError, match=r"run first belongs to job 7, submitted .*: cancel it \(scancel 7\), "):
            _claim(tmp_path, _here(kind=kind)).take()
    slurm(f"{UID} CANCELLED first")
    _claim(tmp_path, _here()).take()


def test_the_job_of_a_launch_waits_for_its_claim(tmp_path, slurm, racer, monkeypatch):
    """A job that starts before its launch has given it the claim is not refused."""
    slurm(f"{UID} RUNNING first")
    launch = _claim(tmp_path / "first" / "claims", _here(kind=OwnerKind.LAUNCH)).take()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = racer()
    _go(job)
    time.sleep(2 * run_claim.LOOK_S)
    launch.give_to_job("7")
    assert job.stdout.readline() == "won\n"


def _write(content):
    return lambda path: path.write_bytes(content)


DAMAGES = {
    "other types": _write(b'{"kind": "process", "pid": "x"}'),
    "no text": _write(b"\xff\xfe{}"),
    "deep": _write(b"[" * 60_000),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_claim_is_one_line(tmp_path, capsys, damage, monkeypatch):
    """It names the file and what to do, and nothing waits for a pipe."""
    claims = RunFolder(tmp_path).claims
    claims.mkdir()
    monkeypatch.setattr(run_claim, "LOOK_S", 0.01)
    DAMAGES[damage](claims / "00000001.json")
    assert main(["claim", "--run-dir", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {claims / '00000001.json'}")
    assert "remove it" in line


def test_a_file_is_made_once(tmp_path, monkeypatch):
    """The second call returns False and changes nothing, with links and without; no draft is left."""
    for name in ("with", "without"):
        assert write_once(tmp_path / name, "1")
        assert not write_once(tmp_path / name, "2")
        assert (tmp_path / name).read_text() == "1"
        monkeypatch.setattr(run_folder.os, "link", _no_link)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["with", "without"]


def _no_link(*_):
    raise PermissionError(1, "Operation not permitted")


class _World(Surroundings):
    """The facts about owners: the jobs that Slurm has, and the processes of each machine that live."""

    def __init__(self, machine, jobs, living, *, slurm_answers=True):
        self._machine, self._jobs, self._living, self._answers = machine, jobs, living, slurm_answers

    def has_job(self, owner):
        return owner.job in self._jobs if self._answers else None

    def has_step(self, owner):
        return owner.pid in self._living if self._answers else None

    def has_process(self, owner):
        return owner.pid in self._living if owner.machine == self._machine else None


class ClaimMachine(RuleBasedStateMachine):
    """Jobs and processes that start, end, are killed and requeued, in any order, on two machines."""

    def __init__(self):
        super().__init__()
        self.newest = None  # owner of the newest claim
        self.living = {}  # owners that believe the run is theirs, by pid
        self.jobs = {}  # number of restarts, by job
        self.running = {}  # pid, by job
        self.pids = 0

    def _start(self, machine, job=""):
        self.pids += 1
        owner = _here(pid=self.pids, machine=machine, job=job, restart=self.jobs.get(job, 0), step=str(self.pids))
        state = Standing.FREE
        if self.newest:
            state = standing(self.newest, owner, _World(machine, self.jobs, self.living))
        if state == Standing.UNKNOWN:  # its renewals show whether it lives
            state = Standing.OWNED if self.newest.pid in self.living else Standing.FREE
        if state == Standing.FREE:
            self.newest, self.living[owner.pid] = owner, owner
            if job:
                self.running[job] = owner.pid
        elif not self.newest.job:
            assert self.newest.pid in self.living, "nobody trains, and the run is refused"
        else:
            assert self.newest.job in self.jobs, "its job has ended, and the run is refused"

    @rule(machine=st.sampled_from("ab"))
    def start_process(self, machine):
        """Start a trainer without Slurm."""
        self._start(machine)

    @rule(machine=st.sampled_from("ab"), job=st.sampled_from("12"))
    def start_job(self, machine, job):
        """Start a job's trainer, or a second step of it."""
        self.jobs.setdefault(job, 0)
        self._start(machine, job)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def kill(self, data):
        """Kill a trainer; its job goes on."""
        del self.living[data.draw(st.sampled_from(sorted(self.living)))]

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def end(self, data):
        """End a trainer; it releases its claim."""
        owner = self.living.pop(data.draw(st.sampled_from(sorted(self.living))))
        if self.newest == owner:
            self.newest = replace(owner, released=True)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), machine=st.sampled_from("ab"))
    def requeue(self, data, machine):
        """Kill a job's programs and start it again, on another machine perhaps."""
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        self._end_job(job)
        self.jobs[job] += 1
        self._start(machine, job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        """End a job with its programs, which release nothing."""
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        self._end_job(job)
        del self.jobs[job]

    def _end_job(self, job):
        for pid in [pid for pid, owner in self.living.items() if owner.job == job]:
            del self.living[pid]

    @invariant()
    def one_trains(self):
        """At most one trainer believes that the run is its own, and that one has the newest claim."""
        assert len(self.living) <= 1
        assert all(owner == self.newest for owner in self.living.values())


ClaimMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
test_claims_of_any_history = ClaimMachine.TestCase


def test_a_claim_file_has_the_owner(tmp_path):
    """A claim is read as it was written, and text of others is printable."""
    owner = _here(job="7", host="node\x1b[2J")
    _claim(tmp_path, owner).take()
    values = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert values["job"] == "7"
    with pytest.raises(OwnedRunError, match=r"on node\?\[2J since") as raised:
        _claim(tmp_path, _here(job="7", restart=0)).take()
    assert raised.value.args[0].isprintable()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[" * 100_000, id="brackets"),
        pytest.param('{"kind": "process", "since": NaN}', id="no number"),
        pytest.param('{"kind": "process", "since": 1e300}', id="no time"),
        pytest.param("[]", id="list"),
        pytest.param(None, id="pipe"),
        pytest.param("/dev/zero", id="link to a device"),
    ],
)
def test_a_claim_that_nobody_wrote_is_one_line(tmp_path, capsys, content):
    """Whoever may write a run's folder cannot keep a reader waiting, or show it more than a line."""
    claim = RunFolder(tmp_path).claims / "00000001.json"
    claim.parent.mkdir()
    if content is None:
        os.mkfifo(claim)
    elif content.startswith("/"):
        claim.symlink_to(content)
    else:
        values = '"host": "h", "machine": "m", "pid": 1, "began": 1, "uid": 1, '
        claim.write_text(content.replace('"since"', f'{values}"since"'))
    assert main(["claim", "--run-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(claim) in said
