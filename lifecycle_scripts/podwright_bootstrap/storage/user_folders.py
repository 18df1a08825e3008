"""Enroot's folders: each user has some, which root makes, because in one like /tmp others could be first.

Run as ``python3 -m podwright_bootstrap.storage.user_folders UID``; a job's prolog does the same.

A login has no prolog, so systemd's unit ``user-runtime-dir@UID`` runs this module then.
"""

from __future__ import annotations

import pwd
import sys
from pathlib import Path
from typing import Dict, Iterable, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import ContractError
from podwright_bootstrap.features import NodeFeatures
from podwright_bootstrap.host import log
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.storage import own_folder
from podwright_bootstrap.storage.local_disk import local_disk

RUNTIME = Path("/run/enroot")
PARENT_MODE = 0o755  # Enroot looks for its folders as the user
OWN_MODE = 0o700


def parents(nodes: NodeFeatures, shared_root: str) -> Dict[str, Path]:
    """Return the folder in which users have theirs, by the setting of Enroot that names it."""
    root = local_disk() / "enroot"
    shares = shared_root and nodes.containers and nodes.containers.shared_cache
    return {
        "ENROOT_RUNTIME_PATH": RUNTIME,
        "ENROOT_CACHE_PATH": Path(shared_root) / contract.LAYERS_DIRECTORY if shares else root / "cache",
        "ENROOT_DATA_PATH": root / "data",
        "ENROOT_TEMP_PATH": root / "temporary",
    }


def make_parents(folders: Iterable[Path]) -> Iterator[str]:
    """Make the parents writable by root alone, also those that an older boot opened to all users."""
    for folder in (local_disk() / "enroot", *folders):
        if folder.parent.is_dir():  # after a reboot the shared file system, which keeps its folder, may come later
            yield from own_folder.make_own(folder, mode=PARENT_MODE)


def make(uid: int, gid: int, nodes: NodeFeatures, shared_root: str) -> None:
    """Make a user's folders; a failure is reported, and the node is sound all the same."""
    try:
        for parent in parents(nodes, shared_root).values():
            for change in own_folder.make_for(parent / f"user-{uid}", uid=uid, gid=gid, mode=OWN_MODE):
                log.say(f"containers: {change}")
    except (BootstrapError, OSError) as error:
        log.say(f"containers: uid {uid} cannot run any: {error}")


def main() -> int:
    """Make the folders of the user whose id is the argument; 1 if the node's files or the user are unknown."""
    try:
        user = pwd.getpwuid(int(sys.argv[1]))
        parameters, record = contract.parameters_of_this_node(), contract.record_of_this_node()
    except (ContractError, KeyError, OSError) as error:
        log.say(f"containers: uid {sys.argv[1]} cannot run any: {error}")
        return 1
    make(user.pw_uid, user.pw_gid, parameters.nodes, record.shared_root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
