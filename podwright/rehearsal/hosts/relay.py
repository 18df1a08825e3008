"""Forwards connections that hosts make to the gateway to one port of this machine: their only way out.

    relay.py LISTENING_FD PORT

The listening socket belongs to the cluster's network, this process to the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def serve(listener: socket.socket, port: int) -> None:
    """Accept for ever."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()  # the host sees a reset: nothing listens here
            return
        with contextlib.suppress(OSError):  # either side may hang up at any time
            await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))
        upstream_writer.close()
        writer.close()

    server = await asyncio.start_server(connect, sock=listener)
    await server.serve_forever()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, to its end; the other one may go on."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
