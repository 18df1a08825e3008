"""The events of a run's ``metrics.jsonl``, one class each: the trainer writes them, and every reader gets them.

A line is a JSON object with the event's kind, its time and its fields, in the order in which the writer passed them. A
field that was passed without a value is null; one that was not passed is absent. Readers see ``None`` for both. The
exception are numbers that may diverge: NaN and infinity, which JSON lacks, are null in the file and NaN for readers.

Lines are only appended. After a resume, steps that the previous job had done occur twice: the last event of a step
counts. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from podwright_training.json_values import loads

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

EventT = TypeVar("EventT", bound="MetricsEvent")

LARGEST = 1e100  # A larger number is damage.
LARGEST_WHOLE = 2**63


def required(doc: str, *, minimum: int = 0, can_diverge: bool = False) -> Any:
    """Declare a field without which a line is damaged."""
    return field(metadata={"doc": doc, "minimum": minimum, "can_diverge": can_diverge})


def optional(doc: str, *, minimum: int = 0, can_diverge: bool = False) -> Any:
    """Declare a field that may be absent.

    Args:
        doc: Description for the table of events.
        minimum: Least value of a whole number; if it is above 0, other numbers must be positive too.
        can_diverge: Whether NaN and infinity are values.
    """
    return field(default=None, metadata={"doc": doc, "minimum": minimum, "can_diverge": can_diverge})


@dataclass(frozen=True, kw_only=True)
class MetricsEvent:
    """An event of a run.

    Attributes:
        elapsed_s: Seconds since the run's first event; not in the file, the run's history adds it.
    """

    kind: ClassVar[str] = ""
    time: float | None = optional("seconds since 1970")
    log_byte: int | None = optional("of another trainer: byte of its log at which reading continues after this event")
    elapsed_s: float | None = field(default=None, compare=False)

    def __new__(cls, **values: Any) -> Self:
        """Note which fields are passed: these are written, in their order."""
        event = super().__new__(cls)
        object.__setattr__(event, "_passed", tuple(values))
        return event

    def values(self) -> dict[str, Any]:
        """Return the fields that were passed, without the times that every event has."""
        passed: tuple[str, ...] = self.__dict__["_passed"]
        return {name: getattr(self, name) for name in passed if name not in ("time", "elapsed_s")}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that a line of the metrics has."""
        times = {"time": self.time} if "time" in self.__dict__["_passed"] else {}
        return {"event": self.kind, **times, **self.values()}

    def with_values(self, **values: Any) -> Self:
        """Return the same event with more fields."""
        passed = dict.fromkeys((*self.__dict__["_passed"], *values))
        event = object.__new__(type(self))
        event.__dict__.update(self.__dict__, **values, _passed=tuple(passed))  # Histories call it for every line.
        return event


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(MetricsEvent):
    """An event of a kind that this version does not have."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(MetricsEvent):
    """An event at or after a training step."""

    step: int = required("training step, counted from 1; 0 before the first")


@dataclass(frozen=True, kw_only=True)
class StartEvent(StepEvent):
    """A start of the trainer, also after a stop."""

    kind: ClassVar[str] = "start"
    world_size: int = required("ranks", minimum=1)
    resumed_from: str | None = optional("checkpoint that it continues from, or null")
    init_from: str | None = optional("Hugging Face model whose weights a new run begins with, or null")
    job_id: str | None = optional("Slurm's id of the job, or null")
    config: str | None = optional("digest of the configuration")
    parameters: int | None = optional("parameters of the model", minimum=1)
    flops_per_token: float | None = optional("floating-point operations of training for one token")
    flops_convention: str | None = optional("how they are counted")
    process_s: float | None = optional("seconds since the process began")
    execution: str | None = optional("compiled or eager, of blocks and loss; a first step compiles for a minute")
    code: str | None = optional("`git COMMIT`, or the version of the package")
    launcher: str | None = optional("of another trainer: how its processes are started")


@dataclass(frozen=True, kw_only=True)
class DataEvent(StepEvent):
    """The size of one source of the training data; written after each start."""

    kind: ClassVar[str] = "data"
    source: str | None = optional("name of the source")
    files: int | None = optional("files")
    empty_files: int | None = optional("files of 0 bytes")
    bytes: int | None = optional("bytes of all files")
    streams: int | None = optional("streams into which the source is divided")
    epoch_tokens: int | None = optional("tokens of one reading, about")
    epoch_sequences: int | None = optional("sequences of the run until the source was read once, about, or null")
    epoch_steps: int | None = optional("steps of the run until then, about, or null")


@dataclass(frozen=True, kw_only=True)
class FilesEvent(StepEvent):
    """The files of a source that one split has, and those that no split has; written after each start."""

    kind: ClassVar[str] = "files"
    source: str | None = optional("name of the source")
    split: str | None = optional("train or validation")
    dataset: str | None = optional("folder or name of the dataset")
    files: int | None = optional("files that are read")
    held_out: str | None = optional("share of their documents, if files for validation are missing; else null")
    unread_files: str | None = optional("files of the dataset that no split has, with reasons, or null")


@dataclass(frozen=True, kw_only=True)
class MembershipEvent(StepEvent):
    """A change of an elastic run's nodes; written when the first step with the new ones is done, or failed to come.

    Its step is the one after which training resumed.
    """

    kind: ClassVar[str] = "membership"
    generation: int | None = optional("number of changes so far")
    cause: str | None = optional("reason of the change")
    host: str | None = optional("host that failed, or null")
    nodes: int | None = optional("nodes that take part")
    ranks: int | None = optional("ranks that take part")
    hosts: Sequence[str] | None = optional("names of the nodes")
    lost_steps: int | None = optional("steps that have to be done again")
    detecting_s: float | None = optional("seconds until the failure was noticed")
    stopping_s: float | None = optional("seconds until all ranks had stopped")
    waiting_s: float | None = optional("seconds of waiting for nodes")
    restarting_s: float | None = optional("seconds of starting processes, or null if that was not reached")
    loading_s: float | None = optional("seconds of loading the state, or null")
    stepping_s: float | None = optional("seconds of the first step, or null")


@dataclass(frozen=True, kw_only=True)
class TrainEvent(StepEvent):
    """A logged step, with means over the steps since the last such event."""

    kind: ClassVar[str] = "train"
    loss: float = required("mean over the tokens of this step's batch, with the z-loss, in nats", can_diverge=True)
    grad_norm: float | None = optional("norm of the gradient before clipping", can_diverge=True)
    lr: float | None = optional("learning rate")
    sequences: int | None = optional("sequences read so far, by all ranks")
    batch_sequences: int | None = optional("the last of these, which are this step's global batch")
    batch_digest: str | None = optional("hash of the global batch")
    epoch: float | None = optional(
        "how often the data was read so far, 0.5: half of it; of several sources, the one read most often"
    )
    source_tokens: Mapping[str, int] | None = optional("of a mixture: tokens read so far, by source")
    source_epochs: Mapping[str, float] | None = optional("of a mixture: `epoch`, by source")
    tokens: int | None = optional("of another trainer: tokens so far")
    noise_scale_tokens: float | None = optional("gradient noise scale in tokens, or null")
    loss_scale: float | None = optional("scale of the loss; 1 except in fp16")
    perplexity: float | None = optional("perplexity of `loss`", minimum=1, can_diverge=True)
    tokens_per_s: float | None = optional("tokens per second of all ranks, padding at the end of the data included")
    tokens_per_s_per_rank: float | None = optional("tokens per second of one rank")
    samples_per_s: float | None = optional("sequences per second of all ranks")
    mfu: float | None = optional("model FLOPs utilization, from 0 to 1, or null where the device's peak is unknown")
    step_s: float | None = optional("seconds of a step")
    data_s: float | None = optional("seconds of a step in which the first rank waited for data")
    slowest_rank: int | None = optional("rank that was slowest on its own")
    lag_s: float | None = optional("seconds of a step by which that rank is behind the median rank")
    saving_s: float | None = optional("seconds in all in which training waited for checkpoints; absent if none")
    validating_s: float | None = optional("seconds in all in which training waited for validation; absent if none")
    first_step_s: float | None = optional("seconds of the first step after a start, in the first event after it")
    memory_step: int | None = optional("with `memory_checkpoint_freq`: step of the newest copy in memory, or null")
    memory_peak_bytes: int | None = optional("peak of the first rank's device memory, or null on a CPU")
    memory_reserved_bytes: int | None = optional("device memory that its allocator reserved, or null on a CPU")


@dataclass(frozen=True, kw_only=True)
class MixtureEvent(StepEvent):
    """Weights of a mixture's sources that begin to apply; written after each start and in the first step of a phase."""

    kind: ClassVar[str] = "mixture"
    from_sequence: int = required("sequences that all ranks had read before")
    weights: Mapping[str, float] = required("weight of each source that is read, at `mixture_temperature`")
    added: Sequence[str] | None = optional("after a start: sources that the checkpoint does not have")
    removed: Sequence[str] | None = optional(
        "after a start: sources that only the checkpoint has; they keep their position"
    )


