"""Follow the boots of a cluster's nodes: the steps that their lifecycle scripts report to CloudWatch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from podwright.aws_session import Session
from podwright.errors import AwsError, OperationError

POLL_S = 5.0
STREAMS = "LifecycleConfig/"  # LifecycleConfig/GROUP/INSTANCE
SKIPPED, DEGRADED, FAILED = "skipped", "degraded", "failed"  # outcomes of podwright_bootstrap.boot_report
MANY_NODES = 16  # A larger cluster prints only degraded and failed steps, so that they are not lost among others.


@dataclass(frozen=True)
class BootStep:
    """One step of one node's boot."""

    host: str
    step: str
    outcome: str
    seconds: float
    summary: str

    def line(self) -> str:
        """Return the step as a line for a terminal."""
        return f"{self.host:<16} {self.step:<15} {self.outcome:<9} {self.seconds:6.1f} s  {self.summary}".rstrip()


def parse(message: str) -> BootStep | None:
    """Return the step that a log line reports; None for any other line."""
    if not message.startswith('{"event": "step"'):
        return None
    try:
        event = json.loads(message)
        summary = "; ".join([*event["changes"], *filter(None, [event["detail"]])])
        return BootStep(event["host"], event["step"], event["outcome"], float(event["seconds"]), summary)
    except (ValueError, KeyError, TypeError):  # a line that CloudWatch cut, or another version's
        return None


class BootLog:
    """The steps in a cluster's log group, each once.

    Args:
        session: The account.
        cluster: The name of the cluster, which need not exist yet.
        since_ms: The time of the first event to read, in milliseconds since 1970.
    """

    def __init__(self, session: Session, cluster: str, *, since_ms: int) -> None:
        self._session = session
        self._cluster = cluster
        self._since_ms = since_ms
        self._event_ids: set[str] = set()

    def new_steps(self) -> Iterator[BootStep]:
        """Yield the steps since the last call.

        Raises:
            OperationError: AWS refuses; a cluster or a log group that does not exist yet is no error.
        """
        for event in self._events():
            if event["eventId"] in self._event_ids:
                continue
            self._event_ids.add(event["eventId"])
            self._since_ms = max(self._since_ms, event["timestamp"])
            for line in event["message"].splitlines():
                if step := parse(line):
                    yield step

    def _events(self) -> list[dict[str, Any]]:
        try:
            arn = str(self._session.call("sagemaker", "describe_cluster", ClusterName=self._cluster)["ClusterArn"])
            group = f"/aws/sagemaker/Clusters/{self._cluster}/{arn.rpartition('/')[2]}"
            query = {"logGroupName": group, "logStreamNamePrefix": STREAMS, "startTime": self._since_ms}
            return list(self._session.items("logs", "filter_log_events", "events", **query))
        except AwsError as error:
            if error.absent:
                return []
            raise


@contextmanager
def followed(session: Session, cluster: str, *, nodes: int, on_line: Callable[[str], None]) -> Iterator[None]:
    """Print the boot steps of a cluster's nodes while the block runs.

    Args:
        session: The account.
        cluster: The name of the cluster.
        nodes: The number of its nodes.
        on_line: Prints a line; another thread calls it.
    """
    log = BootLog(session, cluster, since_ms=int(time.time() * 1000))
    ended = Event()

    def print_new_steps() -> None:
        for step in log.new_steps():
            if step.outcome in {DEGRADED, FAILED} or (step.outcome != SKIPPED and nodes <= MANY_NODES):
                on_line(step.line())

    def follow() -> None:
        try:
            while not ended.wait(POLL_S):
                print_new_steps()
            print_new_steps()
        except OperationError as error:
            on_line(f"no boot steps to show: {error}")

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=4 * POLL_S)
