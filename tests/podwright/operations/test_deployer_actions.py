"""The IAM actions of each resource type that the stacks create."""

from __future__ import annotations

from podwright import checkout
from podwright.operations.deployment.deployer_actions import ACTIONS

BINDINGS = checkout.ROOT / "constructs" / "podwright_constructs" / "aws"


def test_every_resource_type_has_its_actions():
    """The table has a row for each generated resource type, and for no other."""
    modules = {path.stem for path in BINDINGS.glob("*.py")} - {"__init__", "provider"}
    assert set(ACTIONS) == {f"aws_{name}" for name in modules if not name.startswith("data_")}
