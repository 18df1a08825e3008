"""Let only the rehearsal's own requests in: hosts run the stand-in's objects as root.

Other users of this machine can connect to 127.0.0.1 too.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from werkzeug.wrappers import Response

from podwright_rehearsal.aws.principals import principal

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

KEY_VARIABLE = "PODWRIGHT_REHEARSAL_ACCESS_KEY"
CONNECTIONS = Path("/proc/net/tcp")  # https://docs.kernel.org/networking/proc_net_tcp.html
ESTABLISHED = "01"
ROOT = 0
CONTROLS = "/_"  # Before what tests ask of the stand-in; no bucket is named so.
PRINCIPAL = "podwright_rehearsal.principal"  # In the environment of a request that IAM has to authorize.
MOTO_API = "/moto-api"  # moto's own: it reads and deletes everything
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)")


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that answers an empty body announced by ``Expect: 100-continue``, as boto3 sends empty objects."""

    def send_continue(self) -> None:
        """Ask for the body if there is one: waitress would wait for it otherwise."""
        if not self.request.completed:
            super().send_continue()


class Server(TcpWSGIServer):  # type: ignore[misc]
    """A waitress server that closes connections of other users at once, before it reads from them."""

    channel_class = Channel

    def accept(self) -> Any:
        """Return the next connection and its address; None without a connection, or for another user's."""
        accepted = super().accept()
        if accepted is None:
            return None
        connection, address = accepted
        if _is_ours(connection, address):
            return accepted
        connection.close()
        return None


class Gate:
    """WSGI middleware that refuses requests without the run's access key or that of a principal of the account.

    Also refused: moto's own API, and paths with a folder ``..``, which no file may be named after; and to principals
    the paths with which tests control the stand-in.

    Args:
        application: what answers the other requests.
        access_key: the id of the run's access key, random and secret.
        partition: of the account's principals.
    """

    def __init__(self, application: WSGIApplication, *, access_key: str, partition: str) -> None:
        self._application = application
        self._access_key = access_key
        self._partition = partition

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer with an error, or let the application answer."""
        path = unquote(str(environ["REQUEST_URI"]).partition("?")[0])
        host = environ.get("HTTP_HOST", "")
        key, token = _given_key(environ)
        if not hmac.compare_digest(key.encode(), self._access_key.encode()):
            caller = principal(key, token, self._partition)
            if caller is None or path.startswith(CONTROLS):
                return _error(403, "InvalidAccessKeyId", "not signed with this run's access key")(
                    environ, start_response
                )
            environ[PRINCIPAL] = caller
        if path.startswith(MOTO_API) or host.startswith("motoapi."):
            return _error(403, "AccessDenied", "moto's own API is off")(environ, start_response)
        if ".." in path.split("/"):
            return _error(400, "InvalidURI", "no folder of a key is called ..")(environ, start_response)
        return self._application(environ, start_response)


def _given_key(environ: WSGIEnvironment) -> tuple[str, str]:
    """Return access key and session token in a request's headers or, if it was signed in advance, its query."""
    match = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if match:
        return str(match[1]), str(environ.get("HTTP_X_AMZ_SECURITY_TOKEN", ""))
    query = parse_qs(environ.get("QUERY_STRING", ""))
    signed, token = (query.get(f"X-Amz-{name}", [""])[0] for name in ("Credential", "Security-Token"))
    return signed.partition("/")[0], token


def _error(status: int, code: str, message: str) -> Response:
    text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Response(text, status, content_type="text/xml")


def _is_ours(connection: socket.socket, address: tuple[str, int]) -> bool:
    """Return whether the other end belongs to this process's user or to root, which can do everything anyway."""
    local_address = connection.getsockname()
    try:
        lines = CONNECTIONS.read_text().splitlines()[1:]
    except OSError:  # Other systems than Linux have no such file: the access key alone decides.
        return True
    for _, local, remote, state, *fields in map(str.split, lines):
        # The kernel shows a socket that is being closed as root's.
        if (local, remote, state) == (_hexadecimal(address), _hexadecimal(local_address), ESTABLISHED):
            return int(fields[3]) in {os.geteuid(), ROOT}
    return False


def _hexadecimal(address: tuple[str, int]) -> str:
    """Return an address as /proc/net/tcp writes it: the number in this machine's byte order, and the port."""
    number = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{number:08X}:{address[1]:04X}"
