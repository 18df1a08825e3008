"""``podwright rehearse``: run the steps, report a failure."""

from __future__ import annotations

import fcntl
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwright.check.load import load
from podwright_rehearsal import processes
from podwright_rehearsal.hosts import leftovers, permission
from podwright_rehearsal.run.hosting import FlatHosts, Hosts, NamespacedHosts
from podwright_rehearsal.run.progress import Progress, StepFailed, progress_for
from podwright_rehearsal.run.rehearsal import Rehearsal, steps
from podwright_rehearsal.run.resize import resized
from podwright_rehearsal.run.supplies import FAILURES, SuppliesError, supplies

OK, FAILED, UNABLE = 0, 1, 2


def rehearse(config: Path, *, as_json: bool, keep: bool, flat: bool, compute_nodes: int | None = None) -> int:
    """Run every step; return 0 if all succeed, 1 if one fails, 2 if this machine cannot run them.

    Without the right to make namespaces, or if ``flat`` asks for it, the hosts are plain processes. ``compute_nodes``
    replaces the number of nodes in the first compute group.
    """
    wanted = load(config)
    hosts, why_flat = _kind_of_hosts(flat=flat)
    if compute_nodes is not None:
        config, wanted = resized(config, compute_nodes, folder=hosts.folder / "settings")
        print(f"podwright: as if {config.name} had {compute_nodes} nodes in its first compute group", file=sys.stderr)
    if why_flat:
        print(f"podwright: flat hosts, their boot is not rehearsed: {why_flat}", file=sys.stderr)
    progress = progress_for(list(steps(hosts)), as_json=as_json)
    try:
        with _locked(hosts.folder):
            materials = supplies(flat=bool(why_flat))
            processes.adopt_orphans()
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
            ):  # both end it cleanly, even where `&` ignores the first
                signal.signal(number, signal.default_int_handler)
            summary = Rehearsal(
                config.resolve(), wanted, materials, progress, keep=keep, kind_of_hosts=hosts
            ).run_steps()
    except StepFailed as failure:
        _explain(failure, progress)
        return FAILED
    except FAILURES as error:
        print(f"podwright: {error}", file=sys.stderr)
        return UNABLE
    progress.summary([("hosts", f"flat ({why_flat})" if why_flat else "in namespaces"), *summary.rows()])
    return OK


def clean(*, flat: bool) -> int:
    """End what an earlier rehearsal of this kind left: processes, and with them namespaces and mounts."""
    folder = _kind_of_hosts(flat=flat)[0].folder
    hosts = leftovers.clean(folder)
    others = processes.marked(folder)
    processes.end(others)
    for leftover in hosts:
        print(f"ended {leftover}")
    for pid in others:
        print(f"ended process {pid}")
    if not hosts and not others:
        print(f"nothing was left of a rehearsal in {folder}")
    return OK


def _kind_of_hosts(*, flat: bool) -> tuple[type[Hosts], str | None]:
    """Return the hosts of a rehearsal, and why they are flat, if they are."""
    why_flat = "as --flat says" if flat else permission.why_not()
    return (FlatHosts if why_flat else NamespacedHosts), why_flat


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other rehearsals out of the folder.

    Raises:
        SuppliesError: another one runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SuppliesError(
                f"another rehearsal runs in {folder}: wait for it, or end it with `podwright rehearse --clean`"
            ) from error
        yield


def _explain(failure: StepFailed, progress: Progress) -> None:
    step = next((record.name for record in progress.steps if record.state == "failed"), "")
    print(f"podwright: step '{step}' failed on {failure.host}: {failure.message}", file=sys.stderr)
    for line in failure.tail:
        print(f"    {line}", file=sys.stderr)
    if failure.log:
        print(f"the whole log: {failure.log}", file=sys.stderr)
