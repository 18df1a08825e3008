"""Read log streams of CloudWatch.

https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from podwright.aws_session import Session
from podwright.json_document import JsonObject

POLL_S = 2.0  # GetLogEvents takes 25 requests a second
PAGE = 10_000  # events, the most of one answer


@dataclass(frozen=True)
class Line:
    """One event of a stream."""

    time: datetime
    message: str


@dataclass(frozen=True)
class Stream(JsonObject):
    """A log stream."""

    name: str
    written_at: datetime | None
    """Of its last event; null where CloudWatch does not know it."""


@dataclass(frozen=True)
class LogGroup:
    """A log group in the session's region."""

    session: Session
    name: str

    def streams(self, prefix: str) -> list[Stream]:
        """Return the streams whose names begin so, in the order of names.

        Raises:
            OperationError: there is no such group, or AWS refuses.
        """
        answers = self.session.items(
            "logs", "describe_log_streams", "logStreams", logGroupName=self.name, logStreamNamePrefix=prefix
        )
        written = "lastEventTimestamp"
        return [Stream(item["logStreamName"], _time(item[written]) if written in item else None) for item in answers]

    def newest_lines(self, stream: str, count: int) -> list[Line]:
        """Return a stream's last lines, oldest first.

        Raises:
            OperationError: there is no such stream, or AWS refuses.
        """
        newest_first = (line for page in self._pages(stream, forward=False) for line in reversed(page))
        return list(islice(newest_first, count))[::-1]

    def follow(self, stream: str, count: int) -> Iterator[Line]:
        """Yield a stream's last lines, then every line that comes, for ever.

        Raises:
            OperationError: as ``last``.
        """
        shown = self.newest_lines(stream, count)
        yield from shown
        since = int(shown[-1].time.timestamp() * 1000) if shown else 0
        # Further lines of the newest millisecond may still come.
        shown_count = sum(line.time == shown[-1].time for line in shown)
        while True:
            time.sleep(POLL_S)
            lines = [line for page in self._pages(stream, forward=True, startTime=since) for line in page]
            yield from lines[shown_count:]
            if lines:
                newest = lines[-1].time
                since, shown_count = int(newest.timestamp() * 1000), sum(line.time == newest for line in lines)

    def _pages(self, stream: str, *, forward: bool, **more: Any) -> Iterator[list[Line]]:
        """Yield pages until CloudWatch repeats the token, which ends them."""
        token: dict[str, str] = {}
        while True:
            answer = self.session.call(
                "logs",
                "get_log_events",
                logGroupName=self.name,
                logStreamName=stream,
                startFromHead=forward,
                limit=PAGE,
                **more,
                **token,
            )
            yield [Line(_time(event["timestamp"]), event["message"].rstrip("\n")) for event in answer["events"]]
            following = answer["nextForwardToken" if forward else "nextBackwardToken"]
            if token.get("nextToken") == following:
                return
            token = {"nextToken": following}


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
