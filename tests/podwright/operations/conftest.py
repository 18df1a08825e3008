"""One AWS stand-in for all tests of commands for running clusters, in a session of their own environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.hyperpod import ClusterMaker


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsStandIn]:
    """Return the running stand-in; tests share it, so each names its own clusters."""
    with AwsStandIn(directory=tmp_path_factory.mktemp("aws"), transition_s=0.2) as stand_in:
        yield stand_in


@pytest.fixture(scope="session")
def maker(aws: AwsStandIn) -> ClusterMaker:
    """Return what makes clusters in the stand-in."""
    return ClusterMaker(aws)


@pytest.fixture
def folder(aws: AwsStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder, with the environment that leads to the stand-in."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PODWRIGHT_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
