"""Read a small YAML file with the line and column of every value, and collect all that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from podwright_common.regular_file import open_regular
from podwright_training.errors import ConfigError

MAX_BYTES = 1 << 20
LONGEST_SHOWN = 80  # characters of a wrong value in a message
MAX_VALUES = 100_000  # each alias counts as what it stands for
_NULL = "tag:yaml.org,2002:null"
_OF_DAMAGED_VALUES = (LookupError, AttributeError, TypeError)  # PyYAML's, of `!!int ""`, `!!bool x` and `!!timestamp x`
_REFUSED = re.compile("[\\0\ud800-\udfff]")  # neither files nor programs take them


@dataclass
class Problems:
    """Mistakes of a file, each with its place."""

    file: Path
    messages: list[str] = field(default_factory=list)

    def add(self, node: yaml.Node | None, text: str) -> None:
        """Add a problem at a node."""
        place = f":{node.start_mark.line + 1}:{node.start_mark.column + 1}" if node else ""
        self.messages.append(f"{self.file}{place}: {text}")

    def refuse(self) -> None:
        """Raise ``ConfigError`` if there is any."""
        if self.messages:
            raise ConfigError(self.messages)


class Value(NamedTuple):
    """The nodes of a key and of its value."""

    key: yaml.Node
    node: yaml.Node

    @property
    def is_null(self) -> bool:
        """Return whether the value is missing or YAML's null."""
        return text_of(self.node) is None


def read(file: Path) -> tuple[dict[str, Value], Problems]:
    """Return the top-level values of a file.

    Raises:
        ConfigError: The file is unreadable, or is no mapping in YAML.
    """
    problems = Problems(file)
    try:
        with open_regular(file, follow_links=True) as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError([f"{file}: it has more than {MAX_BYTES >> 10} KiB, a job has some lines"])
        node = yaml.compose(content.decode(), Loader=yaml.SafeLoader)
        for count, scalar in enumerate(_scalars(node), start=1):
            if count > MAX_VALUES:
                raise ConfigError([f"{file}: it has more than {MAX_VALUES:,} values, with those of its aliases"])
            if _REFUSED.search(scalar.value):
                problems.add(scalar, "not a text: it has a NUL or half of a character")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        words = " ".join(part for part in (error.problem, error.context) if part)
        raise ConfigError([f"{file}{place}: not YAML: {words}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{file}: too many brackets or aliases in each other"]) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise ConfigError([f"cannot read {file}: {reason}"]) from error
    if node is None:
        raise ConfigError([f"{file}: empty, need `key: value` lines"])
    value_by_key = mapping(node, problems, subject="a job")
    if not value_by_key:
        problems.refuse()
    return value_by_key, problems


def keys_of(file: Path) -> set[str]:
    """Return the top-level keys of a file; an empty set if it is unreadable, broken or no mapping."""
    try:
        if not file.is_file():
            return set()
        with open_regular(file, follow_links=True) as stream:
            node = yaml.compose(stream.read(MAX_BYTES).decode(), Loader=yaml.SafeLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return set()
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {str(key.value) for key, _ in pairs if isinstance(key, yaml.ScalarNode)}


def mapping(node: yaml.Node, problems: Problems, *, subject: str) -> dict[str, Value]:
    """Return the values of a mapping by key; report another kind of node and repeated keys."""
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{subject}: need `key: value` lines")
        return {}
    value_by_key: dict[str, Value] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        if not name:
            problems.add(key, "this key is not a word: write `key: value`")
        elif name in value_by_key:
            problems.add(key, f"{shown(name)} is set twice, first in line {value_by_key[name].key.start_mark.line + 1}")
        else:
            value_by_key[name] = Value(key, value)
    return value_by_key


def text_of(node: yaml.Node) -> str | None:
    """Return a scalar as it is written, so that 1.10 stays 1.10, and ``None`` for null; for other nodes their kind."""
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag == _NULL else str(node.value)
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def unknown(name: str, kind: str, known_names: Iterable[str]) -> str:
    """Return a sentence about an unknown name, with the closest known name, or all."""
    names = list(known_names)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"unknown {kind} {shown(name)}; " + (
        f"did you mean {close[0]}?" if close else f"need one of {', '.join(names)}"
    )


def shown(text: str) -> str:
    """Return a text, shortened to one line for a message."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}…"


def _scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the keys and values below a node, also those of an alias at each use."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for item in pair:
                yield from _scalars(item)


def data_of(node: yaml.Node, problems: Problems) -> Any:
    """Return the value of a node; report unreadable values and keys that are set twice, and return ``None``."""
    if twice := next(_repeated(node), None):
        problems.add(twice, f"{shown(twice.value)} is set twice")
        return None
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except _OF_DAMAGED_VALUES:
        problems.add(node, "not YAML: the value does not match its tag")
        return None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.add(node, f"not YAML: {shown(' '.join(str(error).split()))}")
        return None
    finally:
        loader.dispose()


def _repeated(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield the keys below a node that their mapping has already."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)
    elif isinstance(node, yaml.MappingNode):
        seen_keys = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen_keys:
                    yield key
                seen_keys.add(key.value)
            yield from _repeated(value)
