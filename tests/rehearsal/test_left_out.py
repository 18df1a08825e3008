"""A rehearsal leaves parts of a cluster out, because its hosts reach nothing outside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from podwright import checkout
from podwright.check.load import load
from podwright.settings.operations import S3State
from podwright_bootstrap.contract import Accounting, ProvisioningParameters, WorkerGroup
from podwright_bootstrap.features import NodeFeatures, Prolog
from podwright_rehearsal.aws import AwsStandIn
from podwright_rehearsal.run import retained
from podwright_rehearsal.run.hosting import Debian13Hosts, FlatHosts
from podwright_rehearsal.run.left_out import OWN_DATABASE, without
from podwright_testing.unreachable import NODES

EXAMPLES = sorted(checkout.ROOT.glob("examples/*/cluster.yaml"))
PARAMETERS = ProvisioningParameters("demo", "controller", [WorkerGroup("workers", "gpu")])


def test_each_part_that_is_left_out_has_a_line(tmp_path: Path) -> None:
    """The line names the key and what hosts go without; flat hosts, which are not booted, say that instead."""
    content = yaml.safe_load((checkout.ROOT / "examples/minimal/cluster.yaml").read_text())
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({**content, "nodes": {**NODES, "downloads": {"source": "bundle"}}}))
    settings = load(path)
    lines = Debian13Hosts.omitted_parts(settings)
    assert [line.partition(": ")[0] for line in lines] == [
        "nodes.ldap",
        "nodes.s3_mounts",
        "nodes.containers",
        "nodes.observability",
        "nodes.downloads",
    ]
    assert "ldaps://ldap.corp.test" in lines[0]
    assert "/mnt/corpora" in lines[1]
    assert FlatHosts.omitted_parts(settings) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.parent.name for path in EXAMPLES])
def test_a_line_is_there_if_hosts_get_other_parameters(path: Path) -> None:
    """Of each example that hosts cannot have as it is, the rehearsal says what it leaves out; of others nothing."""
    settings = load(path)
    database = Accounting(endpoint="db.test", port=3306, secret_arn="arn")
    created = settings.accounting.source in {"create", "existing"}
    given = replace(PARAMETERS, nodes=settings.nodes.features(), accounting=database if created else None)
    assert (without(given) != given) is bool(Debian13Hosts.omitted_parts(settings))
    assert without(without(given)) == without(given)


def test_all_else_stays_as_it_is() -> None:
    """Features that hosts can have, and accounting on the controller, are those of the cluster."""
    nodes = NodeFeatures(motd=True, prolog=Prolog(), skip=("striping",))
    for accounting in (None, OWN_DATABASE):
        given = replace(PARAMETERS, nodes=nodes, accounting=accounting)
        assert without(given) == given


@pytest.mark.slow
def test_the_bucket_of_the_states_is_there_before_and_gone_after(tmp_path: Path) -> None:
    """Terraform finds the bucket that the settings name, and nothing of it is left in the account."""
    settings = load(checkout.ROOT / "examples/production/cluster.yaml")
    assert isinstance(settings.state, S3State)
    with AwsStandIn(directory=tmp_path, region=settings.region) as aws:
        retained.make_bucket_of_states(aws.client, settings)
        aws.client("s3").put_object(Bucket=settings.state.bucket, Key="llm-production/state", Body=b"{}")
        retained.release(aws.client)
        retained.remove(aws.client, settings)
        assert aws.inventory() == []
