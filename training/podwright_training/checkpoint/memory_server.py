"""Read byte ranges of another host's checkpoints in memory, over TCP.

Both sides prove that they know the run's secret by HMAC-SHA256 of both sides' random numbers (RFC 2104); neither sends
it. A request is one line of JSON, ``[file, offset, length]``; the answer is a line with the number of bytes and their
CRC-32, and these: files were hashed where they lie, and TCP's own checksum has 16 bits.
The server answers for files of one folder, whose names it has seen itself: no link, no path out of it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import socket
import socketserver
import stat
import zlib
from collections.abc import Iterator
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple

from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.ports import listen

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

NONCE_BYTES = 32
PROOF_BYTES = 32
LONGEST_REQUEST = 4096
PIECE_BYTES = 1 << 22  # of a file whose checksum is computed
TIMEOUT_S = 30.0
POLL_S = 0.02  # until ``close`` is noticed: a recovery waits for it
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
                    if _prove(self.connection, self.rfile, secret, side=b"server"):
                        for line in iter(lambda: self.rfile.readline(LONGEST_REQUEST), b""):
                            _answer(self.connection, root, *json.loads(line))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()  # IPv4 alone
        self._server.socket = listen()
        serve = partial(self._server.serve_forever, poll_interval=POLL_S)
        Thread(target=serve, name="memory-server", daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._server.socket.getsockname()[1])

    def close(self) -> None:
        """End it."""
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
            if not _prove(self._socket, self._stream, secret, side=b"client"):
                raise CheckpointError(f"{address.host}:{address.port} does not know the secret of this run")
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
            self._socket.sendall(json.dumps([file, offset, length]).encode() + b"\n")
            size, checksum = map(int, self._stream.readline(LONGEST_REQUEST).split())
            found = self._stream.read(length) if size == length else b""
        if len(found) != length:
            wanted = f"{file}, bytes {offset} to {offset + length}"
            raise CheckpointError(f"{self._address.host} does not have all of {wanted}")
        if zlib.crc32(found) != checksum:
            raise CheckpointError(f"{self._address.host} sent {file}, bytes {offset} to {offset + length}, damaged")
        return found

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"cannot read from {self._address.host}:{self._address.port}: {error}") from error


def _prove(connection: socket.socket, stream: IO[bytes] | BufferedIOBase, secret: bytes, *, side: bytes) -> bool:
    """Prove to the other side that we know the secret; return whether it does too. The client proves it first."""
    own = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(own)
    other = stream.read(NONCE_BYTES)
    server, client = (own, other) if side == b"server" else (other, own)
    proofs = {name: hmac.digest(secret, name + server + client, "sha256") for name in (b"server", b"client")}
    if side == b"client":
        connection.sendall(proofs[b"client"])
        return hmac.compare_digest(stream.read(PROOF_BYTES), proofs[b"server"])
    if not hmac.compare_digest(stream.read(PROOF_BYTES), proofs[b"client"]):
        return False
    connection.sendall(proofs[b"server"])
    return True


def _answer(connection: socket.socket, root: Path, name: str, offset: int, length: int) -> None:
    """Send the bytes that there are."""
    try:
        with _open(root, name) as file:
            size = max(0, min(length, os.fstat(file.fileno()).st_size - offset))
            connection.sendall(b"%d %d\n" % (size, _checksum(file, offset, size)))
            if size:
                connection.sendfile(file, offset, size)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        connection.sendall(b"0 0\n")


def _checksum(file: IO[bytes], offset: int, size: int) -> int:
    checksum = 0
    for begin in range(offset, offset + size, PIECE_BYTES):
        length = min(PIECE_BYTES, offset + size - begin)
        checksum = zlib.crc32(os.pread(file.fileno(), length, begin), checksum)
    return checksum


def _open(root: Path, name: str) -> IO[bytes]:
    if not FILE.fullmatch(name):
        raise ValueError(name)
    descriptor = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(name)
    return os.fdopen(descriptor, "rb")
