"""Stop Slurm's jobs so that they can go on elsewhere, and submit them there.

    moved_jobs.py hold FOLDER SAVE_S     start no job, let running ones save; repeat until "running" is empty
    moved_jobs.py close FOLDER           take no new job, and record the jobs that wait
    moved_jobs.py reopen FOLDER          take and start jobs again
    moved_jobs.py submit FOLDER          submit the recorded jobs, each once

A job with ``#SBATCH --signal`` gets that signal: it says that the job saves and ends on it. Others that Slurm may
requeue are requeued, which is SIGTERM first. https://slurm.schedmd.com/sbatch.html#OPT_signal
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from podwright_bootstrap.slurm import listing

LOCK = Path("/run/podwright-move.lock")
RECORD = "jobs.json"
SIGNAL = re.compile(r"^#SBATCH\s+(?:.*\s)?--signal[= ](?P<who>[A-Z]*:)?(?P<signal>\w+)", re.MULTILINE)
NO_VALUE = {"", "N/A", "UNLIMITED", "None"}
# sbatch's options by squeue's fields.
OPTIONS = {
    "name": "job-name",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "timelimit": "time",
    "numtasks": "ntasks",
    "cpus-per-task": "cpus-per-task",
    "workdir": "chdir",
    "comment": "comment",
    "feature": "constraint",
    "licenses": "licenses",
    "nice": "nice",
}
FILES = {"stderr": "error", "stdout": "output"}  # Names in the script, with patterns, come before these.
COLUMNS = (
    *("jobid", "userid", "username", "state", "arrayjobid", "arraytaskid", "hetjobid", "batchflag", "requeue"),
    *("numnodes", "tres-per-node", "oversubscribe", "reason", "dependency", *OPTIONS, *FILES),
)
ARRAY = re.compile(r"[0-9,%:-]+")  # tasks, as --array takes them
LOGIN_LIMIT_S = 60  # The limit covers a user's start files and sbatch.
ANSWER_BYTES = 1 << 16


def run(*words: str, stdin: str | None = None) -> str:
    """Run a command and return its output; end with its message if it fails."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def partitions() -> dict[str, str]:
    """Return the state of each partition; administrators alone name partitions."""
    lines = run("scontrol", "show", "partition", "--oneliner").splitlines()
    states = (re.match(r"PartitionName=(\S+) .*?\sState=(\w+)", line) for line in lines)
    return {match[1]: match[2] for match in states if match}


def queue() -> list[dict[str, str]]:
    """Return every job that waits or runs."""
    jobs = listing.jobs(COLUMNS, "--all", "--states=all")
    return [item for item in jobs if item["state"] in {"PENDING", *listing.HAS_NODES}]


def array_of(job: dict[str, str]) -> str:
    """Return the number that all tasks of an array share, or the job's own."""
    return str(int(job["arrayjobid"]))


def is_task(job: dict[str, str]) -> bool:
    """Return whether the job is a part of an array."""
    return ARRAY.fullmatch(job["arraytaskid"]) is not None


def number_of(job: dict[str, str]) -> str:
    """Return an unambiguous id of this job: the id of an array's last task is also the id of the array."""
    task = job["arraytaskid"]
    return f"{array_of(job)}_{task}" if task.isdecimal() else str(int(job["jobid"]))


def label(job: dict[str, str], number: str) -> str:
    """Return the job's number, name and user for a message."""
    shown = listing.printable(job)
    return f"{number} ({shown['name']}, {shown['username']})"


def require_own(folder: Path) -> None:
    """End if somebody else could write the record, which says as whom jobs are submitted."""
    for place in (folder, folder.parent):
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            sys.exit(f"{place} is not root's alone: remove it, and run `podwright move` again")


