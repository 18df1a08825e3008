"""Run the training loop."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import isfinite, nan
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from podwright_training.batch import Batch
from podwright_training.beats import Activity, Pulse
from podwright_training.checkpoint import checkpoint_reader, hub_model, step_folder, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError, CollectiveIO, DamagedCheckpointError
from podwright_training.checkpoint.memory_tier import MemoryTier
from podwright_training.checkpoint.saver import TIMEOUT as LONGEST_SAVE
from podwright_training.checkpoint.saver import Saved, Saver
from podwright_training.code_version import code_version
from podwright_training.config.architecture import FLOPS_CONVENTION
from podwright_training.config.sources import canonical
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.storage import shared_listings
from podwright_training.data.stream import PackedStream, merge_states
from podwright_training.device import (
    device_of,
    job_peak_flops,
    limit_waits,
    peak_memory_bytes,
    process_group,
    use_host_cores,
)
from podwright_training.device_rules import rules_of
from podwright_training.errors import DivergedError, UserError
from podwright_training.job_store import JobStore
from podwright_training.loop import garbage, guard, initial_weights, preflight
from podwright_training.loop.faults import StallWatch, lost_ranks, memory_snapshot
from podwright_training.loop.garbage import manual_collection
from podwright_training.loop.guard import Guard, Rollbacks
from podwright_training.loop.loss_scale import LossScale
from podwright_training.loop.metrics import Metrics, batch_hash, digest_text
from podwright_training.loop.noise_scale import NoiseScale
from podwright_training.loop.profile import Profile
from podwright_training.loop.rank_watch import RankWatch
from podwright_training.loop.samples import Samples
from podwright_training.loop.schedule import batch_sequences, best_of_range, learning_rate
from podwright_training.loop.sinks import open_sinks
from podwright_training.loop.step_timer import StepTimer, Timing
from podwright_training.optim import Optimizers, clip_adaptively
from podwright_training.parallel import ParallelModel, squared_norm
from podwright_training.perplexity import perplexity
from podwright_training.ranks import Hosts, Ranks, host_name, process_seconds
from podwright_training.regular_file import read_text
from podwright_training.run_claim import claims_of_training
from podwright_training.run_folder import RunFolder, writable, write_atomically
from podwright_training.run_secret import run_secret

LIMIT_BYTES = 16 << 20  # of a text that people write

logger = logging.getLogger(__name__)

# Slurm's preemption, `sbatch --signal=USR1@…`, and Ctrl-C, which torchrun passes on.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
CTRL_C = b"\nCtrl-C: this step ends and a checkpoint is saved; press it again to end at once\n"
OVERFLOW = "the gradient overflowed"  # in fp16
EPOCH_UNIT = 1e-9  # in which ranks add up how often they read a source: as whole numbers, in any order
EPOCH_DIGITS = 4


def run(options: TrainConfig, ranks: Ranks) -> None:
    """Train, or resume training, until ``max_steps`` or a signal."""
    folder = RunFolder(Path(options.run_dir))
    with writable(folder.root):
        secret = run_secret(folder) if ranks.world_size > 1 else secrets.token_bytes()
    store = JobStore(ranks, secret, timeout_s=options.start_timeout_s)
    with lost_ranks(), shared_listings(store.of_first_rank), ExitStack() as claims:
        with store.answering():
            if not Pulse.from_environment().heard:  # else the agents of the elastic run have claimed it
                store.of_first_rank("claim of the run", lambda: _claim(claims, options))
            tokenizer = preflight.check(options, ranks, of_first_rank=store.of_first_rank)
        device = device_of(ranks, options.device)
        make_repeatable(options)
        if options.cpu_offload and device.type != "cpu":
            use_host_cores(ranks)
        with process_group(ranks, device, store=store, timeout_s=options.start_timeout_s):
            with memory_snapshot(folder.memory_snapshot(ranks.rank), ranks, device):
                trainer = Trainer(options, ranks=ranks, device=device, tokenizer=tokenizer, store=store)
            trainer.train()


def _claim(claims: ExitStack, options: TrainConfig) -> None:
    """Claim the run, until this stack ends."""
    try:
        for claim in claims_of_training(options):
            claims.enter_context(claim)
    except OSError as error:
        raise UserError(f"run_dir {options.run_dir} is not writable: {error.strerror or error}") from error


def make_repeatable(options: TrainConfig) -> None:
    """Seed the random numbers; with ``deterministic``, make PyTorch reject nondeterministic operations."""
    torch.manual_seed(options.seed)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.use_deterministic_algorithms(True)


@dataclass(frozen=True)
class Drawn:
    """This rank's share of a step's global batch, and facts about the whole batch."""

    batches: list[Batch]
    tokens: int  # labels that count in the global batch
    first_tokens: int  # of these, in the first micro-batch
    coordinates: dict[str, Any]  # position of the global batch in the data


@dataclass(frozen=True)
class Taken:
    """A finished step whose loss and gradient may still be on the device."""

    step: int
    loss: Tensor  # this rank's share
    grad_norm: Tensor
    values: dict[str, Any]  # further values for the metrics


class Trainer:
    """One rank of a run: model, optimizer, data and progress."""

    def __init__(
        self,
        options: TrainConfig,
        *,
        ranks: Ranks,
        device: torch.device,
        tokenizer: PreTrainedTokenizerBase,
        store: JobStore | None = None,
    ) -> None:
        self.options = options
        self.ranks = ranks
        self.device = device
        self.folder = RunFolder(Path(options.run_dir))
        self.model = ParallelModel(options, ranks, device, initialize=False)  # most starts load weights
        self.optimizers = Optimizers(self.model.named_parameters(), options)
        share, shares = self.model.data_rank, self.model.data_size
        self.data = preflight.open_data(options, tokenizer, share=share, shares=shares, checked=True)
        self.guard = Guard(options)
        self.loss_scale = LossScale(options)
        self._rules = rules_of(options.device_rules)
        first = ranks.rank == 0
        self.metrics = Metrics(
            self.folder.metrics, active=first, sinks=open_sinks(options, self.folder) if first else ()
        )
        self.step = 0
        self._loaded_step: int | None = None  # of the last checkpoint that was loaded
        self.sequences = 0  # drawn from the training data, by all ranks
        self._hosts, self._first_reader = _gather_hosts(self.model.data_rank, ranks)
        self._logged_sequences = 0  # of them, those before the last log line
        self._pending: list[Taken] = []  # taken, and not yet checked
        self._rollbacks = Rollbacks()
        self._noise_scale = NoiseScale()
        self._samples = Samples(options, tokenizer) if options.sample_prompts else None
        self._timer = StepTimer(ranks.world_size)
        self._profile = Profile(options.profiled if first else range(0), self.folder.traces / "rank-0.json")
        self._peak_flops = job_peak_flops(device, ranks)
        self._stop_agreed = False
        self._data_spent = False  # a source was read max_epochs times
        self._ruin_agreed = False  # a save has seen that the weights are of no use
        self._range_ended = False  # by a loss that is no number, or a spike
        self._watch = RankWatch(store, self._hosts)
        self.saver = Saver(options, on_saved=self._log_saved, silent=lambda: self._watch.silent)
        self.memory = (
            MemoryTier(options, self._hosts, merge=merge_states, silent=lambda: self._watch.silent)
            if options.memory_checkpoint_freq
            else None
        )
        self._memory_busy = False  # a rank still saves in memory
        self._pulse = Pulse.from_environment()
        self._stalls: StallWatch | None = None  # but in ``train``
        self._waits_limited = False  # by step_timeout_s, after the first step

    def train(self) -> None:
        """Resume from a checkpoint if there is one, then take steps; validate and save when due, and at the end."""
        stalls = StallWatch(self.folder.stacks(self.ranks.rank), self._longest_s(Activity.LOADING) / 2)
        memory = self.memory or nullcontext()
        snapshot = memory_snapshot(self.folder.memory_snapshot(self.ranks.rank), self.ranks, self.device)
        with (
            _stop_requests(says=self.ranks.rank == 0) as requests,
            self._watch,
            lost_ranks(lambda: self._watch.silent),
            memory,
            self.saver,
            closing(self.data.training),
            stalls,
            manual_collection(),
            snapshot,  # before all others end
        ):
            self._stalls = stalls
            self._start(resumed_from=self._resume())
            self._pulse.loaded(self.step)
            self._logged_sequences = self.sequences
            self._agree_to_stop(requests)
            while not self._has_ended():
                self._take_step(requests)
                if self._range_ended:
                    continue  # these weights are of no use
                if self._ruin_agreed:
                    self._recover()
                    continue
                if not self._waits_limited:  # the first step compiles, connects and reads far into the data
                    limit_waits(self.options.step_timeout_s, besides=self.saver.group)
                    self._waits_limited = True
                garbage.collect(self.step)
                if self._due(self.options.validation_freq) and not self._stop_agreed:  # the checkpoint comes first
                    with self._timer.besides("validating"):
                        problem = self.validate(requests)
                    if problem:
                        self._return_from(problem)
                        continue
                with self._timer.besides("saving"):
                    if self.memory and self._memory_due():
                        self._mark(Activity.SAVING)  # it may wait for the one before
                        self.memory.save(self._state(), weights=self._weights(), optimizers=self.optimizers)
                    if self._due(self.options.checkpoint_freq) or self._stop_agreed:
                        self.save()
            if self._finished or not self._pulse.heard:  # else its agent decides whether this is the end
                self._mark(Activity.FINISHED)
                end = {"reason": self._end_reason(), **self._timer.take_besides_s(), **self._range()}
                self.metrics.write("end", step=self.step, **end)

    def _has_ended(self) -> bool:
        """Return whether training is complete or asked to stop, and its last checkpoint saved; the same on all ranks.

        Raises:
            CheckpointError: The last save failed.
            DivergedError: The last weights are of no use, and there is nothing to roll back to.
        """
        if not (self._finished or self._stop_agreed):
            return False
        self._mark(Activity.SAVING)
        with self._timer.besides("saving"):
            self.saver.finish()
        if self.saver.ruined:
            self._recover()
        return self._finished or self._stop_agreed

    def _agree_to_stop(self, stop_requests: list[int]) -> bool:
        """Return whether some rank was asked to stop; called by all ranks."""
        stops = torch.tensor(len(stop_requests))
        dist.all_reduce(stops)
        self._stop_agreed = self._stop_agreed or int(stops) > 0
        return self._stop_agreed

    def _range(self) -> dict[str, Any]:
        """Return the best learning rate of a range, on the first rank."""
        if self.options.lr_schedule != "range" or self.ranks.rank != 0:
            return {}
        events = (event for event in self.folder.events("train") if event.get("lr") is not None)
        steps = {event["step"]: (event["lr"], event["loss"]) for event in events}
        return {"lr_of_lowest_loss": best_of_range(steps.values())}

    def validate(self, stop_requests: list[int]) -> str:
        """Log the mean loss per token on the validation split and each dataset, and how the model continues texts.

        Return the problem if a loss is no number. On a request to stop, no more is logged.
        """
        loss, tokens = self._evaluate(self.data.validation, stop_requests)
        by_name = {name: self._evaluate(each, stop_requests)[0] for name, each in self.data.validation_sets.items()}
        if self._stop_agreed:
            return ""
        values: dict[str, Any] = {"loss": loss, "perplexity": perplexity(loss), "tokens": tokens}
        if by_name:
            values["losses"] = by_name
        self.metrics.write("validation", step=self.step, **values)
        if broken := [name for name, each in _named(loss, by_name) if not isfinite(each)]:
            return f"the validation loss{', '.join(broken)} is no number"
        if self._samples:
            texts = self._samples.write(self.model, stops=lambda: self._agree_to_stop(stop_requests))
            if not self._stop_agreed:
                self.metrics.write("sample", step=self.step, texts=texts)
        return ""

    def _evaluate(self, stream: PackedStream, stop_requests: list[int]) -> tuple[float, int]:
        """Return the mean loss over a stream's first sequences, the same ones each time, and the number of tokens.

        Between batches the ranks look for a request to stop; then the numbers are of no use.
        """
        start, sequences = stream.state_dict(), self.options.validated_sequences(self.model.data_size)
        losses: list[Tensor] = []
        counted = torch.zeros((), dtype=torch.int64)
        while stream.coordinates().stop < sequences and not self._agree_to_stop(stop_requests):
            self._mark(Activity.VALIDATING)
            batch = stream.next_batch()
            batch = batch.counting_first(len(stream.own_sequences(before=sequences)))  # ranks may not divide them
            with self._rules("validation"):
                losses.append(self.model.evaluate(batch))
            counted += batch.counted_tokens if self._first_reader else 0
        self.model.finish_evaluation()
        stream.load_state_dict(start)  # for the next time
        if self._stop_agreed:
            return nan, 0
        dist.all_reduce(counted)
        tokens = int(counted)
        total = torch.stack(losses).cpu().double().sum()  # on the host: not every accelerator has float64
        return self.model.total(total).item() / tokens, tokens

    def save(self) -> None:
        """Start writing a checkpoint."""
        self._mark(Activity.SAVING)
        state = self._state()
        positions: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(positions, state.data)
        state = replace(state, data=merge_states(positions))
        self.saver.save(state, weights=self._weights(), optimizers=self.optimizers)

    def _state(self) -> trainer_state.TrainerState:
        """Return a checkpoint's contents without tensors, with this rank's own position in the data."""
        return trainer_state.TrainerState(
            step=self.step,
            sequences=self.sequences,
            data=self.data.training.state_dict(),
            model=asdict(self.options.model),
            world_size=self.ranks.world_size,
            losses=self.guard.state(),
            loss_scale=self.loss_scale.state(),
        )

    def _weights(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def _memory_due(self) -> bool:
        """Return whether to save in memory after this step; the same on all ranks."""
        ending = self._finished or self._stop_agreed  # saved on disk
        return bool(self.memory and not ending and not self._memory_busy and self.memory.due(self.step))

    def _end_reason(self) -> str:
        if self.step >= self.options.max_steps:
            return "max_steps"
        if self._range_ended:
            return "range"
        return "max_epochs" if self._data_spent else "signal"

    def _resume(self) -> Path | None:
        """Resume from the newest intact checkpoint, in memory, on disk or in the store."""
        self._mark(Activity.LOADING)
        path, state = self._restore_from_memory()
        if state is None:
            self._expect_within(self._longest_s(Activity.SAVING))  # it copies a checkpoint
            self.saver.fetch()
            self._mark(Activity.LOADING)
            path, state = self._restore(preflight.checkpoint_directories(self.options))
        if self.memory:
            self.memory.keep(self.step if path and path.parent == self.memory.folder.root else None)
        if state:
            self.data.training.load_state_dict(state.data)
            self._data_spent = self.data.training.is_end(state.data)
            self.sequences = state.sequences
        else:
            self._refuse_ruined()
            if not self.options.init_from:
                self.model.init_weights()
                self.optimizers.restart_average()
            self.optimizers.allocate()  # a save needs their state, even if the first steps are skipped
            if self.options.init_from:
                self._initialize(hub_model.folder_of(self.options.init_from))
        return path

    def _refuse_ruined(self) -> None:
        """Raise ``DivergedError`` if the run has checkpoints, and all are marked bad: it would begin anew."""
        folder = self.options.checkpoints
        if bad := CollectiveIO(folder).first_rank(lambda: step_folder.marked_bad(folder)):
            raise DivergedError(
                f"no checkpoint in {folder} is good; the newest is marked bad: {bad}. Start a new run with a lower "
                "--lr, or remove these checkpoints to begin anew"
            )

    def _initialize(self, source: Path) -> None:
        """Start from weights that exist; with everything of a checkpoint but the data, if that was asked for."""
        state = initial_weights.load(source, self.options, model=self.model, optimizers=self.optimizers)
        if state:
            self._take_over(state)

    def _take_over(self, state: trainer_state.TrainerState) -> None:
        """Continue from a checkpoint's state; its data position is left to the caller."""
        self.step = self._loaded_step = state.step
        self.guard.load_state(state.losses)
        self.loss_scale.load_state(state.loss_scale)

    def _restore_from_memory(self) -> tuple[Path, trainer_state.TrainerState] | tuple[None, None]:
        """Load everything but the data position from the hosts' memory, if that is as new as the disk."""
        if not self.memory:
            return None, None
        on_disk = step_folder.agree_on_intact([self.options.checkpoints])
        found = self.memory.newest(at_least=step_folder.step_of(on_disk[0]) if on_disk else 0)
        if found is None:
            return None, None
        try:
            state = self.memory.restore(found, weights=self._weights(), optimizers=self.optimizers)
        except CheckpointError as error:
            logger.warning("the checkpoint of step %s in memory is unusable: %s", found.step, error)
            return None, None
        self._take_over(state)
        return self.memory.folder.path_of(state.step), state

    def _restore(
        self, directories: list[Path], *, rolls_back: bool = False
    ) -> tuple[Path, trainer_state.TrainerState] | tuple[None, None]:
        """Load everything but the data position from the newest good checkpoint."""
        for path in step_folder.agree_on_intact(directories):
            if rolls_back and self._rollbacks.do_not_help(path):
                continue
            try:
                state = checkpoint_reader.restore(path, weights=self._weights(), optimizers=self.optimizers)
            except CheckpointError as error:
                if not (rolls_back or isinstance(error, DamagedCheckpointError)):
                    raise
                logger.warning("%s; skipped", error)
                continue
            self._take_over(state)
            return path, state
        return None, None

    def _start(self, *, resumed_from: Path | None) -> None:
        if self.ranks.rank == 0:
            _write_config(self.folder, self.options)
        self.metrics.write(
            "start",
            step=self.step,
            world_size=self.ranks.world_size,
            resumed_from=str(resumed_from) if resumed_from else None,
            init_from=None if resumed_from else self.options.init_from,
            job_id=os.environ.get("SLURM_JOB_ID"),
            config=self.options.digest,
            parameters=self.options.model.parameters,
            flops_per_token=self.options.model.flops_per_token(self.options.max_context_width),
            flops_convention=FLOPS_CONVENTION,
            process_s=round(process_seconds(), 3),
            code=code_version() if self.ranks.rank == 0 else None,
        )
        if self.ranks.rank == 0:
            for source in self.data.training.overview():
                sequences = self.options.batch_sequences(self.model.data_size)
                steps = math.ceil(source["epoch_sequences"] / sequences)
                self.metrics.write("data", step=self.step, **source, epoch_steps=steps)

    def _take_step(self, stop_requests: list[int]) -> None:
        with self._profile.step(self.step + 1), self._timer.step():
            lr = learning_rate(self.step + 1, self.options)
            drawn = self._draw(batch_sequences(self.step + 1, self.options, self.model.data_size), stop_requests)
            if self._ruin_agreed:
                return  # the step would be one of weights of no use
            loss, noise_scale = self._accumulate(drawn)
            grad_norm = self._clip()
            self._await_memory()
            self.step += 1
            values = {"lr": lr, **drawn.coordinates, "noise_scale_tokens": noise_scale}
            values["loss_scale"] = self.loss_scale.value
            self._pending.append(Taken(self.step, loss, grad_norm, values))
            good, bad = self._check() if self._needs_loss() else (None, None)
            with self._timer.update():
                if bad:
                    self.optimizers.forget_gradients()
                else:
                    with self._rules("the optimizer"):
                        self.optimizers.step(lr=lr)
        if bad:
            self._handle(bad)
        elif good and self._due(self.options.logging_freq):
            self._log(good, self._timer.timing())

    def _draw(self, sequences: int, stop_requests: list[int]) -> Drawn:
        """Draw the next global batch of so many sequences that has tokens: at the end of the data some have none."""
        while True:
            drawn = self._draw_any(sequences, stop_requests)
            if drawn.tokens:
                return drawn

    def _draw_any(self, sequences: int, stop_requests: list[int]) -> Drawn:
        """Draw the next global batch of so many sequences.

        In the same all-reduce, without waiting for a GPU, the ranks share whether to stop (on request, because saves
        fail, or because the data was read often enough), how often they read it and how long they took.
        """
        self._mark(Activity.DRAWING)
        with self._timer.data():
            batches, rows = self._micro_batches(sequences)
            counted = [batch.counted_tokens for batch in batches]
            own_hash = batch_hash(rows)
        self._mark(Activity.COMPUTING)
        spent_streams, epochs = self.data.training.spent_streams(), self.data.training.epochs_read()
        sources = len(epochs)
        head = torch.zeros(6 + 2 * sources, dtype=torch.int64)
        saves = self.memory is not None and self.memory.busy
        stops = len(stop_requests) + self.saver.failed
        head[3:6] = torch.tensor([stops, saves, self._ruined is not None])
        if self._first_reader:
            head[:3] = torch.tensor([own_hash, sum(counted), counted[0]])
            head[6 : 6 + sources] = torch.tensor(spent_streams)
            head[6 + sources :] = torch.tensor([round(read / EPOCH_UNIT) for read in epochs])
        alone_us = torch.zeros(self.ranks.world_size, dtype=torch.int64)
        alone_us[self.ranks.rank] = self._timer.take_alone_us()
        shared = torch.cat([head, alone_us])
        dist.all_reduce(shared)
        total_hash, tokens, first_tokens, stops, saving, ruined, *by_source = shared[: len(head)].tolist()
        self._timer.add_alone_us(shared[len(head) :])
        self._stop_agreed = stops > 0
        self._data_spent = self.options.data_streams in by_source[:sources]
        self._memory_busy = saving > 0
        self._ruin_agreed = ruined > 0
        self.sequences += sequences
        coordinates = {
            "sequences": self.sequences,
            "batch_sequences": sequences,
            "batch_digest": digest_text(total_hash),
            **self._sources([read * EPOCH_UNIT for read in by_source[sources:]]),
        }
        return Drawn(batches, tokens, first_tokens, coordinates)

    def _micro_batches(self, sequences: int) -> tuple[list[Batch], list[Tensor]]:
        """Return this rank's micro-batches, as many as every rank has, and the tokens of each sequence."""
        data, most = self.data.training, self.options.train_batch_size * self.model.data_size
        batches: list[Batch] = []
        rows: list[Tensor] = []
        for begin in range(0, sequences, most):
            batches.append(data.next_batch(min(most, sequences - begin)))
            rows += batches[-1].tokens_BT[: len(data.own_sequences())]
        return batches, rows

    def _sources(self, epochs_of_streams: list[float]) -> dict[str, Any]:
        """Return how often the data was read, of several sources the most, and each source's tokens and epochs."""
        drawn = self.data.training.sequences_by_source
        epochs = [round(epochs / self.options.data_streams, EPOCH_DIGITS) for epochs in epochs_of_streams]
        if len(drawn) == 1:
            return {"epoch": epochs[0]}
        return {
            "epoch": max(epochs),
            "source_tokens": {name: number * self.options.max_context_width for name, number in drawn.items()},
            "source_epochs": dict(zip(drawn, epochs, strict=True)),
        }

    def _accumulate(self, drawn: Drawn) -> tuple[Tensor, float | None]:
        """Return the loss of a global batch and, when due, the noise scale, from the first micro-batch and all."""
        every = self.options.noise_scale_freq
        if every is None or (self.step + 1) % every or len(drawn.batches) == 1 or not drawn.first_tokens:
            return self._forward_backward(drawn.batches, drawn), None
        parameters = self.model.learned_parameters()
        loss = self._forward_backward(drawn.batches[:1], drawn)
        small = squared_norm(parameters)
        loss = loss + self._forward_backward(drawn.batches[1:], drawn)
        squares = torch.stack([small, squared_norm(parameters)]) / self.loss_scale.value**2
        small_square, large_square = squares.tolist()
        scale = self._noise_scale.update(
            small=small_square * (drawn.tokens / drawn.first_tokens) ** 2,
            large=large_square,
            small_tokens=drawn.first_tokens,
            large_tokens=drawn.tokens,
        )
        return loss, scale

    def _forward_backward(self, batches: list[Batch], drawn: Drawn) -> Tensor:
        with self._rules("forward and backward"):
            return self.model.forward_backward(batches, tokens=drawn.tokens, loss_scale=self.loss_scale.value)

    def _clip(self) -> Tensor:
        with self._rules("gradient clipping"):
            return self._clip_by_rules()

    def _clip_by_rules(self) -> Tensor:
        self.model.unscale_gradient(self.loss_scale.value)
        if self.options.adaptive_grad_clip is not None:
            clip_adaptively(self.model.learned_parameters(), self.options.adaptive_grad_clip)
        return self.model.clip_grad_norm(self.options.grad_clip)

    def _await_memory(self) -> None:
        """Before a step counts, wait for the save in memory that keeps a lost host's cost to its frequency."""
        if self.memory and self.memory.is_late(self.step + 1):
            self._mark(Activity.SAVING)
            with self._timer.besides("saving"):
                self.memory.wait()
            self._mark(Activity.COMPUTING)

    def _needs_loss(self) -> bool:
        """Return whether this step's loss is needed now; fetching it waits for the device."""
        due = (self.options.logging_freq, self.options.validation_freq, self.options.checkpoint_freq)
        may_skip = self.options.guard_policy == "skip" or self.options.compute_precision == "fp16"
        return self._stop_agreed or may_skip or self._memory_due() or any(map(self._due, due))

    def _check(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Fetch all pending steps at once; return the last one if all are good, and the first bad one."""
        pending, self._pending = self._pending, []
        losses = self.model.total(torch.stack([taken.loss for taken in pending])).tolist()
        norms = torch.stack([taken.grad_norm for taken in pending]).tolist()
        good = None
        for taken, loss, grad_norm in zip(pending, losses, norms, strict=True):
            good = {"step": taken.step, "loss": loss, "grad_norm": grad_norm, **taken.values}
            if self.loss_scale.overflowed(loss=loss, grad_norm=grad_norm):
                return None, {**good, "reason": OVERFLOW}
            reason = self.guard.check(loss=loss, grad_norm=grad_norm)
            if reason:
                return None, {**good, "reason": reason}
        return good, None

    def _handle(self, bad: dict[str, Any]) -> None:
        """Apply ``guard_policy`` to a bad step; the same on all ranks, as they check the same numbers.

        A step whose gradient overflowed was already skipped, and the next one has a smaller loss scale.

        Raises:
            UserError: The policy is to stop, or it did not help.
        """
        if bad["reason"] == OVERFLOW:
            values = {name: bad[name] for name in ("loss", "sequences", "batch_sequences", "batch_digest")}
            self.metrics.write("overflow", step=bad["step"], loss_scale=self.loss_scale.value, **values)
            return
        if self.options.lr_schedule == "range":
            self._range_ended = True
            return
        policy = self.options.guard_policy
        path = self._roll_back() if policy == "rollback" else None
        values = {**bad, "loss": str(bad["loss"]), "grad_norm": str(bad["grad_norm"])}
        self.metrics.write("guard", policy=policy, checkpoint=str(path) if path else None, **values)
        what = f"step {bad['step']}: {bad['reason']}; show its batch with podwright-train replay --step {bad['step']}"
        if policy == "stop":
            raise UserError(f"{what}; this step is not saved. Resume with a lower --lr or another --guard-policy")
        if policy == "skip" and self.guard.bad_in_a_row > guard.MOST_BAD:
            raise UserError(f"{what}; {guard.MOST_BAD} steps before it were skipped too: resume with a lower --lr")
        if policy == "rollback" and path is None:
            raise self._nothing_to_roll_back_to(what)

    @property
    def _ruined(self) -> UserError | None:
        """Return why the last weights that were saved are of no use; ranks may learn it at different steps."""
        return self.saver.ruined or (self.memory and self.memory.ruined) or None

    def _recover(self) -> None:
        """Return from weights that a save has seen to be of no use."""
        self.saver.wait()  # then every rank knows
        if self.memory:
            self.memory.wait()
        self._return_from(str(self._ruined))

    def _return_from(self, problem: str) -> None:
        """Roll back from weights of no use, if that is the policy: there is no step to skip.

        Raises:
            DivergedError: The policy is another one, or there is no checkpoint to roll back to.
        """
        if self.options.lr_schedule == "range":
            self._range_ended = True
            return
        policy, step = self.options.guard_policy, self.step
        path = self._roll_back() if policy == "rollback" else None
        checkpoint = str(path) if path else None
        self.metrics.write("guard", step=step, policy=policy, reason=problem, checkpoint=checkpoint)
        what = f"step {step}: {problem}"
        if policy != "rollback":
            raise DivergedError(
                f"{what}; resume from the last good checkpoint with a lower --lr or --guard-policy rollback"
            )
        if path is None:
            raise self._nothing_to_roll_back_to(what)

    def _nothing_to_roll_back_to(self, what: str) -> DivergedError:
        if not self._rollbacks.checkpoints:
            return DivergedError(f"{what}; there is no checkpoint to roll back to")
        tried = ", ".join(self._rollbacks.checkpoints)
        return DivergedError(
            f"{what}; no checkpoint helps, {guard.MOST_ROLLBACKS} rollbacks each to {tried} did not: resume with a "
            "lower --lr, or start a new run"
        )

    def _roll_back(self) -> Path | None:
        """Return to the newest good checkpoint with everything but the data: data drawn since then is skipped.

        Checkpoints whose rollbacks do not help are left out.
        """
        bad_step = self.step
        self._expect_within(self._longest_s(Activity.SAVING))
        self.saver.forget_ruin()
        path, _ = self._restore(preflight.checkpoint_directories(self.options), rolls_back=True)
        if self.memory:
            self.memory.keep(None)  # what it has is of steps that do not count
        if path:
            self._rollbacks.add(path, bad_step=bad_step)
        return path

    def _log(self, taken: dict[str, Any], timing: Timing) -> None:
        samples_per_s = (taken["sequences"] - self._logged_sequences) / timing.passed_s
        self._logged_sequences = taken["sequences"]
        tokens_per_s = samples_per_s * self.options.max_context_width
        flops_per_s = tokens_per_s * self.options.model.flops_per_token(self.options.max_context_width)
        memory_peak_bytes, memory_reserved_bytes = peak_memory_bytes(self.device)
        self.metrics.write(
            "train",
            **taken,
            perplexity=perplexity(taken["loss"]),
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_rank=tokens_per_s / self.ranks.world_size,
            samples_per_s=samples_per_s,
            mfu=flops_per_s / self._peak_flops if self._peak_flops else None,
            step_s=timing.step_s,
            data_s=timing.data_s,
            slowest_rank=timing.slowest_rank,
            lag_s=timing.lag_s,
            **timing.besides_s,
            **({} if timing.first_step_s is None else {"first_step_s": round(timing.first_step_s, 4)}),
            **({"memory_step": self.memory.newest_step} if self.memory else {}),
            memory_peak_bytes=memory_peak_bytes,
            memory_reserved_bytes=memory_reserved_bytes,
        )
        if timing.straggles:
            self.metrics.write(
                "straggler",
                step=taken["step"],
                rank=timing.slowest_rank,
                host=self._hosts.names[timing.slowest_rank],
                lag_s=timing.lag_s,
                step_s=timing.step_s,
            )

    def _log_saved(self, saved: Saved) -> None:
        self._rollbacks.forget(saved.path)  # it is another checkpoint now
        self.metrics.write(
            "checkpoint",
            step=saved.step,
            path=str(saved.path),
            seconds=round(saved.seconds, 3),
            paused_s=round(saved.paused_s, 3),
        )

    def _mark(self, activity: Activity) -> None:
        self._pulse.mark(activity, self.step)
        self._expect_within(self._longest_s(activity))

    def _longest_s(self, activity: Activity) -> float:
        """Return how long the ranks wait for each other in an activity: a save may take longer than a step."""
        if activity == Activity.SAVING:
            return LONGEST_SAVE.total_seconds()
        return self.options.step_timeout_s if self._waits_limited else self.options.start_timeout_s

    def _expect_within(self, seconds: float) -> None:
        """Let this rank dump its stacks if it reports no progress for half of this time."""
        if self._stalls:
            self._stalls.alive(seconds / 2)

    @property
    def _finished(self) -> bool:
        return self._data_spent or self._range_ended or self.step >= self.options.max_steps

    def _due(self, every: int | None) -> bool:
        """Return whether an action with this interval is due; a rollback does not repeat it."""
        is_new = self.step != self._loaded_step
        return self._finished or (is_new and every is not None and self.step % every == 0)


def _named(loss: float, losses: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the words for a validation loss and its value, of the split and of each dataset."""
    yield "", loss
    yield from ((f" on {name}", each) for name, each in losses.items())


def _gather_hosts(data_rank: int, ranks: Ranks) -> tuple[Hosts, bool]:
    """Return the hosts of all ranks, and whether this rank is the first reader of its data share."""
    gathered: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(gathered, (host_name(), data_rank))
    shares = [share for _, share in gathered]
    return Hosts([host for host, _ in gathered], ranks.rank), shares.index(data_rank) == ranks.rank


@contextmanager
def _stop_requests(*, says: bool) -> Iterator[list[int]]:
    """Collect stop signals in a list, instead of ending the process; a second Ctrl-C ends it.

    A shell's job in the background ignores SIGINT, which is for that in the foreground, and so do ranks that an agent
    started: they go on doing so.
    """
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            if says:
                os.write(2, CTRL_C)  # not by `print`, whose buffer this signal may have interrupted

    own = [number for number in STOP_SIGNALS if (number, signal.getsignal(number)) != (signal.SIGINT, signal.SIG_IGN)]
    before = {number: signal.signal(number, remember) for number in own}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _options_before(config: Path) -> dict[str, Any]:
    """Return the options of the previous start, which an older or newer version may have written."""
    try:
        return canonical(yaml.safe_load(read_text(config, limit_bytes=LIMIT_BYTES, follow_links=True)))
    except (OSError, yaml.YAMLError, ValueError, RecursionError, AttributeError) as error:
        reason = "it has no options" if isinstance(error, AttributeError) else " ".join(str(error).split())
        raise UserError(f"cannot read {config}: {reason}; remove it, this start writes it again") from error


def _write_config(folder: RunFolder, options: TrainConfig) -> None:
    """Write the configuration into the run folder; log differences from the previous one."""
    options = options.with_absolute_paths()
    if folder.config.exists():
        before = _options_before(folder.config)
        for name, value in options.to_dict().items():
            if before.get(name) != value:
                logger.warning("%s is %s in this start, was %s before", name, value, before.get(name))
    try:
        write_atomically(folder.config, options.to_yaml())
    except OSError as error:
        raise UserError(f"cannot write {folder.config}: {error.strerror}") from error
