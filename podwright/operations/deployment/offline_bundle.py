"""Build the offline bundle: all files that nodes download from the internet, with checksums.

``files/`` has the programs of the bootstrap's manifest, ``wheels/`` the training program's packages, ``index.json``
the checksum of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from boto3.exceptions import Boto3Error
from packaging.markers import Marker

from podwright.aws_session import Session, deployer_session
from podwright.errors import AwsError, PodwrightError
from podwright.json_document import JsonObject
from podwright.operations.deployment import outputs
from podwright.settings import names
from podwright.settings.operations import NoPrometheus
from podwright.settings.root import Settings
from podwright.settings.storage import ExistingBucket
from podwright.training_lock import training_lock
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.software import downloads
from podwright_bootstrap.software.downloads import Download
from podwright_common.atomic_file import rename_durably, write_file
from podwright_common.checksum import sha256_of
from podwright_constructs.catalog import InstanceType

DEFAULT_FOLDER = Path(".cache", "bundle")
INDEX = "index.json"
ATTEMPTS = 4
NEWEST_GLIBC_MINOR = 35  # HyperPod's Ubuntu 22.04 has glibc 2.35; https://peps.python.org/pep-0600/
CHECKSUM = "sha256"  # The key of an object's metadata.


@dataclass(frozen=True)
class _BundledFile(JsonObject):
    sha256: str
    bytes: int


@dataclass(frozen=True)
class _Uploaded(JsonObject):
    """Place of the bundle, and the number of its objects that were not there before."""

    to: str
    objects: int


@dataclass(frozen=True, kw_only=True)
class Bundle(JsonObject):
    """The document of `podwright bundle --json`."""

    schema: Literal["podwright.bundle/1"] = "podwright.bundle/1"
    index: str
    """The file that lists the bundle."""
    files: dict[str, _BundledFile]
    uploaded: _Uploaded | None
    nodes_look_there: bool
    """False until cluster.yaml has `nodes.downloads` with the source `bundle`."""


class BundleError(PodwrightError):
    """Building or uploading the bundle failed; the message has the solution."""


def build(settings: Settings, folder: Path | None, *, python: str, upload: bool) -> Bundle:
    """Build the bundle, print its content, upload it to the cluster's bucket on request, and return a summary.

    Args:
        settings: The settings of the cluster; they decide the programs and the processors.
        folder: The folder to write to; files with the right checksum stay. Default: ``.cache/bundle``.
        python: The version of the nodes' Python, X.Y.
        upload: Whether to upload the bundle, for which the foundation is deployed or the bucket is the user's.

    Raises:
        BundleError: a download failed or has another checksum, or S3 refuses.
        NotDeployedError, TerraformError: the created bucket's name is unknown.
    """
    folder = folder or DEFAULT_FOLDER
    # A missing bucket fails the command before gigabytes are downloaded.
    bucket = _bucket(settings) if upload else ""
    types = {name for group in settings.cluster.instance_groups for name in group.instance_types}
    machines = sorted({InstanceType.of(name).machine for name in types})
    paths = [fetch(file, folder / "files") for file in _files(settings, machines)]
    if settings.training.source == "bundled":
        lock = folder / "requirements.lock"
        write_file(lock, training_lock(settings.added_requirements))
        for machine in machines:
            paths += wheels(lock, folder / "wheels", python=python, machine=machine)
    index = write_index(folder, sorted(set(paths)))
    uploaded = None
    if bucket:
        prefix = names.bundle_prefix(settings.name)
        sent = send(folder, index, session=deployer_session(settings), bucket=bucket, prefix=prefix)
        print(f"uploaded {sent} of {len(index) + 1} objects to s3://{bucket}/{prefix}, the others were there")
        uploaded = _Uploaded(f"s3://{bucket}/{prefix}", sent)
    node_downloads = settings.nodes.downloads
    nodes_look_there = node_downloads is not None and node_downloads.source == "bundle"
    if not nodes_look_there:
        print("nodes do not look there yet: set nodes.downloads to {source: bundle}, and deploy the cluster stack")
    return Bundle(
        index=str(folder / INDEX),
        files={name: _BundledFile(**file) for name, file in index.items()},
        uploaded=uploaded,
        nodes_look_there=nodes_look_there,
    )


def fetch(file: Download, folder: Path) -> Path:
    """Download a file unless it exists; raise ``BundleError`` if that fails or the checksum differs."""
    path, part = folder / file.filename, folder / f".{file.filename}.part"
    if path.is_file() and sha256_of(path) == file.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            downloads.from_internet(file.url, part)
            break
        except BootstrapError as error:
            raise BundleError(f"{error}; {error.hint}") from error
        except OSError as error:
            if attempt == ATTEMPTS:
                raise BundleError(f"{file.url}: download failed: {error}") from error
    actual_sha256 = sha256_of(part)
    if actual_sha256 != file.sha256:
        part.unlink()
        raise BundleError(
            f"{file.url} has sha256 {actual_sha256}, the manifest says {file.sha256}: the file was removed"
        )
    return rename_durably(part, path)


def wheels(lock: Path, folder: Path, *, python: str, machine: str) -> list[Path]:
    """Download every wheel of a lock file for the nodes' Python and processors; pip compares the hashes.

    Raises:
        BundleError: a download failed or a hash differs; the message ends with pip's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.glob("*.whl")}
    pins = folder / f".requirements-{python}-{machine}.txt"
    pins.write_text("".join(applicable(lock.read_text(), python=python, machine=machine)))
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC_MINOR, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(pins)]
    command += ["--dest", str(folder), "--implementation", "cp", "--python-version", python]
    command += [word for platform in platforms for word in ("--platform", platform)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    pins.unlink()
    if answer.returncode:
        output = [line for line in answer.stderr.splitlines() if line.strip()][-12:]
        raise BundleError(f"pip could not get all wheels for Python {python} on {machine}:\n" + "\n".join(output))
    wheel_files = sorted(folder.glob("*.whl"))
    new = sum(path.name not in before for path in wheel_files)
    print(f"wheels  {len(wheel_files)} for Python {python} on {machine}, {new} of them new")
    return wheel_files


def applicable(lock: str, *, python: str, machine: str) -> Iterator[str]:
    """Yield the lock's requirements that apply on a node, with their hashes and without their markers.

    pip evaluates markers for the machine it runs on.
    """
    target = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.12",  # locks do not distinguish patch releases
        "python_version": python,
        "sys_platform": "linux",
    }
    for line in lock.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split("--hash=")
        pin, _, marker = requirement.partition(";")
        if hashes and _holds(marker.strip(), target):
            yield " ".join([pin.strip(), *(f"--hash={item.strip()}" for item in hashes)]) + "\n"


