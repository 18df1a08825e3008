"""The progress of a rehearsal."""

from __future__ import annotations

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
