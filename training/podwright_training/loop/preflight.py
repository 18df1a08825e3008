"""Find everything that would stop a run, before any rank waits for another."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from podwright_training.beats import GENERATION
from podwright_training.checkpoint import hub_model, step_folder, trainer_state
from podwright_training.checkpoint.collective_io import CheckpointError
from podwright_training.checkpoint.mirror import Mirror
from podwright_training.checkpoint.store import checkpoint_directories
from podwright_training.config import parallel_dims
from podwright_training.config.compilation import DRY_RUN_DEVICE, is_compiled, toolchain_problem
from podwright_training.config.memory_checkpoints import MemoryCheckpoints
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError
from podwright_training.data.mixture import validation_sources_of
from podwright_training.data.stream import PackedStream, open_stream
from podwright_training.data.tokenizer import FirstRank, load_for_all_ranks, vocabulary_size
from podwright_training.device import device_of, device_problem, slow_precision
from podwright_training.errors import ConfigError
from podwright_training.host_memory import free_bytes_in, free_memory_bytes
from podwright_training.loop import initial_weights, samples, sinks
from podwright_training.memory_place import PREFIX
from podwright_training.model import float8_problem, has_mask, kept_in_bf16, mask_problem, uses_flex
from podwright_training.parallel.tensor import overlap_problem
from podwright_training.ranks import Ranks, host_name
from podwright_training.run_folder import recover_folders

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """One data share of both splits, and of further datasets to validate on."""

    training: PackedStream
    validation: PackedStream
    validation_sets: dict[str, PackedStream]  # the datasets of validation_datasets, by name


def check(config: TrainConfig, ranks: Ranks, *, of_first_rank: FirstRank) -> PreTrainedTokenizerBase:
    """Check data, folders and devices; return the tokenizer.

    Args:
        config: Configuration of the run.
        ranks: This one and all.
        of_first_rank: Runs an action of a name on the first rank and returns its result on all.

    Raises:
        ConfigError: With every problem.
    """
    checkpoint = _newest_checkpoint(config, of_first_rank)
    problems = [*sinks.problems(config, is_first_rank=ranks.rank == 0), *_problems_of_machine(config, ranks)]
    problems += _problems_of_checkpoint(config, checkpoint, of_first_rank)
    for hint in _hints(config, ranks) if ranks.rank == 0 else ():
        logger.warning(hint)
    dims_problems = list(parallel_dims.problems(config, world_size=ranks.world_size, nodes=ranks.nodes))
    problems += dims_problems
    tokenizer = None
    try:
        tokenizer = load_for_all_ranks(config.tokenizer, of_first_rank)
        problems += samples.problems(config, tokenizer)
        if not dims_problems:  # otherwise the number of data shares is unknown
            problems += _problems_of_data(config, tokenizer, ranks, checkpoint)
    except DataError as error:
        problems.append(str(error))
    if problems or tokenizer is None:
        raise ConfigError(problems)
    return tokenizer


def open_data(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, *, data_rank: int, data_shards: int, checked: bool = False
) -> Data:
    """Open one of ``data_shards`` equal shares of the data; if ``checked``, this process has opened it before."""
    opened = partial(open_stream, config, tokenizer=tokenizer, rank=data_rank, world_size=data_shards, checked=checked)
    validating = partial(opened, split="validation", local_batch_size=config.local_validation_batch_size(data_shards))
    return Data(
        opened(split="train", local_batch_size=config.train_batch_size),
        validating(),
        {source.name: validating(source=source) for source in validation_sources_of(config)},
    )


def _problems_of_data(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, ranks: Ranks, checkpoint: Path | None
) -> Iterator[str]:
    if (size := vocabulary_size(tokenizer)) > config.vocab_size:
        yield f"vocab_size {config.vocab_size} is smaller than the {size} ids of tokenizer {config.tokenizer}"
    dims = parallel_dims.ParallelDims.of(config, world_size=ranks.world_size, nodes=ranks.nodes)
    yield from parallel_dims.problems_of_data(config, dims.data_size)
    if config.data_streams % dims.data_size:
        return
    data_rank = dims.data_rank(ranks.rank)
    try:
        data = open_data(replace(config, data_workers=0), tokenizer, data_rank=data_rank, data_shards=dims.data_size)
    except DataError as error:
        yield str(error)
        return
    try:
        data.training.state_dict()  # reads a remote dataset's fingerprint now, not when all ranks save
        if checkpoint:
            yield from data.training.differences(trainer_state.read_state(checkpoint).data)
    except DataError as error:
        yield str(error)
        return
    validated = math.ceil(config.validated_sequences(dims.data_size) / dims.data_size)
    validation = [(stream, validated) for stream in (data.validation, *data.validation_sets.values())]
    for stream, streams in ((data.training, config.data_streams), *validation):
        try:
            stream.check_streams(streams)  # find empty streams here, not when all ranks wait for this one
        except DataError as error:
            yield str(error)


def _hints(config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    """Yield what makes the run slower than it need be."""
    if hint := slow_precision(ranks, config.device, config.compute_precision):
        yield hint
    device_type = device_of(ranks, config.device).type
    compiled = is_compiled(config, device_type)
    if device_type == "cuda" and not compiled and is_compiled(config, DRY_RUN_DEVICE):
        yield f"{toolchain_problem()}: the run is not compiled, about 14 % slower; --no-compile omits this warning"
    if config.float8 and not compiled:
        yield "float8 without compile scales and casts in separate kernels, slower than bf16: add --compile"
    if config.float8 and (hint := kept_in_bf16(config)):
        yield hint


def _problem_of_device(config: TrainConfig, ranks: Ranks) -> str | None:
    """Return why the run's options do not work on this rank's device, or ``None``."""
    if problem := device_problem(ranks, config.device):
        return problem
    device = device_of(ranks, config.device)
    if config.float8 and (problem := float8_problem(device)):
        return problem
    if config.async_tensor_parallel and (problem := overlap_problem(device)):
        return problem
    # flex_attention is compiled also where the rest is eager.
    compiles = is_compiled(config, device.type) or (has_mask(config) and uses_flex(config.attention, device))
    if device.type == "cuda" and compiles and (problem := toolchain_problem()):
        return f"{problem}: install what is missing, or use --no-compile, and --attention sdpa for masks"
    return mask_problem(config, device)


def _problems_of_machine(config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    if problem := _problem_of_device(config, ranks):
        yield problem
    for name, folder in (("run_dir", Path(config.run_dir)), ("checkpoint_dir", config.checkpoints)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            yield f"{name} {folder} is not writable: {error.strerror}"
    if config.memory_checkpoint_freq:
        yield from _problems_of_memory(config, ranks)
    if config.remote_checkpoints:
        try:
            Mirror(config.remote_checkpoints, config.checkpoints).check()
        except CheckpointError as error:
            yield str(error)


def _problems_of_memory(config: TrainConfig, ranks: Ranks) -> Iterator[str]:
    """Compare the size of checkpoints in memory with this host's free memory.

    An elastic run that has begun continues anyway: saves in memory are tried again, and each failure is a warning.
    """
    folder = Path(config.memory_checkpoint_dir)
    if not folder.is_dir():
        yield f"memory_checkpoint_dir {folder} does not exist; name a folder on a tmpfs, such as /dev/shm"
        return
    if int(os.environ.get(GENERATION, "0")) > 1:
        return
    fewest = config.min_nodes or max(1, ranks.nodes)  # each then has the most
    needed = MemoryCheckpoints.of(config, world_size=fewest * ranks.local_world_size, hosts=fewest)
    existing_bytes = sum(file.stat().st_size for file in folder.glob(f"{PREFIX}-{os.geteuid()}-*/{host_name()}/*/*"))
    room_bytes, free_bytes = free_bytes_in(folder) + existing_bytes, free_memory_bytes() + existing_bytes
    in_folder, on_host = (
        (needed.folder_bytes, room_bytes, f"{folder} has room for"),
        (needed.host_bytes, free_bytes, "free are"),
    )
    for needed_bytes, available_bytes, subject in (in_folder, on_host):
        if needed_bytes > available_bytes:
            yield (
                f"memory_checkpoint_freq: checkpoints in memory need {needed_bytes / 1e9:.3g} GB on {host_name()}"
                f"{f' of {fewest} (min_nodes)' if config.min_nodes else ''}, {subject} "
                f"{available_bytes / 1e9:.3g} GB; use more nodes, or set it to none"
            )
            return


def _newest_checkpoint(config: TrainConfig, of_first_rank: FirstRank) -> Path | None:
    """Return the newest checkpoint, as the first rank sees it: each has files of every rank."""
    directories = checkpoint_directories(config)

    def look() -> str | None:
        recover_folders(config.checkpoints)
        return next((str(path) for path in map(step_folder.newest, directories) if path), None)

    checkpoint = of_first_rank(f"newest checkpoint in {' or '.join(map(str, directories))}", look)
    return Path(checkpoint) if checkpoint else None


def _problems_of_checkpoint(config: TrainConfig, checkpoint: Path | None, of_first_rank: FirstRank) -> Iterator[str]:
    directories = checkpoint_directories(config)
    if checkpoint is None and directories[1:] and directories[1] != config.checkpoints:
        yield f"resume_from_checkpoint {config.resume_from_checkpoint} has no complete checkpoint"
    if checkpoint is None and config.init_from:
        yield from _problems_of_initial_weights(config.init_from, config, of_first_rank)
    if checkpoint and (differing := config.model.differences(trainer_state.model_config(checkpoint))):
        yield f"checkpoint {checkpoint} belongs to another model: {'; '.join(differing)}"


def _problems_of_initial_weights(name: str, config: TrainConfig, of_first_rank: FirstRank) -> Iterator[str]:
    try:
        if hub_model.is_identifier(name):
            hub_model.download(name, of_first_rank)
        folder = hub_model.folder_of(name)
        name = f"problems of init_from {name}"
        yield from of_first_rank(name, lambda: list(initial_weights.problems(folder, config)))
    except DataError as error:
        yield str(error)
