"""An example's account and its stacks, deployed by the real Terraform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from podwright.check.load import load
from podwright_rehearsal.aws import AwsStandIn
from podwright_testing.workspace import Workspace

Deploy = Callable[[AwsStandIn, Path], Workspace]


@pytest.fixture
def aws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AwsStandIn]:
    """An account in the region of the example that is the test's parameter."""
    region = load(request.param).region
    with AwsStandIn(directory=tmp_path / "aws", region=region, transition_s=0.1, instant_deletion=True) as stand_in:
        yield stand_in


@pytest.fixture
def synthesized(tmp_path: Path) -> Iterator[Deploy]:
    """The stacks of a settings file, ready for Terraform."""
    with ExitStack() as running:

        def workspace(aws: AwsStandIn, config: Path) -> Workspace:
            ready = Workspace(config=config, folder=tmp_path / "workspace", aws=aws)
            return running.enter_context(ready.synthesized())

        yield workspace
