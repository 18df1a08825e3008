"""CloudWatch's copy of the lifecycle scripts' output, which HyperPod's agent writes on every node."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

FLUSH_S = 1.0
BATCH = 1000  # events a call; CloudWatch takes 10,000


@dataclass
class LifecycleLogs:
    """One log group, and one stream ``LifecycleConfig/GROUP/INSTANCE`` for each boot of an instance.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-operate-slurm-console-ui-view-details-of-clusters.html

    Args:
        client: boto3's client of CloudWatch Logs.
        group: ``/aws/sagemaker/Clusters/NAME/ID``.
    """

    client: Any
    group: str
    _lines: dict[str, list[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # Time and line of each event, by stream.
    _made: set[str] = field(default_factory=set)
    _flushed: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)  # hosts boot in threads

    def write(self, *, instance_group: str, instance_id: str, line: str) -> None:
        """Take a line; it is in CloudWatch within seconds if others follow, or after ``flush``."""
        with self._lock:
            now = time.time()
            self._lines[f"LifecycleConfig/{instance_group}/{instance_id}"].append((int(now * 1000), line))
            if now - self._flushed >= FLUSH_S:
                self._flush()

    def flush(self) -> None:
        """Send the lines that have not been sent yet."""
        with self._lock:
            self._flush()

    def delete(self) -> None:
        """Delete the log group, which outlives the cluster; AWS's users do that by hand."""
        if self._made:
            self.client.delete_log_group(logGroupName=self.group)
            self._made.clear()

    def _flush(self) -> None:
        self._flushed = time.time()
        for stream, lines in self._lines.items():
            self._make(stream)
            for start in range(0, len(lines), BATCH):
                # CloudWatch refuses an event without text.
                events = [{"timestamp": at, "message": line or " "} for at, line in lines[start : start + BATCH]]
                self.client.put_log_events(logGroupName=self.group, logStreamName=stream, logEvents=events)
        self._lines.clear()

    def _make(self, stream: str) -> None:
        if stream in self._made:
            return
        if not self._made and not self._exists():
            self.client.create_log_group(logGroupName=self.group)
        self.client.create_log_stream(logGroupName=self.group, logStreamName=stream)
        self._made.add(stream)

    def _exists(self) -> bool:
        groups = self.client.describe_log_groups(logGroupNamePrefix=self.group)["logGroups"]
        return any(group["logGroupName"] == self.group for group in groups)
