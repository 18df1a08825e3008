"""Remove training environments that were replaced and that no job uses, on the controller.

An environment is removed if no link leads to it, no link has changed for a week, and no job's script names it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Iterable, List, Mapping, Optional

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError
from podwright_bootstrap.host import log, process
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.slurm import listing
from podwright_bootstrap.slurm.listing import ListingError
from podwright_bootstrap.storage import own_folder

KEEP_S = 7 * 24 * 3600  # after the last change of a link: people have shells and notebooks open
COMPLETE = ".complete"  # written last: an environment without it was never finished
REMOVED = ".removed-"  # begins the name of one that is being removed


def main() -> int:
    """Remove once; 1 if Slurm or the file system does not answer."""
    try:
        record = contract.record_of_this_node()
        folder = Path(record.shared_root) / contract.ENVIRONMENTS_DIRECTORY
        if record.shared_root and folder.is_dir():
            own_folder.refuse_writable(folder)
            _clean(folder)
    except (BootstrapError, ContractError, ListingError, OSError) as error:
        log.say(f"nothing removed: {error}")
        return 1
    return 0


def _clean(folder: Path) -> None:
    for torso in folder.glob(f"{REMOVED}*"):  # An earlier removal was interrupted.
        shutil.rmtree(torso)
    old = replaced(folder, now=time.time())
    texts = _texts_of_jobs() if old else None
    for name in old:
        if texts is None or any(name in text for text in texts):
            log.say(f"{folder / name} stays: a job may use it")
            continue
        aside = folder / f"{REMOVED}{name}"
        (folder / name).rename(aside)  # A rename is atomic, so no job finds half of it.
        shutil.rmtree(aside)
        log.say(f"removed {folder / name}")


def replaced(folder: Path, *, now: float) -> List[str]:
    """Return the complete environments that no link leads to, if no link has changed for a week."""
    links = [path for path in folder.iterdir() if path.is_symlink()]
    if not links or now - max(link.lstat().st_mtime for link in links) < KEEP_S:
        return []
    current = {os.readlink(link) for link in links}  # noqa: PTH115 (Python 3.8)
    environments = (path.parent.name for path in folder.glob(f"*/{COMPLETE}") if not path.parent.is_symlink())
    return sorted(name for name in environments if name not in current)


def _texts_of_jobs() -> Optional[List[str]]:
    """Return the descriptions and scripts of all jobs; None if the script of one cannot be read.

    Which jobs there are is Slurm's word: a text of a user can keep an environment, and hides no job of another.
    """
    texts = [process.run("scontrol", "show", "jobs", "--oneliner", timeout_s=120, quiet=True).output]
    for job in jobs(listing.jobs(("jobid", "state", "batchflag"), "--all", "--states=all")):
        if job is None:
            return None
        try:
            texts.append(process.run("scontrol", "write", "batch_script", job, "-", timeout_s=30, quiet=True).output)
        except CommandError as error:
            log.say(str(error))
            return None
    return texts


def jobs(rows: Iterable[Mapping[str, str]]) -> List[Optional[str]]:
    """Return the ids of waiting and running jobs; None for a job that was not submitted as a script."""
    present = [row for row in rows if row["state"] in {"PENDING", "REQUEUED", *listing.HAS_NODES}]
    return [row["jobid"] if row["batchflag"] not in {"0", ""} else None for row in present]


if __name__ == "__main__":
    sys.exit(main())
