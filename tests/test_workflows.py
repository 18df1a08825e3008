"""Workflows of CI run actions that nobody can exchange, and may write nothing."""

from __future__ import annotations

import re

import pytest
import yaml

from podwright.checkout import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def test_there_are_workflows():
    """The folder has at least one, so that the tests below say something."""
    assert WORKFLOWS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path):
    """An action is named by its commit, with its version beside it: whoever owns an action can move its tags."""
    used = [line.split("uses:", 1)[1].strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [name for name in used if not PINNED.fullmatch(name)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read(path):
    """The token of a workflow reads the repository and nothing else, in every job."""
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == []
