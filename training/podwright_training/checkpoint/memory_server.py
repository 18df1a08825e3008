"""Read byte ranges of another host's checkpoints in memory, over TCP.

Both sides prove that they know the run's secret by HMAC-SHA256 of both sides' random numbers (RFC 2104); neither sends
it. A request is a line with a tag and JSON, ``[file, offset, length]``; the answer is a line with the number of bytes
and a tag, and these. Tags are keyed BLAKE2b (RFC 7693) of the message and its place in this connection: who relays or
takes over the connection can change nothing, nor does a bit that TCP's checksum of 16 bits missed.
The server serves files of one folder, whose names it has listed itself: no link, no path out of the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import socketserver
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple

from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.ports import listen
from podwright_training.run_secret import TAG_BYTES, tag

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

NONCE_BYTES = 32
LABEL = b"memory"
LONGEST_REQUEST = 4096
PIECE_BYTES = 1 << 22  # A file's checksum is computed piece by piece.
TIMEOUT_S = 30.0
POLL_S = 0.02  # A recovery waits until ``close`` is noticed.
FILE = re.compile(r"(?:step-\d+|\.step-\d+\.partial)/[\w.-]+")


class Address(NamedTuple):
    """Place at which a host's server listens."""

    host: str
    port: int


class MemoryServer:
    """Serve the files below a folder to those who know the secret, in threads, until ``close``."""

    def __init__(self, root: Path, secret: bytes) -> None:
        class Handler(socketserver.StreamRequestHandler):
            timeout = TIMEOUT_S

            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):  # the other side is gone, or is not ours
                    if tags := _prove(self.connection, self.rfile, secret, side=b"server"):
                        for line in iter(lambda: self.rfile.readline(LONGEST_REQUEST), b""):
                            _answer(self.connection, root, line, tags)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()  # IPv4 alone
        self._server.socket = listen()
        serve = partial(self._server.serve_forever, poll_interval=POLL_S)
        Thread(target=serve, name="memory-server", daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return int(self._server.socket.getsockname()[1])

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


class MemoryClient:
    """One connection to a host's server.

    Raises:
        CheckpointError: The host does not answer, or does not know the secret.
    """

    def __init__(self, address: Address, secret: bytes) -> None:
        self._address = address
        with self._errors(), contextlib.ExitStack() as opened:
            self._socket = opened.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))
            self._stream = opened.enter_context(self._socket.makefile("rb"))
            tags = _prove(self._socket, self._stream, secret, side=b"client")
            if not tags:
                raise CheckpointError(f"{address.host}:{address.port} does not know the secret of this run")
            self._tags = tags
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._opened.close()

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Return bytes of ``<folder>/<file>``.

        Raises:
            CheckpointError: The host is gone, has no such bytes, or others arrive.
        """
        with self._errors():
            request = json.dumps([file, offset, length]).encode()
            self._socket.sendall(b"%b %b\n" % (self._tags.of_request(request), request))
            size, received = self._stream.readline(LONGEST_REQUEST).split()
            content = self._stream.read(length) if int(size) == length else b""
        part = f"{file}, bytes {offset} to {offset + length}"
        if len(content) != length:
            raise CheckpointError(f"{self._address.host} does not have all of {part}")
        if not hmac.compare_digest(received, self._tags.of_answer(content)):
            raise CheckpointError(f"{self._address.host} sent {part}, damaged")
        return content

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"cannot read from {self._address.host}:{self._address.port}: {error}") from error


class _Tags:
    """Tags of the messages of one connection, in their order; each side computes them all."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._requests = 0

    def of_request(self, request: bytes) -> bytes:
        self._requests += 1
        return self._of(b"request", [request])

    def of_answer(self, *pieces: bytes) -> bytes:
        return self._of(b"answer", pieces)

    def of_file(self, file: IO[bytes], offset: int, size: int) -> bytes:
        """Return the tag of the answer with a part of a file."""
        begins = range(offset, offset + size, PIECE_BYTES)
        return self._of(
            b"answer", (os.pread(file.fileno(), min(PIECE_BYTES, offset + size - begin), begin) for begin in begins)
        )

    def _of(self, kind: bytes, pieces: Iterable[bytes]) -> bytes:
        digest = hashlib.blake2b(b"%b %d " % (kind, self._requests), key=self._key, digest_size=TAG_BYTES)
        for piece in pieces:
            digest.update(piece)
        return digest.hexdigest().encode()


def _prove(
    connection: socket.socket, stream: IO[bytes] | BufferedIOBase, secret: bytes, *, side: bytes
) -> _Tags | None:
    """Prove to the peer that this process knows the secret; return the connection's tags if the peer does, too.

    The client proves it first.
    """
    own_nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(own_nonce)
    peer_nonce = stream.read(NONCE_BYTES)
    nonces = (own_nonce, peer_nonce) if side == b"server" else (peer_nonce, own_nonce)
    client, server, key = (tag(secret, LABEL, name, *nonces) for name in (b"client", b"server", b"key"))
    if side == b"client":
        connection.sendall(client)
        return _Tags(key) if hmac.compare_digest(stream.read(TAG_BYTES), server) else None
    if not hmac.compare_digest(stream.read(TAG_BYTES), client):
        return None
    connection.sendall(server)
    return _Tags(key)


def _answer(connection: socket.socket, root: Path, line: bytes, tags: _Tags) -> None:
    """Send the bytes that there are; raise ``ValueError`` if the line is not the client's."""
    received, _, request = line.removesuffix(b"\n").partition(b" ")
    if not hmac.compare_digest(received, tags.of_request(request)):
        raise ValueError("a request without its tag")
    name, offset, length = json.loads(request)
    try:
        with _open(root, name) as file:
            size = max(0, min(length, os.fstat(file.fileno()).st_size - offset))
            connection.sendall(b"%d %b\n" % (size, tags.of_file(file, offset, size)))
            if size:
                connection.sendfile(file, offset, size)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        connection.sendall(b"0 %b\n" % tags.of_answer())


def _open(root: Path, name: str) -> IO[bytes]:
    if not FILE.fullmatch(name):
        raise ValueError(name)
    descriptor = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(name)
    return os.fdopen(descriptor, "rb")
