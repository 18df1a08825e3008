"""The JSON documents of commands, as types: ``podwright-train schema COMMAND`` prints their JSON Schemas.

A document may get more keys; those here stay. A field with a default may be missing.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}


@dataclass
class Launch:
    """The document of `podwright-train launch --json`: Slurm's job of each step, and the last of them."""

    job: int
    jobs: dict[str, int]
    run_dir: Path
    log: Path
    commands: dict[str, str]


@dataclass
class LaunchOfNxdt(Launch):
    """The document of `podwright-train launch --backend nxdt --json`."""

    cache: str


@dataclass
class CollectiveCalls:
    """Calls of one step, and the bytes that they move."""

    kind: str
    dimension: str
    calls: int
    size_bytes: int


@dataclass
class Compiled:
    """Graphs that `torch.compile` made, their breaks by line, and recompilations by reason."""

    graphs: int
    breaks: dict[str, int]
    recompiles: dict[str, int]


@dataclass
class Rank:
    """Requirements of one rank's step; it stands for all of its kind."""

    rank: int
    kind: str
    parameters: int
    peak_bytes: int
    memory_bytes: dict[str, int]
    saved_bytes: int
    collectives: list[CollectiveCalls]
    kernels: dict[str, int]
    waits: dict[str, int]
    flops: int
    compilation: Compiled
    start_s: float


@dataclass
class DryRun:
    """The document of `podwright-train dry-run --json`."""

    schema: str
    world_size: int
    findings: list[str]
    model_flops: float
    ranks: list[Rank]


@dataclass
class Exported:
    """A checkpoint, and the folder of its Hugging Face model."""

    checkpoint: Path
    model: Path


@dataclass
class Consolidate:
    """The document of `podwright-train consolidate --json`."""

    exported: list[Exported]


@dataclass(kw_only=True)
class Quality:
    """Loss in nats per token, perplexity, and bits per byte."""

    loss: float
    perplexity: float
    bits_per_byte: float


@dataclass(kw_only=True)
class SourceQuality(Quality):
    """Quality on one source of a mixture."""

    tokens: int


@dataclass(kw_only=True)
class CheckpointQuality(Quality):
    """Quality of one checkpoint, and the texts with which it continues the prompts."""

    step: int
    samples: list[str]


@dataclass(kw_only=True)
class EvaluateModel(Quality):
    """The document of `podwright-train evaluate --model FOLDER --json`; `tasks` are those of lm-evaluation-harness."""

    model: str
    tokens: int
    sources: dict[str, SourceQuality] = field(default_factory=dict)
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class EvaluateRun(EvaluateModel):
    """The document of `podwright-train evaluate --run-dir R --json`; the trainer's figures, if it validated there."""

    step: int
    trainer_loss: float = 0.0
    trainer_perplexity: float = 0.0
    relative_difference: float = 0.0
    progression: list[CheckpointQuality] = field(default_factory=list)


@dataclass
class Generate:
    """The document of `podwright-train generate --json`."""

    prompts: list[str]
    texts: list[str]


@dataclass
class TimeKind:
    """Time of a run that went into one thing."""

    kind: str
    meaning: str
    seconds: float
    share: float
    steps: float | None
    usd: float | None


@dataclass
class RunInterruption:
    """A stop of a run, and the time that it cost."""

    cause: str
    host: str | None
    seconds: float


@dataclass
class RunGoodput:
    """The share of a run's time that went into steps which count."""

    share: float | None
    predicted_share: float | None
    seconds: float
    kinds: list[TimeKind]
    interruptions: list[RunInterruption]


@dataclass
class Report:
    """The document of `podwright-train report --json`; `goodput` is by the run's name."""

    page: Path
    folder: Path
    figures: list[str]
    goodput: dict[str, RunGoodput]


@dataclass
class ReplayedDocument:
    """The first words of a document in a sequence, and its tokens there."""

    text: str
    tokens: int


@dataclass
class ReplayedSequence:
    """A sequence of the batch."""

    number: int
    documents: list[ReplayedDocument]
    loss: float | None


@dataclass
class Replay:
    """The document of `podwright-train replay --json`."""

    step: int
    digest: str
    weights_step: int | None
    sequences: list[ReplayedSequence]


@dataclass
class Tokenize:
    """The document of `podwright-train tokenize --json`; `documents` are those of each shard, by split."""

    output: Path
    documents: list[list[int]]
    tokens: int
    vocabulary: int
    bad_records: int


@dataclass
class TokenizerTrained:
    """The document of `podwright-train tokenizer train --json`."""

    output: Path
    tokens: int


@dataclass
class TokenizerFit:
    """Counts of a text that a tokenizer divided."""

    tokens: int
    characters: int
    text_bytes: int
    words: int
    whole_words: int
    used: int
    vocabulary: int
    restored: bool


@dataclass
class TokenizersInspected:
    """The document of `podwright-train tokenizer inspect --json`, by the tokenizer's name."""

    tokenizers: dict[str, TokenizerFit]


@dataclass
class Curate:
    """The document of `podwright-train curate --json`; `manifest` is the file of that name."""

    output: Path
    manifest: dict[str, Any]


@dataclass
class CurateOnSlurm:
    """The document of `podwright-train curate --partition P --json`."""

    output: Path
    job: int
    logs: Path


@dataclass
class DroppedInput:
    """Input that is not in the dataset."""

    unreadable: list[str]
    without_prose: list[str]
    without_text: list[str]
    paragraphs_without_letters: int
    other_types: dict[str, int]
    duplicates: int


@dataclass
class Prepare:
    """The document of `podwright-train prepare --json`."""

    folder: Path
    train_documents: int
    validation_documents: int
    characters: int
    vocab_size: int
    shards: int
    dropped: DroppedInput
    train_command: str


DOCUMENTS: dict[str, tuple[type, ...]] = {
    "consolidate": (Consolidate,),
    "curate": (Curate, CurateOnSlurm),
    "dry-run": (DryRun,),
    "evaluate": (EvaluateRun, EvaluateModel),
    "generate": (Generate,),
    "launch": (Launch, LaunchOfNxdt),
    "prepare": (Prepare,),
    "replay": (Replay,),
    "report": (Report,),
    "tokenize": (Tokenize,),
    "tokenizer": (TokenizerTrained, TokenizersInspected),
}


def document_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's document."""
    schemas = [_schema(kind) for kind in DOCUMENTS[command]]
    return {"$schema": DIALECT, **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})}


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a type."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        needed = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
        properties = {name: _schema(hint) for name, hint in hints.items()}
        return {"type": "object", "description": kind.__doc__, "properties": properties, "required": needed}
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, of = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return {"anyOf": [_schema(member) for member in of]}
    if origin is list:
        return {"type": "array", "items": _schema(of[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(of[1])}
    raise TypeError(f"no JSON Schema of {kind}")
