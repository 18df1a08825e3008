"""Runs are compiled by default where device, layout and machine allow it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from podwright_training.config import compilation
from podwright_training.config.compilation import DRY_RUN_DEVICE, is_compiled
from podwright_training.config.train_config import TrainConfig
from podwright_training.dry_run import gpu

ZERO_BUBBLE = {"pipeline_parallel": 2, "pipeline_schedule": "zero_bubble"}
BUDGET = {"activation_checkpointing_mode": "budget"}


@pytest.fixture
def complete_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a C compiler and Python's headers; its folder of headers."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "device_type", "compiled"),
    [
        ({}, "cuda", True),
        ({}, "cpu", False),
        ({}, "neuron", False),
        ({}, gpu.NAME, True),
        ({"compile": False}, "cuda", False),
        ({"compile": True}, "cpu", True),
        (ZERO_BUBBLE, "cuda", False),
        (BUDGET, "cpu", True),
        ({**ZERO_BUBBLE, **BUDGET}, "cuda", False),
        ({"offload_activations": True}, "cuda", False),
        ({**BUDGET, "activation_checkpointing": False}, "cpu", False),
        ({"async_tensor_parallel": True, "tensor_parallel": 2}, "cpu", True),
        ({"device_rules": "neuron"}, DRY_RUN_DEVICE, False),
    ],
)
@pytest.mark.usefixtures("complete_machine")
def test_gpus_compile_by_default(options, device_type, compiled):
    """An option decides; without it GPUs compile, and others only what the compiler alone can do."""
    assert is_compiled(TrainConfig(**options), device_type) is compiled


def test_a_machine_without_headers_or_compiler_does_not_compile_by_default(complete_machine, tmp_path, monkeypatch):
    """Both are named with their packages; what is said explicitly stays so."""
    (complete_machine / "Python.h").unlink()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not is_compiled(TrainConfig(), "cuda")
    assert is_compiled(TrainConfig(compile=True), "cuda")
    header = complete_machine / "Python.h"
    needed = f"a C compiler (gcc) and {header} (python3-dev)"
    assert compilation.toolchain_problem() == f"torch.compile needs {needed}"
