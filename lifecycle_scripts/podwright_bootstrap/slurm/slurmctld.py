"""The running slurmctld and the configuration that it has taken.

https://slurm.schedmd.com/scontrol.html#OPT_reconfigure
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Iterator, List, Sequence

from podwright_bootstrap.host import log, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.slurm import slurm_conf
from podwright_bootstrap.slurm.own_part import OWN_PART
from podwright_bootstrap.slurm.slurm_conf import ACCOUNTING_CONF, SCONTROL

UNIT = "slurmctld"
ANSWER_LIMIT_S = 120
RECONFIGURE_ATTEMPTS, RECONFIGURE_PAUSE_S = 4, 5
ID_MISMATCH, NAME_MISMATCH = "CLUSTER ID MISMATCH", "CLUSTER NAME MISMATCH"  # slurmctld's words

# What slurmctld takes only at its start, where we write it: key, part of the value, file.
STARTED_WITH = (
    ("AccountingStorageType", "slurmdbd", ACCOUNTING_CONF),
    ("PrologFlags", "contain", OWN_PART),
    ("AccountingStorageEnforce", "qos", OWN_PART),
    ("PriorityType", "multifactor", OWN_PART),
    ("PreemptType", "qos", OWN_PART),
)


def is_active() -> bool:
    """Return whether it runs on this host."""
    return units.answer("is-active", UNIT) == "active"


def is_outdated() -> bool:
    """Return whether it runs with a configuration that only a start changes."""
    running = slurm_conf.running()
    return any(
        running.get(key) and word not in running[key].lower() and word in slurm_conf.value(key, "", file).lower()
        for key, word, file in STARTED_WITH
    )


def answers(controllers: Sequence[str] = ()) -> bool:
    """Return whether a controller answers; of these addresses, where Slurm has no configuration yet."""
    variables = {"SLURM_CONF_SERVER": ",".join(controllers)} if controllers else {}
    ping = process.run(SCONTROL, "ping", timeout_s=30, check=False, quiet=True, variables=variables)
    return " is UP" in ping.output


def reconfigure() -> None:
    """Let it and all nodes take the configuration; again where it does not answer, as while the agent asks, too.

    Raises:
        CommandError: it refused each time. The files stay written, so the next boot sees nothing to reconfigure for.
    """
    waits.retry(
        lambda: process.run(SCONTROL, "reconfigure", timeout_s=60),
        attempts=RECONFIGURE_ATTEMPTS,
        pause_s=RECONFIGURE_PAUSE_S,
        errors=(CommandError,),
    )


def restart() -> Iterator[str]:
    """Start it anew; nodes that have asked already get the new configuration."""
    yield from start(restart=True)
    reconfigure()


def start(*, restart: bool = False) -> Iterator[str]:
    """Enable and start it, once more where the database has another id for this cluster than slurmctld's state.

    slurmctld takes an id of its own when it starts without accounting, as images start it, and ends when slurmdbd
    gives the cluster another, as for a cluster of the same name before. Jobs and nodes are kept in other files.

    Raises:
        BootstrapError: it did not answer in time.
    """
    log_path = Path(slurm_conf.value("SlurmctldLogFile", "/var/log/slurm/slurmctld.log"))
    before = log_path.stat().st_size if log_path.exists() else 0
    since = time.time()
    refused: List[str] = []

    def settled() -> bool:
        refused[:] = _mismatches(log_path, before)
        return bool(refused) or answers()

    try:
        yield from units.keep_on(UNIT, restart=restart)
    except CommandError as error:
        if not _mismatches(log_path, before):
            raise CommandError(f"{error}{_last_words(log_path, before, since)}") from error
        log.say(str(error))
    try:
        waits.wait_until(settled, event="slurmctld to answer scontrol ping", limit_s=ANSWER_LIMIT_S)
    except BootstrapError as error:
        raise BootstrapError(f"{error}{_last_words(log_path, before, since)}", hint=error.hint) from error
    if refused:
        yield from _forget_id(refused[0])
        process.run("systemctl", "restart", UNIT, timeout_s=ANSWER_LIMIT_S)
        yield f"started {UNIT} with the id that slurmdbd gave to the cluster"


def _last_words(log_path: Path, start: int, since: float) -> str:
    """Return the last error that slurmctld wrote, into its log or, before it has one, to systemd's journal."""
    command = ("journalctl", "-u", UNIT, "--since", f"@{int(since)}", "-n", "20", "-o", "cat")
    journal = process.run(*command, timeout_s=30, check=False, quiet=True)
    for text in (_tail(log_path, start), journal.output):
        lines = [re.sub(r"^\[[^]]*\]\s*|^slurmctld: ", "", line.strip()) for line in text.splitlines()]
        final_words = [
            [line for line in lines if line.startswith(level)][-1:] for level in ("error:", "fatal:")
        ]  # the cause comes before the end
        if words := [line for level in final_words for line in level]:
            return f". slurmctld says: {' / '.join(words)}"
    return ""


def _mismatches(log_path: Path, start: int) -> List[str]:
    text = _tail(log_path, start)
    return [word for word in (NAME_MISMATCH, ID_MISMATCH) if word in text]


def _forget_id(why: str) -> Iterator[str]:
    """Remove the file with the id, unless it is another cluster's, whose jobs are in the same folder."""
    file = Path(slurm_conf.value("StateSaveLocation", "/var/spool")) / "clustername"
    name = file.read_text().split(":")[0].strip() if file.exists() else ""
    if name.lower() != slurm_conf.cluster_name():
        raise BootstrapError(
            f"slurmctld ended: {why}, and {file} belongs to cluster {name or '(none)'}",
            hint=f"give each cluster its own StateSaveLocation; if that is this cluster's old name, `rm {file}`",
        )
    file.unlink()
    yield f"removed {file}"


def _tail(log_path: Path, start: int) -> str:
    if not log_path.exists():
        return ""
    with log_path.open("rb") as file:
        file.seek(start if start <= log_path.stat().st_size else 0)  # it may have been rotated
        return file.read().decode(errors="replace")
