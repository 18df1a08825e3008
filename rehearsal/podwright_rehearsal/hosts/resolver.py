"""The hosts' DNS server: AWS's names resolve to the gateway, other names do not exist.

    resolver.py DATAGRAM_FD ADDRESS DIRECTORY

The socket belongs to the cluster's network. While DIRECTORY/resolver.json says {"delay_s": …}, answers wait so long.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any, cast

FAULT = "resolver.json"
ZONE = b"amazonaws.com"
HEADER_BYTES = 12
A, TTL_S = 1, 0
FOUND, NO_SUCH_NAME = 0x8580, 0x8583  # response, authoritative, recursion as asked and available: RFC 1035, 4.1.1


class Resolver(asyncio.DatagramProtocol):
    """Answer questions for A records; other records do not exist."""

    def __init__(self, address: str, fault: Path) -> None:
        self._address, self._fault = socket.inet_aton(address), fault

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer, at once or after the fault's delay."""
        answer = respond(data, self._address)
        asyncio.get_running_loop().call_later(delay_s(self._fault), self._transport.sendto, answer, addr)


def delay_s(fault: Path) -> float:
    """Return the current delay of answers."""
    return float(json.loads(fault.read_text())["delay_s"]) if fault.exists() else 0.0


def respond(query: bytes, address: bytes) -> bytes:
    """Return the response to a query of one question."""
    end, labels = HEADER_BYTES, []
    while length := query[end]:
        labels.append(query[end + 1 : end + 1 + length].lower())
        end += 1 + length
    kind = int.from_bytes(query[end + 1 : end + 3], "big")
    is_known = b".".join(labels).endswith(ZONE)
    answers = [b"\xc0\x0c" + _words(A, 1, 0, TTL_S, len(address)) + address] if is_known and kind == A else []
    header = query[:2] + _words(FOUND if is_known else NO_SUCH_NAME, 1, len(answers), 0, 0)
    return b"".join([header, query[HEADER_BYTES : end + 5], *answers])


def _words(*numbers: int) -> bytes:
    """Encode numbers of 16 bits, as in a DNS header; a TTL is two of them."""
    return b"".join(number.to_bytes(2, "big") for number in numbers)


async def serve(listener: socket.socket, address: str, fault: Path) -> None:
    """Answer for ever."""
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Resolver(address, fault), sock=listener)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], Path(sys.argv[3]) / FAULT))
