"""Read slurm.conf as the service wrote it on a controller.

This is the only module that parses the service's configuration; ``own_part.py`` is the only one that writes ours.

https://slurm.schedmd.com/slurm.conf.html
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Iterable, NamedTuple

from podwright_bootstrap import contract
from podwright_bootstrap.host import files, process, waits
from podwright_bootstrap.host.errors import BootstrapError

FOLDER = contract.SLURM_ROOT / "etc"
SLURM_CONF = FOLDER / "slurm.conf"
CGROUP_CONF = FOLDER / "cgroup.conf"
ACCOUNTING_CONF = FOLDER / "accounting.conf"  # empty on HyperPod's image, and included
SCONTROL = contract.SLURM_ROOT / "bin" / "scontrol"
KEPT = "#podwright: "  # before a line of the service whose key our part gives
LIMIT_S = 600  # the service writes it late
NEWEST = (99,)


class Controller(NamedTuple):
    """A host that may run slurmctld, as slurm.conf names it."""

    hostname: str
    address: str


def wait() -> None:
    """Return when there is a slurm.conf; raises ``BootstrapError`` if there is none in time."""
    waits.wait_until(
        lambda: bool(values("ClusterName")),  # a key that it always has
        event=f"{SLURM_CONF}, which the service writes",
        limit_s=LIMIT_S,
        hint="is this an image of HyperPod for Slurm, and is the cluster's orchestrator Slurm?",
    )


def values(key: str, path: Path = SLURM_CONF) -> list[str]:
    """Return a key's values in the file's order, kept lines' too; keys ignore case. Empty without the file."""
    text = path.read_text().replace(KEPT, "") if path.exists() else ""
    return [match[1].strip('"') for match in re.finditer(_setting(key), text)]


def value(key: str, default: str, path: Path = SLURM_CONF) -> str:
    """Return the last value of a key, which is the one that Slurm uses."""
    return (values(key, path) or [default])[-1]


def write(path: Path, text: str) -> bool:
    """Give a file this text, mode and owner stay; whether it had another. Several controllers share it by a link."""
    path = path.resolve()
    if not path.exists():
        return files.write_file(path, text)
    return files.write_file(path, text, mode=stat.S_IMODE(path.stat().st_mode), owner=path.owner())


def cluster_name() -> str:
    """As Slurm calls it: in small letters."""
    return value("ClusterName", "").lower()


def controllers() -> list[Controller]:
    """Return the slurmctld hosts, the primary first; raises ``BootstrapError`` if slurm.conf names none."""
    named = [re.fullmatch(r"([^(]+)(?:\(([^)]+)\))?", host) for host in values("SlurmctldHost")]
    hosts = [Controller(match[1], match[2] or match[1]) for match in named if match]
    if not hosts:
        raise BootstrapError(
            f"{SLURM_CONF} names no SlurmctldHost",
            hint="the service writes one for each controller: let HyperPod replace the node, or ask AWS support",
        )
    return hosts


def keeping(text: str, keys: Iterable[str]) -> str:
    """Return slurm.conf's text with these keys' lines as comments: daemons log an error for a key given twice."""
    text = text.replace(KEPT, "")
    for key in keys:
        text = re.sub(rf"{_setting(key)}[ \t]*(?:#.*)?$", lambda match: KEPT + match[0], text)
    return text


def _setting(key: str) -> str:
    """Return the pattern of a line that sets the key: HyperPod quotes some values, and has comments after others."""
    return rf'(?im)^[ \t]*{key}[ \t]*=[ \t]*("[^"\n]*"|[^\s#]+)'


def includes(path: Path, text: str) -> bool:
    """Return whether slurm.conf's text includes a file of its folder."""
    return bool(re.search(rf"(?im)^\s*include\s+(?:{FOLDER}/)?{re.escape(path.name)}\s*$", text))


def running() -> dict[str, str]:
    """Return the running slurmctld's configuration; empty if none answers."""
    shown = process.run(SCONTROL, "show", "config", timeout_s=30, check=False, quiet=True).output
    return dict(re.findall(r"(?m)^(\w+)\s*=\s*(\S+)", shown))


def slurm_release() -> tuple[int, ...]:
    """Return Slurm's release, as (24, 11); the newest if scontrol does not say it."""
    shown = process.run(SCONTROL, "--version", timeout_s=30, check=False, quiet=True).output
    match = re.search(r"slurm (\d+)\.(\d+)", shown)
    return tuple(map(int, match.groups())) if match else NEWEST
