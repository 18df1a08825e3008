"""This host's addresses, and the programs that listen on its ports."""

from __future__ import annotations

import json
import socket
from typing import Dict

from podwright_bootstrap.host import process

CONNECT_LIMIT_S = 3


def interfaces() -> Dict[str, str]:
    """The host's network interfaces by their IPv4 addresses; raises ``CommandError`` if ip(8) fails."""
    shown = process.run("ip", "-json", "-4", "address", timeout_s=10, quiet=True).output
    return {
        info["local"]: interface["ifname"]
        for interface in json.loads(shown or "[]")
        for info in interface.get("addr_info", [])
        if "local" in info
    }


def listens(address: str, port: int) -> bool:
    """Return whether a TCP port answers within seconds."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_LIMIT_S).close()
    except OSError:
        return False
    return True
