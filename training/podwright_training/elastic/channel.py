"""Exchange JSON lines between agents that know the run's secret.

Once both sides have proved it, each line begins with a tag of its place in this connection: who relays or takes over
the connection can end it, and add or change nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from typing import Any

from podwright_training.run_secret import tag

LABEL = b"elastic"
LEADER, MEMBER = "leader", "member"
LARGEST_BACKLOG = 1 << 20  # bytes that the other side does not read


class ChannelError(Exception):
    """The other side is gone, or does not know the secret."""


class _Tags:
    """Tags of the lines of one direction of a connection, in their order."""

    def __init__(self, secret: bytes, sender: str, *challenges: str) -> None:
        self._key = bytes.fromhex(_proof(secret, f"{sender}'s lines", *challenges))
        self._lines = 0

    def of(self, line: bytes) -> bytes:
        self._lines += 1
        return tag(self._key, b"%d" % self._lines, line).hex().encode()


class Channel:
    """One connection; messages are JSON objects, one a line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sent: _Tags | None = None  # Set when both sides know that they share the secret.
        self._received: _Tags | None = None

    def use_tags(self, sent: _Tags, received: _Tags) -> None:
        """Put a tag before each line from now on, and refuse lines without one."""
        self._sent, self._received = sent, received

    def send(self, **message: Any) -> None:
        """Send a message, without waiting for the other side."""
        if self._writer.is_closing():
            return
        line = json.dumps(message).encode()
        self._writer.write(b"%b%b\n" % (self._sent.of(line) + b" " if self._sent else b"", line))
        if self._writer.transport.get_write_buffer_size() > LARGEST_BACKLOG:
            self._writer.transport.abort()

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            ChannelError: There is none.
        """
        try:
            line = (await self._reader.readuntil(b"\n"))[:-1]
            message = json.loads(self._verified(line) if self._received else line)
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise ChannelError("closed its connection") from error
        except (asyncio.LimitOverrunError, ValueError, RecursionError) as error:
            raise ChannelError("sent an invalid message") from error
        if not isinstance(message, dict):
            raise ChannelError("sent an invalid message")
        return message

    def _verified(self, line: bytes) -> bytes:
        received, _, content = line.partition(b" ")
        if self._received is None or not hmac.compare_digest(received, self._received.of(content)):
            raise ChannelError("sent a message that is not of this run")
        return content

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


async def accept(channel: Channel, secret: bytes) -> None:
    """Prove to a member that this is the leader, and let it prove that it is a member; raise ``ChannelError``."""
    nonce = secrets.token_hex(16)
    channel.send(challenge=nonce)
    message = await channel.receive()
    peer_nonce = str(message.get("challenge"))
    _verify(message, secret, MEMBER, nonce, peer_nonce)
    channel.send(proof=_proof(secret, LEADER, nonce, peer_nonce))
    channel.use_tags(_Tags(secret, LEADER, nonce, peer_nonce), _Tags(secret, MEMBER, nonce, peer_nonce))


async def introduce(channel: Channel, secret: bytes) -> None:
    """Prove to the leader that this is a member, and let it prove that it leads; raise ``ChannelError``."""
    peer_nonce, nonce = str((await channel.receive()).get("challenge")), secrets.token_hex(16)
    channel.send(challenge=nonce, proof=_proof(secret, MEMBER, peer_nonce, nonce))
    _verify(await channel.receive(), secret, LEADER, peer_nonce, nonce)
    channel.use_tags(_Tags(secret, MEMBER, peer_nonce, nonce), _Tags(secret, LEADER, peer_nonce, nonce))


def _verify(message: dict[str, Any], secret: bytes, role: str, *challenges: str) -> None:
    proof = str(message.get("proof")).encode(errors="replace")
    if not hmac.compare_digest(proof, _proof(secret, role, *challenges).encode()):
        raise ChannelError("does not know the run's secret")


def _proof(secret: bytes, role: str, *challenges: str) -> str:
    parts = (part.encode(errors="replace") for part in (role, *challenges))
    return tag(secret, LABEL, *parts).hex()
