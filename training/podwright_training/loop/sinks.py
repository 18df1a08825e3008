"""Send metrics to TensorBoard or Weights & Biases; their packages are optional."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, Protocol

from podwright_training.config.train_config import TrainConfig
from podwright_training.run_folder import RunFolder, write_atomically

PACKAGES = ("tensorboard", "wandb")  # each the name of its option too


class Sink(Protocol):
    """Receiver of the events that ``Metrics`` writes."""

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Write one event."""


def missing_packages(options: TrainConfig) -> Iterator[str]:
    """Yield one line for each requested package that is not installed."""
    for name in PACKAGES:
        if getattr(options, name) and importlib.util.find_spec(name) is None:
            yield f"{name} = 1: package {name} is not installed; pip install {name}, or remove the option"


def open_sinks(options: TrainConfig, folder: RunFolder) -> list[Sink]:
    """Open the sinks that the options ask for."""
    sinks: list[Sink] = []
    if options.tensorboard:
        sinks.append(TensorBoard(folder))
    if options.wandb:
        sinks.append(WeightsAndBiases(options, folder))
    return sinks


class TensorBoard:
    """Write every number of an event as ``<event>/<name>`` over steps."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder.tensorboard))

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Add the event's numbers and flush them to disk."""
        for name, value in _numbers(values).items():
            self._writer.add_scalar(f"{event}/{name}", value, values["step"])
        self._writer.flush()


class WeightsAndBiases:
    """Log to a W&B run with the folder's name, resumed after a restart."""

    def __init__(self, options: TrainConfig, folder: RunFolder) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]  # an option: not installed everywhere

        self._run = wandb.init(
            dir=folder.root,
            name=folder.root.absolute().name,
            id=wandb_id(folder),
            resume="allow",
            config=options.to_dict(),
        )

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Log the event's numbers; log ``step`` too, as wandb's own count cannot go back after a resume."""
        self._run.log({"step": values["step"], **{f"{event}/{key}": item for key, item in _numbers(values).items()}})


def wandb_id(folder: RunFolder) -> str:
    """Return the id of a run folder's W&B run, drawn once: two users with equal folder names have two runs."""
    if not folder.wandb_id.exists():
        write_atomically(folder.wandb_id, f"{secrets.token_hex(8)}\n")
    return folder.wandb_id.read_text().strip()


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    for name, by_source in values.items():
        if isinstance(by_source, Mapping):
            flat |= {f"{name}/{source}": value for source, value in by_source.items()}
    return {name: value for name, value in flat.items() if isinstance(value, Real) and name != "step"}
