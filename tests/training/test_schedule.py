"""The learning rate rises, falls, and stays, whatever the numbers."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from podwright_training.config import TrainConfig
from podwright_training.schedule import learning_rate

fractions = st.floats(0, 1)


@st.composite
def schedules(draw):
    """A configuration with any valid schedule."""
    warmup, plateau = draw(fractions), draw(fractions)
    assume(warmup + plateau <= 1)
    lr = draw(st.floats(1e-6, 1))
    return TrainConfig(
        max_steps=draw(st.integers(1, 300)), lr=lr, min_lr=lr * draw(fractions), warmup=warmup, plateau=plateau
    )


@given(schedules())
def test_it_never_exceeds_the_peak_and_is_positive_until_it_decays(config):
    """Every step's rate is above zero and at most ``lr``, unless ``min_lr`` is zero at the end."""
    rates = [learning_rate(step, config) for step in range(1, config.max_steps + 1)]
    assert max(rates) <= config.lr * (1 + 1e-12)
    assert all(rate > 0 or config.min_lr == 0 for rate in rates)


@given(schedules())
def test_it_rises_once_and_then_only_falls(config):
    """After the warmup no step has a higher rate than the one before; before, none has a lower one."""
    rates = [learning_rate(step, config) for step in range(1, config.max_steps + 1)]
    warmup = math.ceil(config.warmup * config.max_steps)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in zip(falling, falling[1:], strict=False))


@given(schedules())
def test_it_ends_at_its_minimum(config):
    """The last step has ``min_lr``, unless the warmup takes all steps: then the peak."""
    all_warmup = math.ceil(config.warmup * config.max_steps) >= config.max_steps
    assert math.isclose(learning_rate(config.max_steps, config), config.lr if all_warmup else config.min_lr)


def test_it_is_half_a_cosine_between():
    """Half way down, it is the mean of peak and minimum; the plateau begins where it should."""
    config = TrainConfig(max_steps=100, lr=1.0, min_lr=0.2, warmup=0.1, plateau=0.1)
    assert math.isclose(learning_rate(5, config), 0.5)
    assert learning_rate(10, config) == 1.0
    assert math.isclose(learning_rate(50, config), 0.6)
    assert [learning_rate(step, config) for step in (90, 95, 100)] == [0.2, 0.2, 0.2]
