"""The training loop."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from torch import Tensor
from torch.distributed.tensor import DTensor

from podwright_training import checkpoint, config
from podwright_training.config import ConfigError, ModelConfig, TrainConfig, UserError
from podwright_training.data import DataError, PackedStream, load_tokenizer, merge_states
from podwright_training.metrics import Metrics, batch_hash, digest_text
from podwright_training.model import LlamaForCausalLM
from podwright_training.optim import adamw
from podwright_training.parallel import (
    Ranks,
    device_of,
    device_problem,
    job_peak_flops,
    mean,
    parallelize,
    process_group,
)
from podwright_training.run import RunFolder, write_atomically
from podwright_training.schedule import learning_rate

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # Slurm's preemption, and `sbatch --signal=USR1@…`
FREE_TO_CHANGE = ("max_position_embeddings", "rope_theta", "rope_scaling", "rms_norm_eps", "initializer_range")


@dataclass(frozen=True)
class Data:
    """This rank's part of both splits."""

    training: PackedStream
    validation: PackedStream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option of ``TrainConfig`` is a flag."""
    config.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train, or go on training, until ``max_steps`` or a signal."""
    options, ranks = config.load(args), Ranks.from_environment()
    data = prepare(options, ranks)
    device = device_of(ranks, options.device)
    with process_group(ranks, device):
        Trainer(options, ranks=ranks, device=device, data=data).train()
    return 0


def prepare(options: TrainConfig, ranks: Ranks) -> Data:
    """Open the data, and look for everything that would stop the run, before any rank waits for another.

    Raises:
        ConfigError: With every problem.
    """
    problems = list(_problems_of_machine(options, ranks))
    data = None
    try:
        data = _open_data(options, ranks, problems)
    except DataError as error:
        problems.append(str(error))
    if problems or data is None:
        raise ConfigError(problems)
    return data


