"""For all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from podwright.rehearsal.terraform import find_mirror

# How fast a machine is, is no property of the code.
settings.register_profile("podwright", deadline=None)
settings.load_profile("podwright")

# Terraform's cache of providers, used where there is no mirror, is not for several at once.
worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker and not find_mirror():
    cache = Path(__file__).parents[1] / ".cache" / "terraform-plugins" / worker
    os.environ.setdefault("TF_PLUGIN_CACHE_DIR", str(cache))


class ClustersInTurn(LoadFileScheduling):  # type: ignore[misc]
    """Of ``pytest -n``: a file's tests share a worker, and Slurm's clusters come one after another: it has timeouts."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "clusters" if "/rehearsal/" in file and "/test_aws_" not in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ClustersInTurn:
    """Who shares a worker."""
    return ClustersInTurn(config, log)
