"""The progress of a rehearsal."""

from __future__ import annotations

import signal
from io import StringIO

import pytest

from podwright_rehearsal.run import progress
from podwright_rehearsal.run.progress import Progress


def test_a_program_that_is_silent_is_not_quoted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated line is shown once, and again after another one; a long one ends with an ellipsis."""
    monkeypatch.setattr(progress, "NOTE_EVERY_S", -1.0)
    shown = Progress(["train"], out=StringIO())
    for line in ("step 1", "step 1", "step 2", "step 1", "demo  aws_vpc.v: Creation complete [id=vpc-0]", "x" * 300):
        shown.note(line)
    lines = [line.removeprefix(" " * 9) for line in shown.out.getvalue().split("\n")]
    assert lines == ["step 1", "step 2", "step 1", "demo aws_vpc.v: Creation complete", "x" * 109 + "…", ""]


class Interrupting(StringIO):
    """Ctrl-C comes while the first line is written."""

    def flush(self) -> None:
        """Raise the signal once."""
        if self.getvalue().count("\n") == 1:
            signal.raise_signal(signal.SIGINT)


def test_a_step_interrupted_as_it_begins_is_stopped() -> None:
    """SIGINT while a step says that it begins leaves it stopped, and its end is shown."""
    shown = Progress(["train"], out=Interrupting())
    with pytest.raises(KeyboardInterrupt), shown.step("train"):
        pytest.fail("the step went on")
    assert shown.steps[0].state == "stopped"
    assert "train: stopped" in shown.out.getvalue()


def test_a_step_interrupted_before_its_body_is_stopped() -> None:
    """SIGINT after a step has begun and before its body runs leaves it stopped."""
    shown = Progress(["train"], out=StringIO())
    step = shown.step("train")
    step.__enter__()
    del step  # what an interrupt between the two leaves
    assert shown.steps[0].state == "stopped"
