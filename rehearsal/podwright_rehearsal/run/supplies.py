"""Download the supplies of a rehearsal, once: Slurm, Python wheels, English prose.

``python -m podwright_rehearsal.run.supplies`` is the last part of ``tools/setup.sh rehearsal``.

They stay in ``.cache/podwright/`` for later rehearsals.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from setuptools.config.pyprojecttoml import read_configuration  # type: ignore[import-untyped]

from podwright import checkout
from podwright.errors import PodwrightError
from podwright.training_lock import training_lock
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.requirements import Requirements, normalise
from podwright_common.checksum import sha256_of
from podwright_common.file_lock import locked
from podwright_rehearsal.hosts import image, permission, slurm_packages
from podwright_rehearsal.hosts.debian import DebianError
from podwright_rehearsal.hosts.debian_root import RELEASES, DebianRelease
from podwright_rehearsal.run import prose

CACHE = checkout.SUPPLIES
NODE_PYTHON = "/usr/bin/python3"
VOCAB_SIZE = 2048  # The preset tiny has so many.
RETRY_AFTER_S = 3600
LIMIT_S = 1800  # One download, or the tokenizer's training, takes less.
SHARDS = 4  # The rehearsed job has as many data streams.


class SuppliesError(PodwrightError):
    """A supply is missing and could not be downloaded; the message has the solution."""


FAILURES = (SuppliesError, image.ImageError, prose.ProseError, DebianError)


@dataclass(frozen=True)
class Supplies:
    """The path of each supply."""

    slurm: Path  # the node image, or for flat hosts the unpacked packages
    wheelhouse: Path
    dataset: Path  # in C4's layout, with a tokenizer beside it


def supplies(release: DebianRelease | None, *, added: Path | None = None) -> Supplies:
    """Download missing supplies.

    Args:
        release: the Debian that hosts boot; None: hosts are plain processes.
        added: lock file of packages that the cluster adds to the training environment.

    Raises:
        SuppliesError: a download failed.
    """
    with locked(CACHE / "supplies.lock"):  # Rehearsals of both kinds may start at the same time.
        if release is None:
            return Supplies(
                slurm=_slurm_packages(), wheelhouse=_wheelhouse(sys.executable, added=added), dataset=dataset()
            )
        built = node_image(release)
        python = ["chroot", str(built / image.ROOT), NODE_PYTHON]
        return Supplies(slurm=built, wheelhouse=_wheelhouse(*python, added=added), dataset=dataset())


def node_image(release: DebianRelease) -> Path:
    """Return the node image of a release; build it if it is missing.

    Raises:
        ImageError: a package could not be downloaded or installed.
    """
    folder = CACHE / f"node-image-{release.name}"
    if not image.is_current(folder, release):
        _say(f"a root for the hosts, with {release.description}")
        image.build_image(folder, release=release)
    return folder


def why_no_image(release: DebianRelease) -> str | None:
    """Build the node image of a release, unless it exists; return why it is not available, or None.

    A failed build is tried again by set-up, and after an hour.
    """
    failure = _failure(release)
    if failure.exists() and time.time() - failure.stat().st_mtime < RETRY_AFTER_S:
        return failure.read_text()
    try:
        node_image(release)
    except image.ImageError as error:
        reasons = [line for line in str(error).splitlines() if line.startswith(("E: ", "ERROR: "))]
        why = f"{release.description} are not available here: {(reasons or str(error).splitlines())[0]}"
        failure.write_text(why)
        return why
    return None


def available_release(requested: DebianRelease) -> tuple[DebianRelease | None, str | None]:
    """Return the release that hosts can boot here, and why it differs from the wanted one; None: flat hosts only."""
    if why_not := permission.why_not():
        return None, why_not
    reasons: list[str] = []
    for release in (requested, *(other for other in RELEASES.values() if other != requested)):
        why = why_no_image(release)
        if why is None:
            return release, "; ".join(reasons) or None
        reasons.append(why)
    return None, "; ".join(reasons)


def _failure(release: DebianRelease) -> Path:
    return CACHE / f"node-image-{release.name}.failure"


def _slurm_packages() -> Path:
    folder = CACHE / "slurm"
    if not folder.exists():
        _say("Slurm and munge, unpacked")
    without = slurm_packages.fetch_slurm(folder).without_auto_resume
    if without:
        _say(f"srun has no option --auto-resume: {without}")
    return folder


def _wheelhouse(*python: str, added: Path | None = None) -> Path:
    """Download uv and the wheels of the training environment for the hosts' Python, as the lock pins them."""
    version = _run([*python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    folder = CACHE / (f"wheelhouse-{version}-added" if added else f"wheelhouse-{version}")
    uv = json.loads(downloads.MANIFEST.read_text())["uv"]
    lock = training_lock(added)
    locked_requirements = Requirements.parse(lock)
    needed = [*_requirements(), *locked_requirements.added.splitlines(), f"uv=={uv['version']}"]
    key = hashlib.sha256(lock.encode() + f"{version} {needed}".encode()).hexdigest()
    if (folder / "key").exists() and (folder / "key").read_text() == key:
        return folder
    _say(f"wheels of the training environment, for Python {version}")
    temporary = emptied(folder.with_name(f"{folder.name}.part"))
    pins = temporary / "pins.txt"
    pins.write_text("".join(_pins(lock)))
    _run([
        *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", version),
        *("--constraint", str(pins), "--dest", str(temporary)),
        *needed,
    ])  # fmt: skip
    check_wheels(temporary, {**locked_requirements.sha256, "uv": {wheel["sha256"] for wheel in uv["wheels"].values()}})
    (temporary / "key").write_text(key)
    return _replace(folder, temporary)


def check_wheels(folder: Path, sha256: Mapping[str, Collection[str]]) -> None:
    """Refuse a folder with a wheel that is not locked, also one from the user's own folder (pip's find-links).

    pip's --require-hashes would need every line of the lock, with the gigabytes of CUDA that a CPU build of torch does
    without. To download wheels runs none of their code, so they are checked before anything installs them.

    Args:
        folder: of wheels.
        sha256: of the allowed files, by normalised project name.

    Raises:
        SuppliesError: Wheels have other checksums; the message names them all.
    """
    wheels = sorted(folder.glob("*.whl"))
    changed = [wheel.name for wheel in wheels if sha256_of(wheel) not in sha256.get(_project(wheel), ())]
    if changed:
        raise SuppliesError(
            f"not the files that {checkout.REQUIREMENTS_LOCK.name} locks: {', '.join(changed)}; the package index, its "
            "mirror or a folder of PIP_FIND_LINKS has others: use another, or lock again (make lock)"
        )


def _project(wheel: Path) -> str:
    return normalise(wheel.name.split("-")[0])


def _requirements() -> list[str]:
    """Return the requirements of this checkout's trainer that an index has; the installed ones may be older."""
    dependencies: list[str] = read_configuration(checkout.TRAINING / "pyproject.toml", expand=False)["project"][
        "dependencies"
    ]
    return [dependency for dependency in dependencies if not dependency.startswith("podwright-")]


def _pins(lock: str) -> list[str]:
    """Return the lock's ``name==version ; marker`` lines: a constraint file may not have hashes."""
    return [line.split(" \\")[0].rstrip() + "\n" for line in lock.splitlines() if "==" in line and line[0] not in " #"]


def dataset() -> Path:
    """Return English prose in C4's layout, with a tokenizer beside it; make it if it is missing."""
    folder = CACHE / "dataset"
    if folder.exists():
        return folder
    text = prose.fetch_prose(CACHE / "prose")
    _say("the prose in C4's layout, and a tokenizer trained on it")
    temporary = folder.with_suffix(".part")
    shutil.rmtree(temporary, ignore_errors=True)
    _run([
        *(sys.executable, "-m", "podwright_training", "prepare", str(text), "--output", str(temporary)),
        *("--vocab-size", str(VOCAB_SIZE), "--shards", str(SHARDS)),
    ])  # fmt: skip
    return _replace(folder, temporary)


def emptied(folder: Path) -> Path:
    """Return a folder that is new and empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _replace(folder: Path, by: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    by.rename(folder)
    return folder


def _run(command: list[str]) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise SuppliesError(
            f"{' '.join(command[:5])} … did not end within {LIMIT_S} s: is the package index reachable?"
        ) from error
    if answer.returncode:
        tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-15:])
        raise SuppliesError(f"{' '.join(command[:5])} … failed with exit code {answer.returncode}:\n{tail}")
    return answer.stdout


def _say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Get the supplies; one line per problem."""
    for release in RELEASES.values():
        _failure(release).unlink(missing_ok=True)
    available, why = available_release(next(iter(RELEASES.values())))
    if why:
        _say(f"hosts are {available.name if available else 'flat'}: {why}")
    try:
        supplies(available)
    except FAILURES as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
