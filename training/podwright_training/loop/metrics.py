"""Write a run's metrics: JSON lines for programs, one console line per event for people.

| event | fields besides ``event`` and ``time`` (seconds since 1970) |
|---|---|
| ``start`` | ``step``, ``world_size``, ``resumed_from``, ``job_id``, ``config`` (digest), ``parameters``, |
| | ``flops_per_token`` and ``flops_convention`` (how it counts them), |
| | ``process_s`` (since the process began), |
| | ``code`` (``git <commit>``, or the version of the package) |
| ``data`` | after ``start``, for each source: ``step``, ``source``, ``files``, ``empty_files``, ``bytes``, |
| | ``streams``, and about ``epoch_tokens``, ``epoch_sequences``, ``epoch_steps`` (of the run until it was read once) |
| ``membership`` | of an elastic run, when other nodes take part and the first step is done, or did not come: |
| | ``step`` (resumed after), ``generation``, ``cause``, ``host`` (that failed, or null), |
| | ``nodes``, ``ranks``, ``hosts``, ``lost_steps``, |
| | ``detecting_s``, ``stopping_s``, ``waiting_s`` (for nodes), ``restarting_s``, ``loading_s``, ``stepping_s`` |
| ``train`` | ``step``, ``loss`` (mean per token of this step's batch, with ``z_loss``), ``perplexity`` (of it), |
| | ``grad_norm`` (before clipping), ``lr``, ``sequences`` (drawn so far, by all ranks), |
| | ``batch_sequences`` (the last of these: this step's global batch), ``batch_digest`` (of it), |
| | ``epoch`` (how often the data was read so far, 0.5: half of it; of several sources, the one read most often), |
| | of a mixture ``source_tokens`` (drawn so far) and ``source_epochs`` (as ``epoch``), by source, |
| | ``noise_scale_tokens`` (or null), ``loss_scale`` (1 but in fp16) |
| | means since the last line: ``tokens_per_s``, ``tokens_per_s_per_rank``, ``samples_per_s``, ``mfu`` (or null), |
| | ``step_s``, ``data_s``, ``slowest_rank``, ``lag_s`` (of it behind the median rank) |
| | since the last line, in all: ``saving_s`` and ``validating_s`` (training waited), |
| | ``first_step_s`` (of the first step after the start, on its line alone), |
| | ``memory_step`` (of the newest complete checkpoint in memory, with ``memory_checkpoint_freq``) |
| | ``memory_peak_bytes``, ``memory_reserved_bytes`` (null on a CPU): of the first rank |
| ``offender`` | ``host``, ``times``: it failed so often within a day, and is reported |
| ``straggler`` | ``step``, ``rank``, ``host``, ``lag_s``, ``step_s`` |
| ``guard`` | ``step``, ``policy``, ``reason``, and of the bad step ``loss``, ``grad_norm`` (text, as NaN is no JSON), |
| | ``sequences``, ``batch_sequences``, ``batch_digest``; of a rollback ``checkpoint`` |
| ``overflow`` | ``step`` (skipped: its gradient overflowed in fp16), ``loss``, ``loss_scale`` (of the next step), |
| | ``sequences``, ``batch_sequences``, ``batch_digest`` |
| ``validation`` | ``step``, ``loss``, ``perplexity``, ``tokens``; with ``validation_datasets`` ``losses``, by name |
| ``sample`` | ``step``, ``texts`` (each prompt with what the model adds) |
| ``checkpoint`` | ``step``, ``path``, ``seconds`` (until complete), ``paused_s`` (of these, training waited) |
| ``end`` | ``step``, ``reason`` (max_steps, max_epochs, range or signal), ``saving_s``, ``validating_s``, |
| | of ``lr_schedule`` range ``lr_of_lowest_loss`` |

Lines are only appended, and whole: a line for which the disk has no room is dropped with a warning. After a resume,
steps that the previous job had done occur twice: the last event of a step counts.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from torch import Tensor

from podwright_training.data.bad_data import first_line
from podwright_training.errors import UserError
from podwright_training.json_text import to_json
from podwright_training.loop.sinks import Sink
from podwright_training.regular_file import open_regular
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

    def write(self, event: str, **values: Any) -> None:
        """Append one event in one write, and print its line."""
        if self._file is None:
            return
        line = to_json({"event": event, "time": round(time.time(), 3), **values})
        with self._lock:
            self._try(str(self._path), partial(_append, self._file, f"{line}\n".encode()))
            self._try("standard output", lambda: print(console_line(event, values), flush=True))
            self._sinks = [sink for sink in self._sinks if self._is_sent(sink, event, values)]

    @staticmethod
    def _is_sent(sink: Sink, event: str, values: dict[str, Any]) -> bool:
        try:
            sink.write(event, values)
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


def console_line(event: str, values: dict[str, Any]) -> str:
    """Format an event for people: ``step 34 | loss 7.966 | 5.80 samples/s | 47.5k tok/s | MFU 41% | lr 1.0e-04``."""
    if event == "end":  # its times are for the account of the run's time
        values = {name: value for name, value in values.items() if not name.endswith("_s")}
    if event != "train":
        return " | ".join([event, *(f"{name} {_brief(value)}" for name, value in values.items())])
    parts = [
        f"step {values['step']}",
        f"loss {values['loss']:.3f}",
        f"{values['samples_per_s']:.2f} samples/s",
        f"{values['tokens_per_s'] / 1000:.1f}k tok/s",
        *([f"epoch {values['epoch']:.4g}"] if values.get("epoch", 0) >= 1 else []),
        *([f"MFU {values['mfu']:.0%}"] if values["mfu"] is not None else []),
        f"lr {values['lr']:.1e}",
    ]
    return " | ".join(parts)


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
