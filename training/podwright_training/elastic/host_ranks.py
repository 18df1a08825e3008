"""The ranks of this host, as its agent sees them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from podwright_training import beats
from podwright_training.beats import Activity, Beats, Progress
from podwright_training.config.compilation import is_compiled
from podwright_training.config.train_config import TrainConfig
from podwright_training.elastic.host_report import HostRankReport
from podwright_training.errors import UserError

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torchrun's: ranks report an error that they share once in the folder above it
STACKS_S = 0.5  # Ranks have this long to write their stacks before they are killed.
STEPS = 20  # The median of as many steps is a step's usual time.
MOST_FAILED_IMPORTS = 3  # fork servers that end before they are ready, in a row
HANG_FACTOR, HANG_S, HANG_COMPILED_S = 20, 10.0, 120.0  # a step that takes this many medians, and at least so long


class Patience:
    """The longest silence of a rank, by its phase and by how long its steps take."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        # The agent imports no PyTorch, so it takes a device that is not named for a GPU.
        device_type = "cuda" if config.device == "auto" else config.device
        self._floor_s = HANG_COMPILED_S if is_compiled(config, device_type) else HANG_S
        self._steps_s: deque[float] = deque(maxlen=STEPS)
        self._last: Progress | None = None

    def look(self, progress: Progress) -> None:
        """Take note of a rank's progress."""
        if self._last and progress.step > self._last.step:
            self._steps_s.append((progress.at_s - self._last.at_s) / (progress.step - self._last.step))
        if self._last is None or progress.step != self._last.step:
            self._last = progress

    def limit_s(self, progress: Progress) -> float:
        """Return the longest silence now."""
        config = self._config
        if progress.activity in (Activity.DRAWING, Activity.COMPUTING) and self._steps_s:
            usual_s = max(self._floor_s, HANG_FACTOR * median(self._steps_s))
            return min(config.hang_timeout_s or usual_s, config.step_timeout_s)
        if progress.activity in (Activity.VALIDATING, Activity.SAVING, Activity.FINISHED):
            return float(config.step_timeout_s)
        return float(config.start_timeout_s)


