"""Forward connections of hosts to the gateway to one port of this machine, the only one they reach.

    relay.py LISTENING_FD PORT DIRECTORY

The listening socket belongs to the cluster's network, this process to the machine's. DIRECTORY/relay.json may hold a
fault of an answer: {"path": part of a GET's path, "how": …, "delay_s": …, "times": how many answers more}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

FAULT = "relay.json"
REFUSED, CUT_SHORT, CHANGED = "refused", "cut short", "changed"
GET = re.compile(rb"GET (\S+) HTTP/1\.1\r\n")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"
CHUNK_BYTES = 1 << 16


async def serve(listener: socket.socket, port: int, fault: Path) -> None:
    """Accept for ever."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()  # the host sees a reset: nothing listens here
            return
        due: list[dict[str, Any]] = []  # the fault of the answer that comes next
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # either side may hang up at any time
            await asyncio.gather(ask(reader, upstream_writer, due, fault), answer(upstream_reader, writer, due))
        upstream_writer.close()
        writer.close()

    server = await asyncio.start_server(connect, sock=listener)
    await server.serve_forever()


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: list[dict[str, Any]], fault: Path
) -> None:
    """Forward the host's requests until it has sent all; answers may still come."""
    while data := await reader.read(CHUNK_BYTES):
        due += take(fault, data)
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: list[dict[str, Any]]) -> None:
    """Forward the machine's answers to their end."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(await spoilt(data, reader, writer, due.pop()) if due else data)
        await writer.drain()
    writer.write_eof()


def take(fault: Path, request: bytes) -> list[dict[str, Any]]:
    """Return the fault of this request, if any, and count it."""
    match = GET.match(request)
    if not match or not fault.exists():
        return []
    content: dict[str, Any] = json.loads(fault.read_text())
    if not content["times"] or content["path"].encode() not in match[1]:
        return []
    fault.write_text(json.dumps({**content, "times": content["times"] - 1}))
    return [content]


async def spoilt(
    begin: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: dict[str, Any]
) -> bytes:
    """Read the rest of an answer and apply the fault to it."""
    if fault["how"] == REFUSED:
        writer.transport.abort()
        return b""
    await asyncio.sleep(fault["delay_s"])
    while HEAD_END not in begin:
        begin += await reader.read(CHUNK_BYTES)
    head, _, body = begin.partition(HEAD_END)
    announced = LENGTH.search(head + b"\r\n")
    length = int(announced[1]) if announced else len(body)
    body += await reader.readexactly(length - len(body))
    if fault["how"] == CHANGED:
        body = body[:-1] + bytes([body[-1] ^ 1])
    if fault["how"] == CUT_SHORT:
        writer.write(head + HEAD_END + body[: length // 2])
        await writer.drain()
        writer.close()
        return b""
    return head + HEAD_END + body


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]) / FAULT))
