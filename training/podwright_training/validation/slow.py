"""Find slow members of a group of equals, from measurements that vary.

A subject's speed is its fastest measurement: other load on a machine slows some measurements, a fault slows all of
them. A pair of nodes is as fast as its slower node, so a node whose fastest pair is slow is slow itself, and its
partners, which have other pairs, are not.

The limit is relative to the median subject. It is ``TOLERANCE`` below, or twice the spread of one subject's own
measurements where that is more, and never more than ``MOST_TOLERANCE``.

The job on the nodes and ``podwright validate`` on the user's machine both use this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

TOLERANCE = 0.2
MOST_TOLERANCE = 0.6
LEAST_SUBJECTS = 3  # Two subjects do not show which one is slow.


def spread(measured: Iterable[Sequence[float]]) -> float:
    """Return how far a subject's median is below its fastest measurement, as a share; the median of all subjects."""
    shares = [1 - median(speeds) / max(speeds) for speeds in measured if speeds and max(speeds) > 0]
    return median(shares) if shares else 0.0


def limit(fastest: Iterable[float], *, spread: float, tolerance: float = TOLERANCE) -> float:
    """Return the speed below which a subject is slow; 0 with too few subjects to know."""
    speeds = list(fastest)
    if len(speeds) < LEAST_SUBJECTS:
        return 0.0
    return median(speeds) * (1 - min(MOST_TOLERANCE, max(tolerance, 2 * spread)))


def slow(measured: Mapping[str, Sequence[float]], *, tolerance: float = TOLERANCE) -> list[str]:
    """Return the subjects whose fastest measurement is below the limit, slowest first."""
    fastest = {name: max(speeds) for name, speeds in measured.items() if speeds}
    min_speed = limit(fastest.values(), spread=spread(measured.values()), tolerance=tolerance)
    return sorted((name for name, speed in fastest.items() if speed < min_speed), key=fastest.__getitem__)


def slow_nodes(pairs: Mapping[tuple[str, str], Sequence[float]]) -> list[str]:
    """Return the nodes all of whose pairs are slow, slowest first.

    Args:
        pairs: measurements of each pair of nodes.
    """
    fastest = fastest_of_nodes(pairs)
    min_speed = limit(fastest.values(), spread=spread(pairs.values()))
    return sorted((name for name, speed in fastest.items() if speed < min_speed), key=fastest.__getitem__)


def slow_pairs(pairs: Mapping[tuple[str, str], Sequence[float]]) -> list[tuple[str, str]]:
    """Return the slow pairs of nodes that are not slow themselves: the network between them is."""
    fastest = {pair: max(speeds) for pair, speeds in pairs.items() if speeds}
    named = set(slow_nodes(pairs))
    normal_pairs = {pair: speed for pair, speed in fastest.items() if not named & set(pair)}
    min_speed = limit(normal_pairs.values(), spread=spread(pairs[pair] for pair in normal_pairs))
    return sorted((pair for pair, speed in normal_pairs.items() if speed < min_speed), key=normal_pairs.__getitem__)


def fastest_of_nodes(pairs: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, float]:
    """Return the fastest measurement of each node with any other."""
    fastest: dict[str, float] = {}
    for pair, speeds in pairs.items():
        for name in pair if speeds else ():
            fastest[name] = max(fastest.get(name, 0.0), *speeds)
    return fastest
