"""Say which hosts hold the state of a run in their memory: each its own part, and a copy of the host's before it.

If fewer nodes train than are there, those that together hold all parts are chosen. If that leaves out the leader's
host, the agent of rank 0 itself looks for newer terms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def fewest_holders(ring: Sequence[str], living: Collection[str], *, preferred: str, at_most: int) -> set[str]:
    """Return few of the living hosts that hold every part of the state, with ``preferred`` among them where possible.

    Args:
        ring: The hosts that wrote the state, in the order of their ranks: the copy of the last one is on the first.
        living: The hosts that can be asked.
        preferred: The host that leads.
        at_most: How many may be returned; if more are needed, or a part is lost, the set is empty.
    """
    for start in ([preferred] if preferred in living else [], []):
        chosen = _cover(ring, living, start)
        if chosen and len(chosen) <= at_most:
            return chosen
    return set()


def _cover(ring: Sequence[str], living: Collection[str], start: Iterable[str]) -> set[str]:
    """Add hosts to ``start`` until they hold all parts; return no hosts if a part is lost."""
    chosen = set(start)
    lost = next((place for place, host in enumerate(ring) if host not in living), 0)
    for place in range(lost, lost + len(ring)):  # After a lost host there is no choice, so the loop begins there.
        both = ring[place % len(ring)], ring[(place + 1) % len(ring)]
        if not chosen.intersection(both):
            living_holders = [host for host in both if host in living]
            if not living_holders:
                return set()
            chosen.add(living_holders[-1])  # it holds the next part too
    return chosen
