"""Answer a request that an SDK retries with its first answer, without a second execution.

About one answer in some thousands is lost between Terraform's AWS provider and any server on this machine's loopback.
The SDK repeats the request under the same invocation id; executed twice, the second one finds its work done and fails.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
INVOCATION = "HTTP_AMZ_SDK_INVOCATION_ID"  # the same for all attempts
KEPT = 512  # answers; an SDK repeats within seconds
READING = ("GET", "HEAD")


class Answer(NamedTuple):
    """An HTTP answer."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes


class RetryCache:
    """WSGI middleware that keeps the answers to changes, except refusals: they changed nothing, and SDKs retry some."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer from the cache, or execute the request."""
        invocation = environ.get(INVOCATION)
        if invocation is None or environ["REQUEST_METHOD"] in READING:
            return self._application(environ, start_response)
        with self._lock:  # the first attempt may still run
            answer = self._answers.get(invocation) or self._execute(environ, invocation)
        start_response(answer.status, answer.headers)
        return [answer.body]

    def _execute(self, environ: WSGIEnvironment, invocation: str) -> Answer:
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
            begun.append((status, headers))

        body = b"".join(self._application(environ, start))
        answer = Answer(*begun[-1], body)
        if int(answer.status.split()[0]) < 400:  # noqa: PLR2004 - a call that was throttled or failed is tried again
            self._answers[invocation] = answer
            if len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return answer
