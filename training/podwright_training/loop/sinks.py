"""Other places that metrics go to if one asks for them: TensorBoard, Weights & Biases. Their packages are optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Protocol

from podwright_training.config.train_config import TrainConfig
from podwright_training.run_folder import RunFolder

PACKAGES = ("tensorboard", "wandb")  # each the name of its option too


class Sink(Protocol):
    """Takes the events that ``Metrics`` writes."""

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """One event."""


def missing_packages(options: TrainConfig) -> Iterator[str]:
    """What was asked for and is not installed, one line each."""
    for name in PACKAGES:
        if getattr(options, name) and importlib.util.find_spec(name) is None:
            yield f"{name} = 1: package {name} is not installed; pip install {name}, or leave the option out"


def open_sinks(options: TrainConfig, folder: RunFolder) -> list[Sink]:
    """Those the options ask for."""
    sinks: list[Sink] = []
    if options.tensorboard:
        sinks.append(TensorBoard(folder))
    if options.wandb:
        sinks.append(WeightsAndBiases(options, folder))
    return sinks


class TensorBoard:
    """Every number of an event as ``<event>/<name>`` over steps."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder.tensorboard))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add the event's numbers; they are on disk when a log reader looks, not only at the end."""
        for name, value in _numbers(values).items():
            self._writer.add_scalar(f"{event}/{name}", value, values["step"])
        self._writer.flush()


class WeightsAndBiases:
    """A run of the folder's name, gone on with after a restart."""

    def __init__(self, options: TrainConfig, folder: RunFolder) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]  # an option: not installed everywhere

        name = folder.root.absolute().name
        self._run = wandb.init(dir=folder.root, name=name, id=name, resume="allow", config=options.to_dict())

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Log the event's numbers; ``step`` is one of them, as wandb's own count cannot go back after a resume."""
        self._run.log({"step": values["step"], **{f"{event}/{key}": item for key, item in _numbers(values).items()}})


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, Real) and name != "step"}
