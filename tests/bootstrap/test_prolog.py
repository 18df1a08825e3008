"""The prolog's time: test_slurm_node_features.py has it before real jobs."""

from __future__ import annotations

from podwright_bootstrap.host import process
from podwright_bootstrap.slurm import prolog
from podwright_bootstrap.steps.prolog import LIMITS_S

START_S = 10  # of Python, on a node that is busy


def test_a_sick_node_is_drained_before_the_prolog_is_killed():
    """Even if neither a check's program nor scontrol ends when it is killed, the prolog comes to its own end."""
    killed_s = 2 * process.KILL_LIMIT_S
    assert START_S + prolog.CHECKS_LIMIT_S + prolog.DRAIN_LIMIT_S + killed_s <= LIMITS_S["prolog"]
