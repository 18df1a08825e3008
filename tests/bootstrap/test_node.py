"""A host's role, and its pauses while it asks a shared service."""

from __future__ import annotations

import dataclasses
import json

import pytest

from podwright_bootstrap import node
from podwright_bootstrap.contract import RESOURCE_CONFIG_VARIABLE, ProvisioningParameters, WorkerGroup

PARAMETERS = ProvisioningParameters("test", "controller", [WorkerGroup("workers", "gpu")])


@pytest.mark.parametrize(("hosts", "poll_s"), [(1, 2), (16, 2), (200, 2), (1000, 10), (5000, 50)])
def test_all_hosts_together_ask_no_more_than_a_hundred_a_second(hosts, poll_s, tmp_path, monkeypatch):
    """The more hosts the service lists, the rarer each asks, but none more often than every two seconds."""
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(1, hosts + 1)]
    instances = [{"InstanceId": f"i-{address}", "CustomerIpAddress": address} for address in addresses]
    config = tmp_path / "resource_config.json"
    config.write_text(json.dumps({"InstanceGroups": [{"Name": "workers", "Instances": instances}]}))
    monkeypatch.setenv(RESOURCE_CONFIG_VARIABLE, str(config))
    monkeypatch.setattr(node, "own_addresses", lambda: {addresses[-1]})
    me = node.identify(PARAMETERS)
    assert me.instance_id == f"i-{addresses[-1]}"
    assert me.hosts == hosts
    assert me.poll_s == poll_s
    assert hosts / me.poll_s <= node.HOSTS_PER_S


def test_every_login_group_has_its_role() -> None:
    """AWS's key names the first login group, a key of ours the others."""
    parameters = dataclasses.replace(PARAMETERS, login_group="login", more_login_groups=["notebooks"])
    assert [node.role_of(name, parameters) for name in ("login", "notebooks")] == ["login", "login"]
