"""Containers in Slurm jobs: Enroot runs them, Pyxis gives srun its option --container-image.

https://github.com/NVIDIA/enroot/blob/master/doc/configuration.md, https://github.com/NVIDIA/pyxis
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Iterator, Mapping

from podwright_bootstrap import contract
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, process, units
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import plugstack, slurm_conf, slurmctld
from podwright_bootstrap.software import after_reboot, downloads, gpu_containers, installed_copy, packages
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import user_folders

ENROOT_CONF = Path("/etc/enroot/enroot.conf")
TMPFILES = Path("/etc/tmpfiles.d/podwright-enroot.conf")  # /run is empty after a reboot
# systemd starts this unit as root before a user's first session: jobs have the prolog, logins have this.
SESSION_UNIT, DROP_IN = "user-runtime-dir@.service", "podwright-enroot"
SESSION = f"""[Service]
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStartPost=-{sys.executable} -m {user_folders.__name__} %i
"""
SRUN = contract.SLURM_ROOT / "bin" / "srun"
BUILD_LIMIT_S = 300


class EnrootStep(Step):
    """srun --container-image works: Enroot keeps images on the node's own disk, Slurm loads Pyxis exactly once."""

    name = "enroot"
    audience = "clusters with Enroot"
    hint = f"look at {ENROOT_CONF} and {plugstack.PLUGSTACK}"
    time_limit_s = 1800

    def applies(self, node: Node) -> bool:
        """Run with nodes.containers."""
        return node.parameters.nodes.runs_containers

    def apply(self, node: Node) -> Iterator[str]:
        """Set up containers on all nodes but controllers; on controllers, only the plugin for srun."""
        if node.role != CONTROLLER:
            yield from _enroot(node)
            yield from gpu_containers.install(gpu_containers.CLI, node)
            yield from installed_copy.install()
            yield from units.drop_in(SESSION_UNIT, DROP_IN, SESSION)
            yield from after_reboot.repeat(self.name)
        if not plugstack.find_pyxis():
            _build_pyxis(node)
            yield f"built {plugstack.find_pyxis()}"
        if node.role == CONTROLLER:
            slurm_conf.wait()  # The program that writes it may write plugstack.conf, too.
            changes = list(plugstack.load_once(_pyxis()))
            yield from changes
            if changes and slurmctld.is_active():
                slurmctld.reconfigure()  # nodes load what slurmctld has given them

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the units; images stay."""
        yield from after_reboot.forget(self.name)
        yield from files.remove_files(units.FOLDER / f"{SESSION_UNIT}.d" / f"{DROP_IN}.conf")

    def verify(self, node: Node) -> None:
        """Controllers ask srun. The others get Slurm's configuration only from slurmd, which starts last."""
        _pyxis()
        if node.role == CONTROLLER:
            if "--container-image" not in process.run(SRUN, "--help", timeout_s=60, quiet=True).output:
                raise BootstrapError(f"srun --help shows no --container-image; {plugstack.PLUGSTACK} loads Pyxis")
            return
        process.run("enroot", "version", timeout_s=60)


def _enroot(node: Node) -> Iterator[str]:
    if not shutil.which("enroot"):
        packages.install(*(downloads.fetch(name, node) for name in downloads.ENROOT), node=node)
        yield "installed enroot"
    folders = user_folders.parents(node.parameters.nodes, str(node.mount_path) if node.has_shared else "")
    yield from user_folders.make_parents(folders.values())
    runtime = f"d {user_folders.RUNTIME} {user_folders.PARENT_MODE:04o} root root -\n"
    for path, text in ((ENROOT_CONF, _configured(folders)), (TMPFILES, runtime)):
        if files.write_file(path, text):
            yield f"wrote {path}"


def _configured(folders: Mapping[str, Path]) -> str:
    """Return the file's text with our paths; the first line of a key counts."""
    paths = {key: f"{folder}/user-$(id -u)" for key, folder in folders.items()}
    lines = ENROOT_CONF.read_text().splitlines() if ENROOT_CONF.exists() else []
    image_lines = [line for line in lines if "".join(line.split()[:1]) not in paths]
    return "\n".join([*(f"{key} {value}" for key, value in paths.items()), *image_lines]) + "\n"


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
        process.run("tar", "-xzf", archive, "-C", folder, "--strip-components=1", timeout_s=60)
        flags = f"CPPFLAGS=-I{contract.SLURM_ROOT}/include"
        process.run("env", flags, "make", "-C", folder, "install", "prefix=/usr/local", timeout_s=BUILD_LIMIT_S)
