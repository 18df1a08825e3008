"""What a host of the cluster stand-in can resolve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from podwright.rehearsal.slurm import Node, SlurmStandIn
from podwright_bootstrap.contract import PROVISIONING_PARAMETERS_NAME

pytestmark = pytest.mark.hosts
LUSTRE = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"


def test_a_host_resolves_the_file_systems_of_its_contract(
    make_stand_in: Callable[..., SlurmStandIn], make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """The name of the cluster's file system has an address, not the host's own, as in a VPC; others have none."""
    (tmp_path / PROVISIONING_PARAMETERS_NAME).write_text(json.dumps({"fsx_dns_name": LUSTRE}))
    (tmp_path / "on_create.sh").write_text(
        f"#!/bin/bash\ngetent ahostsv4 {LUSTRE} && ! getent ahostsv4 other.example\n"
    )
    stand_in = make_stand_in(nodes=[make_node("ip-10-0-16-5", role="controller")])
    stand_in.start()
    for _ in range(2):
        boot = stand_in.boot_one("ip-10-0-16-5", tmp_path)
        assert boot.exit_code == 0, boot.log.read_text()
        assert "127." not in boot.log.read_text()
    assert stand_in.path("ip-10-0-16-5", "/etc/hosts").read_text().count(LUSTRE) == 1
