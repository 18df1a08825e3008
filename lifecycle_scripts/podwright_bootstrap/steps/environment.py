"""The training environment: one virtual environment on the shared file system, built once for the cluster.

The host that gets the lock builds it with uv, a pinned program, which compares every wheel with the SHA-256 in the lock
file. Its name has the hashes of wheel and requirements, the Python version and the machine, so running jobs keep their
code while another environment is installed. The link ``current-x86_64`` or ``current-aarch64`` leads to the newest one,
and ``podwright-train launch`` resolves it. The boot imports the trainer as the job user, because root must never
execute code from a package.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, Mapping

from podwright_bootstrap import contract
from podwright_bootstrap.aws import s3
from podwright_bootstrap.contract import COMPUTE, CURRENT_ENVIRONMENT, TrainingPayload
from podwright_bootstrap.host import files, identity, log, process, unprivileged
from podwright_bootstrap.host.errors import BootstrapError, CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.old_environments import COMPLETE
from podwright_bootstrap.software.package_index import PackageIndex
from podwright_bootstrap.software.requirements import Requirements
from podwright_bootstrap.software.uv import fetch, unpack
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage.lock import locked
from podwright_common.atomic_file import replace_link
from podwright_common.checksum import sha256_of

BUILD_LIMIT_S = 2400  # GPU wheels are 3 GB, and Lustre makes 30,000 small files of them
Copy = Callable[[str, Path], None]  # an object of the bucket, by its URI, to a file
Fill = Callable[[Path], None]  # wheels into a folder
# Paths of 6,000 of 12,000 files that no run imports, but for a few models.
NEVER_IMPORTED = (
    r"/transformers/models/|/tests?/|/torch/testing/_internal/|/sympy/physics/|/pygments/lexers/|/fontTools/"
)
LOCK_HINT = "the package index serves other files than were locked: check its mirror, or lock again (make lock)"
UV_VARIABLES = {
    "UV_NO_PROGRESS": "1",
    "UV_HTTP_RETRIES": "8",
    "UV_PYTHON_DOWNLOADS": "never",  # the node's own Python
    "UV_INDEX_STRATEGY": "unsafe-best-match",  # like pip: the lock's checksums say which file is right
    "NO_COLOR": "1",
    "COLUMNS": "1000",  # one line per message
}


class EnvironmentStep(Step):
    """The training environment of the contract's hashes and this Python exists and can import the trainer."""

    name = "environment"
    # Never the controller: it is small, and it must not wait for nodes that in turn wait for its slurmctld.
    audience = "compute nodes of clusters that train"
    hint = (
        "can the node reach the bucket (aws s3 ls) and the package index (/etc/pip.conf), and has the shared file "
        "system space left (lfs df -h)? The log has their output"
    )
    time_limit_s = 2 * BUILD_LIMIT_S  # waiting for a builder that dies, then building

    def applies(self, node: Node) -> bool:
        """On compute nodes: whichever takes the lock first builds."""
        return node.role == COMPUTE and node.environment is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Build it, unless it is complete or another host builds it."""
        target, _ = _wanted(node)
        marker = target / COMPLETE
        if not marker.exists():
            yield from self._build(node)
        yield from _lead_to(target)

    def _build(self, node: Node) -> Iterator[str]:
        target, payload = _wanted(node)
        marker, lock = target / COMPLETE, target.with_name(f".{target.name}.lock")
        with locked(lock, limit_s=BUILD_LIMIT_S, every_s=node.poll_s, unless=marker.exists) as mine:
            if mine and not marker.exists():
                copy = partial(s3.copy, region=node.parameters.region)
                bundled = partial(downloads.fetch_wheels, node=node) if downloads.from_bundle(node) else None
                build(target, payload, uv=fetch(node), copy=copy, bundled=bundled)
                yield f"built {target}"

    def verify(self, node: Node) -> None:
        """Import the trainer with the environment's Python, as the job user: root must not run code of packages."""
        target, _ = _wanted(node)
        user = identity.find_user(contract.JOB_USER)
        words = (_python(target), "-c", "import podwright_training")
        process.run(*unprivileged.as_user(user), *words, timeout_s=300, variables={"HOME": user.pw_dir})


def build(
    target: Path,
    payload: TrainingPayload,
    *,
    uv: Path,
    copy: Copy,
    bundled: Fill | None = None,
    unprivileged_builder: bool = True,
) -> None:
    """Download, check and install; mark it complete last. It is built in place: a moved virtual environment breaks.

    Args:
        target: the environment's folder.
        payload: the training wheel, the locked requirements, and their checksums.
        uv: the archive with the program that installs.
        copy: copies an object of the bucket.
        bundled: puts the offline bundle's wheels into a folder. Default: the node's package index has them.
        unprivileged_builder: root installs as a user who may write the new folder alone, and then makes it root's.
            False: whoever calls this installs.

    Raises:
        BootstrapError: a file is out of reach, or differs from the contract or the lock.
    """
    if target.exists():
        log.say(f"{target} was left incomplete: building it anew")
        shutil.rmtree(target)
    work, build = target / "downloads", target / "build"
    temporary = build / "tmp"  # uv's lock files have names that users could take in /tmp, and hold locked
    for folder in (work, build, temporary):
        folder.mkdir(parents=True)
    for folder in (target, build, temporary) if unprivileged_builder else ():
        unprivileged.give_to_builder(folder)
    wheel = _fetch(payload.wheel_s3_uri, payload.wheel_sha256, work, copy)
    lock = _fetch(payload.requirements_s3_uri, payload.requirements_sha256, work, copy)
    index = PackageIndex.configured()
    if bundled:
        bundled(work / "bundle")
        index = PackageIndex(find_links=(str(work / "bundle"),), no_index=True)
    places = {"UV_CACHE_DIR": build / "cache", "HOME": build, "TMPDIR": temporary}
    variables = {**UV_VARIABLES, **index.variables, **{name: str(place) for name, place in places.items()}}
    builder = unprivileged.as_builder() if unprivileged_builder else ()
    program = Uv(builder, build, unpack(uv, work), variables, index.options)
    program.run("venv", "--python", sys.executable, "--no-project", "--allow-existing", target, timeout_s=600)
    _install(program, wheel, lock, payload, _python(target))
    packages = program.run("pip", "freeze", "--python", _python(target), timeout_s=300).output.split("\n")
    for folder in (work, build):
        shutil.rmtree(folder)
    if unprivileged_builder:
        unprivileged.take_from_builder(target, timeout_s=BUILD_LIMIT_S)
    content = {
        "python": sys.version.split()[0],
        "wheel_sha256": payload.wheel_sha256,
        "requirements_sha256": payload.requirements_sha256,
        "packages": [package for package in packages if "==" in package],
    }
    process.run("sync", "--file-system", target, timeout_s=600)  # no marker outlives a loss of power that files did not
    files.write_file(target / COMPLETE, json.dumps(content, indent=2) + "\n")


