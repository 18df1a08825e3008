"""The reason of a failed boot of a controller, on the shared file system, for nodes that wait for its Slurm.

A file per controller, named by its instance, in a folder that is root's alone. The controller removes it when it boots
again, as soon as the file system is mounted.
"""

from __future__ import annotations

from pathlib import Path

from podwright_bootstrap import contract
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, log, waits
from podwright_bootstrap.host.errors import BootstrapError, TimeLimitError
from podwright_bootstrap.node import Node
from podwright_bootstrap.storage import own_folder
from podwright_common import regular_file

LIMIT_BYTES = 1 << 14
LIMIT_S = 30  # The file system's servers may be silent.


def record(node: Node, step: str, why: str) -> None:
    """Write why this controller's boot failed; do nothing on other nodes, or before the file system is mounted."""
    if node.role != CONTROLLER:
        return
    path = _path(node, node.instance_id)
    try:
        with waits.time_limit(LIMIT_S):
            if not _is_mounted(node):
                return
            own_folder.refuse_writable(node.mount_path)
            for folder, mode in ((path.parent.parent, 0o755), (path.parent, 0o700)):
                list(own_folder.make_own(folder, mode=mode))
            files.write_file(path, f"{node.hostname} failed at step {step}: {why}\n", mode=0o600)
    except (OSError, BootstrapError, TimeLimitError) as error:
        log.say(f"warning: nodes that wait for this controller cannot read why it failed: {error}")


def forget(node: Node) -> bool:
    """Remove what an earlier boot of this controller wrote; return whether there is nothing left to do."""
    if node.role != CONTROLLER or not node.has_shared:
        return True
    try:
        with waits.time_limit(LIMIT_S):
            if not _is_mounted(node):
                return False
            _path(node, node.instance_id).unlink(missing_ok=True)
    except (OSError, TimeLimitError) as error:  # step lustre says it better, and the next step tries again
        log.say(f"warning: the reason of this controller's last failure stays: {error}")
        return False
    return True


def of_all(node: Node, *, since: float) -> str:
    """Return why the controllers failed, if each did after ``since`` (seconds since 1970); else an empty text."""
    try:
        if not _is_mounted(node):
            return ""
    except OSError:
        return ""
    reasons = [_of(node, instance_id, since) for instance_id in node.controller_ids]
    return "; ".join(reasons) if all(reasons) else ""


def _of(node: Node, instance_id: str, since: float) -> str:
    path = _path(node, instance_id)
    try:
        for folder in (node.mount_path, path.parent.parent, path.parent):
            own_folder.refuse_writable(folder)
        if path.lstat().st_mtime < since:
            return ""
        return " ".join(regular_file.read(path, limit_bytes=LIMIT_BYTES).decode(errors="replace").split())
    except (OSError, BootstrapError):
        return ""


def _is_mounted(node: Node) -> bool:
    return node.has_shared and node.mount_path.is_mount()


def _path(node: Node, instance_id: str) -> Path:
    return node.shared(contract.FAILURES_DIRECTORY) / instance_id