def write_index(folder: Path, paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Write the bundle's index; return each file's checksum and size by its name in the bundle."""
    index: dict[str, dict[str, Any]] = {
        path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "bytes": path.stat().st_size} for path in paths
    }
    temporary = folder / f".{INDEX}"
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(json.dumps(index, indent=2) + "\n")
    temporary.replace(folder / INDEX)
    size_mb = sum(entry["bytes"] for entry in index.values()) / 1e6
    print(f"bundle  {len(index)} files, {size_mb:.1f} MB: {folder / INDEX}")
    return index


def send(folder: Path, index: dict[str, dict[str, Any]], *, session: Session, bucket: str, prefix: str) -> int:
    """Upload objects that the bucket lacks, the index last; return the number of uploaded objects.

    Raises:
        BundleError: S3 refuses an object.
        OperationError: as ``Session.call``.
    """
    sent = 0
    with session.translated("s3"):
        client = session.client("s3")
        try:
            for name, entry in index.items():
                key = f"{prefix}/{name}"
                if _checksum(session, bucket, key) != entry["sha256"]:
                    metadata = {"Metadata": {CHECKSUM: entry["sha256"]}}
                    client.upload_file(str(folder / name), bucket, key, ExtraArgs=metadata)
                    sent += 1
            client.upload_file(str(folder / INDEX), bucket, f"{prefix}/{INDEX}")
        except Boto3Error as error:
            raise BundleError(f"upload to s3://{bucket}/{prefix} failed: {error}") from error
    return sent + 1


def _holds(marker: str, target: dict[str, str]) -> bool:
    return not marker or bool(Marker(marker).evaluate(target))


def _files(settings: Settings, machines: list[str]) -> Iterator[Download]:
    """Yield the manifest's files for the cluster's processors; skip files without a checksum for them."""
    nodes = settings.nodes.features()
    sends, trains = not isinstance(settings.prometheus, NoPrometheus), settings.training.source == "bundled"
    manifest = downloads.manifest()
    for name in downloads.needed(nodes, sends=sends, trains=trains):
        for machine in machines:
            if machine in manifest[name]:
                yield manifest[name][machine]
            else:
                print(f"podwright has no checksum of {name} for {machine}: such nodes need an image that has it")


def _bucket(settings: Settings) -> str:
    if isinstance(settings.bucket, ExistingBucket):
        return settings.bucket.name
    foundation = outputs.outputs(settings.name, folder=Path.cwd())["foundation"]
    if "BucketName" not in foundation:
        raise BundleError("the foundation is not deployed: create its bucket with `podwright deploy --only foundation`")
    return str(foundation["BucketName"])


def _checksum(session: Session, bucket: str, key: str) -> str:
    """Return the object's checksum from its metadata; empty if the object does not exist."""
    try:
        metadata: dict[str, str] = session.call("s3", "head_object", Bucket=bucket, Key=key)["Metadata"]
    except AwsError as error:
        if error.absent:
            return ""
        raise
    return {name.lower(): value for name, value in metadata.items()}.get(CHECKSUM, "")  # headers have no case
