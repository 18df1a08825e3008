"""The learning rate rises, falls, and stays, whatever the numbers."""

import math
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from podwright_training.config.parallel_dims import problems_of_data
from podwright_training.config.sections.schedule_options import DECAYS
from podwright_training.config.train_config import TrainConfig
from podwright_training.loop.schedule import batch_sequences, best_of_range, learning_rate

fractions = st.floats(0, 1)


@st.composite
def schedules(draw):
    """A configuration with any valid schedule."""
    warmup, plateau, wsd_decay = draw(fractions), draw(fractions), draw(fractions)
    shape = draw(st.sampled_from(sorted(DECAYS)))
    assume(warmup + plateau + (wsd_decay if shape == "wsd" else 0) <= 1)
    lr = draw(st.floats(1e-6, 1))
    return TrainConfig(
        max_steps=draw(st.integers(1, 300)),
        lr=lr,
        min_lr=lr * draw(fractions),
        lr_schedule=shape,
        warmup=warmup,
        plateau=plateau,
        wsd_decay=wsd_decay,
    )


@given(schedules())
def test_it_never_exceeds_the_peak_and_is_positive_until_it_decays(config):
    """Every step's rate is above zero and at most ``lr``, unless ``min_lr`` is zero at the end."""
    rates = [learning_rate(step, config) for step in range(1, config.max_steps + 1)]
    assert max(rates) <= config.lr * (1 + 1e-12)
    assert all(rate > 0 or config.min_lr == 0 for rate in rates)


@given(schedules())
def test_it_rises_once_and_then_only_falls(config):
    """After the warmup no step has a higher rate than the one before; before, no step has a lower one."""
    rates = [learning_rate(step, config) for step in range(1, config.max_steps + 1)]
    warmup = math.ceil(config.warmup * config.max_steps)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(falling))


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


def test_a_line_and_a_stable_rate():
    """Half way down a line is half way in value; wsd stays at the peak until its decay, and falls steeply at first."""
    line = TrainConfig(max_steps=100, lr=1.0, min_lr=0.2, lr_schedule="linear", warmup=0.1, plateau=0.1)
    assert math.isclose(learning_rate(50, line), 0.6)
    stable = TrainConfig(max_steps=100, lr=1.0, min_lr=0.0, lr_schedule="wsd", warmup=0.1, wsd_decay=0.4)
    assert {learning_rate(step, stable) for step in range(10, 61)} == {1.0}
    assert math.isclose(learning_rate(70, stable), 0.5)  # 1 - sqrt(1/4)
    assert learning_rate(100, stable) == 0.0


def test_every_schedule_has_a_branch():
    """A schedule that the option allows has a rate at each step, and any other one is an error."""
    (schedules,) = (item.metadata["choices"] for item in fields(TrainConfig) if item.name == "lr_schedule")
    for name in schedules:
        config = TrainConfig(max_steps=100, lr_schedule=name)
        assert all(config.min_lr <= learning_rate(step, config) <= config.lr for step in range(10, 101))
    with pytest.raises(ValueError, match="lr_schedule polynomial has no decay here"):
        learning_rate(60, TrainConfig(max_steps=100, lr_schedule="polynomial"))


@given(st.integers(1, 300), st.integers(1, 40), fractions)
def test_the_batch_grows_to_its_full_size(max_steps, most, ramp):
    """From 1, never falling, in parts that differ by a step at most, and it is full when the ramp ends."""
    config = TrainConfig(max_steps=max_steps, gradient_accumulation_steps=most, batch_ramp=ramp)
    sizes = [batch_sequences(step, config, 5) / 10 for step in range(1, max_steps + 1)]  # 2 of each of 5 ranks
    ramp_steps = math.ceil(ramp * max_steps)
    assert sizes == sorted(sizes)
    assert sizes[ramp_steps:] == [most] * (max_steps - ramp_steps)
    assert not ramp_steps or sizes[0] == 1
    assert sum(sizes[:ramp_steps]) <= ramp_steps * most
    if most <= ramp_steps:
        times = [sizes[:ramp_steps].count(size) for size in range(1, most + 1)]
        assert max(times) - min(times) <= 1