class Trainer:
    """One rank of a run: the model, the optimizer, the data, and how far they are."""

    def __init__(self, options: TrainConfig, *, ranks: Ranks, device: torch.device, data: Data) -> None:
        self.options = options
        self.ranks = ranks
        self.device = device
        self.data = data
        self.folder = RunFolder(Path(options.run_dir))
        self.model = build_model(options, ranks, device)
        self.optimizer = adamw(self.model, options)
        self.metrics = Metrics(self.folder.metrics, active=ranks.rank == 0)
        self.step = 0
        self.sequences = 0  # drawn from the training data, by all ranks
        self._validation_start = data.validation.state_dict()
        self._watch = _Watch()
        self._peak_flops = job_peak_flops(device, ranks)
        self._stop_agreed = False

    def train(self) -> None:
        """Resume if there is a checkpoint, then take steps; validate and save when due, and at the end."""
        with _stop_requests() as requests:
            self._start(resumed_from=self._resume())
            while self.step < self.options.max_steps and not self._stop_agreed:
                self._take_step(requests)
                if self._due(self.options.validation_freq):
                    self.validate()
                if self._due(self.options.checkpoint_freq) or self._stop_agreed:
                    self.save()
            reason = "max_steps" if self.step == self.options.max_steps else "signal"
            self.metrics.write("end", step=self.step, reason=reason)

    @torch.no_grad()
    def validate(self) -> None:
        """Mean loss per token over the first batches of the validation split, the same ones each time."""
        self.data.validation.load_state_dict(self._validation_start)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for _ in range(self.options.validation_batches):
            total += self._loss(self.data.validation.next_batch())
        loss = mean(total / self.options.validation_batches).item()
        sequences = self.options.validation_batches * self.options.val_batch_size * self.ranks.world_size
        tokens = sequences * self.options.max_context_width
        self.metrics.write("validation", step=self.step, loss=loss, perplexity=math.exp(loss), tokens=tokens)

    def save(self) -> None:
        """Write a checkpoint."""
        begin = perf_counter()
        positions: list[Any] = [None] * self.ranks.world_size
        dist.all_gather_object(positions, self.data.training.state_dict())
        state = checkpoint.TrainerState(
            step=self.step,
            sequences=self.sequences,
            data=merge_states(positions),
            model=asdict(self.options.model),
            world_size=self.ranks.world_size,
        )
        path = checkpoint.save(
            self.options.checkpoints,
            state,
            model=self.model,
            optimizer=self.optimizer,
            keep=self.options.keep_checkpoints,
        )
        self.metrics.write("checkpoint", step=self.step, path=str(path), seconds=round(perf_counter() - begin, 3))

    def _resume(self) -> Path | None:
        """Continue from the newest checkpoint that is as it was written."""
        for path in checkpoint.agree_on_intact(checkpoint_directories(self.options)):
            try:
                state = checkpoint.restore(path, model=self.model, optimizer=self.optimizer)
            except checkpoint.DamagedCheckpointError as error:
                logger.warning("%s; passed over", error)
                continue
            self.data.training.load_state_dict(state.data)
            self.step, self.sequences = state.step, state.sequences
            return path
        return None

    def _start(self, *, resumed_from: Path | None) -> None:
        if self.ranks.rank == 0:
            _keep_config(self.folder, self.options)
        self.metrics.write(
            "start",
            step=self.step,
            world_size=self.ranks.world_size,
            resumed_from=str(resumed_from) if resumed_from else None,
            job_id=os.environ.get("SLURM_JOB_ID"),
            config=self.options.digest,
            parameters=self.options.model.parameters,
        )

    def _take_step(self, stop_requests: list[int]) -> None:
        with self._watch.step():
            lr = learning_rate(self.step + 1, self.options)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            with self._watch.data():
                batch, digest = self._draw(stop_requests)
            loss = self._loss(batch)
            torch.autograd.backward(loss)
            grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.grad_clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if not self._due(self.options.logging_freq):
                return
            values = {
                "loss": mean(loss).item(),
                "grad_norm": _whole(grad_norm).item(),
                "lr": lr,
                "batch_digest": digest,
            }
        self._log(values)

    def _draw(self, stop_requests: list[int]) -> tuple[Tensor, str]:
        """The next batch and its digest; on the way the ranks agree whether to stop, without waiting for a GPU."""
        batch = self.data.training.next_batch()
        shared = torch.tensor([batch_hash(batch), len(stop_requests)])
        dist.all_reduce(shared)
        self.sequences += self.options.train_batch_size * self.ranks.world_size
        self._stop_agreed = bool(shared[1])
        return batch, digest_text(int(shared[0]))

    def _loss(self, batch: Tensor) -> Tensor:
        """Mean cross-entropy per token of this rank's sequences, ``[B, T + 1]``."""
        batch = batch.to(self.device, non_blocking=True)
        logits_BTV = self.model(batch[:, :-1])
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), batch[:, 1:].flatten())

    def _log(self, values: dict[str, Any]) -> None:
        bad = [f"{name} is {values[name]}" for name in ("loss", "grad_norm") if not math.isfinite(values[name])]
        if bad:
            raise UserError(
                f"step {self.step}: {' and '.join(bad)}; this step is not saved. Resume with a lower --lr or other data"
            )
        samples_per_step = self.options.train_batch_size * self.ranks.world_size
        step_s, data_s = self._watch.means()
        tokens_per_s = samples_per_step * self.options.max_context_width / step_s
        flops_per_s = tokens_per_s * self.options.model.flops_per_token(self.options.max_context_width)
        self.metrics.write(
            "train",
            step=self.step,
            **values,
            tokens_per_s=tokens_per_s,
            samples_per_s=samples_per_step / step_s,
            step_s=step_s,
            data_s=data_s,
            sequences=self.sequences,
            mfu=flops_per_s / self._peak_flops if self._peak_flops else None,
        )

    def _due(self, every: int | None) -> bool:
        return self.step == self.options.max_steps or (every is not None and self.step % every == 0)


