"""Run commands on a node of a cluster, by ssh through Session Manager."""

from __future__ import annotations

import argparse
import codecs
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from podwright.errors import ArgumentError, OperationError
from podwright.operations.access import session_plugin, ssh
from podwright.operations.access.drain import Drain
from podwright.operations.account.hyperpod import Cluster, Node
from podwright.operations.target import NODE_HELP, Target
from podwright_bootstrap.contract import CONTROLLER, JOB_USER, LOGIN, SLURM_ROOT

CONNECT_LIMIT_S = 60  # A node may hang before its sshd answers through the session.
CHUNK_BYTES = 1 << 16
SSH_FAILED = 255  # This status is ssh's own; any other is that of the command.
RUNNING = "Running"
USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]*\$?")  # useradd accepts no other names.
SLURM_PATH = f"PATH={SLURM_ROOT}/bin:{SLURM_ROOT}/sbin:$PATH"  # Only a login shell would set it.
_ACCESS = (
    "put your public key into nodes.users of cluster.yaml, or run `podwright ssh-config --authorize KEY.pub`; "
    "load a key with a passphrase by `ssh-add`"
)


class RemoteError(OperationError):
    """A command on a node failed; ``status`` is its exit status."""

    def __init__(self, message: str, hint: str = "", *, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


@dataclass(frozen=True)
class Remote:
    """A node that commands run on.

    Args:
        cluster: the node's cluster.
        node: a running node.
        command: ssh and its options, up to the host.
    """

    cluster: Cluster
    node: Node
    command: tuple[str, ...]

    def run(self, line: str, *, stdin: bytes | None = None) -> str:
        """Run a line of shell and return its output.

        Raises:
            RemoteError: the node is unreachable, or the line failed; the message ends with its last line on stderr.
        """
        return self.output(line, stdin=stdin).decode(errors="replace")

    def output(self, line: str, *, stdin: bytes | None = None) -> bytes:
        """Run a line of shell and return the bytes of its output; errors are those of ``run``."""
        mark = _mark()
        done = subprocess.run(
            self._words(line, mark),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise self.failure(done.returncode, done.stderr.decode(errors="replace"))
        _, is_marked, output = done.stdout.partition(mark)
        if not is_marked:
            raise self._not_run(done.stdout)
        return output

    def show(self, line: str) -> None:
        """Run a line of shell until it ends, and copy its output to our own: as bytes, or as text to a terminal.

        The line ends with this process: the pipe of its standard input closes.

        Raises:
            RemoteError: as ``run``.
        """
        sys.stdout.flush()
        is_terminal = sys.stdout.isatty()
        with self.started(line, stdout=subprocess.PIPE if is_terminal else None) as process:
            if process.stdout:
                _print_as_it_comes(process.stdout)
            process.wait()

    @contextmanager
    def started(
        self, line: str, *, stdin: int = subprocess.PIPE, stdout: int | None = subprocess.PIPE
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a line of shell while the block writes and reads its pipes; its errors are read meanwhile.

        The pipe of its output begins behind what a start file of the shell printed.

        Raises:
            RemoteError: as ``run``, at the end of the block.
        """
        mark = _mark() if stdout == subprocess.PIPE else b""
        before = b""
        words = self._words(line, mark)
        with subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE) as process:
            if process.stderr is None:
                raise OperationError("ssh was started without pipes")
            errors = Drain(process.stderr)
            if process.stdout and mark:
                before = _read_to(mark, process.stdout)
            yield process
        if process.returncode:
            raise self.failure(process.returncode, errors.text())
        if not before.endswith(mark):
            raise self._not_run(before)

    def _not_run(self, printed: bytes) -> RemoteError:
        """Return the error for a node that ran something else, such as a command that sshd forces."""
        last_line = printed.decode(errors="replace").strip().rpartition("\n")[2]
        return RemoteError(f"{self.node.name} did not run the command: it printed {last_line or 'nothing'}", status=0)

    def failure(self, status: int, errors: str) -> RemoteError:
        """Return the error for a line that ended with this status and wrote these lines to stderr."""
        last_line = next((line for line in reversed(errors.splitlines()) if line.strip()), "no output").strip()
        if status != SSH_FAILED:
            return RemoteError(f"{self.node.name}: {last_line}", status=status)
        if "Permission denied" in errors:
            return RemoteError(f"{self.node.name} refused every SSH key: {last_line}", _ACCESS, status=status)
        own_message = next((line for line in errors.splitlines() if line.startswith("podwright: ")), None)
        reason = own_message.removeprefix("podwright: ") if own_message else last_line
        return RemoteError(f"no ssh to {self.node.name} ({self.node.instance_id}): {reason}", status=status)

    def _words(self, line: str, mark: bytes) -> list[str]:
        begin = f"printf %s {quoted(mark.decode())}; " if mark else ""
        # The user's own shell may have another syntax.
        script = f"{begin}{SLURM_PATH}; export PATH; {line}"
        return [*self.command, self.node.name, quoted("exec", "/bin/sh", "-c", script)]


def _mark() -> bytes:
    """Return what a node prints before a command's output: a start file of the shell may print before both."""
    return f"{secrets.token_hex(16)}\n".encode()


def _read_to(mark: bytes, output: IO[bytes]) -> bytes:
    """Read a pipe to the end of a mark and no byte further; return what was read, also if the pipe ends before."""
    content = bytearray()
    while not content.endswith(mark) and (byte := os.read(output.fileno(), 1)):
        content += byte
    return bytes(content)


def _print_as_it_comes(output: IO[bytes]) -> None:
    """Print text to stdout as it arrives; stdout removes control sequences."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while chunk := os.read(output.fileno(), CHUNK_BYTES):
        sys.stdout.write(decoder.decode(chunk))
        if chunk.endswith((b"\n", b"\r")):  # half a line waits for its end: it may be half a sequence
            sys.stdout.flush()
    sys.stdout.write(decoder.decode(b"", final=True))
    sys.stdout.flush()


def add_remote_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the node, the user and the key."""
    group = parser.add_argument_group("ssh")
    group.add_argument("--node", metavar="NODE", help=f"{NODE_HELP}. Default: a login node, else the controller")
    add_login_arguments(group)


def add_login_arguments(group: Any) -> None:
    """Add the flags for the user and the key."""
    group.add_argument("--user", type=user_name, default=JOB_USER, help="user on the node. Default: %(default)s")
    group.add_argument("--identity", type=Path, metavar="KEY", help="private key. Default: ssh's own choice")


def user_name(text: str) -> str:
    """Parse a user's name; argparse names the option in its message."""
    if not USER_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, need a user's name: lower-case letters, digits, _ and -")
    return text


def remote(cluster_target: Target, options: argparse.Namespace) -> Remote:
    """Return the node that ``add_remote_arguments`` name.

    Raises:
        OperationError: there is no such node, it is not Running, or ssh or the plugin is missing.
    """
    cluster = cluster_target.cluster()
    return connection(cluster_target, cluster, pick(cluster_target, cluster, options.node), options)


def connection(cluster_target: Target, cluster: Cluster, node: Node, options: argparse.Namespace) -> Remote:
    """Return a node to run commands on; errors are those of ``remote``."""
    if shutil.which("ssh") is None:
        raise OperationError("ssh is not on PATH", "install OpenSSH's client")
    session_plugin.require()
    ssh_options = ssh.options(cluster_target.session, cluster, node, user=options.user, identity=options.identity)
    ssh.make_folder()
    flags = [f"-o{keyword}={value}" for keyword, value in ssh_options.items()]
    # Nobody answers a prompt; messages about new host keys are no output of the command.
    quiet = ("-oBatchMode=yes", "-oLogLevel=ERROR", f"-oConnectTimeout={CONNECT_LIMIT_S}")
    return Remote(cluster, node, ("ssh", *flags, *quiet, "-T"))


def pick(cluster_target: Target, cluster: Cluster, word: str | None) -> Node:
    """Return the running node that an argument names. Default: a login node, else the controller.

    Raises:
        OperationError: there is none, or it is not Running.
    """
    if word is None:
        return front(cluster, cluster_target.nodes(cluster))
    (node,) = cluster_target.nodes(cluster, [word])
    return running(node)


def front(cluster: Cluster, existing: tuple[Node, ...]) -> Node:
    """Return the node for people: a running login node, or else the controller.

    Raises:
        OperationError: neither is known, or the controller is not Running.
    """
    logins = [node for node in existing if node.role == LOGIN and node.status == RUNNING]
    controllers = [node for node in existing if node.role == CONTROLLER]
    if not logins and not controllers:
        raise ArgumentError(f"the controller of {cluster.name} is not known", "name it with --node")
    return running((*logins, *controllers)[0])


def running(node: Node) -> Node:
    """Return a node that is Running.

    Raises:
        OperationError: it is not.
    """
    if node.status != RUNNING:
        reason = f": {node.message}" if node.message else ""
        raise OperationError(
            f"{node.name} ({node.instance_id}) is {node.status}{reason}", "sessions need a node that is Running"
        )
    return node


def quoted(*words: object) -> str:
    """Return words as a line of shell."""
    return shlex.join(map(str, words))
