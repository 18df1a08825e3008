"""``podwright forward``: forward a port of a node to this machine."""

from __future__ import annotations

import argparse
import socket
import sys

from podwright.errors import OperationError
from podwright.operations.access import session_plugin
from podwright.operations.access.remote import pick
from podwright.operations.account import session_documents
from podwright.operations.target import NODE_HELP, add_examples, add_target_arguments, target

HOST = "127.0.0.1"
LAST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PORT, NODE, --local-port and the cluster."""
    parser.add_argument("port", type=port, metavar="PORT", help="port on the node that a program serves on 127.0.0.1")
    parser.add_argument("node", nargs="?", metavar="NODE", help=f"{NODE_HELP}. Default: a login node, else controller")
    parser.add_argument("--local-port", type=port, metavar="PORT", help="port on this machine. Default: the same")
    add_target_arguments(parser, has_json=False)
    add_examples(parser, "podwright forward 6006  # TensorBoard", "podwright forward 8888 workers/1 --local-port 9999")


def run(options: argparse.Namespace) -> int:
    """Forward until Ctrl-C; this process becomes the session."""
    local = options.local_port or options.port
    _check_free(local)
    cluster_target = target(options)
    cluster = cluster_target.cluster()
    node = pick(cluster_target, cluster, options.node)
    print(f"http://{HOST}:{local} is port {options.port} of {node.name}; Ctrl-C ends it", file=sys.stderr, flush=True)
    session_plugin.replace_process(
        cluster_target.session,
        cluster.session_target(node),
        session_documents.FORWARD,
        portNumber=str(options.port),
        localPortNumber=str(local),
    )


def port(text: str) -> int:
    """Parse a TCP port; argparse names the option in its message."""
    if not text.isdecimal() or not 0 < int(text) <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"got {text!r}, need a port from 1 to {LAST_PORT}")
    return int(text)


def _check_free(local: int) -> None:
    """Check that a port of this machine can be listened on.

    Raises:
        OperationError: it cannot.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, local))
        except OSError as error:
            raise OperationError(
                f"port {local} of this machine: {error.strerror}", "choose another with --local-port"
            ) from error
