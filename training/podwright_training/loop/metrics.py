"""Write a run's metrics: JSON lines for programs (see ``events.py``), one console line per event for people.

Lines are only appended, and whole: a line for which the disk has no room is dropped with a warning.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from torch import Tensor

from podwright_common.regular_file import open_regular
from podwright_training.data.bad_data import first_line
from podwright_training.errors import UserError
from podwright_training.events import EndEvent, StepEvent, TrainEvent
from podwright_training.json_text import to_json
from podwright_training.loop.sinks import Sink
from podwright_training.run_folder import open_for_append

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
HASH_BITS = 64


class Metrics:
    """Append events to a file, print them and send them to sinks, on the first rank only.

    Metrics never end a run: a failure to write is a warning, and a sink that fails gets no further events.
    """

    def __init__(self, path: Path, *, active: bool, sinks: Sequence[Sink] = ()) -> None:
        self._path = path
        self._file = _open_for_append(path) if active else None
        self._sinks = list(sinks)
        self._lock = Lock()  # the thread that saves checkpoints writes too

    def write(self, event: StepEvent) -> None:
        """Append one event with its time in one write, and print its line."""
        if self._file is None:
            return
        line = to_json(event.with_values(time=round(time.time(), 3)).to_dict())
        with self._lock:
            self._try(str(self._path), partial(_append, self._file, f"{line}\n".encode()))
            self._try("standard output", lambda: print(console_line(event), flush=True))
            self._sinks = [sink for sink in self._sinks if self._is_sent(sink, event)]

    @staticmethod
    def _is_sent(sink: Sink, event: StepEvent) -> bool:
        try:
            sink.write(event)
        except Exception as error:  # noqa: BLE001 - of packages that are not ours: any kind
            why = f"{type(error).__name__}: {first_line(error)}"
            logger.warning("metrics: %s failed (%s) and is off; training continues", type(sink).__name__, why)
            return False
        return True

    @staticmethod
    def _try(target: str, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            logger.warning("metrics: cannot write to %s: %s; training continues", target, error.strerror or error)


def console_line(event: StepEvent) -> str:
    """Format an event for people: ``step 34 | loss 7.966 | 5.80 samples/s | 47.5k tok/s | MFU 41% | lr 1.0e-04``."""
    if isinstance(event, TrainEvent):
        return " | ".join(_train_parts(event))
    values = event.values()
    if isinstance(event, EndEvent):  # its times are for the account of the run's time
        values = {name: value for name, value in values.items() if not name.endswith("_s")}
    return " | ".join([event.kind, *(f"{name} {_brief(value)}" for name, value in values.items())])


def _train_parts(event: TrainEvent) -> Iterator[str]:
    yield f"step {event.step}"
    yield f"loss {event.loss:.3f}"
    yield f"{event.samples_per_s or 0.0:.2f} samples/s"
    yield f"{(event.tokens_per_s or 0.0) / 1000:.1f}k tok/s"
    if (event.epoch or 0.0) >= 1:
        yield f"epoch {event.epoch:.4g}"
    if event.mfu is not None:
        yield f"MFU {event.mfu:.0%}"
    yield f"lr {event.lr or 0.0:.1e}"


def batch_hash(sequences: Iterable[Tensor]) -> int:
    """Return an order-independent hash of a batch's token sequences, a signed 64-bit integer.

    It is the sum of the sequences' hashes modulo 2**64, so the hash of a global batch is the sum of its ranks' hashes
    for any division of the sequences.

    Args:
        sequences: int64 ``[T]`` each, on the CPU.
    """
    hashes = (blake2b(row.numpy().tobytes(), digest_size=HASH_BITS // 8).digest() for row in sequences)
    total = sum(int.from_bytes(item, "little") for item in hashes)
    half: int = 2 ** (HASH_BITS - 1)
    return (total + half) % (2 * half) - half


def digest_text(total: int) -> str:
    """Format a batch hash as sixteen hexadecimal digits."""
    return f"{total % 2**HASH_BITS:016x}"


def _append(file: int, line: bytes) -> None:
    """Append the line completely or not at all."""
    size = os.fstat(file).st_size
    if os.write(file, line) < len(line):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _brief(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _open_for_append(path: Path) -> int:
    """Open the file, truncating a half line that a killed job may have left at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open_regular(path, follow_links=True) as file:
            end = _last_line_end(file)
        os.truncate(path, end)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"cannot write the metrics to {path}: {error.strerror}; remove it") from error
    return open_for_append(path)


def _last_line_end(file: BinaryIO) -> int:
    """Return the byte after the last whole line, looking from the end: the metrics of a long run are large."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0
