"""The stand-in's HTTP server: hands each request to the service it is meant for, one at a time.

One lock around everything makes the account consistent and moto, which has no locks of its own, safe.
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from podwright.rehearsal.aws import moto_repairs, cluster_schema
from podwright.rehearsal.aws.account import Account
from podwright.rehearsal.aws.cloud_control import CloudControl
from podwright.rehearsal.aws.clusters import Clusters
from podwright.rehearsal.aws.errors import AwsError
from podwright.rehearsal.aws.file_systems import FileSystems
from podwright.rehearsal.aws.sagemaker import SageMaker

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOST = "127.0.0.1"
OWNER_POLL_S = 0.5
ACTION_WITHIN = 4096  # bytes of a form in which its Action is looked for

Operations = Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]
_log = logging.getLogger("podwright.rehearsal.aws")


def serve(*, region: str, port: int, transition_s: float, owner_pid: int | None) -> None:
    """Answer until terminated, or until the owner process has ended. The first line printed is the endpoint's URL."""
    application = Application(region=region, transition_s=transition_s)
    server = make_server(HOST, port, application, threaded=True, request_handler=RequestHandler)
    if owner_pid is not None:
        threading.Thread(target=_end_with, args=(owner_pid,), daemon=True).start()
    print(f"http://{HOST}:{server.server_port}", flush=True)
    sys.stdout.close()
    server.serve_forever()


class RequestHandler(MotoRequestHandler):  # type: ignore[misc]  # moto ships no types
    """Keeps connections open and answers ``Expect: 100-continue``, for which SDKs would wait a second."""

    protocol_version = "HTTP/1.1"


class Application:
    """The WSGI application.

    Args:
        region: the only region there is.
        transition_s: how long what takes minutes in AWS takes here.
    """

    def __init__(self, *, region: str, transition_s: float) -> None:
        moto_repairs.install()
        account = Account(region=region)
        clusters = Clusters(account=account, transition_s=transition_s)
        self._region = region
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        # By the service part of X-Amz-Target.
        self._services: dict[str, Operations] = {
            "CloudApiService": CloudControl(clusters=clusters, region=region, transition_s=transition_s).operations,
            "AWSSimbaAPIService_v20180301": FileSystems(account=account, transition_s=transition_s).operations,
            "SageMaker": SageMaker(clusters=clusters, region=region).operations,
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request; its body is read before the lock is taken."""
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._lock:
            answer = self._answer(request, body) or self._moto
            return answer(environ, _logging_start(request, body, start_response))

    def _answer(self, request: Request, body: bytes) -> Response | None:
        """Our answer, or nothing if the request is moto's."""
        service, _, operation = request.headers.get("X-Amz-Target", "").partition(".")
        if service in self._services and (service != "SageMaker" or "Cluster" in operation):
            return _json_answer(self._services[service], operation, body)
        if b"Action=DescribeType" in body and _signed_for(request) == "cloudformation":
            return self._describe_type(parse_qs(body.decode()))
        return None

    def _describe_type(self, form: Mapping[str, list[str]]) -> Response:
        """CloudFormation's DescribeType, with which Terraform validates ``desired_state`` while it plans."""
        name = form.get("TypeName", [""])[0]
        if name != cluster_schema.CLUSTER_TYPE:
            return _query_error(
                "TypeNotFoundException", f"The stand-in knows {cluster_schema.CLUSTER_TYPE} only, not {name}"
            )
        text = escape(json.dumps(cluster_schema.schema(self._region)))
        arn = f"arn:aws:cloudformation:{self._region}::type/resource/{name.replace('::', '-')}"
        return _xml(
            200,
            f'<DescribeTypeResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeTypeResult>'
            f"<Arn>{arn}</Arn><Type>RESOURCE</Type><TypeName>{name}</TypeName><Schema>{text}</Schema>"
            f"<DeprecatedStatus>LIVE</DeprecatedStatus><Visibility>PUBLIC</Visibility></DescribeTypeResult>"
            f"<ResponseMetadata><RequestId>{_request_id()}</RequestId></ResponseMetadata></DescribeTypeResponse>",
        )


def _logging_start(request: Request, body: bytes, start_response: StartResponse) -> StartResponse:
    """Write one line for the request when its status is known."""
    target = request.headers.get("X-Amz-Target", "")
    action = parse_qs(body[:ACTION_WITHIN].decode(errors="replace")).get("Action", [""])[0] if not target else ""
    what = target or action or f"{request.method} {request.full_path.rstrip('?')}"

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], object]:
        _log.info("%s %s: %s", _signed_for(request), what, status)
        return start_response(status, headers, *rest)

    return start


def _json_answer(operations: Operations, operation: str, body: bytes) -> Response:
    """AWS's JSON protocols (1.0 and 1.1)."""
    try:
        if operation not in operations:
            raise AwsError("UnknownOperationException", f"The stand-in does not play {operation}")
        status, answer = 200, operations[operation](json.loads(body or b"{}"))
    except AwsError as error:
        _log.info("%s refused: %s", operation, error)
        status, answer = 400, dict(error.body())
    headers = {"x-amzn-RequestId": _request_id()}
    return Response(json.dumps(answer), status, headers, content_type="application/x-amz-json-1.1")


def _query_error(code: str, message: str) -> Response:
    return _xml(
        404,
        f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        f"<RequestId>{_request_id()}</RequestId></ErrorResponse>",
    )


def _xml(status: int, text: str) -> Response:
    return Response(text, status, content_type="text/xml")


def _signed_for(request: Request) -> str:
    """The service in a Signature Version 4 credential scope: ``Credential=KEY/DATE/REGION/SERVICE/aws4_request``."""
    _, _, scope = request.headers.get("Authorization", "").partition("Credential=")
    parts = scope.split(",")[0].split("/")
    return parts[3] if len(parts) > 3 else ""  # noqa: PLR2004 (the scope's fourth part)


def _request_id() -> str:
    return secrets.token_hex(16)


def _end_with(owner_pid: int) -> None:
    """End this process when its parent is no longer the owner: the owner has died, however it died."""
    while os.getppid() == owner_pid:
        time.sleep(OWNER_POLL_S)
    os._exit(0)
