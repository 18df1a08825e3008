"""Read a YAML file as plain data, with the line and column of every value.

Scalars stay the text that was written: what ``yes``, ``010`` or ``1_000`` mean is decided by the setting they are given
to, not by YAML 1.1. So a name may be ``no`` and a tag ``0012``. One value has one position: anchors, aliases, tags and
repeated keys are refused.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from podwright.check.findings import Finding, KeyPath, Level
from podwright.check.input_errors import UnreadableFileError
from podwright.check.secrets import MEANING, find, masked, stars

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 20  # far below Python's recursion limit, far above what a settings file needs

# What each code means; `podwright explain CODE` prints it.
CODES = {
    "yaml-syntax": "The file is not YAML. The parser stopped at this position; the mistake is there or just before.",
    "yaml-feature": "A settings file has no anchors, aliases, tags or further documents: each value is written once.",
    "yaml-key": "A key is a list or a mapping: write a word.",
    "yaml-depth": f"Nested more than {MAX_DEPTH} levels deep.",
    "secret": MEANING,
    "duplicate-key": "The same key twice in one mapping: YAML readers keep only one of them, and not all the same one.",
}


@dataclass(frozen=True)
class Position:
    """Line and column count from 1; ``width`` characters belong to the value or key."""

    line: int
    column: int
    width: int = 1


@dataclass(frozen=True)
class Document:
    """One settings file.

    ``data`` holds dictionaries, lists, strings and None (for an empty value); it says nothing unless ``parsed``.
    """

    file: Path
    text: str
    parsed: bool
    data: Any
    findings: tuple[Finding, ...]
    _values: dict[KeyPath, Position]
    _keys: dict[KeyPath, Position]

    @classmethod
    def read(cls, file: Path) -> Document:
        """Read and parse the file.

        Raises:
            UnreadableFileError: there is no such file, it may not be read, it is too large, or it is not UTF-8.
        """
        try:
            content = _read(file)
            return cls.parse(content.decode("utf-8-sig"), file=file)
        except UnicodeDecodeError as error:
            utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            reason = "it is UTF-16" if utf_16 else f"{error.reason} at byte {error.start}"
            raise UnreadableFileError(f"{file} is not UTF-8 text: {reason}", "save it as UTF-8") from error
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            reason = (error.strerror or "") if isinstance(error, OSError) else str(error)
            hint = "`podwright init` writes a first one" if isinstance(error, FileNotFoundError) else ""
            raise UnreadableFileError(f"cannot read {file}: {reason}", hint) from error

    @classmethod
    def parse(cls, text: str, *, file: Path = Path("cluster.yaml")) -> Document:
        """Parse the text of a file; its errors are in ``findings``."""
        try:
            refused = tuple(_refused_features(text))
            node = None if refused else yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            refused, node = (_syntax_finding(error, text),), None
        except yaml.reader.ReaderError as error:
            refused, node = (_character_finding(error, text),), None
        except (ValueError, OverflowError) as error:  # an escape or a version number that is malformed
            refused, node = (_finding("yaml-syntax", (), Position(1, 1), f"not YAML: {error}", _SYNTAX_HINT),), None
        reader = _Reader()
        data = reader.convert(node, ()) if node else None
        return cls(file, text, not refused, data, refused + tuple(reader.findings), reader.values, reader.keys)

    def position(self, path: KeyPath, *, key: bool = False) -> Position:
        """Return the position of the value at a path, else of its key, else of the nearest parent in the file."""
        if not key and path in self._values:
            return self._values[path]
        while path:
            if path in self._keys:
                return self._keys[path]
            path = path[:-1]
        return Position(1, 1)

    def secrets(self) -> Iterator[Finding]:
        """Report each secret of the file, in values, keys and comments."""
        hint = "delete it here and revoke it, because others may have read it"
        message = "this is {}, and a settings file must hold no secrets"
        for secret in find(self.text):
            before = self.text[: secret.start].split("\n")
            width = len(self.text[secret.start : secret.end].split("\n")[0])
            position = Position(len(before), len(before[-1]) + 1, width)
            yield _finding("secret", self._at(position), position, message.format(secret.kind), hint)
        for path, _, kind in self._escaped_secrets:
            yield _finding("secret", path, self.position(path), message.format(kind), hint)

    def without_secrets(self, text: str) -> str:
        """Return a text about the file with its secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, stars(secret))
        for value in self._perhaps_secrets.values():
            text = text.replace(f"got {value}", f"got {'*' * len(value)}").replace(repr(value), repr("*" * len(value)))
        return masked(text)

    @cached_property
    def shown(self) -> str:
        """The file's text as messages quote it: without its secrets, however they are written."""
        lines = self.text.split("\n")
        for path in (*(path for path, _, _ in self._escaped_secrets), *self._perhaps_secrets):
            at, line = self._values[path], lines[self._values[path].line - 1]
            start, end = at.column - 1, at.column - 1 + at.width
            lines[at.line - 1] = line[:start] + "*" * len(line[start:end]) + line[end:]
        return masked("\n".join(lines))

    @cached_property
    def _perhaps_secrets(self) -> dict[KeyPath, str]:
        """Values of passwords, which is no key, and of keys that need a secret's ARN and have something else."""
        keyed = ((path, str(path[-1]).lower(), value) for path, value in _texts(self.data) if path)
        return {
            path: value
            for path, key, value in keyed
            if "password" in key or (key.endswith("secret_arn") and not value.startswith("arn:"))
        }

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        plain = (self.text[secret.start : secret.end] for secret in find(self.text))
        return (*plain, *(secret for _, secret, _ in self._escaped_secrets))

    @cached_property
    def _escaped_secrets(self) -> tuple[tuple[KeyPath, str, str], ...]:
        """Return path, secret and kind of secrets that the text writes with YAML escapes or over several lines."""
        written = "".join(self.text.split())
        return tuple(
            (path, value[secret.start : secret.end], secret.kind)
            for path, value in _texts(self.data)
            for secret in find(value)
            if "".join(value[secret.start : secret.end].split()) not in written
        )

    def _at(self, position: Position) -> KeyPath:
        """Return the path of the value at a position; empty for a comment or where nothing was parsed."""
        for path, value in self._values.items():
            if value.line == position.line and value.column <= position.column < value.column + value.width:
                return path
        return ()

    def has(self, path: KeyPath) -> bool:
        """Return whether the file has a value at this path."""
        return not path or path in self._keys