@dataclass(frozen=True, kw_only=True)
class ReadEvent(StepEvent):
    """Amounts of each source of a mixture that were read; written with each checkpoint and at the end."""

    kind: ClassVar[str] = "read"
    source_sequences: Mapping[str, int] = required("sequences of each source that all ranks have read")
    source_documents: Mapping[str, int] = required("documents of each source whose last token was read")
    source_tokens: Mapping[str, int] = required("as of `train`")
    source_epochs: Mapping[str, float] = required("as of `train`")


@dataclass(frozen=True, kw_only=True)
class OffenderEvent(MetricsEvent):
    """A host that failed too often within a day, and was reported."""

    kind: ClassVar[str] = "offender"
    host: str | None = optional("name of the host")
    times: int | None = optional("its failures within a day")


@dataclass(frozen=True, kw_only=True)
class StragglerEvent(StepEvent):
    """A rank that delays the others."""

    kind: ClassVar[str] = "straggler"
    rank: int | None = optional("number of the rank")
    host: str | None = optional("name of its host")
    lag_s: float | None = optional("seconds of a step by which it is behind the median rank")
    step_s: float | None = optional("seconds of a step")


@dataclass(frozen=True, kw_only=True)
class GuardEvent(StepEvent):
    """A bad step, or bad weights, and what the guard did.

    If the weights were bad, there is no batch: only step, policy, reason and checkpoint are in the line.
    """

    kind: ClassVar[str] = "guard"
    policy: str | None = optional("`guard_policy`: skip, rollback or stop")
    checkpoint: str | None = optional("of a rollback: the checkpoint that it went back to, else null")
    loss: float | str | None = optional("loss of the bad step, as text because NaN is not JSON", can_diverge=True)
    grad_norm: float | str | None = optional("its gradient norm, as text", can_diverge=True)
    lr: float | None = optional("as of `train`")
    sequences: int | None = optional("as of `train`")
    batch_sequences: int | None = optional("as of `train`")
    batch_digest: str | None = optional("as of `train`")
    epoch: float | None = optional("as of `train`")
    source_tokens: Mapping[str, int] | None = optional("as of `train`")
    source_epochs: Mapping[str, float] | None = optional("as of `train`")
    noise_scale_tokens: float | None = optional("as of `train`")
    loss_scale: float | None = optional("as of `train`")
    reason: str | None = optional("why the step or the weights are bad")


