"""Loss, over-training, forecasts, failures and cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwright.planning.cluster_hardware import Hardware
from podwright.planning.cost import cost
from podwright.planning.memory_tier import MemoryTier
from podwright.planning.model import Model
from podwright.planning.scaling import EPOCH, cheapest_with_serving, forecast
from podwright_training.failures import failures

FLOPS = st.floats(18, 26).map(lambda power: 10.0**power)


@given(FLOPS, st.floats(0.5, 2))
def test_the_optimum_is_one(flops, factor):
    """No other split of the same FLOPs between size and tokens has a lower loss."""
    best = EPOCH.loss(EPOCH.optimal_parameters(flops), EPOCH.optimal_tokens(flops))
    parameters = EPOCH.optimal_parameters(flops) * factor
    assert EPOCH.loss(parameters, flops / 6 / parameters) >= best - 1e-12


def test_the_refit_says_twenty_tokens_per_parameter():
    """At Chinchilla's budget, 5.76e23 FLOPs, about 20 tokens per parameter."""
    assert 17 < EPOCH.optimal_tokens(5.76e23) / EPOCH.optimal_parameters(5.76e23) < 25


@given(st.floats(7, 12).map(lambda power: 10.0**power), st.floats(8, 14).map(lambda power: 10.0**power))
def test_loss_falls_with_size_and_tokens(parameters, tokens):
    """More of either never hurts."""
    assert EPOCH.loss(2 * parameters, tokens) < EPOCH.loss(parameters, tokens)
    assert EPOCH.loss(parameters, 2 * tokens) < EPOCH.loss(parameters, tokens)


@given(st.floats(9, 11).map(lambda power: 10.0**power), st.floats(20, 60))
def test_tokens_for_a_loss_invert_the_law(parameters, ratio):
    """The tokens needed for a loss are those that give it."""
    tokens = ratio * parameters
    assert EPOCH.tokens_for_loss(parameters, EPOCH.loss(parameters, tokens)) == pytest.approx(tokens, rel=1e-6)


def test_a_loss_below_the_floor_is_never_reached():
    """No number of tokens helps a model that is too small."""
    assert EPOCH.tokens_for_loss(1e8, 1.9) == math.inf


def test_serving_pays_for_over_training():
    """The more a model serves, the smaller it should be, at the same loss."""
    few, many = (cheapest_with_serving(8e9, 160e9, served) for served in (1e9, 1e14))
    assert many.parameters < few.parameters
    assert few.loss == many.loss == pytest.approx(EPOCH.loss(many.parameters, many.tokens))


@given(st.floats(0.2, 0.8), st.floats(1.5, 2.5), st.floats(50, 5000))
def test_a_forecast_finds_the_curve_it_was_given(exponent, floor, scale):
    """Points of a power law are continued within one per cent."""
    curve = [(1e8 * step, floor + scale / (1e8 * step) ** exponent) for step in range(1, 30)]
    if curve[0][1] - curve[-1][1] < 1e-3:
        return
    found = forecast(curve, 1e11)
    true = floor + scale / 1e11**exponent
    assert found.loss == pytest.approx(true, rel=0.01)
    assert found.low <= true * 1.001
    assert found.high >= true * 0.999


@pytest.mark.parametrize("curve", [[(1e9, 3.0), (2e9, 2.8)], [(1e9 * step, 3.0 + step) for step in range(1, 9)]])
def test_a_forecast_needs_a_falling_curve(curve):
    """Too few points, or a rising loss, are refused."""
    with pytest.raises(ValueError, match="at least 5 points of a falling loss"):
        forecast(curve, 1e12)


def test_a_curve_that_only_ends_lower_is_refused():
    """A loss that rises but for its last point has no power law."""
    curve = [(1e9 * step, 3.0 + step / 10) for step in range(1, 9)]
    with pytest.raises(ValueError, match="9 points end lower than they begin, but as a whole they do not fall"):
        forecast([*curve, (9e9, 3.0)], 1e12)


