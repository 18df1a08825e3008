"""Reach a node by ssh: through a Session Manager session, with the host key pinned to the instance.

https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from podwright.aws_session import Session
from podwright.operations.account.hyperpod import Cluster, Node
from podwright_bootstrap.contract import JOB_USER

PORT = 22
KEEP_ALIVE_S = 30  # less than the idle time after which proxies drop a connection


def folder() -> Path:
    """Return podwright's folder in ~/.ssh."""
    return Path.home() / ".ssh" / "podwright"


def known_hosts() -> Path:
    """Return the file of the host keys of nodes: a file of our own, so that yours stays as it is."""
    return folder() / "known_hosts"


def make_folder() -> Path:
    """Make podwright's folder, which only its owner reads, and return it."""
    folder().parent.mkdir(mode=0o700, exist_ok=True)
    folder().mkdir(mode=0o700, exist_ok=True)
    return folder()


def options(
    session: Session, cluster: Cluster, node: Node, *, user: str = JOB_USER, identity: Path | None = None
) -> dict[str, str]:
    """Return the options of ssh for a node, by ssh_config's keywords.

    ``HostKeyAlias`` is the instance: a replaced node has another key and another instance, so ssh neither accepts a
    changed key nor complains about a node that HyperPod replaced. A first key is accepted (``accept-new``): Session
    Manager has already authenticated the instance.
    """
    identities = {}
    if identity:
        identities = {"IdentityFile": _quoted(identity.expanduser().absolute()), "IdentitiesOnly": "yes"}
    return {
        "HostName": node.name,
        "User": user,
        "ProxyCommand": proxy_command(session, cluster.session_target(node)),
        "HostKeyAlias": node.instance_id,
        "UserKnownHostsFile": _quoted(known_hosts()),
        "StrictHostKeyChecking": "accept-new",
        "ServerAliveInterval": str(KEEP_ALIVE_S),
        **identities,
    }


def proxy_command(session: Session, target: str) -> str:
    """Return ssh's ProxyCommand, ``podwright ssh-proxy``; %p is the port."""
    profile = ["--profile", session.profile] if session.profile else []
    words = [sys.executable, "-m", "podwright", "ssh-proxy", "--region", session.region, *profile, target]
    return f"{shlex.join(words).replace('%', '%%')} %p"


def _quoted(path: Path) -> str:
    """Quote a path as ssh_config does; % begins a token there."""
    return f'"{path}"'.replace("%", "%%")
