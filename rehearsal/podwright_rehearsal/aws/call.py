"""One request to the AWS stand-in, as far as AWS's protocols show its operation."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from werkzeug.datastructures import Headers
from werkzeug.wrappers import Request

from podwright_rehearsal.aws import interruption

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FORM = "application/x-www-form-urlencoded"
_log = logging.getLogger("podwright_rehearsal.aws")


@dataclass(frozen=True)
class Call:
    """One request, and the operation it asks for as far as AWS's protocols show it.

    ``service`` and ``region`` are the signature's, ``target`` is the service part of X-Amz-Target (JSON protocols),
    ``form`` the body of the query protocols; ``operation`` is empty for S3, where the method and the path say it.
    ``uri`` is path and query as they were sent: in ``path`` an ARN's %2F is a slash.
    """

    service: str
    region: str
    target: str
    operation: str
    method: str
    path: str
    body: bytes
    form: Mapping[str, str]
    headers: Headers
    uri: str

    @classmethod
    def of(cls, environ: WSGIEnvironment) -> Call:
        """Read the request, and leave its body to be read again."""
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        target, _, operation = request.headers.get("X-Amz-Target", "").partition(".")
        form = dict(parse_qsl(body.decode())) if request.mimetype == FORM else {}
        region, service = _scope(request.headers.get("Authorization", ""))
        return cls(
            service=service,
            region=region,
            target=target,
            operation=operation or form.get("Action", ""),
            method=request.method,
            path=request.full_path.rstrip("?"),
            body=body,
            form=form,
            headers=request.headers,
            uri=environ["REQUEST_URI"],
        )

    @property
    def name(self) -> str:
        """The service and the operation, for people."""
        return f"{self.service} {self.operation or f'{self.method} {self.path}'}"

    @property
    def changes_something(self) -> bool:
        """True if the call may change the account."""
        return interruption.changes_something(operation=self.operation, method=self.method)

    def logging(self, start_response: StartResponse) -> StartResponse:
        """Wrap the server's callable: it writes one line for the request when its status is known."""

        def start(status: str, headers: list[tuple[str, str]], *arguments: Any) -> Callable[[bytes], object]:
            _log.info("%s: %s", self.name, status)
            return start_response(status, headers, *arguments)

        return start


def _scope(authorization: str) -> tuple[str, str]:
    """Return region and service of a Signature Version 4: ``Credential=KEY/DATE/REGION/SERVICE/aws4_request, …``."""
    _, _, scope = authorization.partition("Credential=")
    *_, region, service, _ = ["", "", "", *scope.split(",")[0].split("/")]
    return region, service
