"""Check that an LDAP server answers, has a valid certificate and accepts the bind: SSSD would only stay silent.

The few messages that this takes, in the encoding of RFC 4511 (https://www.rfc-editor.org/rfc/rfc4511).
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Optional, Tuple
from urllib.parse import urlsplit

from podwright_bootstrap.host.errors import BootstrapError, CommandError

PORTS = {"ldap": 389, "ldaps": 636}
START_TLS = b"1.3.6.1.4.1.1466.20037"
MAX_ANSWER_BYTES = 65536
RESULTS = {2: "protocol error", 8: "strong authentication required", 32: "no such object", 34: "invalid DN syntax",
           48: "inappropriate authentication", 49: "invalid credentials", 53: "unwilling to perform"}  # fmt: skip

# BER's tags of what we send and get
_SEQUENCE, _INTEGER, _OCTETS, _ENUMERATED = 0x30, 0x02, 0x04, 0x0A
_BIND, _EXTENDED = 0x60, 0x77
_SIMPLE_PASSWORD, _REQUEST_NAME = 0x80, 0x80


def greet(uri: str, *, certificate: Optional[Path], bind: Optional[Tuple[str, str]], timeout_s: float) -> None:
    """Connect, upgrade to TLS, bind; the server's certificate must be signed by the authority and name the host.

    Args:
        uri: ``ldaps://HOST[:PORT]``, or ``ldap://HOST[:PORT]`` for StartTLS.
        certificate: PEM file of the authority; Default: the image's own authorities.
        bind: DN and password; Default: check TLS only.
        timeout_s: of each wait.

    Raises:
        BootstrapError: the certificate or the name is not accepted.
        CommandError: the server, or the network in between, does not answer: trying again may help.
    """
    parts = urlsplit(uri)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    try:
        context = ssl.create_default_context(cafile=str(certificate) if certificate else None)
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            if parts.scheme == "ldap":
                _expect_success(plain, _EXTENDED, _field(_REQUEST_NAME, START_TLS), purpose="StartTLS")
            with context.wrap_socket(plain, server_hostname=host) as connection:
                if bind:
                    _expect_success(connection, _BIND, _credentials(*bind), purpose=f"the password of {bind[0]}")
    except ssl.SSLCertVerificationError as error:
        raise BootstrapError(
            f"{uri}: its certificate is not accepted: {error.verify_message}",
            hint="set nodes.ldap.certificate to the authority that signed it, and uri to its host name",
        ) from error
    except OSError as error:  # silence, refusal, an unknown name, a file without a certificate
        raise CommandError(f"{uri} does not answer: {error}") from error


def _credentials(name: str, password: str) -> bytes:
    version = _field(_INTEGER, b"\x03")
    return version + _field(_OCTETS, name.encode()) + _field(_SIMPLE_PASSWORD, password.encode())


def _expect_success(connection: socket.socket, operation: int, content: bytes, *, purpose: str) -> None:
    """Send the one request of a phase and read the result code of its answer."""
    connection.sendall(_field(_SEQUENCE, _field(_INTEGER, b"\x01") + _field(operation, content)))
    header = _read(connection, 2)
    length = header[1]
    if length & 0x80:  # the long form: how many bytes hold the length
        length = int.from_bytes(_read(connection, length & 0x7F), "big")
    answer = _read(connection, min(length, MAX_ANSWER_BYTES))
    at = answer.find(bytes([_ENUMERATED, 1]))  # resultCode, the first of its kind in an LDAPResult
    code = answer[at + 2] if 0 <= at < len(answer) - 2 else -1
    if code:
        raise BootstrapError(
            f"the LDAP server does not accept {purpose}: {RESULTS.get(code, 'LDAP result')} ({code})",
            hint="check that the secret has bind_dn's password, and that the server speaks TLS on this port",
        )


def _field(tag: int, content: bytes) -> bytes:
    """Tag, length, content."""
    return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content  # 0x82: two bytes are the length


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("it hung up")
        data += part
    return data