@dataclass(frozen=True, kw_only=True)
class OverflowEvent(StepEvent):
    """A step that was skipped because its gradient overflowed in fp16."""

    kind: ClassVar[str] = "overflow"
    loss_scale: float | None = optional("scale of the loss in the next step")
    loss: float | str | None = optional("loss of the skipped step", can_diverge=True)
    sequences: int | None = optional("as of `train`")
    batch_sequences: int | None = optional("as of `train`")
    batch_digest: str | None = optional("as of `train`")


@dataclass(frozen=True, kw_only=True)
class ValidationEvent(StepEvent):
    """The loss on the validation data."""

    kind: ClassVar[str] = "validation"
    loss: float = required("mean over the tokens of the validation split, in nats", can_diverge=True)
    perplexity: float = required("perplexity of `loss`", minimum=1, can_diverge=True)
    tokens: int = required("tokens that were validated")
    losses: Mapping[str, float] | None = optional("with `validation_datasets`: loss on each, by name", can_diverge=True)


@dataclass(frozen=True, kw_only=True)
class SampleEvent(StepEvent):
    """Continuations of `sample_prompts`."""

    kind: ClassVar[str] = "sample"
    texts: Sequence[str] = required("each prompt with the text that the model adds")


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(StepEvent):
    """A complete checkpoint."""

    kind: ClassVar[str] = "checkpoint"
    path: str | None = optional("its folder")
    seconds: float | None = optional("seconds until it was complete")
    paused_s: float | None = optional("seconds of these in which training waited")


@dataclass(frozen=True, kw_only=True)
class EndEvent(StepEvent):
    """An end of the trainer that it chose itself or was asked for; a killed one writes none."""

    kind: ClassVar[str] = "end"
    reason: str = required("max_steps, max_epochs, range or signal; of another trainer: the program's own")
    saving_s: float | None = optional("as of `train`")
    validating_s: float | None = optional("as of `train`")
    lr_of_lowest_loss: float | None = optional("with `lr_schedule` range: the best learning rate")


