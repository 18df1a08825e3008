"""Yield batches of packed sequences in one global order for any world size.

The data is divided into *virtual streams* whose number is fixed for a run. In each epoch of a source, every stream owns
an equal part of its bytes in random order (``order``) and packs the documents there independently; global sequence
``g`` is the next one of stream ``g % streams``, from the source that the mixture assigns to ``g``. Ranks, and their
worker processes, only divide the streams among themselves: the content of every global batch depends on nothing but its
size, and a position is five small integers per stream and source.

An epoch is every document once. A stream that has finished one begins the next, a few documents before or after the
other streams. With ``max_epochs`` a stream that has read a source so often pads the last sequence of it, and its later
sequences of that source are empty, until all streams have read it: then the source is spent, and the run ends.

Each sequence carries the position after it. So the saved state is that of the last sequence that the trainer used, not
of the last one that a worker prepared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from podwright_training.config.train_config import TrainConfig
from podwright_training.data.bad_data import DataError, Faults
from podwright_training.data.corpus import Corpus, DataPosition
from podwright_training.data.mixture import Source, sources_of
from podwright_training.data.packing import READING_THREADS, Packed, Recipe
from podwright_training.data.phased_mixture import MixtureChange, PhasedMixture
from podwright_training.data.resume import ORDER, AbsentSources, differences, names_in_checkpoint
from podwright_training.data.splits import find_split
from podwright_training.data.tokenizer import Encoder, load_tokenizer
from podwright_training.data.workers import Worker

if TYPE_CHECKING:  # they take seconds to import; worker processes do without
    from transformers import PreTrainedTokenizerBase

    from podwright_training.batch import Batch

VALIDATION_SEED = 0  # runs with other seeds validate on the same batches


def open_stream(
    config: TrainConfig,
    *,
    split: str,
    tokenizer: str | PreTrainedTokenizerBase,
    rank: int,
    world_size: int,
    local_batch_size: int,
    source: Source | None = None,
    checked: bool = False,
    validation_epochs: int | None = None,
) -> PackedStream:
    """Open the stream of ``split`` that ``config`` describes, or that of one source; raise as ``PackedStream`` does.

    ``max_epochs`` ends training; a validation that is larger than its split repeats it, or ends after
    ``validation_epochs``. Validation has the weights with which a run begins, so that its losses stay comparable.
    """
    training = split == "train"
    sources = [replace(source, weight=1.0)] if source else sources_of(config)
    return PackedStream(
        sources if training else [replace(source, max_epochs=validation_epochs) for source in sources if source.weight],
        split=split,
        tokenizer=tokenizer,
        context_width=config.max_context_width,
        rank=rank,
        world_size=world_size,
        local_batch_size=local_batch_size,
        streams=config.data_streams,
        seed=config.seed if training else VALIDATION_SEED,
        workers=config.data_workers if training else 0,
        document_mask=config.document_mask,
        shuffle=config.shuffle or not training,
        add_bos=config.add_bos,
        max_bad_records=config.max_bad_records,
        max_bad_shards=config.max_bad_shards,
        checked=checked,
    )


class PackedStream:
    """Batches of packed token sequences for one rank.

    Documents are tokenised, each followed by the tokenizer's EOS token, concatenated and cut into sequences of
    ``context_width + 1`` tokens (inputs and targets: the sequence without its last and its first token). Epochs follow
    each other, each in another order, up to ``max_epochs`` of the source.

    Args:
        sources: Datasets to read, mixed by weight, whole sequences at a time.
        split: ``train`` or ``validation``.
        tokenizer: Tokenizer, or an argument of ``load_tokenizer``.
        context_width: Tokens per sequence.
        rank: Rank of this process.
        world_size: Number of processes; must divide ``streams``.
        local_batch_size: Sequences per rank and batch.
        streams: Virtual streams, the same number for the whole run.
        seed: Seed of the order.
        shuffle: Read documents in random order; else in that of the files, of which each stream reads one part.
        add_bos: Begin each document of text with the tokenizer's BOS token.
        workers: Processes that read, tokenize and pack ahead; 0: this process does it on demand.
        document_mask: Return the positions of tokens in their documents. A document cut by the end of a sequence
            continues in the next at position 0. Labels do not change: a document's last token predicts the
            end-of-text token, which predicts the first token of the next document.
        max_bad_records: Broken records to skip before stopping.
        max_bad_shards: Broken shards to abandon before stopping.
        checked: This process has opened the same stream before: do not check its shards again.

    Raises:
        DataError: There is no such dataset, shard or text column, or the tokenizer has no end-of-text token or is not
            the one that token shards were made with.
        ValueError: ``world_size`` does not divide ``streams``.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        split: str,
        tokenizer: str | PreTrainedTokenizerBase,
        context_width: int,
        rank: int,
        world_size: int,
        local_batch_size: int,
        streams: int,
        seed: int = 0,
        workers: int = 0,
        document_mask: bool = False,
        shuffle: bool = True,
        add_bos: bool = False,
        max_bad_records: int = 100,
        max_bad_shards: int = 1,
        checked: bool = False,
    ) -> None:
        if streams % world_size:
            allowed = ", ".join(str(size) for size in range(1, streams + 1) if streams % size == 0)
            raise ValueError(
                f"{streams} data streams are not divisible by {world_size} ranks; allowed world sizes: {allowed}"
            )
        self._recipe = Recipe(
            corpora=_corpora(sources, split, streams=streams, seed=seed, shuffle=shuffle),
            mixture=PhasedMixture(
                [MixtureChange(0, {source.name: source.weight for source in sources if source.weight})],
                [source.name for source in sources],
                streams=streams,
            ),
            encoder=Encoder(load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer, add_bos=add_bos),
            streams=streams,
            width=context_width + 1,
            max_bad_records=max_bad_records,
            max_bad_shards=max_bad_shards,
        )
        for corpus in () if checked else self._recipe.corpora:
            corpus.check(self._recipe.encoder, rank=rank, world_size=world_size)
        self._sources, self._split = sources, split
        self._rank = rank
        self._world_size = world_size
        self._local_batch_size = local_batch_size
        self._document_mask = document_mask
        self._workers = min(workers, streams // world_size)
        self.faults = Faults(max_bad_records, max_bad_shards)
        self._positions = {stream: [DataPosition()] * len(sources) for stream in range(rank, streams, world_size)}
        self._sequences = 0  # drawn by all ranks
        self._drawn = [0] * len(sources)  # sequences of each source
        self._documents = {stream: [0] * len(sources) for stream in self._positions}
        self._absent = AbsentSources()
        self._last = range(0)
        self._running: list[Worker] = []
        self._makers: list[Iterator[Packed]] = []

    def change_mixture(self, changes: Iterable[MixtureChange]) -> None:
        """Give sources other weights from some sequences on, in place of all changes that were given before.

        Sources keep their positions: one that is not read for a while continues where it paused.
        """
        mixture = self._recipe.mixture.followed_by(changes)
        if mixture.changes != self._recipe.mixture.changes:
            self.close()  # Worker processes have read ahead by the former weights.
            self._recipe = replace(self._recipe, mixture=mixture)

    def next_batch(self, sequences: int | None = None) -> Batch:
        """Return this rank's ``local_batch_size`` sequences of ``context_width`` tokens of the next global batch.

        Args:
            sequences: Size of the global batch, if it is smaller than ``local_batch_size`` of every rank. What a rank
                then lacks has labels that do not count; ``own_sequences`` says which it has.

        Raises:
            DataError: A shard is unreadable, too much is broken, a source has no document, or a worker died.
        """
        import torch

        from podwright_training.batch import Batch

        size = self._local_batch_size * self._world_size if sequences is None else sequences
        self._last = range(self._sequences, self._sequences + size)
        rows = np.zeros((self._local_batch_size, self._recipe.width), dtype=np.int64)
        lengths: list[int] = []
        for tokens, length in self._draw_until(self._last.stop):
            rows[len(lengths)] = tokens
            lengths.append(length)
        positions = document_positions(rows[:, :-1], self._recipe.encoder.end) if self._document_mask else None
        all_BT = torch.from_numpy(rows)
        batch = Batch(all_BT[:, :-1], all_BT[:, 1:], None if positions is None else torch.from_numpy(positions))
        return batch.counting_first(len(lengths)).counting_tokens([max(length - 1, 0) for length in lengths])

    def check_streams(self, stream_count: int) -> None:
        """Read the first documents of ``most`` of this rank's streams in each source.

        They are read side by side: of remote data each costs the requests with which training begins it too.

        Raises:
            DataError: A source has no document, a shard is unreadable, or too much is broken.
        """
        recipe = self._recipe
        faults = Faults(recipe.max_bad_records, recipe.max_bad_shards)

        def read(corpus: Corpus, stream: int) -> None:
            next(corpus.documents(stream, DataPosition(), encoder=recipe.encoder, faults=faults), None)

        pairs = list(product(recipe.corpora, islice(self._positions, stream_count)))
        with ThreadPoolExecutor(READING_THREADS) as pool:
            deque(pool.map(read, *zip(*pairs, strict=True)), maxlen=0)  # raises an error of reading

    def coordinates(self) -> range:
        """Return the global sequences of the last batch of all ranks; empty before the first."""
        return self._last

    def own_sequences(self, *, before: int | None = None) -> range:
        """Return this rank's global sequences in the last batch, those below ``before`` if it is given."""
        stop = self._last.stop if before is None else min(self._last.stop, before)
        return range(self._own(self._last.start), stop, self._world_size)

    def sources(self) -> list[str]:
        """Return the name of the source of each of this rank's sequences in the last batch."""
        corpora, mixture = self._recipe.corpora, self._recipe.mixture
        return [corpora[mixture.source(number)].name for number in self.own_sequences()]

    def replay(self, first_sequence: int) -> None:
        """Skip to the global batch that begins with ``first_sequence``.

        To read a batch again, load a state from before it, then replay its coordinates.

        Raises:
            ValueError: The batch was drawn already.
        """
        if first_sequence < self._sequences:
            raise ValueError(
                f"sequence {first_sequence} is behind this position, {self._sequences}; load a state from before it"
            )
        deque(self._draw_until(first_sequence), maxlen=0)  # draws, keeps nothing

    @property
    def sequences_by_source(self) -> dict[str, int]:
        """Return the sequences that all ranks have drawn, by the name of their source."""
        return {corpus.name: sequences for corpus, sequences in zip(self._recipe.corpora, self._drawn, strict=True)}

    def finished_epochs(self) -> list[int]:
        """Return how often this rank's streams have read their documents, summed over them, for each source."""
        return [
            sum(positions[source].epoch for positions in self._positions.values()) for source in range(len(self._drawn))
        ]

    def epochs_read(self) -> list[float]:
        """Return how often this rank's streams have read their documents, as ``finished_epochs``, with fractions."""
        return [
            sum(corpus.epochs_read(stream, positions[source]) for stream, positions in self._positions.items())
            for source, corpus in enumerate(self._recipe.corpora)
        ]

    def documents_read(self) -> list[int]:
        """Return how many documents of each source this rank's streams have read to their end."""
        return [sum(counts) for counts in zip(*self._documents.values(), strict=True)]

    def spent_streams(self) -> list[int]:
        """Return how many of this rank's streams have read each source ``max_epochs`` times; 0 of one that pauses."""
        active = self._active_sources(self._sequences)
        return [
            sum(_is_spent(corpus, positions[source].epoch) for positions in self._positions.values())
            if source in active
            else 0
            for source, corpus in enumerate(self._recipe.corpora)
        ]

    @property
    def is_spent(self) -> bool:
        """Return whether this rank's streams have read a source ``max_epochs`` times."""
        return len(self._positions) in self.spent_streams()

    @property
    def is_wholly_spent(self) -> bool:
        """Return whether this rank's streams have read every source ``max_epochs`` times."""
        spent_streams = self.spent_streams()
        return all(spent_streams[source] == len(self._positions) for source in self._active_sources(self._sequences))

    def is_end(self, state: Mapping[str, Any]) -> bool:
        """Return whether all streams of a state of all ranks have read a source ``max_epochs`` times."""
        names = names_in_checkpoint(self._identity(), state)
        corpora = [self._recipe.corpora[source] for source in self._active_sources(state["sequences"])]
        return any(
            all(_is_spent(corpus, positions[names[corpus.name]][0]) for positions in state["streams"].values())
            for corpus in corpora
            if names[corpus.name] is not None
        )

    def weights_in(self, sequences: range) -> list[MixtureChange]:
        """Return the weights that the first of these global sequences has, and the changes within them."""
        return self._recipe.mixture.weights_in(sequences)

    def choices(self) -> Iterator[dict[str, Any]]:
        """Yield for each source how many files of which dataset the split has, and which are left out."""
        for source, corpus in zip(self._sources, self._recipe.corpora, strict=True):
            yield {
                "source": corpus.name,
                "split": self._split,
                "dataset": source.dataset,
                "files": len(corpus.split.files),
                "held_out": corpus.split.share,
                "unread_files": corpus.split.unread_files or None,
            }

    def overview(self) -> Iterator[dict[str, Any]]:
        """Yield the size of each source: files, bytes, streams, and about how many tokens and sequences an epoch has.

        The sequences are those of the run in which the source is read once, also those of other sources; ``None`` if
        the last weights do not read it.
        """
        recipe = self._recipe
        for source, corpus in enumerate(recipe.corpora):
            sizes = corpus.split.sizes
            tokens = corpus.tokens_per_epoch(recipe.encoder, Faults(recipe.max_bad_records, recipe.max_bad_shards))
            yield {
                "source": corpus.name,
                "files": len(sizes),
                "empty_files": sizes.count(0),
                "bytes": sum(sizes),
                "streams": corpus.streams,
                "epoch_tokens": round(tokens),
                "epoch_sequences": recipe.mixture.sequences_until(source, tokens / recipe.width),
            }

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's position as JSON values; a checkpoint keeps ``merge_states`` of all ranks."""
        absent, names = self._absent, [corpus.name for corpus in self._recipe.corpora]
        positions = {
            str(stream): {
                **dict(zip(names, map(list, stream_positions), strict=True)),
                **absent.stream_values("streams", stream),
            }
            for stream, stream_positions in self._positions.items()
        }
        documents = {
            str(stream): {**dict(zip(names, counts, strict=True)), **absent.stream_values("documents", stream)}
            for stream, counts in self._documents.items()
        }
        identity = self._identity()
        identity |= {kind: identity[kind] | values for kind, values in absent.identities.items()}
        sequences_by_source = {**self.sequences_by_source, **absent.sequences}
        values = {"sequences": self._sequences, "drawn": sequences_by_source, **identity}
        return {**values, "streams": positions, "documents": documents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly after the last sequence of ``state``, which may come from another world size.

        The sources and weights of a mixture may differ from before: they apply from here on. A source that the state
        does not have begins, and one that this stream does not have keeps its position in ``state_dict``.

        Raises:
            DataError: The state lacks a stream of this rank, or belongs to other data, order or tokenizer.
        """
        if problems := self.differences(state):
            raise DataError("\n".join(problems))
        self.close()
        self._sequences, self._last = state["sequences"], range(0)
        names = names_in_checkpoint(self._identity(), state)
        former_names = [names[corpus.name] for corpus in self._recipe.corpora]
        sequences_by_source = state.get("drawn", {})  # older checkpoints did not count
        self._drawn = [sequences_by_source.get(name, 0) for name in former_names]
        for stream in self._positions:
            position_by_source = state["streams"][str(stream)]
            self._positions[stream] = [
                DataPosition() if name is None else DataPosition(*position_by_source[name]) for name in former_names
            ]
            documents_by_source = state.get("documents", {}).get(str(stream), {})
            self._documents[stream] = [documents_by_source.get(name, 0) for name in former_names]
        self._absent = AbsentSources.of(state, filter(None, former_names), self._positions)

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """Return why this stream cannot continue from ``state``, one line each."""
        return list(differences(self._identity(), state, self._positions))

    def changed_sources(self, state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return the names of sources that ``state`` does not have, and of those that this stream does not have."""
        names = names_in_checkpoint(self._identity(), state)
        added_names = [name for name, former_name in names.items() if former_name is None]
        return added_names, [name for name in state["shards"] if name not in names.values()]

    def close(self) -> None:
        """Stop the worker processes; the next batch restarts them."""
        for worker in self._running:
            worker.close()
        self._running, self._makers = [], []

    def _identity(self) -> dict[str, Any]:
        """Return everything that must be equal for a position to be valid."""
        corpora = self._recipe.corpora
        return {
            "order": ORDER,
            "stream_count": self._recipe.streams,
            "seed": corpora[0].seed,
            "shuffle": corpora[0].shuffle,
            "tokenizer": self._recipe.encoder.digest,
            "add_bos": self._recipe.encoder.add_bos,
            "shards": {corpus.name: corpus.split.digest for corpus in corpora},
            "sizes": {corpus.name: corpus.order.total_bytes for corpus in corpora},
            "token_files": {
                corpus.name: rule for corpus in corpora if (rule := corpus.token_file_identity(self._recipe.encoder))
            },
            "columns": {corpus.name: column for corpus in corpora if (column := corpus.column)},
            "contents": {
                corpus.name: corpus.split.contents_digest for corpus in corpora if corpus.split.contents_digest
            },
        }

    def _active_sources(self, sequence: int) -> set[int]:
        """Return the sources that are read in the phase of a global sequence."""
        (change,) = self._recipe.mixture.weights_in(range(sequence, sequence + 1))
        return {source for source, corpus in enumerate(self._recipe.corpora) if corpus.name in change.weights}

    def _draw_until(self, end: int) -> Iterator[tuple[NDArray[np.uint32], int]]:
        """Yield this rank's sequences before the global sequence ``end``, each with its number of tokens.

        The position advances when all are drawn.
        """
        for number in range(self._own(self._sequences), end, self._world_size):
            if not self._makers:
                self._start(number)
            stream = number % self._recipe.streams
            packed = next(self._makers[stream // self._world_size % len(self._makers)])
            self._positions[stream][packed.source] = packed.position
            self._documents[stream][packed.source] += packed.documents
            for fault in packed.faults:
                self.faults.log(fault)
            self.faults.log_empty_texts(packed.empty_texts)
            yield packed.tokens, packed.length
        if end > self._sequences:
            new = self._recipe.mixture.counts(range(self._sequences, end))
            self._drawn = [sequences + more for sequences, more in zip(self._drawn, new, strict=True)]
        self._sequences = end

    def _own(self, sequence: int) -> int:
        """Return this rank's first sequence from ``sequence`` on."""
        return sequence + (self._rank - sequence) % self._world_size

    def _start(self, first_sequence: int) -> None:
        streams = list(self._positions)
        shares = [
            {stream: self._positions[stream] for stream in streams[worker :: max(self._workers, 1)]}
            for worker in range(max(self._workers, 1))
        ]
        if self._workers:
            self._running = [
                Worker(self._recipe, share, first_sequence=first_sequence, step=self._world_size) for share in shares
            ]
            self._makers = [iter(worker) for worker in self._running]
        else:
            self._makers = [
                self._recipe.pack(share, first_sequence=first_sequence, step=self._world_size) for share in shares
            ]


def _is_spent(corpus: Corpus, epoch: int) -> bool:
    return corpus.max_epochs is not None and epoch >= corpus.max_epochs


def document_positions(tokens_BT: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """Return each token's position in its document, or in the part within the sequence; ``end`` separates documents."""
    places_T = np.arange(tokens_BT.shape[1])
    starts_BT = np.zeros_like(tokens_BT)
    starts_BT[:, 1:] = np.where(tokens_BT[:, :-1] == end, places_T[1:], 0)
    return places_T - np.maximum.accumulate(starts_BT, axis=1)


def _corpora(sources: Sequence[Source], split: str, *, streams: int, seed: int, shuffle: bool) -> tuple[Corpus, ...]:
    problems, corpora = [], []
    for source in sources:
        try:
            shards = find_split(source.dataset, source.dataset_config_name, split)
            _ = shards.sizes  # read here, by the first rank for all: data workers get a copy, and ask no store
        except DataError as error:
            problems.append(str(error))
            continue
        corpora.append(
            Corpus(
                source.name,
                shards,
                source.text_column,
                streams,
                seed,
                source.max_epochs,
                token_dtype=source.token_dtype,
                token_end=source.token_end,
                shuffle=shuffle,
            )
        )
    if problems:
        raise DataError("\n".join(problems))
    return tuple(corpora)
