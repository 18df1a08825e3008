"""Send metrics to TensorBoard or Weights & Biases; their packages are optional."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from numbers import Real
from typing import Any, Protocol

from podwright_common.regular_file import read_text
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import first_line
from podwright_training.events import StartEvent, StepEvent, TrainEvent
from podwright_training.run_folder import RunFolder, write_atomically

ID_LIMIT_BYTES = 1 << 10  # A file with an id is smaller.

logger = logging.getLogger(__name__)

PACKAGES = ("tensorboard", "wandb")  # each the name of its option too


class Sink(Protocol):
    """Receiver of the events that ``Metrics`` writes."""

    def write(self, event: StepEvent) -> None:
        """Write one event."""


def problems(config: TrainConfig, *, is_first_rank: bool) -> Iterator[str]:
    """Yield one line for each sink that cannot be opened; the first rank opens them, and needs a login."""
    missing = {name for name in PACKAGES if getattr(config, name) and importlib.util.find_spec(name) is None}
    for name in sorted(missing):
        yield (
            f"{name} = 1: package {name} is not installed; pip install {name}, add it to training.requirements of a "
            "cluster, or remove the option"
        )
    if is_first_rank and config.wandb and "wandb" not in missing and not _is_logged_in():
        yield (
            "wandb = 1: there is no login to Weights & Biases here; run `wandb login`, or name a file with your key in "
            "`secrets: {WANDB_API_KEY: /fsx/…}`, or set WANDB_MODE=offline to keep the metrics in the run's folder"
        )


def open_sinks(config: TrainConfig, folder: RunFolder) -> list[Sink]:
    """Open the sinks that the options select; a sink that cannot be opened is a warning."""
    openers: dict[str, Callable[[], Sink]] = {
        "tensorboard": lambda: TensorBoard(folder),
        "wandb": lambda: WeightsAndBiases(config, folder),
    }
    sinks: list[Sink] = []
    for name in (name for name in PACKAGES if getattr(config, name)):
        try:
            sinks.append(openers[name]())
        except Exception as error:  # noqa: BLE001 - of packages that are not ours: any kind
            logger.warning("metrics: cannot open %s (%s); training continues without it", name, first_line(error))
    return sinks


def _is_logged_in() -> bool:
    """Return whether W&B has a key or needs no key; True also if its package fails."""
    if os.environ.get("WANDB_MODE", "online") != "online" or "WANDB_DISABLED" in os.environ:
        return True
    try:
        import wandb  # type: ignore[import-not-found, unused-ignore]  # an option: not installed everywhere

        return bool(wandb.api.api_key or wandb.setup().settings.mode != "online")
    except Exception as error:  # noqa: BLE001 - as above: opening it will say more
        logger.warning("metrics: cannot ask wandb for its login: %s", first_line(error))
        return True


class TensorBoard:
    """Write every number of an event as ``<event>/<name>`` over steps.

    A start, or a rollback, takes steps again that were written already. TensorBoard draws both, as a curve that runs
    back, unless a new file has the first step that it purges.
    """

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(folder.tensorboard))
        self._writer = self._open()
        self._last_step = 0

    def write(self, event: StepEvent) -> None:
        """Add the event's numbers and flush them to disk."""
        if isinstance(event, StartEvent):
            self._purge(event.step + 1)
        elif isinstance(event, TrainEvent):
            if event.step <= self._last_step:
                self._purge(event.step)
            self._last_step = event.step
        for name, value in _numbers(event).items():
            self._writer.add_scalar(f"{event.kind}/{name}", value, event.step)
        self._writer.flush()

    def _purge(self, first_step: int) -> None:
        """Let TensorBoard forget what was written of this step and later ones."""
        self._writer.close()
        self._writer = self._open(purge_step=first_step)


class WeightsAndBiases:
    """Log to a W&B run with the folder's name, resumed after a restart; the x-axis of every number is the step."""

    def __init__(self, config: TrainConfig, folder: RunFolder) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]  # an option: not installed everywhere

        self._run = wandb.init(
            dir=folder.root,
            name=folder.root.absolute().name,
            id=wandb_id(folder),
            resume="allow",
            config=config.to_dict(),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, event: StepEvent) -> None:
        """Log the event's numbers; log ``step`` too, as wandb's own count cannot go back after a resume."""
        numbers = {f"{event.kind}/{name}": value for name, value in _numbers(event).items()}
        self._run.log({"step": event.step, **numbers})


def wandb_id(folder: RunFolder) -> str:
    """Return the id of a run folder's W&B run, drawn once: two users with equal folder names have two runs."""
    if not folder.wandb_id.exists():
        write_atomically(folder.wandb_id, f"{secrets.token_hex(8)}\n")
    return read_text(folder.wandb_id, limit_bytes=ID_LIMIT_BYTES, follow_links=True).strip()


def _numbers(event: StepEvent) -> dict[str, Any]:
    values = event.values()
    flat = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    for name, by_source in values.items():
        if isinstance(by_source, Mapping):
            flat |= {f"{name}/{source}": value for source, value in by_source.items()}
    return {name: value for name, value in flat.items() if isinstance(value, Real) and name != "step"}
