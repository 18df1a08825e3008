"""Follow the boots of a cluster's nodes: the steps that their lifecycle scripts report to CloudWatch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from podwright.operations.account.session import Session
from podwright.operations.errors import AwsError, OperationError

POLL_S = 5.0
STREAMS = "LifecycleConfig/"  # LifecycleConfig/GROUP/INSTANCE
SKIPPED, DEGRADED, FAILED = "skipped", "degraded", "failed"  # outcomes of podwright_bootstrap.report
MANY_NODES = 16  # With more nodes, only steps that failed or warned have a line.


@dataclass(frozen=True)
class BootStep:
    """One step of one node's boot."""

    host: str
    step: str
    outcome: str
    seconds: float
    said: str

    def line(self) -> str:
        """Return the step for a terminal."""
        return f"{self.host:<16} {self.step:<15} {self.outcome:<9} {self.seconds:6.1f} s  {self.said}".rstrip()


def parse(message: str) -> BootStep | None:
    """Return the step of a log line; None for any other line."""
    if not message.startswith('{"event": "step"'):
        return None
    try:
        found = json.loads(message)
        said = "; ".join([*found["changes"], *filter(None, [found["detail"]])])
        return BootStep(found["host"], found["step"], found["outcome"], float(found["seconds"]), said)
    except (ValueError, KeyError, TypeError):  # a line that CloudWatch cut, or another version's
        return None


class BootLog:
    """The steps in a cluster's log group, each once.

    Args:
        session: the account.
        cluster: name of the cluster, which need not exist yet.
        since_ms: no events before this time, in milliseconds since 1970.
    """

    def __init__(self, session: Session, cluster: str, *, since_ms: int) -> None:
        self._session = session
        self._cluster = cluster
        self._since_ms = since_ms
        self._seen: set[str] = set()

    def new_steps(self) -> Iterator[BootStep]:
        """Yield the steps since the last call.

        Raises:
            OperationError: AWS refuses; a cluster or a log group that does not exist yet is no error.
        """
        for event in self._events():
            if event["eventId"] in self._seen:
                continue
            self._seen.add(event["eventId"])
            self._since_ms = max(self._since_ms, event["timestamp"])
            for line in event["message"].splitlines():
                if step := parse(line):
                    yield step

    def _events(self) -> list[dict[str, Any]]:
        try:
            arn = str(self._session.call("sagemaker", "describe_cluster", ClusterName=self._cluster)["ClusterArn"])
            group = f"/aws/sagemaker/Clusters/{self._cluster}/{arn.rpartition('/')[2]}"
            wanted = {"logGroupName": group, "logStreamNamePrefix": STREAMS, "startTime": self._since_ms}
            return list(self._session.items("logs", "filter_log_events", "events", **wanted))
        except AwsError as error:
            if error.absent:
                return []
            raise


@contextmanager
def followed(session: Session, cluster: str, *, nodes: int, on_line: Callable[[str], None]) -> Iterator[None]:
    """Print the boot steps of a cluster's nodes while the block runs.

    Args:
        session: the account.
        cluster: name of the cluster.
        nodes: how many nodes it has.
        on_line: takes each line, in a thread of its own.
    """
    log = BootLog(session, cluster, since_ms=int(time.time() * 1000))
    ended = Event()

    def look() -> None:
        for step in log.new_steps():
            if step.outcome in {DEGRADED, FAILED} or (step.outcome != SKIPPED and nodes <= MANY_NODES):
                on_line(step.line())

    def follow() -> None:
        try:
            while not ended.wait(POLL_S):
                look()
            look()
        except OperationError as error:
            on_line(f"no boot steps to show: {error}")

    thread = Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=4 * POLL_S)
