"""Match a checkpoint's position in the data with the sources of a run, which may have changed since.

A source is known by its name, and its files by digests of their names, sizes and contents: under its name it continues
with the same files only, and the same files continue under another name. A source that a run leaves out keeps its
position in the run's checkpoints, so that it can come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ORDER = 2  # version of the rule that orders the documents; 1: streams owned whole shards
OTHER_ORDER = (
    "the checkpoint is of an earlier podwright, which ordered the documents in another way: its position in the data "
    "has no meaning here; finish the run with that version, or start a new one with --init-from and this checkpoint"
)
# Digests and sizes of the files, and how those of other programs are read, by name of the source.
IDENTITIES = ("shards", "sizes", "contents", "token_files", "columns")
OF_STREAMS = ("streams", "documents")  # Values by stream: each rank has those of its own.
OTHER_DATA = (
    "a run keeps the data that it has begun; name other data another source of data_mixture, or start a new run"
)


@dataclass(frozen=True)
class AbsentSources:
    """Values of a checkpoint about sources that the run does not have.

    Attributes:
        identities: Digests and sizes, by kind and name.
        sequences: Sequences that were read, by name.
        of_streams: Positions and numbers of documents, by kind, stream and name.
    """

    identities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    of_streams: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any], present_names: Iterable[str], streams: Iterable[int]) -> AbsentSources:
        """Return the values of a state about all sources but those present, for some streams."""
        absent_names = set(state["shards"]).difference(present_names)

        def chosen(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name in absent_names}

        return cls(
            {kind: chosen(state.get(kind, {})) for kind in IDENTITIES},
            chosen(state.get("drawn", {})),
            {
                kind: {str(stream): chosen(state.get(kind, {}).get(str(stream), {})) for stream in streams}
                for kind in OF_STREAMS
            },
        )

    def stream_values(self, kind: str, stream: int) -> Mapping[str, Any]:
        """Return the positions or numbers of documents of one stream, by name."""
        return self.of_streams.get(kind, {}).get(str(stream), {})


def names_in_checkpoint(identity: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the name under which a checkpoint has each source of a run; ``None``: the source is new."""
    absent_names = [name for name in state["shards"] if name not in identity["shards"]]
    names: dict[str, str | None] = {}
    for name in identity["shards"]:
        names[name] = (
            name if name in state["shards"] else next(iter(_same_files(name, identity, state, absent_names)), None)
        )
    return names


def differences(identity: Mapping[str, Any], state: Mapping[str, Any], streams: Iterable[int]) -> Iterator[str]:
    """Yield why a run of this identity cannot continue these streams from ``state``."""
    if state.get("order") != identity["order"]:
        yield OTHER_ORDER
        return
    state = {"shuffle": True, "add_bos": False, "token_files": {}, **state}  # Older checkpoints do not have these.
    problems = [
        _difference(key, checkpoint_value=state[key], run_value=identity[key])
        # add_bos is in the tokenizer's digest too: one line for one cause.
        for key in (
            "stream_count",
            "seed",
            "shuffle",
            "tokenizer" if state["add_bos"] == identity["add_bos"] else "add_bos",
        )
        if state[key] != identity[key]
    ]
    problems += _problems_of_sources(identity, state)
    problems += _problems_of_token_files(identity, state)
    lacking = [stream for stream in streams if str(stream) not in state["streams"]]
    if lacking and not problems:
        problems.append(f"the checkpoint's data position lacks stream {lacking[0]}")
    yield from problems


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge all ranks' states into one for a checkpoint; raise ``ValueError`` if they are of different steps."""
    merged = {**states[0], **{kind: {} for kind in OF_STREAMS}}
    for rank, state in enumerate(states):
        differing = [key for key in merged if key not in OF_STREAMS and state[key] != merged[key]]
        if differing:
            raise ValueError(f"the data positions of ranks 0 and {rank} differ in {', '.join(differing)}")
        for kind in OF_STREAMS:
            merged[kind] |= state[kind]
    return merged


