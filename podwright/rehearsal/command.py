"""``podwright rehearse``: from the command line to the steps, and from a failure to words."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwright import settings
from podwright.rehearsal import processes, slurm
from podwright.rehearsal.progress import Progress, StepFailed, progress_for
from podwright.rehearsal.run import DIRECTORY, STEPS, Rehearsal
from podwright.rehearsal.supplies import SuppliesError, supplies

OK, FAILED, UNABLE = 0, 1, 2


def rehearse(config: Path, *, as_json: bool, keep: bool) -> int:
    """Play every step; exit status 0 if all did what they are for, 1 if one did not, 2 if this machine cannot."""
    wanted = settings.load(config)
    if why_not := slurm.why_not():
        print(f"podwright: this machine cannot have hosts of its own: {why_not}", file=sys.stderr)
        return UNABLE
    progress = progress_for(list(STEPS), as_json=as_json)
    try:
        with _alone():
            processes.adopt_orphans()
            rehearsal = Rehearsal(config.resolve(), wanted, supplies(), progress, keep=keep)
            figures = rehearsal.play()
    except StepFailed as failure:
        _explain(failure, progress)
        return FAILED
    except SuppliesError as error:
        print(f"podwright: {error}", file=sys.stderr)
        return UNABLE
    progress.summary(figures.rows())
    return OK


def clean() -> int:
    """End what an earlier rehearsal of this checkout left: processes, and with them namespaces and mounts."""
    hosts = slurm.clean(DIRECTORY)
    others = processes.marked(DIRECTORY)
    processes.end(others)
    for leftover in hosts:
        print(f"ended {leftover}")
    for pid in others:
        print(f"ended process {pid}")
    if not hosts and not others:
        print(f"nothing was left of a rehearsal in {DIRECTORY}")
    return OK


@contextmanager
def _alone() -> Iterator[None]:
    """One rehearsal at a time: they would share a folder.

    Raises:
        SuppliesError: another one runs.
    """
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SuppliesError(
                f"another rehearsal runs in {DIRECTORY}: wait for it, or end it with `podwright rehearse --clean`"
            ) from error
        yield


def _explain(failure: StepFailed, progress: Progress) -> None:
    step = next((record.name for record in progress.steps if record.state == "failed"), "")
    print(f"podwright: step '{step}' failed on {failure.host}: {failure.message}", file=sys.stderr)
    for line in failure.tail:
        print(f"    {line}", file=sys.stderr)
    if failure.log:
        print(f"the whole log: {failure.log}", file=sys.stderr)
