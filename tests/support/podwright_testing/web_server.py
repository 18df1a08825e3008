"""A web server on this machine's loopback, for as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Quiet:
    """A mixin for handlers of requests: no line is printed for each."""

    def log_message(self, *_: object) -> None:
        """Keep the terminal quiet."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[tuple[str, int]]:
    """Serve requests by the handler; yield address and port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield "127.0.0.1", server.server_port
        finally:
            server.shutdown()
            thread.join()
