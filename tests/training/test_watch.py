"""A run is followed in the terminal."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from podwright_training.events import StartEvent
from podwright_training.report import summary
from podwright_training.report.history import History
from podwright_training.run_folder import RunFolder

TRAIN = {"lr": 1e-3, "tokens_per_s": 9000.0, "step_s": 0.5, "data_s": 0.0, "sequences": 8, "batch_sequences": 8}


def command(folder):
    """The command line."""
    return [sys.executable, "-m", "podwright_training", "watch", "--run-dir", str(folder), "--refresh-s", "0.1"]


def write(folder, steps, *more):
    """A run whose loss falls from 8 towards 4, made of so many steps."""
    losses = [{"event": "train", "step": step, "loss": 4 + 4 * 0.97**step, **TRAIN} for step in range(1, steps + 1)]
    first = {"event": "start", "step": 0, "world_size": 2, "parameters": 1000}
    text = "".join(json.dumps(event) + "\n" for event in [first, *losses, *more])
    RunFolder(folder).metrics.write_text(text)


def test_in_a_pipe_it_prints_once(tmp_path):
    """A pipe gets plain text: the curve, figures and events."""
    write(tmp_path, 200, {"event": "guard", "step": 90, "policy": "skip", "reason": "spike"})
    text = subprocess.run(command(tmp_path), capture_output=True, text=True, check=True, timeout=500).stdout
    assert "\x1b" not in text
    bars = [line for line in text.splitlines() if re.match(r"[▁-█ ]+ ", line)]
    assert bars[0].startswith("█")
    assert 4.0 < float(bars[-1].split()[-1]) < 4.1
    assert 6.0 < float(bars[0].split()[-1]) < 8.0
    assert "Not finished: the last step logged is 200." in text
    assert "guard step 90, policy skip, reason spike" in text


def test_a_long_run_keeps_its_starts(tmp_path):
    """The last bytes of the metrics come after every start before them, the first included."""
    restart = {"event": "start", "step": 90, "world_size": 4, "parameters": 1000}
    write(tmp_path, 100, restart, *[{"event": "train", "step": step, "loss": 4.0, **TRAIN} for step in range(91, 300)])
    events = list(RunFolder(tmp_path).events(last_bytes=2000))
    assert [event.world_size for event in events if isinstance(event, StartEvent)] == [2, 4]
    assert [event.step for event in events][-1] == 299
    assert len(events) < 30


def test_a_clock_that_was_set_back_foretells_no_end(tmp_path):
    """The end of a run has a date only while no event says that the clock was ahead before."""
    RunFolder(tmp_path).config.write_text("max_steps: 400\n")
    times = [{"event": "train", "step": step, "loss": 4.0, "time": 1e9 + step, **TRAIN} for step in range(61, 64)]
    write(tmp_path, 60, *times)
    assert "expected end" in dict(summary.headline(History.of(RunFolder(tmp_path))))
    write(tmp_path, 60, *times, {"event": "train", "step": 64, "loss": 4.0, "time": 1e9 - 9000, **TRAIN})
    rows = dict(summary.headline(History.of(RunFolder(tmp_path))))
    assert "hours left" in rows
    assert "expected end" not in rows


@pytest.mark.slow
def test_on_a_terminal_it_follows_until_the_end(tmp_path):
    """On a terminal it waits for the first step, draws again as steps come, and ends with the run."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(tmp_path), stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as watch:
        os.close(theirs)
        assert read_until(ours, "no training step yet")
        write(tmp_path, 60)
        assert read_until(ours, "the last step logged is 60")
        write(tmp_path, 61, {"event": "end", "step": 61, "reason": "max_steps"})
        assert read_until(ours, "Ended after step 61: max_steps")
        assert watch.wait(60) == 0
    os.close(ours)


def read_until(terminal, words):
    """Return whether the words appear on the terminal before the program ends."""
    seen = ""
    while words not in " ".join(re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen).split()):
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            return False
    return True
