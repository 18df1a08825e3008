"""The time limit of tests."""

import signal

import pytest


@pytest.mark.timeout(60)
def test_the_alarm_rings_again() -> None:
    """A test that still waits after its time is over, such as for a program at the end of a block, is ended too."""
    assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