def read(folder: Path) -> dict[str, Any]:
    """Return the record, or an empty one."""
    record = {
        "partitions": {},  # the state of each before the move
        "signalled": {},  # when each job was asked to save
        "jobs": [],
        "next_job_id": 0,
        "submitting": [],  # jobs that may have been submitted
        "submitted": {},  # new number by old number
    }
    file = folder / RECORD
    if folder.exists():
        require_own(folder)
    return {**record, **(json.loads(file.read_text()) if file.exists() else {})}


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write the record whole."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_own(folder)
    with (folder / f".{RECORD}").open("w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / f".{RECORD}").replace(folder / RECORD)


def set_partitions(record: dict[str, Any], state: str) -> None:
    """Give every partition that was up another state."""
    for name, now in partitions().items():
        record["partitions"].setdefault(name, now)
    for name, before in record["partitions"].items():
        if before == "UP":
            run("scontrol", "update", f"PartitionName={name}", f"State={state}")


def hold(folder: Path, save_s: float) -> dict[str, Any]:
    """Start no more jobs, and let running ones save and queue again."""
    record = read(folder)
    for name, now in partitions().items():
        record["partitions"].setdefault(name, now)
    write(folder, record)  # before anything changes: reopen needs it
    set_partitions(record, "DOWN")
    running, unable = [], []
    for job in queue():
        number = number_of(job)
        if job["state"] == "PENDING":
            continue
        if job["requeue"] != "1" or job["batchflag"] == "0":
            unable.append(label(job, number))
            continue
        running.append(number)
        if job["state"] == "COMPLETING":
            continue
        signalled_at = record["signalled"].get(number)
        if signalled_at is None:
            record["signalled"][number] = time.time()
            write(folder, record)
            ask_to_save(number, script(job["jobid"]))
        elif time.time() - signalled_at > save_s:
            requeue(number)
    return {"running": running, "unable": unable}


def ask_to_save(number: str, text: str) -> None:
    """Send a job the signal that its script asks for, or requeue it."""
    signal_option = SIGNAL.search(text)
    if signal_option is None:
        requeue(number)
        return
    batch = ["--batch"] if "B" in (signal_option["who"] or "") else []
    subprocess.run(["scancel", *batch, f"--signal={signal_option['signal']}", number], check=False)


def requeue(number: str) -> None:
    """Put a job back into the queue; one that has just ended stays ended."""
    subprocess.run(["scontrol", "requeue", number], check=False, stderr=subprocess.DEVNULL)


def script(number: str) -> str:
    """Return a job's batch script, whose bytes need not be UTF-8; empty for one without."""
    done = subprocess.run(
        ["scontrol", "write", "batch_script", number, "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def close(folder: Path) -> dict[str, Any]:
    """Close the partitions for new jobs, and record the jobs that wait."""
    record = read(folder)
    set_partitions(record, "INACTIVE")
    jobs = queue()
    record["jobs"] = [{"fields": job, "script": script(array_of(job))} for job in jobs]
    match = re.search(r"(?m)^NEXT_JOB_ID\s*=\s*(\d+)", run("scontrol", "show", "config"))
    record["next_job_id"] = int(match.group(1)) if match else 0
    write(folder, record)
    return {"jobs": [label(job, str(int(job["jobid"]))) for job in jobs]}


def reopen(folder: Path) -> dict[str, Any]:
    """Open the partitions again."""
    record = read(folder)
    set_partitions(record, "UP")
    record["signalled"] = {}
    write(folder, record)
    return {"partitions": sorted(name for name, state in record["partitions"].items() if state == "UP")}


def submit(folder: Path) -> dict[str, Any]:
    """Submit each recorded job once, as its user; return the new numbers by the old ones."""
    record = read(folder)
    refused: list[str] = []
    for number, parts in sorted(arrays(record["jobs"]).items(), key=lambda item: int(item[0])):
        if number in record["submitted"]:
            continue
        job, text = parts[0]["fields"], parts[0]["script"]
        existing = copy_of(job) if number in record["submitting"] else ""
        if existing:
            record["submitted"][number] = existing
            write(folder, record)
            continue
        try:
            user = user_of(job)
            require_script(job, text)
            record["submitting"].append(number)
            write(folder, record)
            record["submitted"][number] = submit_as(user, [*options(job, parts, record["submitted"])], text)
        except SubmissionError as why:
            refused.append(f"{label(job, number)}: {why}")
            continue
        write(folder, record)
    return {"submitted": record["submitted"], "refused": refused}


class SubmissionError(Exception):
    """A job is not submitted; the message says why."""


def require_script(job: dict[str, str], text: str) -> None:
    """Check that the job can be submitted again.

    Raises:
        SubmissionError: Slurm keeps no batch script, as of a job of several parts.
    """
    if not text or job["hetjobid"].isdecimal():
        raise SubmissionError("Slurm has no batch script of this job")


def user_of(job: dict[str, str]) -> pwd.struct_passwd:
    """Return the user of a job by the number that Slurm keeps.

    Raises:
        SubmissionError: the number is nobody's here, or somebody else's.
    """
    try:
        user = pwd.getpwuid(int(job["userid"]))
    except KeyError:
        raise SubmissionError(f"no user has the id {int(job['userid'])} here") from None
    if user.pw_name != job["username"]:
        raise SubmissionError(f"the user id {user.pw_uid} is {user.pw_name}'s here")
    return user


def submit_as(user: pwd.struct_passwd, words: list[str], text: str) -> str:
    """Submit a batch script as a user, from a login of theirs; return the number that Slurm gave to the job.

    Start files of the login may print, wait or write without end: the number is taken from the last line, and only if
    Slurm has a job of this number and user.

    Raises:
        SubmissionError: sbatch or the login failed.
    """
    line = f"PATH={shlex.quote(os.environ['PATH'])}; export PATH; exec sbatch {' '.join(map(shlex.quote, words))}"
    command = ["runuser", "--login", "--shell", "/bin/sh", "--command", line, "--", user.pw_name]
    status, output = answer_of(command, text.encode(errors="surrogateescape"))
    last_line = output.strip().rpartition("\n")[2]
    if status != 0:
        raise SubmissionError(listing.printable({"": last_line})[""] or f"sbatch ended with {status}")
    number = last_line.split(";")[0]
    if not re.fullmatch(r"[0-9]{1,10}", number) or not is_of(number, user.pw_uid):
        raise SubmissionError(
            "sbatch printed no number of a job of this user; do start files of the login end or print?"
        )
    return number


def is_of(number: str, uid: int) -> bool:
    """Return whether Slurm has a job of this number and user."""
    try:
        return any(int(row["userid"]) == uid for row in listing.jobs(("userid",), f"--jobs={number}", "--states=all"))
    except listing.ListingError:
        return False


def answer_of(command: list[str], stdin: bytes) -> tuple[int, str]:
    """Run a user's command; return its status, and the end of what it wrote.

    It gets ``LOGIN_LIMIT_S``; a descendant that keeps its output open does not keep us waiting.
    """
    output, deadline = b"", time.monotonic() + LOGIN_LIMIT_S
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as script:
            script.write(stdin)
            script.seek(0)
            process = subprocess.Popen(command, stdin=script, stdout=writer, stderr=writer, start_new_session=True)
        os.close(writer)
        while time.monotonic() < deadline:
            has_ended = process.poll() is not None
            if select.select([reader], [], [], 0.1)[0]:
                chunk = os.read(reader, ANSWER_BYTES)
                output = (output + chunk)[-ANSWER_BYTES:]
                if not chunk:
                    break
            elif has_ended:
                break
    finally:
        os.close(reader)
    try:
        return process.wait(max(0.0, deadline - time.monotonic())), output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return -signal.SIGKILL, f"the login or sbatch did not end within {LOGIN_LIMIT_S} s"


def copy_of(job: dict[str, str]) -> str:
    """Return the id of the job that was submitted for this one when we were killed; empty if there is none."""
    same = ("userid", "name", "workdir", "partition")
    for candidate in queue():
        if all(candidate[field] == job[field] for field in same):
            return array_of(candidate)
    return ""


def arrays(jobs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the recorded jobs by number; the tasks of an array have one."""
    jobs_by_number: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        jobs_by_number.setdefault(array_of(job["fields"]), []).append(job)
    return jobs_by_number


def options(job: dict[str, str], parts: list[dict[str, Any]], submitted: dict[str, str]) -> Iterator[str]:
    """Yield sbatch's options for a job as it was submitted; its script's own lines agree with them."""
    yield "--parsable"
    for field, option in OPTIONS.items():
        value = job[field]
        if value not in NO_VALUE and not (field == "nice" and value == "0"):
            yield f"--{option}={value}"
    text = parts[0]["script"]
    for field, option in FILES.items():
        named = re.search(rf"(?m)^#SBATCH\s+(?:.*\s)?(--{option}|-{option[0]})\b", text)
        if not named and job[field] not in NO_VALUE and not is_default(job[field]):
            yield f"--{option}={job[field]}"
    yield f"--nodes={job['numnodes']}"
    per_node = job["tres-per-node"]
    if per_node.startswith("gres"):
        yield f"--gres={','.join(part[5:] for part in per_node.split(',') if part.startswith('gres'))}"
    if job["oversubscribe"] == "NO":
        yield "--exclusive"
    if is_task(job):
        yield f"--array={','.join(part['fields']['arraytaskid'] for part in parts)}"
    if job["reason"] in {"JobHeldUser", "JobHeldAdmin"}:
        yield "--hold"
    waits = ",".join(dependencies(job["dependency"], submitted))
    if waits:
        yield f"--dependency={waits}"


def is_default(path: str) -> bool:
    """Return whether a path is sbatch's default: slurm-%j.out in the work folder."""
    return re.fullmatch(r"slurm-(\d+(_\d+)?|%j|%A_%a)\.out", Path(path).name) is not None


def dependencies(text: str, submitted: dict[str, str]) -> Iterator[str]:
    """Yield the dependencies on jobs that moved too, with their new numbers."""
    for kind, number in re.findall(r"(\w+):(\d+)", text):
        if number in submitted:
            yield f"{kind}:{submitted[number]}"


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, folder, *values = arguments
    if verb == "hold":
        print(json.dumps(hold(Path(folder), float(values[0]))))
    else:
        print(json.dumps({"close": close, "reopen": reopen, "submit": submit}[verb](Path(folder))))


if __name__ == "__main__":
    # Who can open a lock can hold it. A program whose caller was killed still runs.
    with os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])
