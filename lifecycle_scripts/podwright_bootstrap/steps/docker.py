"""Docker, from the image or from the distribution.

https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, process, units
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import gpu_containers, packages
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage.local_disk import local_disk

DAEMON_JSON = Path("/etc/docker/daemon.json")
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
ROOT = re.compile(r"^root\s*=.*$", re.MULTILINE)
TABLE = re.compile(r"^\s*\[", re.MULTILINE)
AFTER_DISK = "[Unit]\nAfter=dlami-nvme.service\n"
GROUP = "docker"


class DockerStep(Step):
    """Docker runs, and keeps its images on the node's own disk, containerd's too."""

    name = "docker"
    audience = "compute and login nodes of clusters with Docker"
    hint = "journalctl -u docker says more"
    time_limit_s = 1800

    def applies(self, node: Node) -> bool:
        """Run with nodes.containers; a controller runs no containers."""
        containers = node.parameters.nodes.containers
        return containers is not None and containers.docker and node.role != CONTROLLER

    def apply(self, node: Node) -> Iterator[str]:
        """Install it if the image lacks it, configure its image folder, start it, and admit the job user if asked."""
        if not shutil.which("docker"):
            packages.install("docker.io", node=node)
            yield "installed docker.io"
        containerd = list(_move_containerd()) if shutil.which("containerd") else []
        yield from containerd
        configured = list(_configure(node))
        yield from configured
        yield from units.keep_on("docker", restart=bool(configured or containerd))
        containers = node.parameters.nodes.containers
        if containers and containers.docker_for_job_user and GROUP not in _groups():
            process.run("usermod", "--append", "--groups", GROUP, contract.JOB_USER, timeout_s=30)
            yield f"added {contract.JOB_USER} to group {GROUP}"

    def verify(self, node: Node) -> None:
        """Check that Docker answers and stores images on the local disk."""
        shown = process.run("docker", "info", "--format", "{{.DockerRootDir}}", timeout_s=60).output.strip()
        if shown != str(local_disk() / "docker"):
            raise BootstrapError(
                f"Docker stores images in {shown}, not on the local disk", hint=f"look at {DAEMON_JSON} and its unit"
            )


def _configure(node: Node) -> Iterator[str]:
    """Name the folder of images and, on GPU nodes, NVIDIA's runtime, as `nvidia-ctk runtime configure` does."""
    settings, root = _read(), str(local_disk() / "docker")
    yield from gpu_containers.install(gpu_containers.RUNTIME, node)
    daemon_settings = {**settings, "data-root": root}
    if shutil.which(gpu_containers.RUNTIME):
        daemon_settings["runtimes"] = {
            "nvidia": {"args": [], "path": gpu_containers.RUNTIME},
            **settings.get("runtimes", {}),
        }
    if daemon_settings != settings:
        files.write_file(DAEMON_JSON, json.dumps(daemon_settings, indent=2) + "\n")
        yield f"wrote {DAEMON_JSON}: images are stored in {root}"


def _move_containerd() -> Iterator[str]:
    """Move containerd's folder: since Docker 29 images are in it, whatever Docker's data-root is.

    https://docs.docker.com/engine/storage/containerd/
    """
    root = local_disk() / "containerd"
    text = CONTAINERD_CONFIG.read_text() if CONTAINERD_CONFIG.exists() else "version = 2\n"  # 1.x and 2.x read it
    new_text = with_root(text, root)
    changes = list(units.drop_in("containerd.service", "podwright", AFTER_DISK))
    if files.write_file(CONTAINERD_CONFIG, new_text):
        changes.append(f"moved containerd's images to {root}")
    yield from changes
    yield from units.keep_on("containerd", restart=bool(changes))


def with_root(text: str, root: Path) -> str:
    """Return containerd's configuration with this folder; keys come before the first table."""
    table = TABLE.search(text)
    end = table.start() if table else len(text)
    head, line = text[:end], f'root = "{root}"'
    head = ROOT.sub(line, head) if ROOT.search(head) else f"{line}\n{head}"
    return head + text[end:]


def _read() -> Dict[str, Any]:
    """Return Docker's configuration, from the image or an administrator."""
    text = DAEMON_JSON.read_text() if DAEMON_JSON.exists() else "{}"
    try:
        settings = json.loads(text or "{}")
    except ValueError as error:
        raise BootstrapError(f"{DAEMON_JSON} is not JSON: {error}", hint="repair or delete the file") from error
    if not isinstance(settings, dict):
        raise BootstrapError(f"{DAEMON_JSON} holds no JSON object", hint="repair or delete the file")
    return settings


def _groups() -> list[str]:
    return process.run("id", "--name", "--groups", contract.JOB_USER, timeout_s=30, quiet=True).output.split()
