"""The option that rewrites golden texts."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update``; it is known where this folder or a file of it is named on the command line."""
    parser.addoption("--update", action="store_true", help="rewrite what the golden cases expect; refused in CI")


@pytest.fixture(scope="session")
def update(pytestconfig: pytest.Config) -> bool:
    """Return whether expected texts are to be rewritten."""
    wanted = bool(pytestconfig.getoption("--update", default=False))
    if wanted and os.environ.get("CI"):
        pytest.fail("--update rewrites what tests expect: run it at your desk, not in CI")
    return wanted