def _texts(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every scalar of the data with its path."""
    if isinstance(data, str):
        yield path, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _texts(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _texts(value, (*path, index))


def _read(file: Path) -> bytes:
    """Read a regular file of bounded size; a pipe or a device would never end.

    Raises:
        UnreadableFileError: it is something else, or it is too large.
    """
    with open(file, "rb", opener=_open_without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise UnreadableFileError(f"cannot read {file}: it is not a regular file")
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        message = f"{file} is too large: it has more than {MAX_BYTES // 1024} KiB"
        hint = "check that this is the right file: settings with hundreds of users take about 100 KiB"
        raise UnreadableFileError(message, hint)
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a path; a pipe without a writer does not block."""
    return os.open(path, flags | os.O_NONBLOCK)


_SYNTAX_HINT = "compare the indentation and punctuation with the lines above"
_KEY_HINT = "write `key: value`, with a space after the colon"
_MISTAKES = {  # words of the parser's message: what is wrong, what to do
    "'\\t'": ("a tab is not allowed here", "indent with spaces, not with tabs"),
    "could not find expected ':'": ("this line has no `: `", _KEY_HINT),
    "expected <block end>, but found '<block": (
        "the indentation of this line fits no line above",
        "indent it as the lines that it belongs to",
    ),
}


class _Reader:
    """Converts nodes to data and records positions; a mapping or list has the position of its key."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.values: dict[KeyPath, Position] = {}
        self.keys: dict[KeyPath, Position] = {}

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the data of a node."""
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path)
        self.values[path] = _position(node)
        if node.tag == "tag:yaml.org,2002:null":
            return None
        return node.value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report("yaml-key", key_node, path, "this key is not a word", "write `key: value`")
                continue
            key = key_node.value
            key_path = (*path, key)
            if key in data:
                hint = f"the first is in line {self.keys[key_path].line}; keep one of them"
                self._report("duplicate-key", key_node, key_path, f"{key} is set twice", hint)
                continue
            self.keys[key_path] = _position(key_node)
            data[key] = self.convert(value_node, key_path)
        return data

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        data = []
        for index, item in enumerate(node.value):
            item_path = (*path, index)
            self.keys[item_path] = _position(item)
            data.append(self.convert(item, item_path))
        return data

    def _report(self, code: str, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        self.findings.append(_finding(code, path, _position(node), message, hint))


def _refused_features(text: str) -> Iterator[Finding]:
    """Report YAML features that a settings file does not need, and depth, before anything recurses into the text."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > MAX_DEPTH:
            yield _finding(
                "yaml-depth", (), _start(event), f"nested more than {MAX_DEPTH} levels deep", "write less deep"
            )
            return
        if documents > 1:
            hint = "a file describes one cluster: write the other one into a separate file"
            yield _finding("yaml-feature", (), _start(event), "a second document starts here", hint)
            return
        if (refused := _feature(event)) is not None:
            feature, hint = refused
            yield _finding("yaml-feature", (), _start(event), f"{feature} is not allowed here", hint)


def _feature(event: yaml.Event) -> tuple[str, str] | None:
    """Name the anchor, alias or tag of an event, and say what to write in its place."""
    repeat = "delete it, and write the value wherever you need it"
    if isinstance(event, yaml.AliasEvent):
        return f"the alias *{event.anchor}", repeat
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        return f"the anchor &{event.anchor}", repeat
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in {None, "!"}:
        return f"the tag {event.tag}", "write the plain value: podwright converts it to the setting's type"
    return None


def _syntax_finding(error: yaml.MarkedYAMLError, text: str) -> Finding:
    message = " ".join(part for part in (error.problem, error.context) if part)
    unclosed = "end of stream" in message or "stream end" in message  # then show where it was opened
    no_colon = "could not find expected ':'" in message  # then show the line that lacks it
    mark = (error.context_mark if unclosed or no_colon else error.problem_mark) or error.problem_mark
    position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
    problem, hint = _mistake(message, position, text) or (f"not YAML: {message}", _SYNTAX_HINT)
    return _finding("yaml-syntax", (), position, problem, hint)


def _mistake(message: str, position: Position, text: str) -> tuple[str, str] | None:
    """Return the problem and its solution, in plain words, for the parser's commonest messages."""
    lines = text.splitlines()[: position.line]
    above = [number for number, line in enumerate(lines[:-1], 1) if line.strip() and not line.lstrip().startswith("#")]
    if "mapping values are not allowed" not in message:
        return next((explanation for words, explanation in _MISTAKES.items() if words in message), None)
    if ": " in lines[-1][: position.column - 1]:
        return "a second `: ` in one value", "quote the value, or begin a new line"
    if above and ": " not in lines[above[-1] - 1]:
        return f"line {above[-1]}, above this one, has no `: `", _KEY_HINT
    return "this line is indented deeper than the key above it, which has a value", "indent both keys alike"


def _character_finding(error: yaml.reader.ReaderError, text: str) -> Finding:
    before = text[: error.position].splitlines() or [""]
    position = Position(len(before), len(before[-1]) + 1)
    message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
    return _finding("yaml-syntax", (), position, message, "delete it; it may be invisible in your editor")


def _finding(code: str, path: KeyPath, position: Position, message: str, hint: str) -> Finding:
    return Finding(
        Level.ERROR, code, path, message, hint, line=position.line, column=position.column, width=position.width
    )


def _position(node: yaml.Node) -> Position:
    """Return a node's start; a scalar on one line has its width, anything else is marked by its first character."""
    start, end = node.start_mark, node.end_mark
    one_line = isinstance(node, yaml.ScalarNode) and start.line == end.line
    return Position(start.line + 1, start.column + 1, max(1, end.column - start.column) if one_line else 1)


def _start(event: yaml.Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
