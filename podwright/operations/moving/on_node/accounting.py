"""Carry Slurm's accounts and its history of jobs from one controller's database to another's.

    accounting.py dump FOLDER      write the database, and a record for `compare`
    accounting.py load FOLDER      replace the database of this controller with it
    accounting.py compare FOLDER   compare accounts, users, QOS and the number of jobs

slurmdbd.conf says where the database is. Its tables carry the cluster's name, which is another one here.
https://slurm.schedmd.com/accounting.html
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCK = Path("/run/podwright-move.lock")
SETTLE_S, QUIET_S = 120, 3
CONF = Path("/opt/slurm/etc/slurmdbd.conf")
INCLUDED = Path("/opt/slurm/etc/accounting.conf")
DUMP, RECORD, ID = "slurm.sql", "accounts.json", "new-cluster.json"
ANSWER_LIMIT_S = 180
PREEMPTED = 8  # Its number in slurm.h's job_states; records of jobs that continue elsewhere end with it.
SHOWN = {
    "account": "format=account,description,organization",
    "assoc": "format=account,user,partition,qos,defaultqos,fairshare,grptres,maxjobs,maxtres,maxwall",
    "qos": "format=name,priority,flags,maxwall,maxtresperuser,grptres,usagefactor,preempt",
    "user": "format=user,defaultaccount,adminlevel",
}


def run(*words: str, stdin: str | None = None, check: bool = True) -> str:
    """Run a command and return its output; end with its message if it fails."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{words[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def settings() -> dict[str, str]:
    """Return slurmdbd.conf's keys in small letters."""
    pairs = re.findall(r"(?m)^\s*(\w+)\s*=\s*(.*?)\s*$", CONF.read_text())
    return {key.lower(): value for key, value in pairs}


def cluster() -> str:
    """Return the cluster's name as the database spells it."""
    match = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", run("scontrol", "show", "config"))
    name = match.group(1).lower() if match else ""
    if not re.fullmatch(r"[a-z0-9_.-]+", name):  # it becomes part of SQL
        sys.exit(f"Slurm's cluster has no usable name: {name!r}")
    return name


