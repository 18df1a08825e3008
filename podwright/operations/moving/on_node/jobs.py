"""Stop Slurm's jobs so that they can go on elsewhere, and submit them there.

    jobs.py hold FOLDER SAVE_S     start no job, let running ones save and queue again; repeat until "running" is empty
    jobs.py close FOLDER           take no new job, and record the jobs that wait
    jobs.py reopen FOLDER          take and start jobs again
    jobs.py submit FOLDER          submit the recorded jobs, each once

A job with ``#SBATCH --signal`` gets that signal: it says that the job saves and ends on it. Others that Slurm may
requeue are requeued, which is SIGTERM first. https://slurm.schedmd.com/sbatch.html#OPT_signal
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCK = Path("/run/podwright-move.lock")
RECORD = "jobs.json"
RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED"}
FIELD = re.compile(r"(?:^|\s)(\w[\w/:]*)=(.*?)(?=\s\w[\w/:]*=|\s*$)")
SIGNAL = re.compile(r"^#SBATCH\s+(?:.*\s)?--signal[= ](?P<who>[A-Z]*:)?(?P<signal>\w+)", re.MULTILINE)
NO_VALUE = {"", "(null)", "N/A", "UNLIMITED", "None"}
# sbatch's options by the fields of `scontrol show job`.
OPTIONS = {
    "JobName": "job-name",
    "Partition": "partition",
    "Account": "account",
    "QOS": "qos",
    "TimeLimit": "time",
    "NumTasks": "ntasks",
    "CPUs/Task": "cpus-per-task",
    "WorkDir": "chdir",
    "Comment": "comment",
    "Features": "constraint",
    "Licenses": "licenses",
    "Nice": "nice",
}
FILES = {"StdErr": "error", "StdOut": "output"}  # unless the script names them, with patterns


def run(*words: str, stdin: str | None = None) -> str:
    """Run a command and return its output; end with its message if it fails."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of scontrol."""
    return {key: value.strip() for key, value in FIELD.findall(line)}


def partitions() -> dict[str, str]:
    """Return the state of each partition."""
    lines = run("scontrol", "show", "partition", "--oneliner").splitlines()
    return {item["PartitionName"]: item["State"] for item in map(fields, lines) if "PartitionName" in item}


def queue() -> list[dict[str, str]]:
    """Return every job that waits or runs."""
    ids = sorted({line.strip() for line in run("squeue", "--noheader", "--format=%A").splitlines()} - {""}, key=int)
    shown = (run("scontrol", "show", "job", "--oneliner", number) for number in ids)
    jobs = {item["JobId"]: item for text in shown for item in map(fields, text.splitlines()) if "JobId" in item}
    return [item for item in jobs.values() if item["JobState"] in RUNNING | {"PENDING"}]


