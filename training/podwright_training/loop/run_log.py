"""Write the events of a run to its metrics: its start, its steps, its checkpoints and its end."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from podwright_training.checkpoint.saver import Saved
from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.code_version import code_version
from podwright_training.config.architecture import FLOPS_CONVENTION
from podwright_training.config.compilation import is_compiled
from podwright_training.device import job_peak_flops, peak_memory_bytes
from podwright_training.events import (
    CheckpointEvent,
    DataEvent,
    EndEvent,
    FilesEvent,
    StartEvent,
    StragglerEvent,
    TrainEvent,
)
from podwright_training.loop.divergence import CheckedStep
from podwright_training.loop.preflight import Data
from podwright_training.loop.run_context import RunContext
from podwright_training.loop.schedule import best_of_range
from podwright_training.perplexity import perplexity
from podwright_training.ranks import process_seconds


class RunLog:
    """Writer of a run's events."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._peak_flops = job_peak_flops(run.device, run.ranks)
        self._logged_sequences = 0

    def start(self, *, resumed_from: Path | None) -> None:
        """Write that a run starts, or continues from a checkpoint."""
        run, config = self._run, self._run.config
        self._logged_sequences = run.progress.sequences
        run.metrics.write(
            StartEvent(
                step=run.progress.step,
                world_size=run.ranks.world_size,
                resumed_from=str(resumed_from) if resumed_from else None,
                init_from=None if resumed_from else config.init_from,
                job_id=os.environ.get("SLURM_JOB_ID"),
                config=config.digest,
                parameters=config.model.parameters,
                flops_per_token=config.model.flops_per_token(config.max_context_width),
                flops_convention=FLOPS_CONVENTION,
                process_s=round(process_seconds(), 3),
                execution="compiled" if is_compiled(config, run.device.type) else "eager",
                code=code_version() if run.is_first_rank else None,
            )
        )

    def data(self, data: Data, *, data_size: int) -> None:
        """Write the files of each split, and the size of each source of the training data, on the first rank."""
        run, stream = self._run, data.training
        for split in (stream, data.validation, *data.validation_sets.values()) if run.is_first_rank else ():
            for choice in split.choices():
                run.metrics.write(FilesEvent(step=run.progress.step, **choice))
        for source in stream.overview() if run.is_first_rank else ():
            sequences = source["epoch_sequences"]
            steps = None if sequences is None else math.ceil(sequences / run.config.batch_sequences(data_size))
            run.metrics.write(DataEvent(step=run.progress.step, **source, epoch_steps=steps))

    def step(self, checked: CheckedStep, checkpoints: CheckpointStore) -> None:
        """Write a good step and the speed since the last one that was written; warn of a straggling rank."""
        run, config = self._run, self._run.config
        timing = run.timer.timing()
        sequences = checked.metrics["sequences"]
        samples_per_s = (sequences - self._logged_sequences) / timing.passed_s
        self._logged_sequences = sequences
        tokens_per_s = samples_per_s * config.max_context_width
        flops_per_s = tokens_per_s * config.model.flops_per_token(config.max_context_width)
        event = TrainEvent(
            step=checked.step,
            loss=checked.loss,
            grad_norm=checked.grad_norm,
            **checked.metrics,
            perplexity=perplexity(checked.loss),
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_rank=tokens_per_s / run.ranks.world_size,
            samples_per_s=samples_per_s,
            mfu=flops_per_s / self._peak_flops if self._peak_flops else None,
            step_s=timing.step_s,
            data_s=timing.data_s,
            slowest_rank=timing.slowest_rank,
            lag_s=timing.lag_s,
        ).with_values(**timing.besides_s)
        if timing.first_step_s is not None:
            event = event.with_values(first_step_s=round(timing.first_step_s, 4))
        memory_peak_bytes, memory_reserved_bytes = peak_memory_bytes(run.device)
        run.metrics.write(
            event.with_values(
                **checkpoints.memory_metrics,
                memory_peak_bytes=memory_peak_bytes,
                memory_reserved_bytes=memory_reserved_bytes,
            )
        )
        if timing.straggles:
            run.metrics.write(
                StragglerEvent(
                    step=checked.step,
                    rank=timing.slowest_rank,
                    host=run.hosts.names[timing.slowest_rank],
                    lag_s=timing.lag_s,
                    step_s=timing.step_s,
                )
            )

    def checkpoint(self, saved: Saved) -> None:
        """Write that a checkpoint is complete; called from the saving thread."""
        self._run.metrics.write(
            CheckpointEvent(
                step=saved.step,
                path=str(saved.path),
                seconds=round(saved.seconds, 3),
                paused_s=round(saved.paused_s, 3),
            )
        )

    def end(self) -> None:
        """Write why the run ends."""
        run = self._run
        times = run.timer.take_besides_s()
        event = EndEvent(step=run.progress.step, reason=run.progress.end_reason)
        run.metrics.write(event.with_values(**times, **self._range_metrics()))

    def _range_metrics(self) -> dict[str, Any]:
        """Return the best learning rate of a range, on the first rank."""
        run = self._run
        if run.config.lr_schedule != "range" or not run.is_first_rank:
            return {}
        steps = {
            event.step: (event.lr, event.loss) for event in run.folder.events_of(TrainEvent) if event.lr is not None
        }
        return {"lr_of_lowest_loss": best_of_range(steps.values())}
