"""Read the batch of a step again and show its documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from podwright_training.batch import Batch
from podwright_training.checkpoint import checkpoint_reader, hub_model, step_folder, trainer_state
from podwright_training.checkpoint.store import checkpoint_directories
from podwright_training.config.sources import load_run
from podwright_training.config.train_config import TrainConfig
from podwright_training.data.mixture import sources_of
from podwright_training.data.phased_mixture import MixtureChange
from podwright_training.data.stream import PackedStream, open_stream
from podwright_training.data.tokenizer import load_tokenizer
from podwright_training.errors import UserError
from podwright_training.events import GuardEvent, MixtureEvent, OverflowEvent, TrainEvent
from podwright_training.loop import initial_weights
from podwright_training.loop.metrics import batch_hash, digest_text
from podwright_training.loop.replayed_batch import DocumentBeginning, ReplayedBatch, ReplayedSequence
from podwright_training.model import LlamaForCausalLM
from podwright_training.run_folder import RunFolder

BEGINNING_TOKENS = 24
BEGINNING_CHARACTERS = 72


NEEDED = ("sequences", "batch_sequences", "batch_digest")  # Fields of a step's event.


class ReplayError(UserError):
    """A batch is not reproducible; the message says why."""


@dataclass(frozen=True)
class BatchPlace:
    """Sequences of a step's global batch in the run's data, and their digest in training."""

    step: int
    first_sequence: int
    sequences: int
    digest: str


def replay(folder: RunFolder, step: int, *, losses: bool) -> ReplayedBatch:
    """Read the batch of a step again.

    Args:
        folder: Of the run, finished or not.
        step: A step in the metrics.
        losses: Compute each sequence's loss too, under the weights of the last checkpoint before.

    Raises:
        ReplayError: There is no such step, or its data has changed.
    """
    place = _batch_place(folder, step)
    config = load_run(folder)
    tokenizer = load_tokenizer(config.tokenizer)
    before = _checkpoint_before(config, place)
    batches = _read(config, tokenizer, place, before, _weights_in_training(folder, config))
    model, weights_step = _model(config, before) if losses else (None, None)
    sequences = [
        ReplayedSequence(
            number,
            list(_beginnings(_unpadded(batch), tokenizer)),
            _loss(model, batch) if model and batch.counted_tokens else None,
        )
        for number, batch in enumerate(batches, start=place.first_sequence)
    ]
    return ReplayedBatch(step, place.digest, weights_step, sequences)


def _batch_place(folder: RunFolder, step: int) -> BatchPlace:
    """Return where a step's batch is: of the event with the reason why it was skipped, or of the last one."""
    events = [event for event in folder.events() if isinstance(event, TrainEvent | GuardEvent | OverflowEvent)]
    of_step = [event for event in events if event.step == step]
    bad = [event for event in of_step if not isinstance(event, TrainEvent)]
    if not of_step:
        nearest = sorted({event.step for event in events}, key=lambda candidate: abs(candidate - step))[:3]
        hint = f"; the nearest are {', '.join(map(str, sorted(nearest)))}" if nearest else ""
        raise ReplayError(f"{folder.metrics} has no step {step}{hint}")
    event = (bad or of_step)[-1]
    sequences, batch_sequences, digest = event.sequences, event.batch_sequences, event.batch_digest
    if sequences is None or batch_sequences is None or digest is None:
        missing = ", ".join(name for name in NEEDED if getattr(event, name) is None)
        raise ReplayError(f"{folder.metrics}: the line of step {step} has no {missing}")
    if batch_sequences > sequences:
        raise ReplayError(
            f"{folder.metrics}: the line of step {step} is damaged: batch_sequences {batch_sequences} "
            f"is above sequences {sequences}"
        )
    return BatchPlace(step, sequences - batch_sequences, batch_sequences, digest)


def _checkpoint_before(config: TrainConfig, place: BatchPlace) -> Path | None:
    """Return the last checkpoint before the batch; ``None`` to start at the beginning of the data."""
    paths = chain.from_iterable(step_folder.intact(directory) for directory in checkpoint_directories(config))
    positions = {path: trainer_state.read_state(path).sequences for path in paths}
    return max(
        (path for path in positions if positions[path] <= place.first_sequence), key=positions.__getitem__, default=None
    )


