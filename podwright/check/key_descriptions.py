"""Describe every key of cluster.yaml, run.yaml and job.yaml, from the types themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from textwrap import fill
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from podwright.json_document import JsonObject
from podwright.settings.root import Settings
from podwright.settings.section import Section, sections, source_of
from podwright_common.terminal import columns

if TYPE_CHECKING:
    from podwright_training.config.conversion import FieldType

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true | false"}
_LIMITS = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
_INDEX = re.compile(r"\[\d*\]|\.\d+(?=\.|$)")  # Matches the index of a list's item: [], [3] or .3
CLUSTER_FILE: Final = "cluster.yaml"
RUN_FILE: Final = "run.yaml"
JOB_FILE: Final = "job.yaml"
WIDTH = 100  # Descriptions are no wider, also on a wider terminal.


@dataclass(frozen=True)
class Key(JsonObject):
    """A key of cluster.yaml, run.yaml or job.yaml."""

    name: str  # Its path, such as cluster.instance_groups[].count.
    source: str
    """The variant that has it, such as `create`; empty where all have."""
    values: str
    default: str
    description: str
    file: Literal["cluster.yaml", "run.yaml", "job.yaml"]

    def __str__(self) -> str:
        variant = f"  (source: {self.source})" if self.source else ""
        of = f"  ({self.file})" if self.file != CLUSTER_FILE else ""
        margin = "    "
        text = fill(
            self.description,
            columns(at_most=WIDTH),
            initial_indent=margin,
            subsequent_indent=margin,
            break_on_hyphens=False,  # a value such as file-system stays whole
        )
        return f"{self.name}{variant}{of}\n    {self.values}; {self.default}\n{text}\n"


@dataclass(frozen=True, kw_only=True)
class Explain(JsonObject):
    """The document of `podwright explain --json`: keys, codes with their meanings, or a file's cluster."""

    schema: Literal["podwright.explain/1"] = "podwright.explain/1"
    keys: list[Key] = field(default_factory=list, metadata={"optional": True})
    codes: dict[str, str] = field(default_factory=dict, metadata={"optional": True})
    file: str = field(default="", metadata={"optional": True})
    """The settings file that was drawn."""
    written: str = field(default="", metadata={"optional": True})
    """Where its picture is."""
    cluster: str = field(default="", metadata={"optional": True})
    """Its cluster in words, where no picture was asked for."""


def matching(keys: Iterable[Key], word: str) -> list[Key]:
    """Return the key of that path and those below it, else those whose path ends with it.

    A path may leave out a list's items or number them: ``instance_groups.count``, ``instance_groups[].count``,
    ``instance_groups[3].count`` and ``instance_groups.3.count`` are one key. A flag names its key of run.yaml.
    """
    everything = list(keys)
    paths = [_INDEX.sub("", key.name) for key in everything]
    spelt = word.removeprefix("--").replace("-", "_") if word.startswith("--") else word
    key_path = _INDEX.sub("", spelt)
    located = list(zip(paths, everything, strict=True))
    below = [key for path, key in located if path == key_path or path.startswith(f"{key_path}.")]
    return below or [key for path, key in located if path.endswith(f".{key_path}")]


def keys(section: type[Section] = Settings, prefix: str = "", source: str = "") -> Iterator[Key]:
    """Yield every key in the order of the types, a resource's variants one after the other."""
    for word, field_info in section.model_fields.items():
        name = prefix + word
        inner = sections(field_info.annotation)
        default, description = _default_and_description(field_info)
        yield Key(name, source, _values(field_info.annotation), default, description, CLUSTER_FILE)
        for variant in inner:
            chosen = source_of(variant) if len(inner) > 1 else ""
            item = "[]" if get_origin(field_info.annotation) is tuple else ""
            yield from keys(variant, f"{name}{item}.", chosen)


