"""The guard finds bad steps from the numbers it is given alone."""

import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright_training.config.train_config import TrainConfig
from podwright_training.loop.guard import Guard, robust_z_score

finite = st.integers(-100_000, 100_000).map(lambda hundredths: hundredths / 100)
samples = st.lists(finite, min_size=1, max_size=40)


def watching(**options):
    """A guard that has seen eight ordinary losses."""
    guard = Guard(TrainConfig(guard_window=8, **options))
    for number in range(8):
        assert guard.check(loss=3.0 + 0.01 * number, grad_norm=1.0) is None
    return guard


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_always_bad(value):
    """Loss or gradient, whatever the options, and from the first step on."""
    guard = Guard(TrainConfig())
    assert guard.check(loss=value, grad_norm=1.0) == f"loss is {value}"
    assert guard.check(loss=1.0, grad_norm=value) == f"grad_norm is {value}"
    assert guard.bad_in_a_row == 2


def test_a_spike_is_bad_where_spikes_are_looked_for():
    """A loss far above the last ones is bad with a limit and good without; far below, it is never bad."""
    assert "z-score" in watching(guard_z_score=6.0).check(loss=4.0, grad_norm=1.0)
    assert watching(guard_z_score=6.0).check(loss=2.0, grad_norm=1.0) is None
    assert watching().check(loss=4.0, grad_norm=1.0) is None


def test_a_bad_loss_does_not_make_the_next_one_good():
    """It is not counted among the last losses; a good one ends the row of bad ones."""
    guard = watching(guard_z_score=6.0)
    assert guard.check(loss=4.0, grad_norm=1.0)
    assert guard.check(loss=4.0, grad_norm=1.0)
    assert guard.check(loss=3.0, grad_norm=1.0) is None
    assert guard.bad_in_a_row == 0


def test_before_its_window_is_full_nothing_is_a_spike():
    """The first losses are never spikes."""
    guard = Guard(TrainConfig(guard_window=8, guard_z_score=1.0))
    assert [guard.check(loss=loss, grad_norm=1.0) for loss in (1.0, 1.0, 90.0)] == [None] * 3


@given(samples, st.lists(finite, max_size=20))
def test_a_guard_with_the_state_of_another_decides_alike(before, after):
    """A resumed run decides as the unbroken one, from the checkpoint's state alone."""
    options = TrainConfig(guard_window=8, guard_z_score=2.0)
    unbroken, resumed = Guard(options), Guard(options)
    for loss in before:
        unbroken.check(loss=loss, grad_norm=1.0)
    resumed.load_state(unbroken.state())
    for loss in after:
        assert unbroken.check(loss=loss, grad_norm=1.0) == resumed.check(loss=loss, grad_norm=1.0)


@given(samples, finite, finite, st.floats(0.1, 10))
def test_the_score_knows_no_unit(others, value, shift, scale):
    """Shifting all losses changes no score of well spread ones, and scaling none at all; the median's own is zero."""
    score = robust_z_score(value, others)
    scaled = robust_z_score(value * scale, [other * scale for other in others])
    assert scaled == pytest.approx(score, rel=1e-6, abs=1e-6)
    middle = median(others)
    if median(abs(other - middle) for other in others) > 1:  # else a floor that goes with the median is the spread
        moved = robust_z_score(value + shift, [other + shift for other in others])
        assert moved == pytest.approx(score, rel=1e-3, abs=1e-3)
    assert robust_z_score(sorted(others)[len(others) // 2], [sorted(others)[len(others) // 2]]) == 0