def number_of(job: dict[str, str]) -> str:
    """Return an unambiguous id of this job: the JobId of an array's last task is also the id of the array."""
    task = job.get("ArrayTaskId", "")
    return f"{job['ArrayJobId']}_{task}" if task.isdigit() else job["JobId"]


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
    return {**record, **(json.loads(file.read_text()) if file.exists() else {})}


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write the record whole."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    """Start no job, and let those that run save and queue again."""
    record = read(folder)
    for name, now in partitions().items():
        record["partitions"].setdefault(name, now)
    write(folder, record)  # before anything changes: reopen needs it
    set_partitions(record, "DOWN")
    running, unable = [], []
    for job in queue():
        number = number_of(job)
        if job["JobState"] == "PENDING":
            continue
        if job.get("Requeue") != "1" or job.get("BatchFlag") == "0":
            unable.append(f"{number} ({job['JobName']}, {job['UserId'].split('(')[0]})")
            continue
        running.append(number)
        if job["JobState"] == "COMPLETING":
            continue
        signalled_at = record["signalled"].get(number)
        if signalled_at is None:
            record["signalled"][number] = time.time()
            write(folder, record)
            ask_to_save(number, script(job["JobId"]))
        elif time.time() - signalled_at > save_s:
            requeue(number)
    return {"running": running, "unable": unable}


def ask_to_save(number: str, text: str) -> None:
    """Send a job the signal that its script asks for, or requeue it."""
    asked = SIGNAL.search(text)
    if asked is None:
        requeue(number)
        return
    batch = ["--batch"] if "B" in (asked["who"] or "") else []
    subprocess.run(["scancel", *batch, f"--signal={asked['signal']}", number], check=False)


def requeue(number: str) -> None:
    """Put a job back into the queue; one that has just ended stays ended."""
    subprocess.run(["scontrol", "requeue", number], check=False, stderr=subprocess.DEVNULL)


def script(number: str) -> str:
    """Return a job's batch script; empty for one without."""
    done = subprocess.run(
        ["scontrol", "write", "batch_script", number, "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def close(folder: Path) -> dict[str, Any]:
    """Take no new job, and record those that wait."""
    record = read(folder)
    set_partitions(record, "INACTIVE")
    jobs = queue()
    record["jobs"] = [{"fields": job, "script": script(job.get("ArrayJobId", job["JobId"]))} for job in jobs]
    found = re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", run("scontrol", "show", "config"))
    record["next_job_id"] = int(found.group(1)) if found else 0
    write(folder, record)
    return {"jobs": [f"{job['JobId']} ({job['JobName']}, {job['UserId'].split('(')[0]})" for job in jobs]}


def reopen(folder: Path) -> dict[str, Any]:
    """Take and start jobs again."""
    record = read(folder)
    set_partitions(record, "UP")
    record["signalled"] = {}
    write(folder, record)
    return {"partitions": sorted(name for name, state in record["partitions"].items() if state == "UP")}


def submit(folder: Path) -> dict[str, Any]:
    """Submit each recorded job once, as its user, and say which number it has now."""
    record = read(folder)
    refused: list[str] = []
    for number, parts in sorted(arrays(record["jobs"]).items(), key=lambda item: int(item[0])):
        if number in record["submitted"]:
            continue
        job, text = parts[0]["fields"], parts[0]["script"]
        known = copy_of(job) if number in record["submitting"] else ""
        if known:
            record["submitted"][number] = known
            write(folder, record)
            continue
        user = job["UserId"].split("(")[0]
        if not text or "HetJobId" in job:
            refused.append(f"{number} ({job['JobName']}, {user}): Slurm has no batch script of it")
            continue
        words = [*options(job, parts, record["submitted"]), "--parsable"]
        line = f"PATH={shlex.quote(os.environ['PATH'])}; export PATH; sbatch {' '.join(map(shlex.quote, words))}"
        record["submitting"].append(number)
        write(folder, record)
        done = subprocess.run(
            ["runuser", "--login", user, "--shell", "/bin/sh", "--command", line],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            refused.append(f"{number} ({job['JobName']}, {user}): {done.stderr.strip()}")
            continue
        record["submitted"][number] = done.stdout.strip().split(";")[0]
        write(folder, record)
    return {"submitted": record["submitted"], "refused": refused}


def copy_of(job: dict[str, str]) -> str:
    """Return the id of the job that was submitted for this one when we were killed; empty if there is none."""
    same = ("JobName", "UserId", "WorkDir", "Partition")
    for other in queue():
        if all(other.get(field) == job.get(field) for field in same):
            return other.get("ArrayJobId", other["JobId"])
    return ""


def arrays(jobs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the recorded jobs by number; the tasks of an array have one."""
    found: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        found.setdefault(job["fields"].get("ArrayJobId", job["fields"]["JobId"]), []).append(job)
    return found


def options(job: dict[str, str], parts: list[dict[str, Any]], submitted: dict[str, str]) -> Iterator[str]:
    """Yield sbatch's options for a job as it was submitted; its script's own lines agree with them."""
    for field, option in OPTIONS.items():
        value = job.get(field, "")
        if value not in NO_VALUE and not (field == "Nice" and value == "0"):
            yield f"--{option}={value}"
    text = parts[0]["script"]
    for field, option in FILES.items():
        named = re.search(rf"(?m)^#SBATCH\s+(?:.*\s)?(--{option}|-{option[0]})\b", text)
        if not named and job.get(field, "") not in NO_VALUE and not is_default(job[field]):
            yield f"--{option}={job[field]}"
    yield f"--nodes={job['NumNodes']}"
    per_node = job.get("TresPerNode", "")
    if per_node.startswith("gres"):
        yield f"--gres={','.join(part[5:] for part in per_node.split(',') if part.startswith('gres'))}"
    if job.get("OverSubscribe") == "NO":
        yield "--exclusive"
    if "ArrayTaskId" in job:
        yield f"--array={','.join(part['fields']['ArrayTaskId'] for part in parts)}"
    if job.get("Reason") in {"JobHeldUser", "JobHeldAdmin"}:
        yield "--hold"
    waits = ",".join(dependencies(job.get("Dependency", ""), submitted))
    if waits:
        yield f"--dependency={waits}"


def is_default(path: str) -> bool:
    """Return whether a path is sbatch's default: slurm-%j.out in the work folder."""
    return re.fullmatch(r"slurm-\d+(_\d+)?\.out", Path(path).name) is not None


def dependencies(text: str, submitted: dict[str, str]) -> Iterator[str]:
    """Yield the dependencies on jobs that moved too, with their new numbers."""
    for kind, number in re.findall(r"(\w+):(\d+)", text):
        if number in submitted:
            yield f"{kind}:{submitted[number]}"


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, folder, *rest = arguments
    if verb == "hold":
        print(json.dumps(hold(Path(folder), float(rest[0]))))
    else:
        print(json.dumps({"close": close, "reopen": reopen, "submit": submit}[verb](Path(folder))))


if __name__ == "__main__":
    with LOCK.open("w") as lock:  # a program whose caller was killed still runs
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])
