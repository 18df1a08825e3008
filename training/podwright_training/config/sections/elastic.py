"""Options of elastic runs, whose number of nodes changes while they train."""

from __future__ import annotations

from dataclasses import dataclass

from podwright_training.config.option import Conflicts, option

LONGEST_WAIT_S = 30 * 24 * 3600  # longer ones are slips, as of milliseconds
LONGEST_SILENCE_S = 3600  # of idle GPUs at each lost host


@dataclass(frozen=True, kw_only=True)
class ElasticOptions:
    """Set how few and how many nodes an elastic run has, and how soon it gives one up."""

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
        "at least 10 s, with compile at least 120 s.",
        above=0,
        at_most=LONGEST_WAIT_S,
    )


def conflicts(options: ElasticOptions) -> Conflicts:
    """Yield the conflicts among these options."""
    least, most = options.min_nodes, options.max_nodes
    if least is None and most is not None:
        yield ("max_nodes", "min_nodes"), f"max_nodes {most} needs min_nodes"
    if least is not None and most is not None and least > most:
        yield ("min_nodes", "max_nodes"), f"min_nodes {least} is above max_nodes {most}"
