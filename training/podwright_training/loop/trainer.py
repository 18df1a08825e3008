"""Take the steps of a training run.

The loss of a step stays on the device until a log line, a validation or a save is due, or until the guard must decide
before the update: reading it earlier would make the host wait for the GPU. ``CheckpointStore`` saves and restores, and
callbacks (``callback.py``) do what is due between steps.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from podwright_training.batch import Batch
from podwright_training.beats import Activity
from podwright_training.checkpoint import hub_model
from podwright_training.checkpoint.saver import Saved
from podwright_training.checkpoint.store import CheckpointStore
from podwright_training.checkpoint.trainer_state import TrainerState
from podwright_training.config.train_config import TrainConfig
from podwright_training.device_rules import rules_of
from podwright_training.job_store import JobStore
from podwright_training.loop import initial_weights, preflight
from podwright_training.loop.activity import StepTimeout
from podwright_training.loop.callback import Callbacks, RuinedWeightsError
from podwright_training.loop.checkpointing import DiskCheckpointing, MemoryCheckpointing
from podwright_training.loop.divergence import DivergenceHandler, StepChecker, StepResult
from podwright_training.loop.faults import lost_ranks, memory_snapshot
from podwright_training.loop.garbage import GarbageCollection, manual_collection
from podwright_training.loop.global_batch import GlobalBatch, GlobalBatchReader
from podwright_training.loop.guard import Guard
from podwright_training.loop.loss_scale import LossScale
from podwright_training.loop.mixture_phases import MixturePhases
from podwright_training.loop.noise_scale import NoiseScale
from podwright_training.loop.profile import Profile
from podwright_training.loop.rank_watch import RankWatch
from podwright_training.loop.run_context import RunContext
from podwright_training.loop.run_log import RunLog
from podwright_training.loop.samples import Samples
from podwright_training.loop.schedule import batch_sequences, learning_rate
from podwright_training.loop.source_ledger import SourceLedger
from podwright_training.loop.start_config import write_config
from podwright_training.loop.validation import Validation
from podwright_training.optim import Optimizers, clip_adaptively
from podwright_training.parallel import ParallelModel, squared_norm
from podwright_training.ranks import Ranks
from podwright_training.run_folder import RunFolder


class Trainer:
    """One rank of a run: it takes the steps, and callbacks do what is due between them.

    Args:
        config: The run's configuration.
        ranks: This rank among all ranks.
        device: Device of the model.
        tokenizer: Tokenizer of the data.
        store: The job's store, if there are several ranks.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        ranks: Ranks,
        device: torch.device,
        tokenizer: PreTrainedTokenizerBase,
        store: JobStore | None = None,
    ) -> None:
        self.config = config
        self.model = ParallelModel(config, ranks, device, initialize=False)  # Most starts load weights.
        self.optimizers = Optimizers(self.model.named_parameters(), config)
        data_rank, data_size = self.model.data_rank, self.model.data_size
        self.data = preflight.open_data(config, tokenizer, data_rank=data_rank, data_shards=data_size, checked=True)
        self.run = RunContext.open(config, ranks, device, RunFolder(Path(config.run_dir)), data_rank=data_rank)
        self.progress = self.run.progress
        self.log = RunLog(self.run)
        self.guard = Guard(config)
        self.loss_scale = LossScale(config)
        self._noise_scale = NoiseScale()
        self._rules = rules_of(config.device_rules)
        self._watch = RankWatch(store, self.run.hosts)
        self.checkpoints = CheckpointStore(
            config,
            hosts=self.run.hosts,
            weights=lambda: dict(self.model.named_parameters()),
            optimizers=self.optimizers,
            activity=self.run.activity,
            on_saved=self._log_saved,
            silent=lambda: self._watch.silent,
        )
        training = self.data.training
        self._phases = MixturePhases(self.run, training, data_size=data_size)
        self._batches = GlobalBatchReader(self.run, training, self.checkpoints, self._phases, data_size=data_size)
        self._ledger = SourceLedger(self.run, training, self._batches)
        self._checker = StepChecker(self.model, self.guard, self.loss_scale)
        self._divergence = DivergenceHandler(
            self.run, self.checkpoints, self.guard, self.loss_scale, load_state=self._load_state
        )
        self.callbacks = Callbacks(
            [
                Profile(
                    config.profiled if self.run.is_first_rank else range(0), self.run.folder.traces / "rank-0.json"
                ),
                StepTimeout(config, self.run.activity, saving_group=self.checkpoints.saving_group),
                GarbageCollection(self.progress),
                Validation(self.run, self.model, self.data),
                *([Samples(self.run, self.model, tokenizer)] if config.sample_prompts else []),
                self._ledger,
                MemoryCheckpointing(self.run, self.checkpoints, self._state),
                DiskCheckpointing(self.run, self.checkpoints, self._state),
            ]
        )

    def train(self) -> None:
        """Resume from a checkpoint if there is one, and take steps until the run is complete or asked to stop."""
        run = self.run
        snapshot = memory_snapshot(run.folder.memory_snapshot(run.ranks.rank), run.ranks, run.device)
        with (
            run.stop_requests,
            self._watch,
            lost_ranks(lambda: self._watch.silent),
            self.checkpoints,
            closing(self.data.training),
            run.activity.watch_stalls(),
            manual_collection(),
            snapshot,  # The last to begin: it reports exhausted memory before the others wait for ranks as they end.
        ):
            self._start()
            while not self._has_ended():
                self.train_step()
                if self.progress.has_range_ended:
                    continue  # The weights of a range's last step are of no use.
                if run.signals.are_weights_ruined:
                    self._divergence.handle_ruined_save()
                    continue
                try:
                    self.callbacks.after_step()
                except RuinedWeightsError as error:
                    self._divergence.handle_ruined_weights(str(error))
            if self.progress.is_finished or not run.activity.has_agent:  # An agent may start new ranks for the rest.
                run.activity.mark(Activity.FINISHED)
                self.log.end()

    def train_step(self) -> None:
        """Take one step: read a batch, compute and clip its gradient, check it, and update the weights."""
        run, step = self.run, self.progress.step + 1
        with self.callbacks.step(step), run.timer.step():
            lr = learning_rate(step, self.config)
            batch = self._batches.read(batch_sequences(step, self.config, self.model.data_size))
            if run.signals.are_weights_ruined:
                return  # The step would be one of weights of no use.
            loss, noise_scale = self._compute_gradient(batch)
            grad_norm = self._clip_gradient()
            self.callbacks.before_update(step)
            self.progress.step = step
            metrics = {
                "lr": lr,
                **batch.metrics,
                "noise_scale_tokens": noise_scale,
                "loss_scale": self.loss_scale.value,
            }
            self._checker.add(StepResult(step, loss, grad_norm, metrics))
            checked = self._checker.check() if self._needs_loss() else None
            is_bad = checked is not None and bool(checked.problem)
            with run.timer.update():
                if is_bad:
                    self.optimizers.forget_gradients()
                else:
                    with self._rules("the optimizer"):
                        self.optimizers.step(lr=lr)
        if checked and is_bad:
            self._divergence.handle_bad_step(checked)
        elif checked and self.progress.is_due(self.config.logging_freq):
            self.log.step(checked, self.checkpoints)

    def _start(self) -> None:
        """Load the newest checkpoint, or the first weights, and log the start."""
        restored = self.checkpoints.restore()
        if restored:
            self._load_state(restored.state)
            added, removed = self.data.training.changed_sources(restored.state.data)
            self.data.training.load_state_dict(restored.state.data)
            self.progress.sequences = restored.state.sequences
            self._phases.plan()
            self.progress.is_data_spent = self.data.training.is_end(restored.state.data)
        else:
            added, removed = [], []
            self._initialize()
            self._phases.plan()
        if self.run.is_first_rank:
            write_config(self.run.folder, self.config)
        self.log.start(resumed_from=restored.path if restored else None)
        self.log.data(self.data, data_size=self.model.data_size)
        self._ledger.start(added=added, removed=removed)
        self.run.activity.mark_loaded()
        self.run.stop_requests.agree()

    def _initialize(self) -> None:
        """Start from new weights, or from those of ``init_from``; with ``init_state`` all from its step too."""
        if not self.config.init_from:
            self.model.init_weights()
            self.optimizers.restart_average()
        self.optimizers.allocate()  # A save needs their state, even if the first steps are skipped.
        if self.config.init_from:
            source = hub_model.folder_of(self.config.init_from)
            state = initial_weights.load(source, self.config, model=self.model, optimizers=self.optimizers)
            if state:
                self._load_state(state)

    def _has_ended(self) -> bool:
        """Return whether training is complete or asked to stop, and its last checkpoint saved; the same on all ranks.

        Raises:
            CheckpointError: The last save failed.
            DivergedError: The last weights are of no use, and there is nothing to roll back to.
        """
        if not (self.progress.is_finished or self.run.stop_requests.are_agreed):
            return False
        with self.run.timer.besides("saving"):
            ruined = self.checkpoints.finish()
        if ruined:
            self._divergence.handle_ruined_save()
        return self.progress.is_finished or self.run.stop_requests.are_agreed

    def _compute_gradient(self, batch: GlobalBatch) -> tuple[Tensor, float | None]:
        """Return the loss of a global batch and, when due, the noise scale, from the first micro-batch and all."""
        every, micro_batches = self.config.noise_scale_freq, batch.micro_batches
        is_due = every is not None and (self.progress.step + 1) % every == 0
        if not is_due or len(micro_batches) == 1 or not batch.first_tokens:
            return self._forward_backward(micro_batches, batch), None
        parameters = self.model.learned_parameters()
        loss = self._forward_backward(micro_batches[:1], batch)
        first_square = squared_norm(parameters)
        loss = loss + self._forward_backward(micro_batches[1:], batch)
        squares = torch.stack([first_square, squared_norm(parameters)]) / self.loss_scale.value**2
        small_square, large_square = squares.tolist()
        noise_scale = self._noise_scale.update(
            small=small_square * (batch.tokens / batch.first_tokens) ** 2,
            large=large_square,
            small_tokens=batch.first_tokens,
            large_tokens=batch.tokens,
        )
        return loss, noise_scale

    def _forward_backward(self, micro_batches: list[Batch], batch: GlobalBatch) -> Tensor:
        with self._rules("forward and backward"):
            return self.model.forward_backward(micro_batches, tokens=batch.tokens, loss_scale=self.loss_scale.value)

    def _clip_gradient(self) -> Tensor:
        """Return the gradient's norm before it is clipped."""
        with self._rules("gradient clipping"):
            self.model.unscale_gradient(self.loss_scale.value)
            if self.config.adaptive_grad_clip is not None:
                clip_adaptively(self.model.learned_parameters(), self.config.adaptive_grad_clip)
            return self.model.clip_grad_norm(self.config.grad_clip)

    def _needs_loss(self) -> bool:
        """Return whether this step's loss is needed now; fetching it waits for the device."""
        may_skip = self.config.guard_policy == "skip" or self.config.compute_precision == "fp16"
        return may_skip or self.progress.is_due(self.config.logging_freq) or self.callbacks.needs_loss()

    def _state(self) -> TrainerState:
        """Return a checkpoint's contents without tensors, with this rank's own position in the data."""
        return TrainerState(
            step=self.progress.step,
            sequences=self.progress.sequences,
            data=self.data.training.state_dict(),
            model=asdict(self.config.model),
            world_size=self.run.ranks.world_size,
            losses=self.guard.state(),
            loss_scale=self.loss_scale.state(),
        )

    def _load_state(self, state: TrainerState) -> None:
        """Continue from a checkpoint's state; its data position is left to the caller, and data is read on."""
        self.progress.step = self.progress.loaded_step = state.step
        self.guard.load_state(state.losses)
        self.loss_scale.load_state(state.loss_scale)
        self._phases.plan()

    def _log_saved(self, saved: Saved) -> None:
        self._divergence.rollbacks.forget(saved.path)  # Rollbacks to a checkpoint that it replaces do not count.
        self.log.checkpoint(saved)
