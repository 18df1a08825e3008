"""The training environment: one virtual environment on the shared file system, built once for the cluster."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Callable, Iterator

from podwright_bootstrap.aws import s3
from podwright_bootstrap.contract import COMPUTE, TrainingPayload
from podwright_bootstrap.host import shell
from podwright_bootstrap.host.shell import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.requirements import Requirements, sha256_of
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage.lock import locked

BUILD_LIMIT_S = 2400  # GPU wheels are 3 GB, and Lustre makes 30,000 small files of them
COMPLETE = ".complete"  # written last: an environment without it is a torso
Copy = Callable[[str, Path], None]  # an object of the bucket, by its URI, to a file
Fill = Callable[[Path], None]  # wheels into a folder
PIP_OPTIONS = ("--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off")


class Environment(Step):
    """The training environment named by the contract's hashes is there and can import the trainer."""

    name = "environment"
    # Never the controller: it is small, and it must not wait for nodes that in turn wait for its slurmctld.
    whose = "compute nodes of clusters that train"
    hint = (
        "can the node reach the bucket (aws s3 ls) and the package index (pip download), and has the shared file "
        "system space left (lfs df -h)? The log has their output"
    )
    time_limit_s = 2 * BUILD_LIMIT_S  # waiting for a builder that dies, then building

    def applies(self, node: Node) -> bool:
        """On compute nodes: whichever takes the lock first builds."""
        return node.role == COMPUTE and node.environment is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Build it, unless it is complete or another host builds it."""
        target, payload = _wanted(node)
        marker, lock = target / COMPLETE, target.with_name(f".{target.name}.lock")
        if marker.exists():
            return
        with locked(lock, limit_s=BUILD_LIMIT_S, every_s=node.poll_s, unless=marker.exists) as mine:
            if mine and not marker.exists():
                copy = partial(s3.copy, region=node.parameters.region)
                bundled = partial(downloads.fetch_wheels, node=node) if downloads.from_bundle(node) else None
                build(target, payload, copy=copy, bundled=bundled)
                yield f"built {target}"

    def verify(self, node: Node) -> None:
        """Its own Python imports the trainer."""
        target, _ = _wanted(node)
        shell.run(_python(target), "-c", "import podwright_training", timeout_s=300)


def build(target: Path, payload: TrainingPayload, *, copy: Copy, bundled: Fill | None = None) -> None:
    """Download, check, install, say so last. It is built where it stays: virtual environments cannot be moved.

    Packages are those that ``bundled`` puts into a folder, or of the package index.

    Raises:
        BootstrapError: something could not be had, or is not what the contract or the lock says.
    """
    if target.exists():
        shell.say(f"{target} was left incomplete: building it anew")
        shutil.rmtree(target)
    work = target / "downloads"
    work.mkdir(parents=True)
    wheel = _fetch(payload.wheel_s3_uri, payload.wheel_sha256, work, copy)
    lock = _fetch(payload.requirements_s3_uri, payload.requirements_sha256, work, copy)
    index: tuple[str | Path, ...] = ()
    if bundled:
        bundled(work / "bundle")
        index = ("--no-index", "--find-links", work / "bundle")
    shell.run(sys.executable, "-m", "venv", target, timeout_s=600)
    wheels = _download(wheel, Requirements.parse(lock.read_text()), work, *index, python=_python(target))
    # Exactly the files that were checked, nothing looked up again.
    files: tuple[str | Path, ...] = ("--no-deps", "--no-index", wheel, *wheels)
    shell.run(_python(target), "-m", "pip", "install", *files, *PIP_OPTIONS, timeout_s=BUILD_LIMIT_S)
    shell.run(_python(target), "-m", "pip", "check", timeout_s=300)
    installed = {path.name: sha256_of(path) for path in (wheel, *wheels)}
    shutil.rmtree(work)
    content = {
        "python": sys.version.split()[0],
        "requirements_sha256": payload.requirements_sha256,
        "wheels": installed,
    }
    shell.write_file(target / COMPLETE, json.dumps(content, indent=2) + "\n")


def _wanted(node: Node) -> tuple[Path, TrainingPayload]:
    if node.environment is None or node.parameters.training is None:
        raise BootstrapError("the contract names no training payload")
    return node.environment, node.parameters.training


def _python(target: Path) -> Path:
    return target / "bin" / "python"


def _fetch(uri: str, sha256: str, folder: Path, copy: Copy) -> Path:
    """Copy an object of the bucket to ``folder`` and prove that it is the one the cluster was deployed with."""
    path = folder / uri.rsplit("/", 1)[-1]
    copy(uri, path)
    if sha256_of(path) != sha256:
        raise BootstrapError(
            f"{uri} has sha256 {sha256_of(path)}, the contract says {sha256}",
            hint="somebody changed the bucket after the deployment: deploy the cluster stack again",
        )
    return path


def _download(wheel: Path, requirements: Requirements, work: Path, *index: str | Path, python: Path) -> list[Path]:
    """All that ``wheel`` needs, from ``index`` or else the node's own package index, each compared with the lock.

    Wheels only: a source distribution would run its code before anybody has looked at its checksum.
    """
    constraints, folder = work / "constraints.txt", work / "wheels"
    shell.write_file(constraints, requirements.constraints)
    options = ("--only-binary", ":all:", "--constraint", constraints, "--dest", folder, *index, *PIP_OPTIONS)
    shell.retry(
        lambda: shell.run(python, "-m", "pip", "download", *options, wheel, timeout_s=BUILD_LIMIT_S),
        attempts=3,
        pause_s=10,
        errors=(CommandError,),
    )
    wheels = sorted(path for path in folder.iterdir() if path.name != wheel.name)
    problems = requirements.strangers(wheels)
    if problems:
        raise BootstrapError(
            f"{len(problems)} of {len(wheels)} downloaded packages are not those of the lock: {'; '.join(problems)}",
            hint="the package index served other files than were locked: check its mirror, or lock again (make lock)",
        )
    return wheels
