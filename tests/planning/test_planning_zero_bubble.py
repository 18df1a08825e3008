"""Pipelines that split the backward pass."""

from types import SimpleNamespace

import pytest

from podwright.planning.accelerator import Accelerator
from podwright.planning.layout import Layout
from podwright.planning.memory import memory
from podwright.planning.model import Model
from podwright.planning.throughput import speed
from podwright.planning.trainer_software import Software
from podwright.planning.zero_bubble import actions, duration_s

LLAMA, H100, OURS = Model.of("llama3_1_8b"), Accelerator.of("H100"), Software.named("podwright")
SCHEDULES = [("zero_bubble", 2), ("zero_bubble", 3), ("zero_bubble_v", 2)]
KINDS = {"FORWARD": "forward", "BACKWARD_INPUT": "input", "BACKWARD_WEIGHT": "weight"}


def orders(schedule, each, ranks, micro_batches):
    sizes = {"ranks": ranks, "stages_per_rank": each, "micro_batches": micro_batches}
    return [list(actions(schedule, rank, **sizes)) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "each"), SCHEDULES)
def test_ranks_compute_in_the_order_of_torch(schedule, each):
    """Each rank of 2 to 8 has the passes of torch's own schedule, in its order."""
    from torch.distributed.pipelining import ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble

    kind = {"zero_bubble": ScheduleInterleavedZeroBubble, "zero_bubble_v": ScheduleZBVZeroBubble}[schedule]
    for ranks, rounds in ((2, 1), (2, 3), (4, 1), (4, 2), (8, 4)):
        micro_batches = ranks * rounds
        state = SimpleNamespace(
            pp_group_size=ranks,
            n_local_stages=each,
            num_stages=ranks * each,
            _n_microbatches=micro_batches,
            microbatches_per_round=ranks,
        )
        for rank, planned in enumerate(orders(schedule, each, ranks, micro_batches)):
            theirs = kind._calculate_single_rank_operations(state, rank)
            found = [
                (KINDS[action.computation_type.name], action.stage_index, action.microbatch_index)
                for action in theirs
                if action is not None
            ]
            assert planned == found


@pytest.mark.parametrize(("schedule", "each"), SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_wait_a_third_as_long(schedule, each, ranks):
    """A step lasts one pass per other rank longer than a rank computes, if all passes take the same time."""
    passes = {"forward": 1.0, "input": 1.0, "weight": 1.0}
    found = orders(schedule, each, ranks, 2 * ranks)
    computes = 3 * each * 2 * ranks
    assert duration_s(found, passes, stages=ranks * each) == computes + ranks - 1


def test_passes_that_cannot_begin_are_an_error():
    """An order in which ranks wait for each other has no duration."""
    found = [list(reversed(order)) for order in orders("zero_bubble", 2, 2, 2)]
    with pytest.raises(ValueError, match="wait for each other"):
        duration_s(found, {"forward": 1.0, "input": 1.0, "weight": 1.0}, stages=4)


@pytest.mark.parametrize("schedule", ["zero_bubble", "zero_bubble_v"])
def test_less_waiting_costs_memory(schedule):
    """Beside an interleaved pipeline, ranks wait less, and hold whole gradients and what the second half needs."""
    interleaved = {"gpus": 64, "pipeline": 4, "virtual_stages": 2, "micro_batch": 1, "micro_batches": 16}
    plain, split = (
        Layout(**interleaved, sequence=4096, recompute="full", whole_gradients=True, **more)
        for more in ({}, {"schedule": schedule})
    )
    bubbles = [speed(LLAMA, layout, H100, OURS).parts["pipeline bubble"] for layout in (plain, split)]
    assert bubbles[1] < 0.8 * bubbles[0]
    peaks = [memory(LLAMA, layout, H100, OURS).peak_gb for layout in (plain, split)]
    assert peaks[1] > 1.5 * peaks[0]
