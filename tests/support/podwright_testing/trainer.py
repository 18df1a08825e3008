"""The trainer of this checkout on rehearsed hosts: Python and packages of this machine, and programs for jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from podwright import checkout
from podwright_rehearsal.run.supplies import dataset

PYTHON, PACKAGES, TRAINER, COMMON, DATASET = (
    "/opt/python",
    "/opt/packages",
    "/opt/training",
    "/opt/common",
    "/opt/dataset",
)
MODULES = {"torchrun": "torch.distributed.run", "podwright-train": "podwright_training"}


def binds() -> list[tuple[Path, str]]:
    """Return what hosts need of this machine."""
    packages = Path(torch.__file__).parents[1]
    ours = [(Path(sys.base_prefix), PYTHON), (packages, PACKAGES), (checkout.TRAINING, TRAINER)]
    return [*ours, (checkout.COMMON, COMMON), (dataset(), DATASET)]


def install(environment: Path) -> None:
    """Write the programs of an environment, a folder on the hosts' shared file system."""
    interpreter = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    # Each host takes the machine's processors to be its own: their threads would spin.
    variables = f"LD_LIBRARY_PATH={PYTHON}/lib PYTHONPATH={TRAINER}:{COMMON}:{PACKAGES} OMP_NUM_THREADS=1"
    for name, module in MODULES.items():
        program = environment / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/bash\nexport {variables}\nexec {interpreter} -m {module} "$@"\n')
        program.chmod(0o755)
