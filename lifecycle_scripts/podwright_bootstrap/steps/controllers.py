"""Several controllers: one works, the others take over, and all read and write the same files.

What the service does is to start them and to name them in slurm.conf; what scripts do is to share configuration and
state, in the folder of AWS's own scripts.
https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-multihead-slurm-setup.html

Configuration and state are links to the shared folder. A timer on each controller restores a lost ``heartbeat``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import process, units
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import heartbeat, own_part, slurm_conf, take_over
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage.lock import locked
from podwright_common.atomic_file import replace_link

LOCK_LIMIT_S = 300
OWN = ("slurmdbd.conf", "podwright-")  # each controller has its own: the first holds a password, the rest we write


class ControllersStep(Step):
    """Configuration and state of Slurm are on the shared file system, for every controller."""

    name = "controllers"
    audience = "controllers of clusters with several"
    required_because = "each controller would have jobs of its own"
    hint = "is the shared file system writable by root, and does slurm.conf name every controller?"
    time_limit_s = 1200

    def applies(self, node: Node) -> bool:
        """Run in clusters with several controllers."""
        return node.role == CONTROLLER and node.parameters.multi_head is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Share the first controller's files with the others, each of which keeps its own as .bak; start the timer."""
        slurm_conf.wait()
        _require_all(node)
        yield from take_over.install(node.parameters)
        yield from own_part.write_file(node.parameters)  # before this host reads another's slurm.conf
        root = _root(node)
        pending = [path for path in _shared_paths() if not _is_shared(path, root)]
        if pending:
            process.run("systemctl", "stop", "slurmctld", timeout_s=120)  # the last step starts it
            with locked(root / ".podwright.lock", limit_s=LOCK_LIMIT_S, every_s=node.poll_s):
                for path in pending:
                    _share(path, root)
                    yield f"linked {path} to {root}"
        yield from heartbeat.keep()

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer; what is shared stays shared."""
        yield from heartbeat.remove()

    def verify(self, node: Node) -> None:
        """Every link leads to the shared file system, and the timer runs."""
        units.require_active(f"{heartbeat.UNIT}.timer")
        unshared_paths = [str(path) for path in _shared_paths() if not _is_shared(path, _root(node))]
        if unshared_paths:
            raise BootstrapError(f"{', '.join(unshared_paths)} is not shared with the other controllers")


def _require_all(node: Node) -> None:
    named = {controller.address for controller in slurm_conf.controllers()}
    missing = sorted(set(node.controllers) - named)
    if missing:
        raise BootstrapError(
            f"{slurm_conf.SLURM_CONF} names {', '.join(sorted(named))} as controllers, and not {', '.join(missing)}",
            hint="the service writes the lines SlurmctldHost: let HyperPod replace this node, or ask AWS support",
        )


def _root(node: Node) -> Path:
    """As AWS's own scripts call it."""
    shared = node.parameters.multi_head.slurm_shared_directory if node.parameters.multi_head else ""
    return Path(shared) / "aws" / "hyperpod" / node.parameters.cluster_name


def _shared_paths() -> list[Path]:
    """Slurm's configuration, file by file, and the folder of its state."""
    configuration = [
        path
        for path in sorted(slurm_conf.FOLDER.iterdir())
        if not path.name.startswith((".", *OWN)) and path.suffix != ".bak"
    ]
    return [*configuration, Path(slurm_conf.value("StateSaveLocation", "/var/spool/slurmctld"))]


def _target(path: Path, root: Path) -> Path:
    return root / path.relative_to("/")


def _is_shared(path: Path, root: Path) -> bool:
    return path.is_symlink() and path.resolve() == _target(path, root).resolve()


def _share(path: Path, root: Path) -> None:
    target = _target(path, root)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        process.run("rm", "-rf", part, timeout_s=60, quiet=True)  # A boot that was switched off here may have left it.
        process.run("cp", "-a", path, part, timeout_s=300, quiet=True)
        part.rename(target)
    if path.exists():  # mv, for rename(2) knows the limits of file systems
        keep = ("mv", "--no-target-directory") if path.is_dir() else ("cp", "-a")
        process.run(*keep, path, path.with_name(f"{path.name}.bak"), timeout_s=300, quiet=True)
    replace_link(path, target)  # a file is never missing
