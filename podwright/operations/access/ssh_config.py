"""``podwright ssh-config``: let ssh, scp, rsync and editors reach the nodes by name."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podwright.errors import ArgumentError, OperationError
from podwright.json_document import JsonObject
from podwright.operations.access import session_plugin, ssh
from podwright.operations.access.remote import RUNNING, add_login_arguments, front, quoted, running
from podwright.operations.account import session_documents
from podwright.operations.account.hyperpod import Cluster, Node
from podwright.operations.output import print_document
from podwright.operations.target import NODE_HELP, Target, add_examples, add_target_arguments, target
from podwright.output_file import place_of
from podwright_common.atomic_file import write_file
from podwright_common.regular_file import read_text

INCLUDE = "Include podwright/*.config"  # ssh resolves the path in ~/.ssh.
PUBLIC_KEY = re.compile(r"(ssh-|ecdsa-|sk-)\S+ [A-Za-z0-9+/]+=*( .*)?")
KEY_LIMIT_BYTES = 1 << 16
AUTHORIZED = "podwright: authorized"
# Root acts as the user: links in a home then lead nowhere that its owner cannot write.
AUTHORIZE = (
    "umask 077; mkdir -p ~/.ssh && touch ~/.ssh/authorized_keys && "
    "{{ [ -f ~/.ssh/authorized_keys ] || {{ echo '~/.ssh/authorized_keys is not a regular file'; exit 1; }}; }} && "
    "{{ grep -qxF {key} ~/.ssh/authorized_keys || echo {key} >> ~/.ssh/authorized_keys; }} && echo {done}"
)


@dataclass(frozen=True)
class Host(JsonObject):
    """A block of ssh's configuration."""

    aliases: list[str]
    options: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class SshConfig(JsonObject):
    """The document of `podwright ssh-config --json`."""

    schema: Literal["podwright.ssh-config/1"] = "podwright.ssh-config/1"
    cluster: str
    hosts: list[Host]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add NODE, --write, --authorize, and flags for the login and the cluster."""
    parser.add_argument("nodes", nargs="*", metavar="NODE", help=f"{NODE_HELP}. Default: all")
    parser.add_argument("--write", action="store_true", help="write ~/.ssh/podwright/CLUSTER.config and include it")
    parser.add_argument(
        "--authorize",
        type=Path,
        metavar="KEY.pub",
        help="first add this public key on the nodes named, else on the login node or controller",
    )
    add_login_arguments(parser.add_argument_group("ssh"))
    add_target_arguments(parser)
    add_examples(
        parser,
        "podwright ssh-config --write && ssh podwright-demo",
        "podwright ssh-config --authorize ~/.ssh/id_ed25519.pub controller",
    )


def run(options: argparse.Namespace) -> int:
    """Print or write a Host block for each node."""
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    nodes = cluster_target.nodes(cluster, options.nodes or None)
    if options.authorize:
        key = public_key(options.authorize)
        for node in map(running, nodes if options.nodes else [front(cluster, nodes)]):
            authorize(cluster_target, cluster, node, user=options.user, key=key)
    running_nodes = [node for node in nodes if node.status == RUNNING]
    front_node = front(cluster, nodes) if not options.nodes else None
    hosts = [
        Host(aliases(cluster, node, is_front=node == front_node), _options(cluster_target, cluster, node, options))
        for node in running_nodes
    ]
    if options.json:
        print_document(SshConfig(cluster=cluster.name, hosts=hosts))
    if options.write:
        path = write(cluster, text(hosts))
        if not options.json:
            wrote = f"wrote ~/{path.relative_to(Path.home())}"
            print(f"{wrote}: {len(hosts)} nodes; `ssh {hosts[0].aliases[0]}`" if hosts else f"{wrote}: no node")
    elif not options.json:
        print(text(hosts), end="")
    return 0


def aliases(cluster: Cluster, node: Node, *, is_front: bool) -> list[str]:
    """Return the names that ssh takes for a node; the login node or controller has the cluster's name too."""
    return [
        *([cluster.name] if is_front else []),
        f"{cluster.name}-{node.group}-{node.index}",
        f"{cluster.name}-{node.name}",
    ]


def text(hosts: list[Host]) -> str:
    """Return the blocks as ssh_config has them."""
    blocks = (
        "\n".join([f"Host {' '.join(host.aliases)}", *(f"    {key} {value}" for key, value in host.options.items())])
        for host in hosts
    )
    return "".join(f"{block}\n\n" for block in blocks)


def write(cluster: Cluster, blocks: str) -> Path:
    """Write the blocks into podwright's folder, include it from ~/.ssh/config, and return their file."""
    path = ssh.make_folder() / f"{cluster.name}.config"
    _replace(path, f"# Written by `podwright ssh-config --write`; the next run replaces it.\n\n{blocks}")
    user_config = Path.home() / ".ssh" / "config"
    lines = user_config.read_text(encoding="utf-8") if user_config.exists() else ""
    if INCLUDE not in (line.strip() for line in lines.splitlines()):
        _replace(user_config, f"{INCLUDE}\n\n{lines}")  # A Host block above the line would contain it.
    return path


def authorize(cluster_target: Target, cluster: Cluster, node: Node, *, user: str, key: str) -> None:
    """Authorize a key for a user of a node, through Session Manager; existing keys stay.

    Raises:
        OperationError: the session did not start, or the node has no such user.
    """
    line = AUTHORIZE.format(key=quoted(key), done=quoted(AUTHORIZED))
    command = f"sudo su --login {user} --shell /bin/sh --command {quoted(line)}"
    output = session_plugin.run_command(
        cluster_target.session, cluster.session_target(node), session_documents.COMMAND, command=command
    )
    if AUTHORIZED not in output.splitlines():
        message = " ".join(line for line in output.split("\n") if line and "session with" not in line.lower()).strip()
        raise OperationError(f"{node.name} did not accept the key of {user}: {message or 'no output'}")


def public_key(path: Path) -> str:
    """Read a public key.

    Raises:
        ArgumentError: the file is unreadable or not a public key; a private key never leaves this machine.
    """
    try:
        content = read_text(path.expanduser(), limit_bytes=KEY_LIMIT_BYTES, follow_links=True).strip()
    except OSError as error:
        raise ArgumentError(f"--authorize {path}: {error.strerror}") from error
    if not PUBLIC_KEY.fullmatch(content):
        raise ArgumentError(f"--authorize {path}: need a file with one public key", "name the file that ends with .pub")
    return content


def _options(cluster_target: Target, cluster: Cluster, node: Node, options: argparse.Namespace) -> dict[str, str]:
    return ssh.options(cluster_target.session, cluster, node, user=options.user, identity=options.identity)


def _replace(path: Path, content: str) -> None:
    """Write a file that only its owner reads, whole or not at all; a link stays a link."""
    write_file(place_of(path), content, mode=0o600)
