"""Know the requirements of TorchNeuron, PyTorch's native backend for Trainium.

https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/components/torchneuron.html, Neuron 2.33:
Trainium 2 and 3, PyTorch 2.13 or 2.14, Python 3.12 to 3.14, wheels for Ubuntu 26.04.

Tests train on ``tests/training/torchneuron``: a device ``neuron``, made with PyTorch's PrivateUse1, that computes with
the CPU's kernels.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from podwright_training.errors import UserError

LEGACY = "train on it with NxD Training: podwright-train launch --backend nxdt"
DEVICES = ("Trainium2", "Trainium3")  # that the native path runs on
PYTHONS = ((3, 12), (3, 14))  # the first and the last
SYSTEM = "Ubuntu 26.04"  # TorchNeuron's wheels are built for it.

# Devices of instance families, and their cores: a rank has one, or LNC of them joined.
FAMILIES = {"trn1": "Trainium", "trn1n": "Trainium", "inf2": "Inferentia2", "trn2": "Trainium2", "trn3": "Trainium3"}
CORES = {"Trainium": 2, "Inferentia2": 2, "Trainium2": 8, "Trainium3": 8}
JOINED = {"Trainium2": 2, "Trainium3": 2}  # cores of a logical one, unless LNC says otherwise
LNC = "NEURON_LOGICAL_NC_CONFIG"

PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")  # on EC2's Nitro the instance type


def ranks_per_device(device: str) -> int:
    """Return the ranks of a device such as ``Trainium2``: one for each core that programs see.

    Raises:
        UserError: The environment's number of cores is neither 1 nor 2.
    """
    logical_cores = os.environ.get(LNC) or str(JOINED.get(device, 1))
    if logical_cores not in ("1", "2"):
        raise UserError(f"{LNC}: got {logical_cores}, need 1 or 2, the cores of a logical one")
    return max(1, CORES.get(device, 1) // int(logical_cores))


def device_name() -> str:
    """Return the name of this machine's devices, ``Trainium2`` for example; empty on other machines."""
    try:
        instance_type = PRODUCT_NAME.read_text().strip()
    except OSError:
        return ""
    return device_of(instance_type)


def device_of(instance_type: str) -> str:
    """Return the name of an instance type's Neuron devices; empty if it has none."""
    family = instance_type.removeprefix("ml.").split(".")[0]
    return FAMILIES.get(family.removesuffix("u"), "")


def load() -> None:
    """Import TorchNeuron if it is installed: it registers the device ``neuron``."""
    if find_spec("torch_neuronx"):
        importlib.import_module("torch_neuronx")


def native_problem(device: str) -> str | None:
    """Return the reason why native PyTorch does not run on devices of that name, or ``None``."""
    if not device or device in DEVICES:
        return None
    return f"native PyTorch on Neuron needs {' or '.join(DEVICES)}, and this is {device}: {LEGACY}"


def machine_problem() -> str | None:
    """Return the reason why this machine cannot run native PyTorch on Neuron, or ``None``."""
    if problem := native_problem(device_name()):
        return problem
    python, (oldest, newest) = sys.version_info[:2], PYTHONS
    if not oldest <= python <= newest:
        return f"TorchNeuron needs Python {_dotted(oldest)} to {_dotted(newest)}, and this is {_dotted(python)}"
    if find_spec("torch_neuronx"):
        return None
    system = _system()
    if system == SYSTEM:
        return "there is no torch_neuronx here: install torch-neuronx from Neuron's own index, PyPI's is a placeholder"
    return (
        f"there is no torch_neuronx here, and its wheels are for {SYSTEM}, not {system}: use a container of AWS, or "
        "build it from source"
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _system() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()
