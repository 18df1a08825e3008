"""A deployment that did not end well is settled before the next one plans, or before it is destroyed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from podwright.aws_session import Session
from podwright.check.load import load
from podwright.checkout import ROOT
from podwright.errors import AwsError
from podwright.operations.account.bucket import Contents
from podwright.operations.deployment import deploy, destroy, recovery
from podwright.operations.deployment.adopt import Outcome
from podwright.operations.deployment.kit import OUTPUT
from podwright.operations.moving import steps
from podwright.settings.root import Settings
from podwright_rehearsal.aws import AwsStandIn

ADOPTED = Outcome("adopted", "arn", "aws_vpc.v", "adopted aws_vpc.v vpc-1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings that are deployed from the folder of the test."""
    (tmp_path / OUTPUT).mkdir()
    return load(ROOT / "cluster.yaml")


@pytest.fixture
def adoptions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each adoption whether it changes the state."""
    calls: list[bool] = []

    def adopt(_: Settings, *, folder: Path, apply: bool) -> Iterator[Outcome]:
        assert folder
        calls.append(apply)
        yield ADOPTED

    monkeypatch.setattr(recovery, "adopt", adopt)
    return calls


def test_an_interrupted_deployment_is_settled(settings: Settings, tmp_path: Path, adoptions: list[bool]) -> None:
    """After a stop or an error the next command adopts, a dry run only looks; after a success nobody does."""
    lines: list[str] = []
    with recovery.noted(settings, tmp_path):
        pass
    recovery.recover(settings, tmp_path, lines.append)
    assert (adoptions, lines) == ([], [])
    with pytest.raises(KeyboardInterrupt), recovery.noted(settings, tmp_path):
        raise KeyboardInterrupt
    recovery.recover(settings, tmp_path, lines.append, apply=False)
    recovery.recover(settings, tmp_path, lines.append)
    assert adoptions == [False, True]
    assert lines[-1] == ADOPTED.text
    recovery.forget(settings, tmp_path)
    recovery.recover(settings, tmp_path, lines.append)
    assert adoptions == [False, True]


@pytest.mark.usefixtures("adoptions")
def test_another_region_is_not_settled(settings: Settings, tmp_path: Path) -> None:
    """The note is of one name in one region."""
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt), recovery.noted(settings, tmp_path):
        raise KeyboardInterrupt
    recovery.recover(settings.model_copy(update={"region": "us-east-1"}), tmp_path, lines.append)
    assert lines == []


def test_who_may_not_list_is_told(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that may deploy and not list goes on, and the line names the command for another role."""

    def denied(*_: object, **__: object) -> Iterator[Outcome]:
        raise AwsError("AWS denied tag:GetResources", "get permission", denied=True)

    monkeypatch.setattr(recovery, "adopt", denied)
    recovery.note_file(settings, tmp_path).touch()
    lines: list[str] = []
    recovery.recover(settings, tmp_path, lines.append)
    assert lines[-1] == "not looked for: AWS denied tag:GetResources; another role can: `podwright adopt --apply`"


LOCKED = """\
import time
from pathlib import Path
from podwright.operations.deployment.kit import Kit
with Kit(Path("cluster.yaml"), Path.cwd()).locked("scale"):
    candidate = Path("candidate")
    try:
        candidate.touch()
        time.sleep(600)
    finally:
        candidate.unlink()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """Between two Terraforms too: temporary files go, the lock is given back, and the command to repeat is named."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "candidate").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=500)
    assert "podwright: stopped before its end; to go on, run `podwright scale` again\n" in errors
    assert not (tmp_path / "candidate").exists()


class SettledError(Exception):
    """A command has come as far as to settle what was interrupted."""


def settle(*_: object, **__: object) -> None:
    raise SettledError


@pytest.mark.parametrize("command", [deploy, destroy])
def test_commands_settle_before_they_plan(
    command: ModuleType, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adopted resources are in the plan of the same command."""
    monkeypatch.setattr(command, "stacks", lambda *_, **__: {})
    monkeypatch.setattr(command, "recover", settle)
    kit = SimpleNamespace(synthesize=lambda: None, folder=tmp_path)
    act = {deploy: "_deploy", destroy: "_destroy"}[command]
    with pytest.raises(SettledError):
        getattr(command, act)(Namespace(json=True, dry_run=False), settings, kit, None)


@pytest.mark.usefixtures("folder")
def test_a_bucket_that_is_gone_already_holds_no_destruction(aws: AwsStandIn) -> None:
    """An interrupt cancels Terraform's call, and AWS deletes the bucket that the state still lists."""
    session = Session(region=aws.region)
    programs: list[str] = []
    stack = SimpleNamespace(terraform=lambda verb, *_: programs.append(verb))
    contents = Contents(session, "sagemaker-gone")
    destruction = SimpleNamespace(
        kept_bucket="", bucket="sagemaker-gone", foreign_objects=contents, stacks={"foundation": stack}
    )
    destroy._settle_bucket(cast("Any", destruction), session)
    assert programs == ["plan"]


def test_volumes_stay_with_a_kept_file_system(settings: Settings) -> None:
    """A kept file system stays with its volumes and with the resources that both need; an alarm of it goes."""
    types = {
        "homes": "aws_fsx_openzfs_file_system",
        "projects": "aws_fsx_openzfs_volume",
        "subnet": "aws_subnet",
        "vpc": "aws_vpc",
        "alarm": "aws_cloudwatch_metric_alarm",
        "nat": "aws_nat_gateway",
    }
    resources = {name: {"type": type_, "id": name} for name, type_ in types.items()}
    dependencies = {
        "homes": {"subnet"},
        "projects": {"homes", "subnet"},
        "subnet": {"vpc"},
        "alarm": {"homes"},
        "nat": {"subnet"},
    }
    destruction = destroy.Destruction(
        settings,
        cast("Any", {"foundation": SimpleNamespace(addresses=dict)}),
        {"foundation": resources, "cluster": {}},
        "",
        None,
        empty_bucket=False,
        kept_file_systems={"homes": resources["homes"]},
        dependencies={name: frozenset(needed) for name, needed in dependencies.items()},
    )
    assert destruction.needed_addresses() == {"homes", "projects", "subnet", "vpc"}


def test_a_move_settles_before_it_deploys(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that is repeated takes what its interrupted deployment made."""
    kit = SimpleNamespace(synthesize=lambda: None, locked=lambda _: nullcontext())
    monkeypatch.setattr(steps, "Kit", lambda *_: kit)
    monkeypatch.setattr(steps, "stacks", lambda *_, **__: {})
    monkeypatch.setattr(steps, "recover", settle)
    place = SimpleNamespace(file=ROOT / "cluster.yaml", name=settings.name)
    moved = SimpleNamespace(
        journal=SimpleNamespace(old=place, new=place), folder=tmp_path, new_settings=settings, say=lambda _: None
    )
    with pytest.raises(SettledError):
        steps.ClusterMove._deploy(cast("Any", moved), "cluster")
