"""Options of elastic runs, whose number of nodes changes while they train."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

LONGEST_WAIT_S = 30 * 24 * 3600  # longer ones are slips, as of milliseconds
LONGEST_SILENCE_S = 3600  # GPUs idle so long at most after a host is lost.


@dataclass(frozen=True, kw_only=True)
class ElasticOptions:
    """Set the smallest and largest number of nodes of an elastic run, and how soon it removes a silent one."""

    min_nodes: int | None = option(
        None, "Fewest nodes that an elastic run trains on. Default: the run is not elastic.", at_least=1
    )
    max_nodes: int | None = option(
        None, "Most nodes that an elastic run trains on; additional nodes are spares. Default: min_nodes.", at_least=1
    )
    elastic_wait_s: float = option(
        0.0,
        "Longest wait for a spare or a new node to replace a lost one before the run continues with fewer, in seconds.",
        at_least=0,
        at_most=LONGEST_WAIT_S,
    )
    nodes_timeout_s: float = option(
        3600.0,
        "Longest wait in seconds for min_nodes, and of each host for a leader; then the run, or the host, ends.",
        above=0,
        at_most=LONGEST_WAIT_S,
    )
    heartbeat_timeout_s: float = option(
        5.0,
        "Longest silence of a host before an elastic run continues without it, in seconds.",
        at_least=0.5,
        at_most=LONGEST_SILENCE_S,
    )
    hang_timeout_s: float | None = option(
        None,
        "Longest step of an elastic run before its ranks start again, in seconds. Default: 20 times the median step, "
        "at least 10 s, of compiled runs, as on GPUs, at least 120 s.",
        above=0,
        at_most=LONGEST_WAIT_S,
    )


def conflicts(config: ElasticOptions) -> Conflicts:
    """Yield the conflicts among these options."""
    min_nodes, max_nodes = config.min_nodes, config.max_nodes
    if min_nodes is None and max_nodes is not None:
        yield ("max_nodes", "min_nodes"), f"max_nodes {max_nodes} needs min_nodes"
    if min_nodes is not None and max_nodes is not None and min_nodes > max_nodes:
        yield ("min_nodes", "max_nodes"), f"min_nodes {min_nodes} is above max_nodes {max_nodes}"
