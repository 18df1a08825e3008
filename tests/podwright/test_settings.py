"""Settings: what a file may say, its defaults, and the one error that lists every problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from podwright.check import load as loading
from podwright.check.input_errors import InvalidSettingsError, UnreadableFileError
from podwright.config_file import config_path
from podwright.settings.network import CreatedNetwork, ExistingNetwork
from podwright.settings.root import Settings
from podwright.settings.storage import ExistingLustre

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "cluster.yaml").read_text(encoding="utf-8")


def load(folder: Path, text: str) -> Settings:
    """Load a text as a file."""
    file = folder / "cluster.yaml"
    file.write_text(text, encoding="utf-8")
    return loading.load(file)


def test_minimal_file_has_the_documented_defaults(tmp_path: Path):
    """A key that a file leaves out has the default that `explain` names."""
    text = (ROOT / "examples/minimal/cluster.yaml").read_text(encoding="utf-8")
    minimal = load(tmp_path, text).model_dump()
    group = {
        "instance_type": "ml.m5.xlarge",
        "count": 1,
        "partition": None,
        "volume_gib": 500,
        "threads_per_core": 1,
        **dict.fromkeys(("min_count", "key_arn", "training_plan_arn", "capacity", "network_interface", "image_id")),
        **dict.fromkeys(("auto_patch", "scheduled_update")),
        **dict.fromkeys(("other_instance_types", "deep_health_checks", "subnet_ids", "security_group_ids"), ()),
    }
    assert minimal.pop("cluster") == {
        "instance_groups": (
            {"name": "controller", "role": "controller", **group},
            {"name": "workers", "role": "compute", **group, "instance_type": "ml.g5.12xlarge", "partition": "gpu"},
        ),
        "slurm": {"source": "lifecycle"},
        "extra_security_group_ids": (),
        "node_recovery": "automatic",
        "node_provisioning": None,
        "own_tags": True,
    }
    none_yet = {
        "capacity_gib",
        "throughput_mbps_per_tib",
        "throughput_mbps",
        "metadata_iops",
        "backup_id",
        "weekly_maintenance_start_time",
        "root_squash",
        "log_level",
        "log_group_arn",
    }  # the type's own
    lustre = minimal.pop("lustre")
    assert {key: lustre.pop(key) for key in none_yet} == dict.fromkeys(none_yet)
    assert lustre == {
        "source": "create",
        "deployment_type": "PERSISTENT_2",
        "storage_type": "SSD",
        "read_cache": False,
        "data_compression_type": "LZ4",
        "file_system_type_version": "2.15",
        "efa": False,
        "automatic_backup_retention_days": 0,
        "on_destroy": "retain",
        "no_squash_nids": (),
        "data_repositories": (),
        "mount_path": "/fsx",
    }
    assert minimal.pop("accounting") == {"source": "local"}
    off = {"prometheus": {"source": "none"}, "dashboard": {"source": "none"}}
    off |= dict.fromkeys(("logs", "notices", "budget", "session", "assume_role", "ignore_tags"))
    assert {key: minimal.pop(key) for key in off} == off
    assert minimal.pop("state") == {"source": "local"}
    assert not any(minimal.pop("nodes").values())
    assert minimal == {
        "name": "minimal",
        "region": "us-east-2",
        "tags": {},
        "network": {
            "source": "create",
            "availability_zone_id": "use2-az1",
            "cidr": "10.0.0.0/16",
            "public_subnet_cidr": "10.0.0.0/24",
            "private_subnet_cidr": "10.0.16.0/20",
            "secondary_cidrs": (),
            "extra_private_subnets": (),
            "internet": "nat",
            "endpoints": (),
            "flow_logs": "cloudwatch",
        },
        "account_id": None,
        "key": {"source": "none"},
        "openzfs": {"source": "none"},
        "bucket": {
            "source": "create",
            "on_destroy": "retain",
            "noncurrent_version_expiration_days": 90,
            "access_log_bucket": None,
            "access_log_prefix": None,
        },
        "role": {
            "source": "create",
            "permissions_boundary_arn": None,
            "path": None,
            "policy_arns": (),
            "statements": (),
        },
        "training": {"source": "bundled", "requirements": ""},
    }


def test_source_chooses_the_type():
    """``source`` decides which class a resource is, so that stacks can match on it."""
    given = loading.load(ROOT / "examples/bring_your_own/cluster.yaml")
    assert isinstance(given.network, ExistingNetwork)
    assert isinstance(given.lustre, ExistingLustre)
    assert given.network.subnet_ids == ("subnet-0a1b2c3d4e5f60718",)
    assert isinstance(loading.load(ROOT / "cluster.yaml").network, CreatedNetwork)


def test_settings_are_frozen(tmp_path: Path):
    """Nobody changes settings after they were read."""
    loaded = load(tmp_path, GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        loaded.network.source = "existing"  # type: ignore[misc, assignment]


def test_one_error_has_all_problems(tmp_path: Path):
    """``load`` raises one error; its text shows each finding with place, source line and hint."""
    text = GOOD.replace("1200", "1000").replace("usw2-az1", "usw3-az1").replace("count: 2", "count: two")
    with pytest.raises(InvalidSettingsError) as caught:
        load(tmp_path, text)
    assert [finding.code for finding in caught.value.findings] == ["zone-in-region", "created-lustre", "wrong-type"]
    line = next(number for number, line in enumerate(text.splitlines(), start=1) if "usw3-az1" in line)
    assert f"{tmp_path / 'cluster.yaml'}:{line}:" in str(caught.value)
    assert str(caught.value).count("  hint: ") == 3


def test_missing_file_is_its_own_error(tmp_path: Path):
    """An unreadable file is no InvalidSettingsError."""
    with pytest.raises(UnreadableFileError, match=r"nowhere\.yaml: No such file"):
        loading.load(tmp_path / "nowhere.yaml")


def test_config_path(monkeypatch: pytest.MonkeyPatch):
    """PODWRIGHT_CONFIG names the file; without it, or empty, it is cluster.yaml."""
    monkeypatch.setenv("PODWRIGHT_CONFIG", "other/place.yaml")
    assert config_path() == Path("other/place.yaml")
    monkeypatch.setenv("PODWRIGHT_CONFIG", "")
    assert config_path() == Path("cluster.yaml")
    monkeypatch.delenv("PODWRIGHT_CONFIG")
    assert config_path() == Path("cluster.yaml")


@pytest.mark.parametrize("word", ["no", "on", "off", "yes", "true", "y", "0012", "1e3", "12:30", "2026-11-21", "0x1F"])
def test_text_stays_as_written(tmp_path: Path, word: str):
    """Names and tags that YAML 1.1 reads as a boolean, number, time or date stay the text that was written."""
    loaded = load(
        tmp_path, GOOD.replace("name: workers", f"name: {word.replace(':', '')}") + f"tags:\n  {word}: {word}\n"
    )
    assert loaded.cluster.instance_groups[1].name == word.replace(":", "")
    assert loaded.tags == {word: word}


@pytest.mark.parametrize(("written", "number"), [("1_200", 1200), ('"1200"', 1200), ("1200.0", 1200), ("+2400", 2400)])
def test_numbers_as_people_write_them(tmp_path: Path, written: str, number: int):
    """Underscores, quotes, a sign or a zero fraction do not change a whole number."""
    loaded = load(tmp_path, GOOD.replace("capacity_gib: 1200", f"capacity_gib: {written}"))
    assert loaded.lustre.model_dump()["capacity_gib"] == number


@pytest.mark.parametrize("written", ["yes", "1200.5", "0o2260", "1k", "1200 GiB", "[1200]", "{a: 1}", "~", "''"])
def test_numbers_that_are_none(tmp_path: Path, written: str):
    """Anything else where a number is due is reported at its place."""
    with pytest.raises(InvalidSettingsError) as caught:
        load(tmp_path, GOOD.replace("count: 2", f"count: {written}"))
    line = GOOD[: GOOD.index("count: 2")].count("\n") + 1
    assert [(finding.code, finding.line) for finding in caught.value.findings] == [("wrong-type", line)]


@pytest.mark.parametrize("start", ["${", "%{", "TfToken["])
def test_terraform_does_not_evaluate_values(tmp_path: Path, start: str):
    """Text that Terraform would evaluate is refused, as a value and as a tag's key."""
    evil = f"{start}file(1)}}"
    for text in (GOOD.replace("name: podwright-demo", f"name: '{evil}'"), f"{GOOD}tags:\n  '{evil}': secret\n"):
        with pytest.raises(InvalidSettingsError) as caught:
            load(tmp_path, text)
        assert "terraform-template" in {finding.code for finding in caught.value.findings}


TEXT = st.text(st.characters(categories=["L", "N", "Zs"], include_characters="_.:/=+-@"), max_size=20)


KEYS = TEXT.filter(lambda key: key and not key.lower().startswith(("aws:", "podwright:")))


@given(st.dictionaries(KEYS, TEXT, max_size=5).filter(lambda tags: len({key.lower() for key in tags}) == len(tags)))
def test_tags_survive(tmp_path_factory: pytest.TempPathFactory, tags: dict[str, Any]):
    """Whatever AWS takes for a tag and a YAML writer puts into the file comes out of ``load`` unchanged."""
    text = yaml.safe_dump({**yaml.safe_load(GOOD), "tags": tags}, allow_unicode=True)
    assert load(tmp_path_factory.mktemp("tags"), text).tags == tags
