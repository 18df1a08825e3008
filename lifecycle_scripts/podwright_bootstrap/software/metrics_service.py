"""Daemons that measure a node, as units of a user of their own."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import files, process, units

USER = "podwright-metrics"
DATA = contract.STATE_DIRECTORY / "metrics"
TARGETS = DATA / "targets"  # further exporters, one JSON file each, which Prometheus reads again by itself
ANSWER_LIMIT_S = 60
UNIT = """\
[Unit]
Description={description}
After=network-online.target
Wants=network-online.target

[Service]
User={user}
Environment={environment}
ExecStart={command}
AmbientCapabilities={capabilities}
Nice=10
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
"""


def make_user() -> Iterator[str]:
    """Add the user of the metrics services, unless it exists."""
    if process.run("id", USER, timeout_s=30, check=False, quiet=True).exit_code:
        process.run("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER, timeout_s=30)
        yield f"added user {USER}"


def keep(
    unit: str,
    description: str,
    command: str,
    *,
    environment: str = "",
    capabilities: str = "",
    user: str = USER,
    restart: bool = False,
) -> Iterator[str]:
    """Write and enable the unit; restart it if it changed or, with ``restart``, if its configuration changed."""
    text = UNIT.format(
        description=description, user=user, environment=environment, command=command, capabilities=capabilities
    )
    changed = files.write_file(units.FOLDER / f"{unit}.service", text)
    if changed:
        yield f"wrote {unit}.service"
    yield from units.keep_on(unit, restart=changed or restart)


def get(url: str) -> str:
    """Return the answer of a server on this node, empty while it is silent; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            text: str = answer.read().decode(errors="replace")
            return text
    except (OSError, HTTPException):
        return ""