def _weights_in_training(folder: RunFolder, config: TrainConfig) -> list[MixtureChange]:
    """Return the weights of a mixture as the run has logged them; none of a run of one source.

    A run that became a mixture has logged none for its single source, which is the one that no start has added.
    """
    changes: list[MixtureChange] = []
    events = list(folder.events_of(MixtureEvent))
    if events and events[0].from_sequence:
        added = {name for event in events for name in event.added or ()}
        continued = [source.name for source in sources_of(config) if source.name not in added]
        names = events[0].removed or continued
        if len(names) == 1:
            changes.append(MixtureChange(0, {names[0]: 1.0}))
    for event in events:
        # A resume from an earlier checkpoint reads sequences again, by the weights of that time.
        changes = [change for change in changes if change.first_sequence < event.from_sequence]
        changes.append(MixtureChange(event.from_sequence, event.weights))
    return changes


def _read(
    config: TrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    place: BatchPlace,
    before: Path | None,
    changes: Sequence[MixtureChange],
) -> list[Batch]:
    """Yield the sequences of the batch; raise ``ReplayError`` if they are not those trained on."""
    stream = open_stream(
        replace(config, data_workers=0),
        split="train",
        tokenizer=tokenizer,
        rank=0,
        world_size=1,
        local_batch_size=1,
    )
    position = 0
    if before:
        state = trainer_state.read_state(before)
        stream.load_state_dict(state.data)
        position = state.sequences
    stream.change_mixture(_needed(changes, range(position, place.first_sequence + place.sequences), stream))
    for _ in range(place.first_sequence - position):
        stream.next_batch()
    batches = [stream.next_batch() for _ in range(place.sequences)]
    digest = digest_text(batch_hash(batch.tokens_BT[0] for batch in batches))
    if digest != place.digest:
        raise ReplayError(
            f"the batch of step {place.step} now has digest {digest}, in training it had {place.digest}: "
            f"{_data(config)} or tokenizer {config.tokenizer} has changed"
        )
    return batches


def _needed(changes: Sequence[MixtureChange], sequences: range, stream: PackedStream) -> list[MixtureChange]:
    """Return the changes that these sequences need; raise ``ReplayError`` if a source of them is missing."""
    before = [change for change in changes if change.first_sequence <= sequences.start]
    within = [change for change in changes if sequences.start < change.first_sequence < sequences.stop]
    needed = [*before[-1:], *within]
    missing = {name for change in needed for name in change.weights} - stream.sequences_by_source.keys()
    if missing:
        raise ReplayError(
            f"data_mixture no longer has {', '.join(sorted(missing))}, which training read before this step: add the "
            "source again, with weight 0"
        )
    return needed


def _data(config: TrainConfig) -> str:
    """Name what the run reads, for messages."""
    if config.data_mixture is None:
        return f"dataset {config.dataset}"
    return f"data_mixture {config.data_mixture} (a weight or a dataset)"


def _model(config: TrainConfig, before: Path | None) -> tuple[LlamaForCausalLM, int]:
    """Return the whole model on the CPU as it was before the batch, or at the checkpoint before it, and its step."""
    model = LlamaForCausalLM(trainer_state.model_config(before) if before else config.model)
    step = 0
    if before:
        checkpoint_reader.load_weights(model, before)
        step = trainer_state.read_state(before).step
    elif config.init_from:
        step = initial_weights.load_alone(hub_model.folder_of(config.init_from), config, model)
    else:
        model.init_weights(seed=config.seed)
    return model.eval(), step


@torch.no_grad()
def _loss(model: LlamaForCausalLM, batch: Batch) -> float:
    total: Tensor = model(batch.tokens_BT, labels_BT=batch.labels_BT, positions_BT=batch.positions_BT)
    return total.item() / batch.counted_tokens


def _unpadded(batch: Batch) -> Tensor:
    """Return the tokens of a batch of one sequence, up to the last that is predicted: the data's last may be padded."""
    counted = batch.counted_tokens
    return batch.tokens_BT[0, : counted + 1] if counted else batch.tokens_BT[0, :0]


def _beginnings(tokens_T: Tensor, tokenizer: PreTrainedTokenizerBase) -> Iterator[DocumentBeginning]:
    """Yield the first words of every document with a part in the sequence."""
    ends_D = (tokens_T == tokenizer.eos_token_id).nonzero().flatten() + 1
    for document in tokens_T.tensor_split(ends_D):
        if len(document):
            text = " ".join(tokenizer.decode(document[:BEGINNING_TOKENS]).split())
            yield DocumentBeginning(text[:BEGINNING_CHARACTERS], len(document))
