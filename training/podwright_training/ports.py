"""Ports of this host, and the address by which the job's other hosts reach it, over IPv4 or IPv6."""

from __future__ import annotations

import ipaddress
import os
import socket


def listen() -> socket.socket:
    """Return a socket that listens on a free port of every address of this host."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def free_port() -> int:
    """Return a free port."""
    with listen() as probe:
        return int(probe.getsockname()[1])


def own_address() -> str:
    """Return the address by which the job's other hosts reach this one.

    It is the one from which this host reaches the first; on the first itself it is the name that the others know.

    Raises:
        OSError: The first host's name has no address, or there is no route to it.
    """
    first_host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, address = socket.getaddrinfo(first_host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        own_ip: str = probe.getsockname()[0]
    return first_host if ipaddress.ip_address(own_ip).is_loopback else own_ip