def test_a_floor_below_zero_is_no_forecast():
    """A curve that only a negative floor fits is refused: no cross-entropy is below zero."""
    curve = [(1e8 * step, 40 / (1e8 * step) ** 0.05 - 8) for step in range(1, 30)]
    with pytest.raises(ValueError, match=r"has a floor of -\d+\.\d\d nats, and no loss is below 0"):
        forecast(curve, 1e11)


def test_failures_match_llama3s_log():
    """419 interruptions in 54 days on 16,384 GPUs are one every 3.1 hours."""
    assert failures(16_384, parameters=405e9).hours_between == pytest.approx(3.1, abs=0.02)


@given(st.integers(8, 20_000), st.floats(1, 600))
def test_the_checkpoint_interval_is_young_and_dalys(gpus, seconds):
    """sqrt(2 c M), and no other interval keeps more of the time."""
    found = failures(gpus, parameters=1e9, checkpoint_s=seconds)
    between = found.hours_between * 3600
    assert found.interval_s == pytest.approx(max(seconds, math.sqrt(2 * seconds * between)))

    def lost(interval):
        return seconds / interval + interval / 2 / between

    assert (
        lost(found.interval_s) <= min(lost(found.interval_s * 1.1), lost(max(seconds, found.interval_s / 1.1))) + 1e-12
    )


@pytest.mark.parametrize(("model", "nodes", "rank_gb"), [("llama3_1_8b", 8, 1.51), ("llama3_1_70b", 32, 3.31)])
def test_checkpoints_in_memory_are_weights_and_two_moments_in_fp32(model, nodes, rank_gb):
    """Each node has two of them, with those of the node before, and the copy that is written."""
    hardware = Hardware(instance_type="ml.p5.48xlarge", nodes=nodes)
    parameters = Model.of(model).parameters
    found = MemoryTier.of(hardware, parameters=parameters, step_s=2.0)
    assert found.need.rank_bytes == 12 * parameters / hardware.gpus
    assert found.need.rank_bytes / 1e9 == pytest.approx(rank_gb, abs=0.01)
    assert found.need.folder_bytes == 2 * 2 * 8 * found.need.rank_bytes
    assert found.need.host_bytes == 5 * 8 * found.need.rank_bytes
    assert found.need.sent_bytes == 8 * found.need.rank_bytes
    assert found.fits
    assert found.interval_steps * 2.0 >= found.send_s - 1
    plain = failures(hardware.gpus, parameters=parameters)
    assert found.failures.goodput > plain.goodput


def test_a_single_node_has_no_partner_and_may_lack_the_memory():
    """It keeps its own part twice; 70B are too much for one."""
    found = MemoryTier.of(Hardware(instance_type="ml.p5.48xlarge", nodes=1), parameters=70.6e9, step_s=2.0)
    assert found.need.sent_bytes == 0
    assert found.need.folder_bytes == 2 * 12 * 70.6e9
    assert not found.fits


def test_cost_is_the_sum_of_its_items():
    """Two machines cost twice their price, with a controller, storage and a NAT gateway, stretched by failures."""
    hardware = Hardware(instance_type="ml.p5.48xlarge", nodes=2)
    found = cost(hardware, seconds=3600, parameters=8e9)
    assert found.total_usd == sum(found.usd.values())
    assert found.usd["accelerated machines"] == pytest.approx(2 * 55.04 * found.hours)
    assert found.hours == pytest.approx(1 / found.failures.goodput)


def test_a_price_given_replaces_the_list():
    """A capacity block's price is used as given; without any price there is no total."""
    hardware = Hardware(instance_type="ml.p5e.48xlarge", nodes=1)
    assert cost(hardware, seconds=3600, parameters=8e9).total_usd is None
    found = cost(hardware, seconds=3600, parameters=8e9, usd_per_node_hour=40)
    assert found.usd["accelerated machines"] == pytest.approx(40 * found.hours)
