"""Predict the memory of a Trainium device that trains with NxD Training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from podwright.errors import PodwrightError
from podwright.json_document import read_json
from podwright.planning.accelerator import Accelerator
from podwright.planning.layout import Layout, check
from podwright.planning.memory import memory
from podwright.planning.model import Model
from podwright.planning.trainer_software import Software

SOFTWARE = "neuron.nki"
LAYERS_PER_VIRTUAL_STAGE = 4  # NxD Training's recipes interleave parts of four layers.
MOST_VIRTUAL_STAGES = 5


class NxdtRunError(PodwrightError, ValueError):
    """The file does not describe a run of NxD Training. The message says why."""


@dataclass(frozen=True)
class DeviceMemory:
    """GB of a device at the peak of a step, and whether it has as many."""

    peak_gb: float
    fits: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def predict(run: Mapping[str, Any]) -> DeviceMemory:
    """Predict the memory of a run in the form of ``podwright_training.nxdt.memory.description``.

    Ranks are NeuronCores, of which a device has several: a rank's memory times their number is the device's.

    Raises:
        LayoutError: The layout does not work.
        NxdtRunError: A value is missing, or is no value of a layout.
    """
    try:
        device = Accelerator.of(run["accelerator"])
        layout = Layout(**run["layout"], gpus=run["devices"] * device.dies, sharding="optimizer")
        model = Model(name="model", **run["model"])
        check(layout, model)
        layout = replace(layout, virtual_stages=_virtual_stages(layout, model))
        per_rank = run["sequences_per_step"] / layout.data
    except (KeyError, TypeError) as error:
        raise NxdtRunError(f"not a run of NxD Training: {error}. `podwright-train launch` writes the file") from error
    if layout.pipeline > 1 and layout.micro_batch == per_rank > 1:  # They go through the pipeline one by one.
        layout = replace(layout, micro_batch=1)
    layout = replace(layout, micro_batches=max(1, round(per_rank / layout.micro_batch)))
    needed = memory(model, layout, device.core(), Software.named(SOFTWARE))
    return DeviceMemory(peak_gb=needed.peak_gb * device.dies, fits=needed.fits)


def predict_file(path: Path) -> DeviceMemory:
    """Predict the memory of the run in a JSON file.

    Raises:
        LayoutError: The layout does not work.
        NxdtRunError: The file cannot be read or is not JSON, or a value is missing.
    """
    run = read_json(path, flag="--nxdt", error_class=NxdtRunError)
    if not isinstance(run, dict):
        raise NxdtRunError(f"--nxdt {path} must hold an object, not {type(run).__name__}")
    return predict(run)


def _virtual_stages(layout: Layout, model: Model) -> int:
    if layout.pipeline == 1:
        return 1
    return max(1, min(MOST_VIRTUAL_STAGES, model.layers // layout.pipeline // LAYERS_PER_VIRTUAL_STAGE))