@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 9), fractions)
def test_a_global_batch_is_the_same_for_any_number_of_ranks(max_steps, most, micro_batch, ramp):
    """It grows from one micro-batch to its full size, whoever takes part; the ranks' micro-batches hold it."""
    config = TrainConfig(max_steps=max_steps, global_batch_size=most, train_batch_size=micro_batch, batch_ramp=ramp)
    sizes = [batch_sequences(step, config, 1) for step in range(1, max_steps + 1)]
    ramp_steps = math.ceil(ramp * max_steps)
    assert sizes == sorted(sizes)
    assert sizes[ramp_steps:] == [most] * (max_steps - ramp_steps)
    assert not ramp_steps or sizes[0] == min(micro_batch, most)
    for ranks in (2, 3, 8):
        assert sizes == [batch_sequences(step, config, ranks) for step in range(1, max_steps + 1)]
        held = config.micro_batches(ranks) * micro_batch * ranks
        assert held - micro_batch * ranks < most <= held


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9), st.integers(1, 64), fractions)
def test_a_growing_batch_of_a_mixture_fills_every_micro_batch(max_steps, most, micro_batch, ranks, ramp):
    """It grows from a micro-batch of every rank to its full size, by as many: routers see no sequence twice."""
    experts = {"model_type": "mixtral", "num_local_experts": 4, "data_streams": ranks}
    together = {"train_batch_size": micro_batch, "global_batch_size": most * micro_batch * ranks}
    config = TrainConfig(max_steps=max_steps, batch_ramp=ramp, **together, **experts)
    assert not list(problems_of_data(config, ranks))
    sizes = [batch_sequences(step, config, ranks) for step in range(1, max_steps + 1)]
    assert sizes == sorted(sizes)
    assert all(size % (micro_batch * ranks) == 0 for size in sizes)
    ramp_steps = math.ceil(ramp * max_steps)
    assert sizes[ramp_steps:] == [config.global_batch_size] * (max_steps - ramp_steps)
    assert not ramp_steps or sizes[0] == micro_batch * ranks


@given(st.integers(1, 300), st.floats(1e-6, 1), st.floats(1.5, 1e5))
def test_a_range_rises_by_the_same_factor(max_steps, lowest, factor):
    """Every step's rate is that of the one before times a constant, up to ``lr``."""
    config = TrainConfig(max_steps=max_steps, lr=lowest * factor, min_lr=lowest, lr_schedule="range")
    rates = [lowest, *(learning_rate(step, config) for step in range(1, max_steps + 1))]
    assert rates[-1] == pytest.approx(config.lr)
    assert all(later / earlier == pytest.approx(factor ** (1 / max_steps)) for earlier, later in pairwise(rates))


def test_the_best_rate_of_a_range_is_before_the_loss_rises():
    """Noise of single steps does not decide; what follows a loss that is no number does not count."""
    losses = [(10**-6 * 1.1**step, 5 - 0.05 * step + 0.2 * (step % 2)) for step in range(60)]
    rising = [(10**-6 * 1.1**step, 2 + 0.5 * (step - 60)) for step in range(60, 80)]
    assert best_of_range(losses + rising) == pytest.approx(10**-6 * 1.1**62, rel=0.3)
    assert best_of_range([*losses[:10], (1.0, math.nan), (2.0, 0.0)]) == losses[9][0]
    assert best_of_range([(1.0, math.nan)]) is None


@pytest.mark.parametrize(
    ("fraction", "max_steps", "steps"), [(0.07, 100, 7), (0.14, 50, 7), (0.28, 100, 28), (0.0701, 100, 8), (1e-9, 9, 1)]
)
def test_a_fraction_of_the_steps_is_the_decimal_number_that_was_written(fraction, max_steps, steps):
    """The peak is reached after 7 of 100 steps with a warmup of 0.07, which is 7.000000000000001 in binary."""
    config = TrainConfig(max_steps=max_steps, warmup=fraction)
    rates = [learning_rate(step, config) for step in range(1, max_steps + 1)]
    assert rates.index(config.lr) + 1 == steps
    config = TrainConfig(max_steps=max_steps, batch_ramp=fraction, global_batch_size=max_steps, train_batch_size=1)
    sizes = [batch_sequences(step, config, 1) for step in range(1, max_steps + 1)]
    assert sizes[steps] == max_steps
    assert sizes.index(max_steps) in {steps - 1, steps}
    config = TrainConfig(max_steps=max_steps, plateau=fraction)
    assert [learning_rate(step, config) for step in range(1, max_steps + 1)].count(config.min_lr) in {steps, steps + 1}
