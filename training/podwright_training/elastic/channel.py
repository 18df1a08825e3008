"""Exchange JSON lines between agents that know the run's secret."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from typing import Any

LARGEST_BACKLOG = 1 << 20  # bytes that the other side does not read


class ChannelError(Exception):
    """The other side is gone, or does not know the secret."""


class Channel:
    """One connection; messages are JSON objects, one a line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, **message: Any) -> None:
        """Send a message, without waiting for the other side."""
        if self._writer.is_closing():
            return
        self._writer.write(json.dumps(message).encode() + b"\n")
        if self._writer.transport.get_write_buffer_size() > LARGEST_BACKLOG:
            self._writer.transport.abort()

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            ChannelError: There is none.
        """
        try:
            line = await self._reader.readuntil(b"\n")
            message = json.loads(line)
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise ChannelError("closed its connection") from error
        except (asyncio.LimitOverrunError, ValueError, RecursionError) as error:
            raise ChannelError("sent an invalid message") from error
        if not isinstance(message, dict):
            raise ChannelError("sent an invalid message")
        return message

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


async def accept(channel: Channel, secret: bytes) -> None:
    """Prove to a member that this is the leader, and let it prove that it is a member; raise ``ChannelError``."""
    ours = secrets.token_hex(16)
    channel.send(challenge=ours)
    message = await channel.receive()
    theirs = str(message.get("challenge"))
    _verify(message, secret, "member", ours, theirs)
    channel.send(proof=_proof(secret, "leader", ours, theirs))


async def introduce(channel: Channel, secret: bytes) -> None:
    """Prove to the leader that this is a member, and let it prove that it leads; raise ``ChannelError``."""
    theirs, ours = str((await channel.receive()).get("challenge")), secrets.token_hex(16)
    channel.send(challenge=ours, proof=_proof(secret, "member", theirs, ours))
    _verify(await channel.receive(), secret, "leader", theirs, ours)


def _verify(message: dict[str, Any], secret: bytes, role: str, *challenges: str) -> None:
    if not hmac.compare_digest(str(message.get("proof")), _proof(secret, role, *challenges)):
        raise ChannelError("does not know the run's secret")


def _proof(secret: bytes, role: str, *challenges: str) -> str:
    return hmac.new(secret, ":".join((role, *challenges)).encode(), hashlib.sha256).hexdigest()
