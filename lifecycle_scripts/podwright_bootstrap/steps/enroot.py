"""Containers in Slurm jobs: Enroot runs them, Pyxis gives srun its option --container-image.

https://github.com/NVIDIA/enroot/blob/master/doc/configuration.md, https://github.com/NVIDIA/pyxis
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import plugstack, slurm_conf, slurmctld
from podwright_bootstrap.software import after_reboot, downloads, packages
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage.local_disk import local_disk

ENROOT_CONF = Path("/etc/enroot/enroot.conf")
RUNTIME = Path("/run/enroot")
TMPFILES = Path("/etc/tmpfiles.d/podwright-enroot.conf")  # /run is empty after a reboot
SRUN = contract.SLURM_ROOT / "bin" / "srun"
BUILD_LIMIT_S = 300
STICKY = 0o1777
CONTAINER_CLI = "nvidia-container-cli"
CONTAINER_CLI_PACKAGES = ("libnvidia-container1", "libnvidia-container-tools")


class Enroot(Step):
    """srun --container-image works: Enroot keeps images on the node's own disk, Slurm loads Pyxis exactly once."""

    name = "enroot"
    whose = "clusters with Enroot"
    hint = f"look at {ENROOT_CONF} and {plugstack.PLUGSTACK}"
    time_limit_s = 1800

    def applies(self, node: Node) -> bool:
        """Run with nodes.containers."""
        wanted = node.parameters.nodes.containers
        return wanted is not None and wanted.enroot

    def apply(self, node: Node) -> Iterator[str]:
        """Containers run on all nodes but controllers; controllers name what srun loads."""
        if node.role != CONTROLLER:
            yield from _enroot(node)
            yield from _container_cli(node)
            yield from after_reboot.repeat(self.name)
        if not plugstack.find_pyxis():
            _build_pyxis(node)
            yield f"built {plugstack.find_pyxis()}"
        if node.role == CONTROLLER:
            slurm_conf.wait()  # whose writer may write plugstack.conf, too
            changes = list(plugstack.load_once(_pyxis()))
            yield from changes
            if changes and slurmctld.is_active():
                slurmctld.reconfigure()  # nodes load what slurmctld has given them

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the unit; images stay."""
        yield from after_reboot.forget(self.name)

    def verify(self, node: Node) -> None:
        """Controllers ask srun. The others get Slurm's configuration only from slurmd, which starts last."""
        _pyxis()
        if node.role == CONTROLLER:
            if "--container-image" not in shell.run(SRUN, "--help", timeout_s=60, quiet=True).output:
                raise BootstrapError(f"srun --help shows no --container-image; {plugstack.PLUGSTACK} loads Pyxis")
            return
        shell.run("enroot", "version", timeout_s=60)


def _enroot(node: Node) -> Iterator[str]:
    if not shutil.which("enroot"):
        packages.install(*(downloads.fetch(name, node) for name in ("enroot", "enroot-caps")), node=node)
        yield "installed enroot"
    root = local_disk() / "enroot"
    for folder in (*(root / name for name in ("cache", "data", "temporary")), RUNTIME):
        if not folder.is_dir() or folder.stat().st_mode & 0o7777 != STICKY:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(STICKY)  # as /tmp: each user makes folders of their own
            yield f"made {folder}"
    for path, text in ((ENROOT_CONF, _configured(root)), (TMPFILES, f"d {RUNTIME} 1777 root root -\n")):
        if shell.write_file(path, text):
            yield f"wrote {path}"


def _container_cli(node: Node) -> Iterator[str]:
    """Install what shows GPUs to containers; without it a node's other jobs run."""
    if node.facts.accelerator != "gpu" or shutil.which(CONTAINER_CLI):
        return
    try:
        packages.install(*(downloads.fetch(name, node) for name in CONTAINER_CLI_PACKAGES), node=node)
    except (BootstrapError, CommandError, OSError) as error:
        shell.say(f"warning: {CONTAINER_CLI} is not there: containers see no GPU: {error}")
    else:
        yield f"installed {', '.join(CONTAINER_CLI_PACKAGES)}"


def _configured(root: Path) -> str:
    """Return the file's text with our paths; the first line of a key counts."""
    ours = {
        "ENROOT_RUNTIME_PATH": f"{RUNTIME}/user-$(id -u)",
        "ENROOT_CACHE_PATH": f"{root}/cache/user-$(id -u)",
        "ENROOT_DATA_PATH": f"{root}/data/user-$(id -u)",
        "ENROOT_TEMP_PATH": f"{root}/temporary",
    }
    lines = ENROOT_CONF.read_text().splitlines() if ENROOT_CONF.exists() else []
    others = [line for line in lines if "".join(line.split()[:1]) not in ours]
    return "\n".join([*(f"{key} {value}" for key, value in ours.items()), *others]) + "\n"


def _pyxis() -> Path:
    plugin = plugstack.find_pyxis()
    if not plugin:
        raise BootstrapError(f"{plugstack.PLUGIN_NAME} is not on this node")
    return plugin


def _build_pyxis(node: Node) -> None:
    """Against this image's own Slurm: a plugin of another version is refused."""
    header = contract.SLURM_ROOT / "include" / "slurm" / "spank.h"
    if not header.exists():
        raise BootstrapError(f"this image lacks Pyxis, and {header} to build it", hint="use an image with Pyxis")
    missing = [program for program in ("gcc", "make") if not shutil.which(program)]
    if missing:
        packages.install(*missing, "libc6-dev", node=node)
    archive = downloads.fetch("pyxis", node)
    with tempfile.TemporaryDirectory() as folder:
        shell.run("tar", "-xzf", archive, "-C", folder, "--strip-components=1", timeout_s=60)
        flags = f"CPPFLAGS=-I{contract.SLURM_ROOT}/include"
        shell.run("env", flags, "make", "-C", folder, "install", "prefix=/usr/local", timeout_s=BUILD_LIMIT_S)
