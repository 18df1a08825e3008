"""A stack's state as it is stored, compared with what Terraform shows of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podwright.operations.deployment.deployed_stacks import DeployedStack, attributes_in
from podwright.operations.deployment.planned_changes import CREATE, planned

pytestmark = pytest.mark.terraform
RESOURCES = {"terraform_data": {"one": {}, "several": {"count": 2}, "named": {"for_each": {"left": "1", "right": "2"}}}}


def test_the_stored_state_is_what_terraform_shows(tmp_path: Path) -> None:
    """Addresses and attributes are the same, also of counted resources, and an empty state has none."""
    metadata = {"//": {"metadata": {"path": "stack/construct"}}}
    resources = {"terraform_data": {name: {**block, **metadata} for name, block in RESOURCES["terraform_data"].items()}}
    (tmp_path / "cdk.tf.json").write_text(json.dumps({"resource": resources}))
    stack = DeployedStack(tmp_path)
    assert stack.state() == {}
    assert [change.verb for change in planned(stack)] == [CREATE]
    stack.terraform("apply", "-auto-approve", "-input=false")
    shown = json.loads(stack.terraform("show", "-json"))["values"]["root_module"]["resources"]
    attributes = {item["address"]: {**item["values"], "type": item["type"]} for item in shown}
    assert len(attributes) == 5
    assert attributes_in(stack.state()) == attributes
    stack.terraform("destroy", "-auto-approve", "-input=false")
    assert attributes_in(stack.state()) == {}
    assert [change.verb for change in planned(stack)] == [CREATE]