def run_keys() -> Iterator[Key]:
    """Yield every key of run.yaml, in the order of `podwright-train train --help`. Needs podwright-training."""
    from podwright_training.config.sources import preset_names  # noqa: PLC0415 — cluster.yaml's keys need no trainer
    from podwright_training.config.train_config import SECTIONS, TrainConfig  # noqa: PLC0415 — as above

    hints = get_type_hints(TrainConfig)
    for title, section in SECTIONS.items():
        for item in fields(section):
            choices = item.metadata["choices"] or (preset_names() if item.name == "preset" else ())
            values = " | ".join(choices) or _run_values(hints[item.name], item.metadata)
            default, description = _shortened(
                _plain_default(None if item.default is MISSING else item.default), item.metadata["text"]
            )
            yield Key(item.name, "", values, default, f"{description} ({title})", RUN_FILE)


def job_keys() -> Iterator[Key]:
    """Yield every key of job.yaml, a section's after it. Needs podwright-training."""
    from podwright_training.jobs.patterns import VALUES  # noqa: PLC0415 — cluster.yaml's keys need no trainer
    from podwright_training.jobs.spec import JobSpec  # noqa: PLC0415 — as above

    for key in _job_keys(JobSpec, ""):
        yield key
        for name, text in VALUES.items() if key.name == "log.patterns" else ():
            yield Key(f"log.patterns.{name}", "", "text", "optional", f"For {text}.", JOB_FILE)


def _job_keys(section: type, prefix: str) -> Iterator[Key]:
    from podwright_training.config.conversion import field_types  # noqa: PLC0415 — cluster.yaml's keys need no trainer

    types = field_types(section)
    for item in fields(section):
        limits, kind = item.metadata, _job_kind(types[item.name])
        minimum = limits.get("at_least")
        within = kind if minimum is None else f"{kind}, {minimum:g} to {limits['at_most']:g}"
        values = " | ".join(limits.get("choices", ())) or within
        default = _plain_default(None if item.default is MISSING else item.default)
        shown = _shortened("required" if item.name == "command" else default, limits["text"])
        yield Key(prefix + item.name, "", values, *shown, JOB_FILE)
        if is_dataclass(types[item.name].kind):
            yield from _job_keys(types[item.name].kind, f"{prefix}{item.name}.")


def _job_kind(field_type: FieldType) -> str:
    """Return the type of a job's key in words."""
    if field_type.kind is tuple:
        return "text | list of text"
    if field_type.kind is dict:
        return "mapping of texts" if field_type.item is str else "mapping of texts and mappings"
    return _WORDS.get(field_type.kind, "mapping")


def _run_values(hint: Any, limits: Mapping[str, Any]) -> str:
    """Return an option's type, its limits and the words that it also accepts: ``number, above 0 | none``."""
    if get_origin(hint) is Mapping:
        return "mapping of texts"
    kinds = get_args(hint) or (hint,)
    within = [f"{word} {limits[key]:g}" for key, word in _LIMITS.items() if limits[key] is not None]
    number = ", ".join([_WORDS[kinds[0]], *within])
    return " | ".join([number, *limits["words"], *(["none"] if NoneType in kinds else [])])


def _values(annotation: Any) -> str:
    """Return the type in words: ``create | existing``, ``whole number``, ``list of text``."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"list of {_values(get_args(annotation)[0])}"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if NoneType in get_args(annotation):
        return _values(get_args(annotation)[0])
    return "mapping"


def _default_and_description(field: FieldInfo) -> tuple[str, str]:
    return _shortened(_default(field), field.description or "")


def _shortened(default: str, description: str) -> tuple[str, str]:
    """Return both without a default that is in both: a description may say more about it than its value."""
    if not default.startswith("default: "):
        return default, description
    shortened = description.removesuffix(f" D{default[1:]}.")
    return ("optional" if " Default: " in shortened else default), shortened


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, Section):
        return "default: as below"
    return "optional" if field.default_factory else _plain_default(field.default)


def _plain_default(value: Any) -> str:
    """Return a value as it is written in a file; for an empty value, the description says what applies."""
    if isinstance(value, bool):
        return f"default: {str(value).lower()}"
    if value and isinstance(value, tuple):
        return f"default: {', '.join(map(str, value))}"
    return "optional" if value in (None, {}, (), "") else f"default: {value}"
