"""Boots that a test needs before it can begin."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from podwright_rehearsal.clusters.boots import BootResult


def require_booted(results: Iterable[BootResult]) -> None:
    """Fail the test unless every host booted; print the whole log of each that did not, and of no other."""
    logs = [
        f"{result.hostname}: exit {result.exit_code} after {result.seconds:.1f} s\n"
        f"{result.log.read_text(errors='replace')}"
        for result in results
        if not result.ok
    ]
    if logs:
        pytest.fail("\n".join(logs), pytrace=False)