class Database:
    """The database of this controller's slurmdbd."""

    def __init__(self) -> None:
        values = settings()
        self.schema = values.get("storageloc", "slurm_acct_db")
        self._values = values

    @contextlib.contextmanager
    def client(self, program: str) -> Iterator[list[str]]:
        """Yield the words that start a client; a password is in a file of root's alone."""
        values = self._values
        if "storagepass" not in values:  # through the socket, as the user that the database knows
            yield ["runuser", "--user", values.get("slurmuser", "slurm"), "--", program]
            return
        with tempfile.NamedTemporaryFile("w", suffix=".cnf") as file:  # mode 0600
            password = values["storagepass"].strip('"').replace("\\#", "#").replace("\\\\", "\\")
            quoted = password.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'[client]\nuser="{values["storageuser"]}"\npassword="{quoted}"\n')
            file.write(f"host={values.get('storagehost', 'localhost')}\nport={values.get('storageport', '3306')}\n")
            if authority := re.search(r"SSL_CA=([^,\s]+)", values.get("storageparameters", "")):
                words = ("loose-ssl-verify-server-cert", "loose-ssl-mode=VERIFY_IDENTITY")  # MariaDB's and MySQL's
                file.write("\n".join([f"ssl-ca={authority.group(1)}", *words, ""]))
            file.flush()
            yield [program, f"--defaults-extra-file={file.name}"]

    def rows(self, statement: str) -> list[list[str]]:
        """Run SQL and return the rows."""
        with self.client("mysql") as words:
            text = run(*words, "--batch", "--skip-column-names", self.schema, stdin=statement)
        return [line.split("\t") for line in text.splitlines()]

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        return [row[0] for row in self.rows("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")]

    def dump(self, file: Path) -> None:
        """Write all tables as of one moment."""
        with self.client("mysqldump") as words, file.open("w") as out:
            options = ["--single-transaction", "--no-tablespaces", "--skip-comments"]
            done = subprocess.run(
                [*words, *options, self.schema],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode:
            sys.exit(f"mysqldump: {done.stderr.strip()}")

    def load(self, file: Path) -> None:
        """Replace all tables."""
        drop = "".join(f"DROP TABLE IF EXISTS `{name}`;\n" for name in self.tables())
        self.rows(f"SET FOREIGN_KEY_CHECKS=0;\n{drop}")
        with self.client("mysql") as words, file.open() as text:
            done = subprocess.run([*words, self.schema], stdin=text, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"mysql: {done.stderr.strip()}")


def shown(name: str) -> dict[str, list[str]]:
    """Return the rows that sacctmgr shows."""
    rows_by_kind = {}
    for kind, columns in SHOWN.items():
        of = [f"cluster={name}"] if kind == "assoc" else []
        text = run("sacctmgr", "--noheader", "--parsable2", "show", kind, *of, columns)
        rows_by_kind[kind] = sorted(set(text.splitlines()))
    return rows_by_kind


def job_count(database: Database, name: str) -> int:
    """Return the number of jobs that the database has."""
    return int(database.rows(f"SELECT COUNT(*) FROM `{name}_job_table`")[0][0])


def settle(database: Database, name: str) -> None:
    """Wait until slurmctld has sent its news to slurmdbd, and slurmdbd has committed it, which it does in batches."""
    quiet_s, before = 0, -1
    for _ in range(SETTLE_S):
        queued = re.search(r"(?m)^DBD Agent queue size:\s*(\d+)", run("sdiag", check=False))
        jobs = job_count(database, name)
        quiet_s = quiet_s + 1 if jobs == before and queued and queued.group(1) == "0" else 0
        if quiet_s >= QUIET_S:
            return
        before = jobs
        time.sleep(1)
    sys.exit(
        f"slurmctld still has news for slurmdbd after {SETTLE_S} s: `sdiag`; `journalctl --unit slurmdbd` says more"
    )


def dump(folder: Path) -> dict[str, Any]:
    """Write the database and the record."""
    if not CONF.exists():
        return {"accounting": False}
    database, name = Database(), cluster()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settle(database, name)
    jobs = job_count(database, name)
    partial = folder / f".{DUMP}"
    partial.touch(mode=0o600)
    database.dump(partial)
    rows = shown(name)
    record = {"cluster": name, "version": version(), "shown": rows, "jobs": jobs}
    (folder / RECORD).write_text(json.dumps(record))
    partial.replace(folder / DUMP)
    return {
        "accounting": True,
        "jobs": record["jobs"],
        "users": len(rows["user"]),
        "version": record["version"],
    }


def version() -> list[int]:
    """Return Slurm's version."""
    return [int(number) for number in re.findall(r"\d+", run("sacctmgr", "--version"))[:2]]


def load(folder: Path) -> dict[str, Any]:
    """Replace this controller's database. An interrupted replacement starts again."""
    record = json.loads((folder / RECORD).read_text())
    if not CONF.exists():
        sys.exit(f"{CONF} does not exist: this cluster has no accounting, but the old cluster has")
    if version() < record["version"]:
        sys.exit(
            f"Slurm {version()} here is older than {record['version']} there: its slurmdbd would refuse the database"
        )
    name, before = cluster(), record["cluster"]
    database = Database()
    id_file = folder / ID
    if not id_file.exists():
        id_file.write_text(json.dumps({"id": cluster_id(database, name)}))
    run("systemctl", "stop", "slurmctld")
    run("systemctl", "stop", "slurmdbd")
    database.load(folder / DUMP)
    statements = list(renamed(database, before, name))
    statements += adjusted(name, json.loads(id_file.read_text())["id"])
    database.rows(";\n".join(statements) + ";\n")
    next_job_id(json.loads((folder / "jobs.json").read_text())["next_job_id"])
    run("systemctl", "start", "slurmdbd")
    answered("sacctmgr", "--noheader", "show", "cluster")
    run("systemctl", "start", "slurmctld")
    answered("sinfo", "--noheader")
    return {"jobs": job_count(database, name)}


def cluster_id(database: Database, name: str) -> str:
    """Return the id that slurmctld and database know this cluster by; empty before Slurm 24.05."""
    if not any(row[0] == "id" for row in database.rows("SHOW COLUMNS FROM cluster_table")):
        return ""
    rows = database.rows(f"SELECT id FROM cluster_table WHERE name = '{name}'")
    return rows[0][0] if rows else ""


def renamed(database: Database, before: str, name: str) -> Iterator[str]:
    """Yield the SQL that gives tables and rows the name of this cluster."""
    if before == name:
        return
    for table in database.tables():
        if table.startswith(f"{before}_"):
            yield f"RENAME TABLE `{table}` TO `{name}_{table[len(before) + 1 :]}`"
    yield f"UPDATE cluster_table SET name = '{name}' WHERE name = '{before}'"
    yield f"UPDATE txn_table SET cluster = '{name}' WHERE cluster = '{before}'"
    yield f"UPDATE clus_res_table SET cluster = '{name}' WHERE cluster = '{before}'"


def adjusted(name: str, cluster_id_text: str) -> list[str]:
    """Return the SQL that ends the records of jobs that went on elsewhere, and keeps this cluster's own id."""
    now = int(time.time())
    end = f"time_end = {now}, time_start = IF(time_start = 0, {now}, time_start)"
    jobs = f"UPDATE `{name}_job_table` SET state = {PREEMPTED}, {end} WHERE time_end = 0"
    steps = f"UPDATE `{name}_step_table` SET state = {PREEMPTED}, time_end = {now} WHERE time_end = 0"
    control = f"UPDATE cluster_table SET control_host = '', control_port = 0 WHERE name = '{name}'"
    mine = [f"UPDATE cluster_table SET id = {int(cluster_id_text)} WHERE name = '{name}'"] if cluster_id_text else []
    return [jobs, steps, control, *mine]


def next_job_id(number: int) -> None:
    """Number new jobs after the old ones: sacct shows both."""
    if not number or not INCLUDED.exists():
        return
    lines = [line for line in INCLUDED.read_text().splitlines() if not line.startswith("FirstJobId=")]
    status = INCLUDED.stat()
    partial = INCLUDED.resolve().with_name(f".{INCLUDED.name}.move")
    partial.write_text("\n".join([*lines, f"FirstJobId={number}"]) + "\n")
    os.chown(partial, status.st_uid, status.st_gid)
    partial.chmod(status.st_mode & 0o777)
    partial.replace(INCLUDED.resolve())


def answered(*words: str) -> None:
    """Return when a command succeeds."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit(f"`{' '.join(words)}` does not answer: `journalctl --unit slurmdbd --unit slurmctld` says more")
        time.sleep(1)


def compare(folder: Path) -> dict[str, Any]:
    """Return each row that is missing, in one line."""
    record, name = json.loads((folder / RECORD).read_text()), cluster()
    now = shown(name)
    missing = [
        f"{kind}: {row}" for kind, rows in record["shown"].items() for row in rows if row not in now.get(kind, ())
    ]
    jobs = job_count(Database(), name)
    if jobs < record["jobs"]:
        missing.append(f"jobs: {jobs}, were {record['jobs']}")
    return {"jobs": jobs, "differences": missing}


def main(arguments: list[str]) -> None:
    """Run one verb."""
    verb, folder = arguments
    print(json.dumps({"dump": dump, "load": load, "compare": compare}[verb](Path(folder))))


if __name__ == "__main__":
    # Who can open a lock can hold it. A program whose caller was killed still runs.
    with os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        main(sys.argv[1:])
