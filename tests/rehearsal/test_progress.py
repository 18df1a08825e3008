"""The progress of a rehearsal."""

from __future__ import annotations

import signal
from contextlib import suppress
from io import StringIO

import pytest

from podwright_rehearsal.run import progress
from podwright_rehearsal.run.deployment import in_words
from podwright_rehearsal.run.progress import Progress


def test_a_program_that_is_silent_is_not_quoted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated line is shown once, and again after another one; a long one ends with an ellipsis."""
    monkeypatch.setattr(progress, "NOTE_EVERY_S", -1.0)
    shown = Progress(["train"], out=StringIO())
    for line in ("step 1", "step 1", "step 2", "step 1", "two  spaces", "x" * 300):
        shown.note(line)
    lines = [line.removeprefix(" " * 9) for line in shown.out.getvalue().split("\n")]
    assert lines == ["step 1", "step 2", "step 1", "two spaces", "x" * 109 + "…", ""]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "demo  aws_vpc.network_vpc_4E8F0223: Creation complete after 2s [id=vpc-1]",
            "created network_vpc (aws_vpc, 2s)",
        ),
        (
            "demo  aws_sns_topic.a_0 (notices/topic): Destruction complete after 1m0s",
            "destroyed a_0 (aws_sns_topic, 1m0s)",
        ),
        ("demo  aws_vpc.network_vpc_4E8F0223: Still creating... [10s elapsed]", None),
        ("demo  Initializing the backend...", None),
        ("demo  data.aws_partition.role_CCD0ACD0 (role/partition): Reading...", None),
    ],
)
def test_of_terraforms_lines_those_that_say_something_are_shown(line: str, shown: str | None) -> None:
    """A resource that is done is a few words; waiting, reading and preparing are not shown."""
    assert in_words(line) == shown


class Interrupting(StringIO):
    """Ctrl-C comes while the first line is written."""

    def flush(self) -> None:
        """Raise the signal once."""
        if self.getvalue().count("\n") == 1:
            signal.raise_signal(signal.SIGINT)


def test_a_failure_stops_what_runs_beside_it() -> None:
    """Of two steps side by side the one that fails first has failed; the other one is stopped for it."""
    shown = Progress(["deploy", "plan again"], out=StringIO())
    with suppress(OSError), shown.step("plan again"):
        with suppress(OSError), shown.step("deploy"):
            raise OSError("disk full")
        raise OSError("its Terraform was ended")
    assert {it.name: it.state for it in shown.steps} == {"deploy": "failed", "plan again": "stopped"}


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