def _problems_of_sources(identity: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    shards = state["shards"]
    absent_names = [name for name in shards if name not in identity["shards"]]
    other_shards = [name for name in identity["shards"] if name in shards and identity["shards"][name] != shards[name]]
    if other_shards:
        yield f"data source {', '.join(other_shards)} has other shards than in the checkpoint: {OTHER_DATA}"
    other_contents = [
        name
        for name in identity["shards"]
        if name in shards and name not in other_shards and not _is_same(name, identity, name, state)
    ]
    if other_contents:
        subject = f"data source {', '.join(other_contents)}"
        yield (f"{subject} has shards of the same names, but of other content, than in the checkpoint: {OTHER_DATA}")
    if all(name is None for name in names_in_checkpoint(identity, state).values()):
        names = f"{', '.join(identity['shards'])}, the checkpoint has {', '.join(shards)}"
        yield (
            f"the run's data has no source of the checkpoint: the run has {names}; to change a run's data, keep the "
            "former sources in data_mixture, with weight 0"
        )
    for name in identity["shards"]:
        if name in shards:
            continue
        read = [other for other in identity["shards"] if other in shards and _is_same(name, identity, other, state)]
        if read:
            yield f"data source {name} has the files of {read[0]}, which would be read again: raise its weight instead"
        elif len(former := _same_files(name, identity, state, absent_names)) > 1:
            yield (
                f"data source {name} has the files of {' and of '.join(former)} in the checkpoint: give it the name of "
                "the one that it continues"
            )


def _problems_of_token_files(identity: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    for name, checkpoint_name in names_in_checkpoint(identity, state).items():
        if checkpoint_name is None:
            continue
        column, checkpoint_column = identity["columns"].get(name), state.get("columns", {}).get(checkpoint_name)
        if column and checkpoint_column and column != checkpoint_column:  # Older checkpoints do not have it.
            yield (
                f"data source {name} has column {checkpoint_column!r} (text_column) in the checkpoint, {column!r} in "
                "this run; a run keeps its column"
            )
        rule, checkpoint_rule = identity["token_files"].get(name), state["token_files"].get(checkpoint_name)
        if rule != checkpoint_rule:
            yield (
                f"token files of data source {name} are read otherwise: {checkpoint_rule} in the checkpoint, {rule} in "
                "this run; a run keeps its token_dtype, token_end and .idx files"
            )


def _same_files(
    name: str, identity: Mapping[str, Any], state: Mapping[str, Any], candidates: Sequence[str]
) -> list[str]:
    """Return the sources of a checkpoint among ``candidates`` that have the files of a run's source."""
    return [other for other in candidates if _is_same(name, identity, other, state)]


def _is_same(name: str, identity: Mapping[str, Any], checkpoint_name: str, state: Mapping[str, Any]) -> bool:
    """Return whether a run's source has the files of a checkpoint's source.

    A checkpoint has no contents of shards on the hub; the same data may be local now.
    """
    contents = identity["contents"].get(name), state.get("contents", {}).get(checkpoint_name)
    return (
        identity["shards"][name] == state["shards"][checkpoint_name]
        and identity["sizes"][name] == state["sizes"][checkpoint_name]
        and (None in contents or contents[0] == contents[1])
    )


def _difference(key: str, *, checkpoint_value: Any, run_value: Any) -> str:
    values = f"{checkpoint_value} in the checkpoint, {run_value} in this run"
    if key == "stream_count":
        return f"data_streams is {values}: a run keeps its data_streams"
    if key == "seed":
        return f"seed is {values}: a run keeps its seed, which orders the data"
    if key == "shuffle":
        return f"shuffle is {values}: a run keeps the order of its data"
    if key == "add_bos":
        return f"add_bos is {values}: a run keeps the beginning of its documents"
    return f"the tokenizer is another one than the checkpoint's ({checkpoint_value} there, {run_value} here)"
