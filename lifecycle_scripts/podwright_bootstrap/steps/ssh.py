"""SSH between the nodes for the job user: one key pair for the cluster, every host's key known to all.

A host publishes its key in files of its own, and ssh opens the file of the host it goes to (UserKnownHostsFile takes
tokens since OpenSSH 8.4; %h is the name it connects to, whatever alias the user gave it): what a host reads and writes
does not grow with the cluster, and no lock is needed.
https://man.openbsd.org/ssh_config#TOKENS
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap import contract
from podwright_bootstrap.host import files, identity, log, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_common import regular_file

HOST_KEY = Path("/etc/ssh/ssh_host_ed25519_key.pub")
CLIENT = Path("/etc/ssh/ssh_config")
OUR_PART = Path("/etc/ssh/ssh_config.d/podwright.conf")
INCLUDE = f"Include {OUR_PART.parent}/*.conf"  # Debian's and Ubuntu's own line
KEY_NAME = "id_ed25519"
USERS_OWN = "~/.ssh/known_hosts ~/.ssh/known_hosts2"  # ssh's default; new keys go into the first
KEYS_LIMIT_BYTES = 1 << 20
FULL = {errno.ENOSPC, errno.EDQUOT}
THE_DISKS = {*FULL, errno.EROFS, errno.EIO}  # faults; others are of the user's own making


class SshStep(Step):
    """The job user can log in from each node to each other one, and every host key is checked."""

    name = "ssh"
    audience = "clusters with a shared file system"
    hint = "is the shared file system writable by root, and is OpenSSH's client on the image?"
    time_limit_s = 300
    attempts = 3

    def applies(self, node: Node) -> bool:
        """Keys go from node to node through the shared file system."""
        return node.has_shared

    def apply(self, node: Node) -> Iterator[str]:
        """Make the cluster's key pair unless it exists, install it, publish this host's key."""
        keys = node.shared(contract.KEYS_DIRECTORY)
        private = keys / KEY_NAME
        keys.mkdir(exist_ok=True)
        if _make_key_once(private, node):
            yield f"made the cluster's key pair {private}"
        yield from _install(private)
        if not HOST_KEY.exists():
            process.run("ssh-keygen", "-A", timeout_s=60)
            yield "made this host's keys"
        yield from _publish(node)
        yield from _look_into(_known(node))

    def verify(self, node: Node) -> None:
        """The cluster's key opens, this host is known by name and address, and ssh looks there."""
        host_keys = _known(node)
        _public(node.shared(contract.KEYS_DIRECTORY) / KEY_NAME)
        for name in (node.hostname, node.address):
            if (host_keys / name).exists():  # a full file system may have kept it from being written
                process.run("ssh-keygen", "-F", name, "-f", host_keys / name, timeout_s=30, quiet=True)
        settings = process.run("ssh", "-G", node.hostname, timeout_s=30, quiet=True).output.split()
        if f"{host_keys}/%h" in settings:
            log.say(
                "warning: this OpenSSH does not fill in %h (8.4 and later do), so that ssh between nodes knows no host "
                "key. An image of Ubuntu 22.04 or later has one that does: image_id of the instance group"
            )
        elif str(host_keys / node.hostname) not in settings:
            raise BootstrapError(f"ssh does not look into {host_keys}", hint=f"move the Include to the top of {CLIENT}")


def _make_key_once(private: Path, node: Node) -> bool:
    """Whoever links the file first has made the key; all others use it."""
    if private.exists():
        return False
    folder = private.with_name(f".new-{node.hostname}")
    shutil.rmtree(folder, ignore_errors=True)  # A boot that was killed may have left it.
    folder.mkdir(mode=0o700)
    try:
        candidate = folder / KEY_NAME
        comment = f"{contract.JOB_USER}@{node.parameters.cluster_name}"
        process.run(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", candidate, timeout_s=60, quiet=True
        )
        with candidate.open("rb") as file:
            os.fsync(file.fileno())
        os.link(candidate, private)
    except FileExistsError:
        return False
    finally:
        shutil.rmtree(folder)
    return True


def _install(private: Path) -> Iterator[str]:
    """Install and authorize the pair in the job user's home, with the user's rights: links give no further access."""
    key, public = private.read_text(), _public(private)
    folder, changes = Path(identity.find_user(contract.JOB_USER).pw_dir) / ".ssh", []
    with identity.acting_as(identity.find_user(contract.JOB_USER)):
        try:
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                changes.append(f"made {folder}")
            lines = _keys(folder / "authorized_keys")
            if public.encode() not in lines:
                lines.append(public.encode())
            for path, content, mode in (
                (folder / KEY_NAME, key.encode(), 0o600),
                (folder / f"{KEY_NAME}.pub", f"{public}\n".encode(), 0o644),
                (folder / "authorized_keys", b"\n".join(lines) + b"\n", 0o600),
            ):
                if files.write_file(path, content, mode=mode):
                    changes.append(f"wrote {path}")
        except OSError as error:
            if error.errno in THE_DISKS:
                raise
            log.say(f"warning: {contract.JOB_USER} cannot log in from node to node: {error}")
    yield from changes


def _keys(authorized: Path) -> List[bytes]:
    try:
        return regular_file.read(authorized, limit_bytes=KEYS_LIMIT_BYTES, follow_links=True).splitlines()
    except FileNotFoundError:
        return []


def _publish(node: Node) -> Iterator[str]:
    """Replace this host's entry in the known hosts of all nodes: a replaced node of the same name has a new key."""
    kind, key = HOST_KEY.read_text().split()[:2]
    for name in (node.hostname, node.address):
        try:
            if files.write_file(_known(node) / name, f"{name} {kind} {key}\n"):
                yield f"published this host's key as that of {name}"
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.say(f"warning: other nodes do not know this host's key, boot again when there is space: {error}")


def _look_into(host_keys: Path) -> Iterator[str]:
    """Configure the host's ssh client, for every user, with the cluster's host keys."""
    if files.write_file(OUR_PART, f"UserKnownHostsFile {USERS_OWN} {host_keys}/%h\n"):
        yield f"wrote {OUR_PART}"
    if INCLUDE not in _lines(CLIENT):
        text = CLIENT.read_text() if CLIENT.exists() else ""
        files.write_file(CLIENT, f"{INCLUDE}\n{text}")  # A Host block above would swallow it.
        yield f"included {OUR_PART.parent} in {CLIENT}"


def _known(node: Node) -> Path:
    """One file per name of a host."""
    return node.shared(contract.KEYS_DIRECTORY) / "hosts"


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line] if path.exists() else []


def _public(private: Path) -> str:
    """Return the public half, computed from the private key, so that no second file must be trusted."""
    return process.run("ssh-keygen", "-y", "-P", "", "-f", private, timeout_s=30, quiet=True).output.strip()
