"""Replay pipelines that split the backward pass, in the order of ``torch.distributed.pipelining`` (arXiv:2401.10241).

The gradient of a stage's input comes first, since the stage before waits for it. That of the weights follows, where the
rank would wait otherwise; until then the stage keeps what both need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Schedule = Literal["1f1b", "zero_bubble", "zero_bubble_v"]
Kind = Literal["forward", "input", "weight"]
Pass = tuple[Kind, int]  # Kind and stage.


class Action(NamedTuple):
    """A pass of one stage over one micro-batch: forward, or for the gradient of its input or of its weights."""

    kind: Kind
    stage: int
    micro_batch: int


def actions(schedule: Schedule, rank: int, *, ranks: int, stages_per_rank: int, micro_batches: int) -> Iterator[Action]:
    """Yield the passes of a rank in a step, in order."""
    if schedule == "zero_bubble_v":
        passes = _in_a_v(rank, ranks, micro_batches)
    else:
        passes = _interleaved(rank, ranks, stages_per_rank, micro_batches)
    micro_batch_of: Counter[Pass] = Counter()
    for kind, stage in passes:
        micro_batch = micro_batch_of[kind, stage]
        micro_batch_of[kind, stage] += 1
        if micro_batch < micro_batches:
            yield Action(kind, stage, micro_batch)


def _interleaved(rank: int, ranks: int, stages_per_rank: int, micro_batches: int) -> Iterator[Pass]:
    """Yield one forward, one gradient of an input, and the gradient of the weights of ``rank`` passes before."""
    at_a_time = micro_batches // max(1, micro_batches // ranks)
    every = stages_per_rank * micro_batches

    def forward(number: int) -> Pass:
        return "forward", number // at_a_time % stages_per_rank * ranks + rank

    def stage_of_backward(number: int) -> int:
        return (stages_per_rank - 1 - number // at_a_time % stages_per_rank) * ranks + rank

    ahead = min((stages_per_rank - 1) * at_a_time + ranks - 1 - rank, every)
    yield from map(forward, range(ahead))
    for number in range(every + rank):
        if ahead + number < every:
            yield forward(ahead + number)
        if number < every:
            yield "input", stage_of_backward(number)
        if number >= rank:
            yield "weight", stage_of_backward(number - rank)


def _in_a_v(rank: int, ranks: int, micro_batches: int) -> Iterator[Pass]:
    """Yield the passes of a rank's two stages, the way there and the way back, as of enough micro-batches."""
    down, up = rank, 2 * ranks - 1 - rank
    count = max(2 * ranks - 1, micro_batches)
    head_start = 2 * (ranks - rank) - 1
    forward, of_input, of_weight = _passes(down)
    back_forward, back_of_input, back_of_weight = both = _passes(up)
    yield from [forward] * head_start
    yield from [back_forward, forward] * rank
    yield from both * (ranks - rank)
    for number in range(count - ranks):
        if head_start + rank + number < count:
            yield forward
        yield from (of_input, of_weight, *both)
    yield from [of_input, back_of_input] * rank
    yield from [of_input, of_weight] * (ranks - rank)
    yield from [back_of_weight] * rank
    yield from [of_weight] * rank


def _passes(stage: int) -> tuple[Pass, Pass, Pass]:
    return ("forward", stage), ("input", stage), ("weight", stage)


def duration_s(orders: Sequence[Sequence[Action]], seconds: Mapping[Kind, float], *, stages: int) -> float:
    """Return how long a step takes: a pass begins when its rank is free and its input has arrived.

    Args:
        orders: what each rank does.
        seconds: of a pass of one stage.
        stages: of all ranks.
    """
    done: dict[Action, float] = {}
    at, free = [0] * len(orders), [0.0] * len(orders)
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        before = len(done)
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                action = order[at[rank]]
                needed = _needed(action, stages)
                if needed is not None and needed not in done:
                    break
                begin = max(free[rank], done[needed] if needed else 0.0)
                free[rank] = done[action] = begin + _seconds(action, seconds)
                at[rank] += 1
        if len(done) == before:
            raise ValueError("ranks wait for each other")
    return max(free)


def _seconds(action: Action, seconds: Mapping[Kind, float]) -> float:
    """Return the seconds of a pass: the first stage has no input gradient, so all of its backward pass comes last."""
    if action.stage or action.kind == "forward":
        return seconds[action.kind]
    return seconds["input"] + seconds["weight"] if action.kind == "weight" else 0.0


def _needed(action: Action, stages: int) -> Action | None:
    """Return the pass that must come first, on whichever rank."""
    kind, stage, micro_batch = action
    if kind == "forward":
        return Action("forward", stage - 1, micro_batch) if stage else None
    if kind == "input" and stage < stages - 1:
        return Action("input", stage + 1, micro_batch)
    return None
