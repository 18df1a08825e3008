"""Rounds of disjoint pairs, so that pairs measured at once share no node."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[str, str]


def rounds(names: Sequence[str]) -> list[list[Pair]]:
    """Return rounds in which each pair of names meets exactly once, and no name twice in a round.

    The circle method: one name stays, the others move on by one. An even number n of names takes n - 1 rounds. An odd
    one takes n, and each name sits out once.
    """
    circle: list[str | None] = list(names)
    if len(circle) % 2:
        circle.append(None)
    half, meetings = len(circle) // 2, []
    for _ in range(len(circle) - 1):
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        meetings.append([(node, partner) for node, partner in opposite if node is not None and partner is not None])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return meetings
