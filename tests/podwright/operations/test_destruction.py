"""``podwright destroy`` deletes, keeps or refuses, by the present file and by the states of its stacks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podwright.check.load import load
from podwright.errors import ArgumentError
from podwright.operations.deployment import destroy
from podwright.operations.deployment.destroy import Destruction

SETTINGS = """\
name: podwright-demo
region: us-west-2
network: {source: create, availability_zone_id: usw2-az1}
lustre: {source: create, on_destroy: destroy}
bucket: {source: create, on_destroy: destroy}
role: {source: create}
cluster:
  instance_groups:
    - {name: controller, role: controller, instance_type: ml.m5.xlarge, count: 1}
    - {name: workers, role: compute, instance_type: ml.g5.12xlarge, count: 2, partition: gpu}
training: {source: bundled}
"""
ACCOUNTING = (
    "accounting: {source: create, subnet_cidrs: {usw2-az1: 10.0.1.0/28, usw2-az2: 10.0.1.16/28}, on_destroy: %s}\n"
)
HOMES = {"type": "aws_fsx_openzfs_file_system", "id": "fs-0001", "storage_capacity": 64, "skip_final_backup": True}
DATABASE = {"type": "aws_db_instance", "id": "podwright-demo", "allocated_storage": 50}


def destruction(folder: Path, patch: pytest.MonkeyPatch, sections: str, **attributes: Any) -> Destruction:
    """Return the destruction for a file with these sections and for one deployed resource with these attributes."""
    file = folder / "cluster.yaml"
    file.write_text(SETTINGS + sections, encoding="utf-8")
    kind = attributes.pop("type")
    resource = {"mode": "managed", "type": kind, "name": "it", "instances": [{"attributes": attributes}]}
    stacks = {
        "foundation": SimpleNamespace(state=lambda: {"resources": [resource]}, addresses=dict),
        "cluster": SimpleNamespace(state=dict, addresses=dict),
    }
    patch.setattr(destroy, "stacks", lambda *_, **__: stacks)
    return Destruction.of(
        load(file),
        cast("Any", SimpleNamespace(folder=folder)),
        cast("Any", None),
        only=None,
        empty_bucket=False,
        delete_file_systems=False,
    )


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("", "the file no longer creates openzfs"),
        ("openzfs: {source: none}\n", "the file no longer creates openzfs"),
        (
            "openzfs: {source: existing, dns_name: fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com}\n",
            "the file no longer creates",
        ),
        ("openzfs: {source: create}\n", "openzfs.on_destroy is `retain`"),
    ],
)
def test_only_an_explicit_word_lets_a_file_system_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, reason: str
) -> None:
    """A section that has left the file says nothing about the files that its file system holds."""
    planned = destruction(tmp_path, monkeypatch, section, **HOMES)
    assert list(planned.kept_file_systems) == ["aws_fsx_openzfs_file_system.it"]
    assert f"because {reason}" in planned.text()
    again = destroy._next_deployment(planned.settings, planned.kept_file_systems)
    assert ("write openzfs with source: create again" in again) == ("no longer" in reason)


def test_an_explicit_word_lets_a_file_system_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``destroy`` in the file deletes a file system, which the list names."""
    planned = destruction(tmp_path, monkeypatch, "openzfs: {source: create, on_destroy: destroy}\n", **HOMES)
    assert not planned.kept_file_systems
    assert "  with all data: fs-0001 (64 GiB)" in planned.text()


@pytest.mark.parametrize(
    ("on_destroy", "protected", "skips_snapshot", "message", "hint"),
    [
        ("backup", False, True, "`backup` of accounting.on_destroy of database podwright-demo", "podwright deploy"),
        ("retain", False, True, "accounting.on_destroy is `retain`", "deploy that first"),
        ("backup", True, False, "`backup` is not deployed", "podwright deploy"),
        ("destroy", True, False, "`destroy` is not deployed", "podwright deploy"),
        ("", True, False, "the file no longer creates it", "write its accounting section again"),
    ],
)
def test_a_database_is_not_destroyed_against_file_or_deployment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    on_destroy: str,
    protected: bool,
    skips_snapshot: bool,
    message: str,
    hint: str,
) -> None:
    """A last snapshot and RDS's protection are as they were deployed, so nothing is destroyed before they agree."""
    attributes = {**DATABASE, "deletion_protection": protected, "skip_final_snapshot": skips_snapshot}
    with pytest.raises(ArgumentError, match=r"cannot destroy the foundation: .*podwright-demo") as refused:
        destruction(tmp_path, monkeypatch, ACCOUNTING % on_destroy if on_destroy else "", **attributes)
    assert message in str(refused.value)
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("on_destroy", "skips_snapshot", "line"),
    [
        ("backup", False, "  with a last snapshot: database podwright-demo (50 GiB)"),
        ("destroy", True, "  with all data: database podwright-demo (50 GiB)"),
        ("", True, "  with all data: database podwright-demo (50 GiB)"),
        ("", False, "  with a last snapshot: database podwright-demo (50 GiB)"),
    ],
)
def test_a_database_that_goes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_destroy: str, skips_snapshot: bool, line: str
) -> None:
    """The list says whether a last snapshot stays."""
    attributes = {**DATABASE, "deletion_protection": False, "skip_final_snapshot": skips_snapshot}
    section = ACCOUNTING % on_destroy if on_destroy else ""
    assert line in destruction(tmp_path, monkeypatch, section, **attributes).text().splitlines()


def test_settings_that_retain_a_database_do_not_hold_a_foundation_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment that ended before its database was created can be destroyed."""
    planned = destruction(tmp_path, monkeypatch, ACCOUNTING % "retain", type="aws_vpc", id="vpc-0001")
    assert "foundation: 1 to destroy" in planned.text()