EVENTS: tuple[type[MetricsEvent], ...] = (
    StartEvent, FilesEvent, DataEvent, MixtureEvent, MembershipEvent, TrainEvent, ReadEvent, OffenderEvent,
    StragglerEvent, GuardEvent, OverflowEvent, ValidationEvent, SampleEvent, CheckpointEvent, EndEvent,
)  # fmt: skip
_EVENT_BY_KIND = {event.kind: event for event in EVENTS}


def event_of(line: bytes | str) -> MetricsEvent | None:
    """Return the event in a line of the metrics; ``None`` if the line is damaged. Unknown fields are left out."""
    try:
        values = loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("event"), str):
        return None
    reader = _reader_of(values["event"] if values["event"] in _EVENT_BY_KIND else UnknownEvent.kind)
    passed: dict[str, Any] = {}
    for name, value in values.items():
        value_field = reader.fields.get(name)
        if value_field and value_field.can_diverge:
            value = _with_nan(value)  # noqa: PLW2901
        if value_field and value is not None:
            if not value_field.accepts(value):
                return None
            passed[name] = value
    return None if reader.required_names - passed.keys() else reader.event(passed)


def _with_nan(value: Any) -> Any:
    """Return NaN for null, also in the values of an object."""
    if isinstance(value, dict):
        return {name: math.nan if item is None else item for name, item in value.items()}
    return math.nan if value is None else value


def written_fields(event_class: type[MetricsEvent]) -> Iterator[Field[Any]]:
    """Yield the fields that lines of an event may have."""
    return (declared for declared in fields(event_class) if "doc" in declared.metadata)


def diverging_names(event_class: type[MetricsEvent]) -> frozenset[str]:
    """Return the names of the fields that may be NaN or infinite."""
    return frozenset(declared.name for declared in written_fields(event_class) if declared.metadata["can_diverge"])


@dataclass(frozen=True)
class _ValueField:
    """A field's rules for values of JSON."""

    accepts: Callable[[Any], bool]
    can_diverge: bool


@dataclass(frozen=True)
class _EventReader:
    """The rules by which a line of one kind becomes an event of one class."""

    event_class: type[MetricsEvent]
    fields: Mapping[str, _ValueField]
    required_names: frozenset[str]
    defaults: Mapping[str, Any]

    def event(self, passed: Mapping[str, Any]) -> MetricsEvent:
        """Return an event without calling its constructor, because metrics have millions of lines."""
        event = object.__new__(self.event_class)
        event.__dict__.update(self.defaults, **passed, _passed=tuple(passed))
        return event


@cache
def _reader_of(kind: str) -> _EventReader:
    event_class = _EVENT_BY_KIND.get(kind, UnknownEvent)
    hints, written = get_type_hints(event_class), list(written_fields(event_class))
    return _EventReader(
        event_class,
        {
            declared.name: _ValueField(
                _check_of(hints[declared.name], declared.metadata), declared.metadata["can_diverge"]
            )
            for declared in written
        },
        frozenset(declared.name for declared in written if declared.default is MISSING),
        {declared.name: declared.default for declared in fields(event_class) if declared.default is not MISSING},
    )


def _check_of(hint: Any, rules: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Return the function that checks whether a value of JSON is of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        checks = [_check_of(member, rules) for member in arguments if member is not NoneType]
        return checks[0] if len(checks) == 1 else lambda value: any(check(value) for check in checks)
    if origin is Sequence:
        check = _check_of(arguments[0], rules)
        return lambda value: isinstance(value, list) and all(map(check, value))
    if origin is Mapping:
        check = _check_of(arguments[1], rules)
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    minimum, can_diverge = rules["minimum"], rules["can_diverge"]
    if hint is int:
        return lambda value: type(value) is int and minimum <= value < LARGEST_WHOLE
    if hint is float:
        return lambda value: _is_number(value, is_positive=minimum > 0, can_diverge=can_diverge)
    return lambda value: isinstance(value, str)


def _is_number(value: Any, *, is_positive: bool, can_diverge: bool) -> bool:
    """Return whether a value is a number that is not damage."""
    if type(value) is float and not math.isfinite(value):
        return can_diverge
    return type(value) in (int, float) and abs(value) < LARGEST and (value > 0 or not is_positive)