@dataclass(frozen=True)
class Uv:
    """uv, the words that run it and its Python as another user, and the folder that it may write.

    Its variables, and the options of what installs.
    """

    user: tuple[str, ...]
    folder: Path
    program: Path
    variables: Mapping[str, str]
    index_options: tuple[str, ...]

    def run(self, *words: str | Path, timeout_s: float) -> process.Outcome:
        """Run a command of uv; raises ``CommandError`` with the causes that it gives, the outermost first."""
        command: tuple[str | Path, ...] = (*self.user, self.program, *words)
        outcome = process.run(*command, timeout_s=timeout_s, variables=self.variables, check=False)
        if outcome.exit_code:
            why = " / ".join(_causes(outcome.errors)).rstrip(".")
            hint = LOCK_HINT if "Hash mismatch" in why else ""
            raise CommandError(f"uv {words[0]} {words[1]} failed (exit {outcome.exit_code}): {why[:1000]}", hint=hint)
        return outcome


def _causes(errors: str) -> list[str]:
    """Return the messages of uv's chain of causes, each on one line."""
    causes: list[str] = []
    for line in errors.splitlines():
        text = line.strip(" \u2502\u00d7\u2570\u2500\u251c\u25b6")
        if text.startswith(("Using ", "Resolved ", "warning:")) or not text:
            continue
        if causes and line.startswith("    ") and "\u25b6" not in line:
            causes[-1] += f" {text}"
        else:
            causes.append(text)
    return causes


def _install(uv: Uv, wheel: Path, lock: Path, payload: TrainingPayload, python: Path) -> None:
    """Install our wheel and its dependencies. uv checks each wheel's sha256 against the lock before it unpacks it.

    Wheels only: a source distribution would run its code before anybody has looked at its checksum.
    """
    locked = Requirements.parse(lock.read_text())
    name = wheel.name.split("-")[0].replace("_", "-")
    wheel_requirement, added, constraints, exact = (
        lock.with_name(f"{item}.txt") for item in ("ours", "added", "constraints", "exact")
    )
    resolved = uv.folder / "resolved.txt"
    files.write_file(wheel_requirement, f"{name} @ {wheel.as_uri()} --hash=sha256:{payload.wheel_sha256}\n")
    files.write_file(added, locked.added)
    files.write_file(constraints, locked.constraints)
    options: tuple[str | Path, ...] = (*uv.index_options, "--python", python, "--only-binary", ":all:")
    quiet = ("--quiet", "--no-header", "--no-annotate", "--no-emit-package", name, "--output-file", resolved)
    uv.run(
        "pip",
        "compile",
        *options,
        *quiet,
        "--constraint",
        constraints,
        wheel_requirement,
        added,
        timeout_s=BUILD_LIMIT_S,
    )
    text, unknown = locked.with_hashes(resolved.read_text())
    if unknown:
        raise BootstrapError(
            f"not in the lock: {', '.join(unknown)}",
            hint="lock again (make lock, or training.requirements of cluster.yaml), and deploy again",
        )
    files.write_file(exact, text)
    requirements = ("--require-hashes", "--no-deps", "--requirement", wheel_requirement, "--requirement", exact)
    uv.run("pip", "install", *options, *requirements, timeout_s=BUILD_LIMIT_S)
    uv.run("pip", "check", "--python", python, timeout_s=300)
    _compile(uv.user, python)


def _compile(user: tuple[str, ...], python: Path) -> None:
    """Write bytecode, which users of the environment cannot: without it each rank compiles what it imports.

    Files that this Python cannot compile are never imported, so the exit code is ignored.
    """
    packages = python.parents[1] / "lib"
    words = ("-I", "-S", "-m", "compileall", "-qq", "-j", "0", "-x", NEVER_IMPORTED, packages)
    process.run(*user, python, *words, timeout_s=BUILD_LIMIT_S, check=False)


def _lead_to(target: Path) -> Iterator[str]:
    """Let the link of people's commands lead to this environment; jobs have its own name, and keep their code."""
    link = target.with_name(CURRENT_ENVIRONMENT)
    if link.is_symlink() and os.readlink(link) == target.name:  # noqa: PTH115 (Python 3.8)
        return
    replace_link(link, target.name)
    yield f"linked {link} to {target.name}"


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
