"""The whole path where nothing but plain processes is permitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from podwright.config_file import CONFIG_VARIABLE
from podwright_rehearsal.command import EXAMPLE
from podwright_rehearsal.run.hosting import Debian13Hosts, FlatHosts
from podwright_rehearsal.run.rehearsal import MAX_STEPS, last_per_step, steps
from podwright_testing.metrics import logged
from podwright_training.run_folder import RunFolder


def test_only_the_preparation_differs() -> None:
    """Flat hosts have one step instead of the boots; every other step is the same."""
    flat, namespaced = list(steps(FlatHosts)), list(steps(Debian13Hosts))
    assert [name for name in namespaced if name not in flat] == ["bootstrap", "bootstrap again"]
    assert [name for name in flat if name not in namespaced] == ["environment"]
    assert flat.index("environment") == namespaced.index("bootstrap")


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a newcomer's flat rehearsal, in an empty folder, that ran to its end."""
    empty = tmp_path_factory.mktemp("empty")
    command = [sys.executable, "-m", "podwright.cli", "rehearse", "--flat", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    environment["UV_FIND_LINKS"] = str(empty)  # of somebody who uses uv: no wheel of ours is there
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"an example is rehearsed: {EXAMPLE}" in done.stderr
    assert list(empty.iterdir()) == []
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1]


@pytest.mark.rehearsal
@pytest.mark.terraform
def test_a_flat_rehearsal_goes_all_the_way(summary: dict[str, Any]) -> None:
    """It says what it did not rehearse; the job lost a host, went on and did every step, and nothing is left."""
    assert summary["hosts"] == "flat (as --flat says)"
    assert "the lifecycle scripts are NOT rehearsed" in summary["environment"]
    assert summary["nodes idle"] == "2 of 2"
    assert summary["resources left"] == "0"
    run = RunFolder(FlatHosts.folder / "fsx" / "runs" / "rehearsal")
    first, second = logged(run, "start")
    assert (first["step"], first["world_size"], second["world_size"]) == (0, 4, 4)
    assert second["step"] > 0
    assert [event.step for event in last_per_step(run)] == list(range(1, MAX_STEPS + 1))
