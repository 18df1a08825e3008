"""Buckets as folders, by Mountpoint for Amazon S3.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/mountpoint-usage.html and
https://github.com/awslabs/mountpoint-s3/blob/main/doc/CONFIGURATION.md
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator

from podwright_bootstrap.features import S3Mount
from podwright_bootstrap.host import files, log, process, units
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import packages, programs
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import mounts

PROGRAM = "mount-s3"
LIBRARY = "libfuse2"  # the program is linked with it
SOURCE = "mountpoint-s3"  # findmnt shows this source
UNIT_PREFIX = "podwright-s3-"
UNIT = """\
[Unit]
Description={uri} at {path}
Wants=network-online.target
After=network-online.target
Before=slurmd.service

[Service]
Type=forking
ExecStart={program} {options} {bucket} {path}
ExecStop=/bin/umount {path}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""


class S3MountsStep(Step):
    """Each bucket in cluster.yaml is a folder, now and after every reboot, and can be read or written as it says."""

    name = "s3_mounts"
    audience = "clusters with buckets as folders"
    hint = (
        "may the nodes' role use the bucket (a created role may after the foundation is deployed again), and its KMS "
        "key if it has one? journalctl -u 'podwright-s3-*' says more"
    )
    time_limit_s = 600
    attempts = 3

    def applies(self, node: Node) -> bool:
        """Run with nodes.s3_mounts."""
        return bool(node.parameters.nodes.s3_mounts)

    def apply(self, node: Node) -> Iterator[str]:
        """A unit per folder, which mounts it."""
        program = shutil.which(PROGRAM) or str(programs.path_of(PROGRAM))
        if not Path(program).exists():
            programs.install(PROGRAM, node)
            yield f"installed {program}"
        if not _starts(program):
            packages.install(LIBRARY, node=node)
            yield f"installed {LIBRARY}"
        for mount in node.parameters.nodes.s3_mounts:
            path, uri = Path(mount.path), f"s3://{mount.bucket}/{mount.prefix}"
            mounted = mounts.mounted_at(path)
            if mounted and mounted.source != SOURCE:
                mounts.refuse_other(mounted, expected=uri, path=path)
            if not path.is_dir():
                path.mkdir(parents=True)
                yield f"made {path}"
            unit = _unit_name(path)
            changed = files.write_file(units.FOLDER / unit, _unit(mount, program))
            if changed:
                yield f"wrote {unit}"
            yield from units.keep_on(unit, restart=changed or mounted is None)
        _tell_of_removed(node)

    def remove(self, node: Node) -> Iterator[str]:
        """Say how a person removes them."""
        _tell_of_removed(node)
        yield from ()

    def verify(self, node: Node) -> None:
        """Check that each is mounted and answers, and that writable ones take a file of this node's own."""
        for mount in node.parameters.nodes.s3_mounts:
            path = Path(mount.path)
            mounted = mounts.mounted_at(path)
            if not mounted or mounted.source != SOURCE:
                raise CommandError(f"s3://{mount.bucket}/{mount.prefix} is not mounted on {path}", hint=self.hint)
            if mount.read_only:
                # One name: a bucket may have millions.
                process.run(
                    "find", path, "-mindepth", "1", "-maxdepth", "1", "-print", "-quit", timeout_s=60, quiet=True
                )
            else:
                mounts.prove_writable(path, path, hostname=node.hostname)


def _starts(program: str) -> bool:
    """Return whether its libraries are installed; raise ``CommandError`` if it does not start for another reason."""
    outcome = process.run(program, "--version", timeout_s=60, check=False, quiet=True)
    if outcome.exit_code and "libfuse" not in outcome.errors:
        raise CommandError(f"{program} does not start (exit {outcome.exit_code}): {outcome.summary}")
    return not outcome.exit_code


def _unit_name(path: Path) -> str:
    """As systemd-escape does: no two paths have one name."""
    return UNIT_PREFIX + str(path).strip("/").replace("-", "\\x2d").replace("/", "-") + ".service"


def _unit(mount: S3Mount, program: str) -> str:
    """Return the unit of a mount: S3 has no owners and the node's role decides, so all users get the same modes."""
    options = ["--allow-other"]
    if mount.prefix:
        options += ["--prefix", mount.prefix]
    if mount.read_only:
        options += ["--read-only"]
    else:
        options += ["--allow-delete", "--allow-overwrite", "--dir-mode", "0777", "--file-mode", "0666"]
    return UNIT.format(
        uri=f"s3://{mount.bucket}/{mount.prefix}",
        path=mount.path,
        program=program,
        options=" ".join(options),
        bucket=mount.bucket,
    )


def _tell_of_removed(node: Node) -> None:
    """Leave a mount that is no longer in cluster.yaml: a job may be reading, so an administrator decides."""
    unit_names = {_unit_name(Path(mount.path)) for mount in node.parameters.nodes.s3_mounts}
    for unit in sorted(units.FOLDER.glob(f"{UNIT_PREFIX}*.service")):
        if unit.name not in unit_names:
            end = f"systemctl disable --now '{unit.name}'"
            log.say(f"{unit.name} is no longer in cluster.yaml and stays; {end} ends it")
