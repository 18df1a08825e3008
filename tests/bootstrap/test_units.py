"""Units of systemd: daemons that crash are started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN
from podwright_bootstrap.host import process, units
from podwright_bootstrap.steps import slurm


@pytest.mark.parametrize(
    ("role", "daemons"),
    [
        (CONTROLLER, ["munge", "slurmctld", "slurmdbd"]),
        (COMPUTE, ["munge", "slurmd"]),
        (LOGIN, ["munge", "sackd", "slurmd"]),
    ],
)
def test_slurms_daemons_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, daemons: list[str]
) -> None:
    """HyperPod's units say Restart=no; each daemon of a role gets the setting beside its unit, and no other."""
    monkeypatch.setattr(units, "FOLDER", tmp_path)
    monkeypatch.setattr(process, "run", lambda *_, **__: None)
    monkeypatch.setattr(slurm, "_by_api", lambda _: iter(()))
    node = SimpleNamespace(role=role, parameters=SimpleNamespace(slurm_by_api=True))
    list(slurm.SlurmStep().apply(cast("Any", node)))
    written = {file.parent.name: file.read_text() for file in tmp_path.glob("*/podwright-restart.conf")}
    assert sorted(written) == [f"{name}.service.d" for name in daemons]
    assert set(written.values()) == {"[Service]\nRestart=on-failure\nRestartSec=5\n"}