def build_model(options: TrainConfig, ranks: Ranks, device: torch.device) -> LlamaForCausalLM:
    """The divided model with its initial weights: no rank ever holds more than its shard and one parameter."""
    with torch.device("meta"):
        model = LlamaForCausalLM(options.model)
    parallelize(model, options, ranks, device)
    model.to_empty(device=device)
    model.init_weights(seed=options.seed)
    return model


def checkpoint_directories(options: TrainConfig) -> list[Path]:
    """Where to look for a checkpoint to continue from, in this order."""
    start = [Path(options.resume_from_checkpoint)] if options.resume_from_checkpoint else []
    return [options.checkpoints, *start]


class _Watch:
    """Seconds of steps and of waiting for data in them, since the last log line."""

    def __init__(self) -> None:
        self._steps = 0
        self._step_s = 0.0
        self._data_s = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        begin = perf_counter()
        yield
        self._step_s += perf_counter() - begin
        self._steps += 1

    @contextmanager
    def data(self) -> Iterator[None]:
        begin = perf_counter()
        yield
        self._data_s += perf_counter() - begin

    def means(self) -> tuple[float, float]:
        """Mean seconds per step, and of them for data; begins anew."""
        result = self._step_s / self._steps, self._data_s / self._steps
        self._steps, self._step_s, self._data_s = 0, 0.0, 0.0
        return result


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that grows with each stop signal, instead of the signal ending the process."""
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, remember) for number in STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _keep_config(folder: RunFolder, options: TrainConfig) -> None:
    """Write the configuration into the run folder; what differs from the one there is told."""
    if folder.config.exists():
        before = yaml.safe_load(folder.config.read_text())
        for name, value in asdict(options).items():
            if before.get(name) != value:
                logger.warning("%s is %s in this start, was %s before", name, value, before.get(name))
    write_atomically(folder.config, options.to_yaml())


def _open_data(options: TrainConfig, ranks: Ranks, problems: list[str]) -> Data | None:
    tokenizer = load_tokenizer(options.tokenizer)
    if len(tokenizer) > options.vocab_size:
        problems.append(
            f"vocab_size {options.vocab_size} is smaller than the {len(tokenizer)} of tokenizer {options.tokenizer}"
        )
    if options.data_streams % ranks.world_size:
        problems.append(
            f"data_streams {options.data_streams} is not divisible by the {ranks.world_size} ranks; change the number "
            "of ranks, or data_streams in a new run"
        )
        return None

    def stream(split: str, local_batch_size: int) -> PackedStream:
        return PackedStream(
            dataset=options.dataset,
            dataset_config_name=options.dataset_config_name,
            split=split,
            tokenizer=tokenizer,
            context_width=options.max_context_width,
            rank=ranks.rank,
            world_size=ranks.world_size,
            local_batch_size=local_batch_size,
            streams=options.data_streams,
        )

    return Data(stream("train", options.train_batch_size), stream("validation", options.val_batch_size))


def _problems_of_machine(options: TrainConfig, ranks: Ranks) -> Iterator[str]:
    problem = device_problem(ranks, options.device)
    if problem:
        yield problem
    for name, folder in (("run_dir", Path(options.run_dir)), ("checkpoint_dir", options.checkpoints)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            yield f"{name} {folder} cannot be written: {error.strerror}"
    found = next(filter(None, map(checkpoint.newest, checkpoint_directories(options))), None)
    if found is None and Path(options.resume_from_checkpoint or options.checkpoints) != options.checkpoints:
        yield f"resume_from_checkpoint {options.resume_from_checkpoint} holds no complete checkpoint"
    if found:
        there, here = asdict(checkpoint.model_config(found)), asdict(options.model)
        shape = [item.name for item in fields(ModelConfig) if item.name not in FREE_TO_CHANGE]
        differing = [f"{name} {there[name]} there, {here[name]} here" for name in shape if there[name] != here[name]]
        if differing:
            yield f"checkpoint {found} is of another model: {'; '.join(differing)}"