class HostRanks:
    """Start, signal and watch the ranks of one host.

    Args:
        config: Configuration of the run.
        argv: Arguments of ``podwright-train`` for each rank.
        count: Ranks on this host.
        folder: In memory, of this run alone.
        spawn: Starts a fork server with a socket; returns its process.
    """

    def __init__(
        self,
        config: TrainConfig,
        argv: Sequence[str],
        *,
        count: int,
        folder: Path,
        spawn: Callable[[socket.socket], Any] | None = None,
    ) -> None:
        self.ready = False
        self.generation: int | None = None
        self._config = config
        self._argv = list(argv)
        self._count = count
        self._spawn = spawn or spawn_fork_server
        self._beats_path = folder / "beats"
        self._beats = Beats.create(self._beats_path, ranks=count)
        self._pids: dict[int, int] = {}
        self._exits: dict[int, int] = {}
        self._ended_at_s: dict[int, float] = {}
        self._patience = [Patience(config) for _ in range(count)]
        self._next: tuple[int, list[dict[str, str]]] | None = None  # to start when the present ones are gone
        self._killed = False
        self._beaten_s = time.monotonic()
        self._failed_imports = 0
        self._writer: asyncio.StreamWriter | None = None
        self._begin()

    async def serve(self) -> None:
        """Read the fork server's messages; start it again if it ends.

        Raises:
            UserError: It ends each time before it has imported everything.
        """
        while True:
            reader, self._writer = await asyncio.open_connection(sock=self._ours)
            while line := await reader.readline():
                self._listen(json.loads(line))
            self._failed_imports = 0 if self.ready else self._failed_imports + 1
            if self._failed_imports == MOST_FAILED_IMPORTS:
                raise UserError(f"{MOST_FAILED_IMPORTS} times in a row the imports of ranks failed: see above")
            self.ready, self._writer = False, None
            self._exits |= dict.fromkeys(set(range(self._count)) - self._exits.keys(), -signal.SIGKILL)
            self._clear()
            self._server.wait()
            self._begin()

    def _listen(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.ready = True
        elif "started" in message:
            self._pids[message["started"]] = message["pid"]
        else:
            self._exits[message["ended"]] = message["status"]
            self._ended_at_s[message["ended"]] = time.monotonic()
            self._pids.pop(message["ended"], None)
        self._clear()

    def _begin(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._server = self._spawn(theirs)
        theirs.close()

    def beat(self) -> None:
        """Show the ranks that their agent lives, unless it was frozen: the run then continues without them."""
        timeout_s, now = self._config.heartbeat_timeout_s, time.monotonic()
        if self.generation is not None and now - self._beaten_s > timeout_s:
            self.stop()
            return
        self._beaten_s = now
        self._beats.beat(timeout_s=timeout_s)

    def start(self, generation: int, environments: Sequence[Mapping[str, str]]) -> None:
        """Start a generation's ranks as soon as the last ones are gone."""
        reported = self._beats_path.with_name("reported")
        shutil.rmtree(reported, ignore_errors=True)
        reported.mkdir()
        shared = {beats.VARIABLE: str(self._beats_path), ERROR_FILE: str(reported / "rank" / "error")}
        self._next = generation, [{**environment, **shared} for environment in environments]
        self._clear()

    def signal(self, number: int) -> None:
        """Send the ranks a signal."""
        self._say(signal=number)

    def stop(self, *, stacks: bool = False) -> None:
        """Kill the ranks; first let them dump their stacks, also ranks that are stopped."""
        self._next, self._killed = None, True
        if stacks and self._pids:
            self.signal(signal.SIGUSR2)
            self.signal(signal.SIGCONT)
            asyncio.get_running_loop().call_later(STACKS_S, self._kill, self.generation)
        else:
            self._kill(self.generation)
        self._clear()

    def _kill(self, generation: int | None) -> None:
        if self.generation == generation and self._killed:
            self.signal(signal.SIGKILL)

    def reports(self) -> tuple[HostRankReport, ...]:
        """Return a report of each rank."""
        if self.generation is None:
            return ()
        return tuple(self._report(rank) for rank in range(self._count))

    def close(self) -> None:
        """End the fork server, and with it the ranks."""
        self._ours.close()
        self._server.kill()
        self._server.wait()

    def _report(self, rank: int) -> HostRankReport:
        progress = self._beats.read(rank)
        self._patience[rank].look(progress)
        now = time.monotonic()
        quiet_s = now - progress.at_s
        stopped = rank in self._pids and _is_stopped(self._pids[rank])
        limit_s = self._patience[rank].limit_s(progress)
        if stopped:
            limit_s = min(limit_s, self._config.heartbeat_timeout_s)
        return HostRankReport(
            exit_status=self._exits.get(rank),
            ended_s=round(now - self._ended_at_s.get(rank, now), 3),
            activity=progress.activity,
            step=progress.step,
            began=progress.began,
            quiet_s=round(quiet_s, 3),
            overdue=rank not in self._exits and quiet_s > limit_s,
            stopped=stopped,
        )

    def _clear(self) -> None:
        """Forget ranks that were killed and are gone; then start the next ones."""
        if self.generation is not None and self._killed and len(self._exits) == self._count:
            self.generation = None
        if self.generation is None and self._next and self.ready:
            self.generation, environments = self._next
            self._next, self._killed = None, False
            self._pids, self._exits, self._ended_at_s = {}, {}, {}
            self._patience = [Patience(self._config) for _ in range(self._count)]
            for rank in range(self._count):
                self._beats.write(rank, Progress(at_s=time.monotonic()))
            self._beaten_s = time.monotonic()
            self.beat()
            self._say(start=environments, argv=self._argv)

    def _say(self, **message: Any) -> None:
        if self._writer:
            self._writer.write(json.dumps(message).encode() + b"\n")


def spawn_fork_server(channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start the fork server as a separate program."""
    descriptor = channel.fileno()
    command = [sys.executable, "-m", "podwright_training.elastic.fork_server", str(descriptor)]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL)


def memory_folder(run_dir: Path, number: int) -> Path:
    """Make and return the folder in memory of a run's host; remove the folder of an agent that was killed.

    Its name ends at random: no other user of this host has made it before.
    """
    shared = Path("/dev/shm")  # noqa: S108 - memory that processes of this host share
    digest = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:12]
    prefix = f"podwright-elastic-{os.geteuid()}-{digest}-{number}."
    for stale_folder in shared.glob(f"{prefix}*"):
        if stale_folder.lstat().st_uid == os.geteuid():
            remove_memory(stale_folder)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=shared))


def remove_memory(folder: Path) -> None:
    """Remove a host's folder in memory."""
    shutil.rmtree(folder, ignore_errors=True)


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
