"""The trainer runs with PyTorch from 2.11 on, with huggingface_hub 1 and 2, and from a folder of sources."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import pytest
import torch
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from torch.distributed.checkpoint import staging
from torch.utils._python_dispatch import TorchDispatchMode

from podwright.checkout import ROOT
from podwright_training import code_version
from podwright_training.checkpoint.stager import Stager
from podwright_training.data.hub_client import HubConnectionError
from podwright_training.model import float8_problem
from podwright_training.model.float8 import Float8Linear

NAMES_SINCE_2_13 = """
from torch.distributed import _functional_collectives as collectives
del collectives.all_gather_single, collectives.reduce_scatter_single
from podwright_training.parallel import vocabulary
assert vocabulary.all_gather_single is collectives.all_gather_tensor
assert vocabulary.reduce_scatter_single is collectives.reduce_scatter_tensor
"""
WITHOUT_DISTRIBUTION = """
import sys
sys.path.insert(0, {folder!r})
from podwright_training.code_version import package_version
print(package_version())
"""


def _run(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_collectives_have_the_names_of_an_older_pytorch() -> None:
    """Vocabulary parallelism imports where only the older names of two collectives exist."""
    _run("-c", NAMES_SINCE_2_13)


def test_version_of_a_source_folder_is_its_projects() -> None:
    """A package on PYTHONPATH that is not installed has the version of its pyproject.toml."""
    printed = _run("-I", "-S", "-c", WITHOUT_DISTRIBUTION.format(folder=str(ROOT / "training")))
    assert f'version = "{printed.strip()}"' in (ROOT / "training" / "pyproject.toml").read_text()


def test_installed_version_is_the_same() -> None:
    """The installed package has that version too."""
    assert f'version = "{code_version.package_version()}"' in code_version.SOURCE.read_text()


def test_second_stage_copies_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second stage copies new values into the same memory, also where PyTorch's stager closes itself after one."""
    stage = staging.DefaultStager._stage

    def stage_once(stager: staging.DefaultStager, *arguments: object, **options: object) -> object:
        staged = stage(stager, *arguments, **options)  # type: ignore[arg-type]
        stager._state_dict_stager.close()  # type: ignore[no-untyped-call]
        return staged

    monkeypatch.setattr(staging.DefaultStager, "_stage", stage_once)
    weight, stager = torch.zeros(3), Stager()
    first = stager.stage({"weight": weight, "step": 1})["weight"]
    weight.add_(1)
    second = stager.stage({"weight": weight, "step": 2})
    assert second["weight"].tolist() == [1.0, 1.0, 1.0]
    assert second["step"] == 2
    assert second["weight"].data_ptr() == first.data_ptr() != weight.data_ptr()


def test_lost_connections_are_of_the_hubs_own_client() -> None:
    """Errors of lost connections are those of the client that huggingface_hub uses."""
    assert issubclass(HfHubHTTPError, HubConnectionError)
    assert HubConnectionError.__module__.partition(".")[0] == type(get_session()).__module__.partition(".")[0]


def test_float8_products_are_what_older_compilers_trace() -> None:
    """``_scaled_mm`` is: at ``_scaled_mm_v2``, torch.compile of PyTorch 2.11 breaks the graph, seven times a block."""

    class Names(TorchDispatchMode):
        seen: ClassVar[set[str]] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.add(func.name())
            return func(*args, **(kwargs or {}))

    layer = Float8Linear(32, 16, bias=False, device="meta", dtype=torch.bfloat16)
    with Names() as names:
        layer(torch.empty(4, 32, device="meta", dtype=torch.bfloat16)).sum().backward()
    assert "aten::_scaled_mm" in names.seen
    assert "aten::_scaled_mm_v2" not in names.seen


def test_float8_on_a_cpu_needs_its_kernel() -> None:
    """A PyTorch without the product on CPUs is named before training starts."""
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):
        assert float8_problem(torch.device("cpu")) is None
    else:
        assert "needs PyTorch 2.13" in str(float8_problem(torch.device("cpu")))
