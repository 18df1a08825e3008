"""Read YAML that people write: plain data, the line and column of every value, and all that is wrong with the text.

Scalars stay the text that was written: what ``yes``, ``010`` or ``1_000`` mean is decided by the setting they are given
to, not by YAML 1.1. So a name may be ``no`` and a tag ``0012``. cluster.yaml, run.yaml, job.yaml and the files of a
mixture are read here, and nowhere else.

PyYAML's composer has the marks of both ends of a value, so a command that edits a file replaces these characters and
leaves all others. ruamel.yaml has the start only, takes twice as long, and its round trip changes 9 of the 29 lines of
examples/minimal/cluster.yaml and 51 of the 134 of examples/production: indentation, and spaces before comments.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Iterator, NamedTuple, Tuple, Union

import yaml

from podwright_common.regular_file import open_regular

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

KeyPath = Tuple[Union[str, int], ...]  # ("cluster", "instance_groups", 1, "count")

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 20  # Far below Python's recursion limit, far above what a settings file needs.
MAX_VALUES = 100_000  # Each alias counts as what it stands for.
LONGEST_SHOWN = 80  # Characters of a value or key in a message.

_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_BREAKS = "\n\r\x85\u2028\u2029"  # Of YAML 1.1; str.splitlines() knows more.
_LINE = re.compile(f"([^{_BREAKS}]*)(\r\n|[{_BREAKS}]|\\Z)")
_IMPOSSIBLE = re.compile("[\\0\ud800-\udfff]")  # Neither files nor programs accept them.
# PyYAML raises these for `!!int ""`, `!!bool x` and `!!timestamp x`.
_TAG_ERRORS = (LookupError, AttributeError, TypeError)


class YamlFileError(Exception):
    """A file is missing, no regular file, too large or no text; the message names it, ``hint`` says what to do."""

    def __init__(self, message: str, hint: str = "", *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_missing = is_missing


@dataclass(frozen=True)
class Position:
    """Line and column count from 1; ``width`` characters belong to the value or key."""

    line: int
    column: int
    width: int = 1


class Scalar(NamedTuple):
    """A text of the file: its path, and the offsets in the file at which it is written."""

    path: KeyPath
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class YamlProblem:
    """One mistake in the text: its kind, the value or key that has it, and what to do."""

    code: str
    path: KeyPath
    position: Position
    message: str
    hint: str


@dataclass(frozen=True)
class YamlDocument:
    """One file.

    ``data`` holds dictionaries, lists, strings and None (for an empty value); it says nothing unless ``parsed``.

    An alias stands for the value of its anchor, and ``<<`` adds the keys of another mapping: such a value has the
    position at which it is written.

    Attributes:
        allows_tags: Whether the file may say which type a value has, as in ``!!str 1``.
        extension_prefix: Keys of the whole document that begin so are left out of the data: a place for anchors.
    """

    allows_tags: ClassVar[bool] = True
    extension_prefix: ClassVar[str] = ""

    file: Path
    text: str
    parsed: bool
    data: Any
    problems: tuple[YamlProblem, ...]
    _values: dict[KeyPath, yaml.Node]
    _keys: dict[KeyPath, yaml.Node]
    _root: yaml.Node | None

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read and parse a file.

        Raises:
            YamlFileError: the file cannot be read, or is not UTF-8.
        """
        return cls.parse(_read(file), file=file)

    @classmethod
    def parse(cls, text: str, *, file: Path) -> Self:
        """Parse the text of a file; its mistakes are in ``problems``."""
        reader, problems, node = _Reader(), [], None
        try:
            composer = _Composer(text, allows_tags=cls.allows_tags)
            node, problems = composer.get_single_node(), composer.problems
            if node and not problems:
                data = reader.convert(node, ())
                problems = list(_tag_problems(composer.tagged_nodes))
        except _RefusalError as refusal:
            problems = [refusal.problem]
        except yaml.MarkedYAMLError as error:
            problems = [_syntax_problem(error, text)]
        except yaml.reader.ReaderError as error:
            problems = [_character_problem(error, text)]
        except (ValueError, OverflowError) as error:  # an escape or a version number that is malformed
            problems = [YamlProblem("yaml-syntax", (), Position(1, 1), f"not YAML: {error}", _SYNTAX_HINT)]
        if problems or not node:
            return cls(file, text, not problems, None, tuple(problems), {}, {}, node)
        if cls.extension_prefix and isinstance(data, dict):
            data = {key: value for key, value in data.items() if not key.startswith(cls.extension_prefix)}
        return cls(file, text, True, data, tuple(reader.problems), reader.values, reader.keys, node)

    def position(self, path: KeyPath, *, key: bool = False) -> Position:
        """Return the position of the value at a path, else of its key, else of the nearest parent in the file."""
        if not key and isinstance(self._values.get(path), yaml.ScalarNode):
            return _position(self._values[path])
        while path:
            if path in self._keys:
                return _position(self._keys[path])
            path = path[:-1]
        return Position(1, 1)

    def place(self, path: KeyPath, *, key: bool = False) -> str:
        """Return file, line and column of the value at a path, or of its key, as compilers write them."""
        node = (self._keys if key else self._values).get(path)
        at = _position(node) if node else self.position(path, key=key)
        return f"{self.file}:{at.line}:{at.column}"

    def offsets(self, path: KeyPath, *, key: bool = False) -> tuple[int, int]:
        """Return the offsets in the text at which the value at a path, or its key, starts and ends."""
        node = (self._keys if key else self._values)[path]
        return node.start_mark.index, node.end_mark.index

    def is_flow(self, path: KeyPath) -> bool:
        """Return whether a mapping or list is written in brackets."""
        return bool(getattr(self._values[path], "flow_style", False))

    def has(self, path: KeyPath) -> bool:
        """Return whether the file has a value at this path."""
        return not path or path in self._keys

    def is_shared(self, path: KeyPath) -> bool:
        """Return whether the value at a path is that of another path too, by an alias or a merge key."""
        return path in self._values and self._uses[id(self._values[path])] > 1

    @cached_property
    def _uses(self) -> Counter[int]:
        keys = (node for path, node in self._keys.items() if isinstance(path[-1], str))
        return Counter(map(id, (*self._values.values(), *keys)))

    def typed(self, path: KeyPath) -> Any:
        """Return the value at a path with YAML's own types: numbers, dates, booleans.

        Raises:
            ValueError: a value does not match its type, such as the date 2026-13-45.
        """
        return _constructed(self._values[path])

    @cached_property
    def messages(self) -> list[str]:
        """Every problem as one line: file, line, column, what is wrong and what to do."""
        return [
            f"{self.file}:{problem.position.line}:{problem.position.column}: "
            + "; ".join(filter(None, [problem.message, problem.hint]))
            for problem in self.problems
        ]

    def scalars(self) -> Iterator[Scalar]:
        """Yield every text that is a value, also those that the data leaves out; an alias as what it stands for."""
        return (scalar for scalar, is_key in self._scalars() if not is_key)

    def keys(self) -> Iterator[Scalar]:
        """Yield every text that is a key, with the path of its value."""
        return (scalar for scalar, is_key in self._scalars() if is_key)

    def _scalars(self) -> Iterator[tuple[Scalar, bool]]:
        if self._root:
            yield from _scalars(self._root, (), set())


def lines_of(text: str, *, keepends: bool = False) -> list[str]:
    """Return the lines of a text as YAML counts them, which are those of every ``Position``."""
    *lines, _ = _LINE.findall(text)  # The last one is the empty match at the end.
    return [line + (end if keepends else "") for line, end in lines]


def position_of(text: str, start: int, end: int) -> Position:
    """Return the position of a part of a text; its width is that of the part's first line."""
    before = lines_of(f"{text[:start]}.")
    return Position(len(before), len(before[-1]), max(1, len("".join(lines_of(text[start:end])[:1]))))


def load_values(file: Path) -> Any:
    """Return the values of a file with YAML's own types, for files whose readers need no places.

    Raises:
        YamlFileError: the file cannot be read, or has a mistake; the message has the first one's place.
    """
    document = YamlDocument.read(file)
    if document.messages:
        raise YamlFileError(document.messages[0])
    try:
        return None if document.data is None else document.typed(())
    except ValueError as error:
        raise YamlFileError(f"{file}: {error}") from error


def shown(text: str) -> str:
    """Return a text, shortened to one line for a message."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}…"


def _scalars(node: yaml.Node, path: KeyPath, visited_ids: set[int]) -> Iterator[tuple[Scalar, bool]]:
    """Yield the texts of a node, and whether each is a key."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag != _NULL:
            yield _scalar(node, path), False
        return
    if id(node) in visited_ids:
        return
    visited_ids.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _scalars(item, (*path, index), visited_ids)
        return
    for key, item in node.value:
        item_path = (*path, key.value if isinstance(key, yaml.ScalarNode) else "")
        if isinstance(key, yaml.ScalarNode):
            yield _scalar(key, item_path), True
        yield from _scalars(item, item_path, visited_ids)


def _scalar(node: yaml.ScalarNode, path: KeyPath) -> Scalar:
    return Scalar(path, node.value, node.start_mark.index, node.end_mark.index)


def _read(file: Path) -> str:
    try:
        with open_regular(file, follow_links=True) as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = (error.strerror or "") if isinstance(error, OSError) else str(error)
        is_missing = isinstance(error, FileNotFoundError)
        raise YamlFileError(f"cannot read {file}: {reason}", is_missing=is_missing) from error
    if len(content) > MAX_BYTES:
        message = f"{file} is too large: it has more than {MAX_BYTES // 1024} KiB"
        raise YamlFileError(message, "check that this is the right file: people write far smaller ones")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        reason = "it is UTF-16" if is_utf_16 else f"byte 0x{content[error.start]:02x} at {error.start}"
        raise YamlFileError(f"{file} is not UTF-8: {reason}", "save it as UTF-8") from error


class _RefusalError(Exception):
    """The rest of the file is not read."""

    def __init__(self, code: str, position: Position, message: str, hint: str) -> None:
        super().__init__(message)
        self.problem = YamlProblem(code, (), position, message, hint)


class _Composer(yaml.SafeLoader):
    """Composes nodes within a depth, and reports YAML features that the file must not have."""

    def __init__(self, text: str, *, allows_tags: bool) -> None:
        self.problems: list[YamlProblem] = []
        self.tagged_nodes: list[yaml.Node] = []
        self._allows_tags = allows_tags
        self._depth = 0
        super().__init__(text)

    def get_single_node(self) -> yaml.Node | None:
        """Return the only document; a file describes one thing."""
        self.get_event()  # type: ignore[no-untyped-call] # The stream starts.
        if self.check_event(yaml.StreamEndEvent):
            return None
        node: yaml.Node | None = self.compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            hint = "a file describes one thing: write the other one into a separate file"
            event = self.peek_event()  # type: ignore[no-untyped-call]
            self._refuse(event, "a second document starts here", hint)
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node and those in it."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        has_tag = tag not in {None, "!"}
        if has_tag and not self._allows_tags:
            name = str(tag).replace("tag:yaml.org,2002:", "!!")
            self._refuse(event, f"the tag {name} is not allowed here", "write the plain value")
        self._depth += isinstance(event, yaml.CollectionStartEvent)
        if self._depth > MAX_DEPTH:
            raise _too_deep(_start(event))
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= isinstance(event, yaml.CollectionStartEvent)
        if node and has_tag:
            self.tagged_nodes.append(node)
        return node

    def _refuse(self, event: yaml.Event, message: str, hint: str) -> None:
        self.problems.append(YamlProblem("yaml-feature", (), _start(event), message, hint))


class _Reader:
    """Converts nodes to data and remembers them by path."""

    def __init__(self) -> None:
        self.problems: list[YamlProblem] = []
        self.values: dict[KeyPath, yaml.Node] = {}
        self.keys: dict[KeyPath, yaml.Node] = {}
        self._count = 0

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the data of a node."""
        self._take(node, path)
        self.values[path] = node
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self._sequence(node, path)
        if _IMPOSSIBLE.search(node.value):
            self._report("yaml-text", node, path, "not a text: it has a NUL or half of a character", "")
        return None if node.tag == _NULL else node.value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged_pairs: list[tuple[yaml.Node, yaml.Node]] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged_pairs += self._merged(value_node, path)
                continue
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            key_path = (*path, key)
            if not key:
                self._report("yaml-key", key_node, path, "this key is not a word", "write `key: value`")
            elif key in data:
                hint = f"the first is in line {_position(self.keys[key_path]).line}; keep one of them"
                self._report("duplicate-key", key_node, key_path, f"{shown(key)} is set twice", hint)
            else:
                data[key] = self._item(key_node, value_node, key_path)
        for key_node, value_node in merged_pairs:
            if key_node.value not in data:
                data[key_node.value] = self._item(key_node, value_node, (*path, key_node.value))
        return data

    def _item(self, key_node: yaml.Node, value_node: yaml.Node, key_path: KeyPath) -> Any:
        if _IMPOSSIBLE.search(key_node.value):
            self._report("yaml-text", key_node, key_path, "not a text: it has a NUL or half of a character", "")
        self.keys[key_path] = key_node
        return self.convert(value_node, key_path)

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the keys and values that a merge key adds; the first one of a name applies."""
        self._take(node, path)
        for mapping in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(mapping, yaml.MappingNode):
                self._report("yaml-key", mapping, path, "<< adds the keys of a mapping", "write `<<: *anchor`")
                continue
            inner_pairs = [pair for pair in mapping.value if pair[0].tag == _MERGE]
            yield from (
                pair for pair in mapping.value if isinstance(pair[0], yaml.ScalarNode) and pair[0].tag != _MERGE
            )
            for _, inner in inner_pairs:
                yield from self._merged(inner, (*path, "<<"))

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        data = []
        for index, item in enumerate(node.value):
            item_path = (*path, index)
            self.keys[item_path] = item
            data.append(self.convert(item, item_path))
        return data

    def _take(self, node: yaml.Node, path: KeyPath) -> None:
        """Count a node, and refuse a file whose aliases make it endless or huge."""
        self._count += 1
        if len(path) > MAX_DEPTH:
            raise _too_deep(_position(node))
        if self._count > MAX_VALUES:
            message = f"more than {MAX_VALUES:,} values, with those of aliases"
            raise _RefusalError("yaml-depth", _position(node), message, "write less, or fewer aliases")

    def _report(self, code: str, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        self.problems.append(YamlProblem(code, path, _position(node), message, hint))


def _tag_problems(nodes: Iterable[yaml.Node]) -> Iterator[YamlProblem]:
    """Report values that do not match the tag that the file gives them."""
    for node in nodes:
        try:
            _constructed(node)
        except ValueError as error:
            yield YamlProblem("yaml-syntax", (), _position(node), f"not YAML: {error}", "")


def _constructed(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except _TAG_ERRORS as error:
        raise ValueError("the value does not match its tag") from error
    except yaml.MarkedYAMLError as error:
        raise ValueError(shown(str(error.problem))) from error
    except RecursionError as error:
        raise ValueError("too many brackets or aliases in each other") from error
    finally:
        loader.dispose()


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


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> YamlProblem:
    message = " ".join(part for part in (error.problem, error.context) if part)
    is_unclosed = "end of stream" in message or "stream end" in message  # then show where it was opened
    has_no_colon = "could not find expected ':'" in message  # then show the line that lacks it
    mark = (error.context_mark if is_unclosed or has_no_colon else error.problem_mark) or error.problem_mark
    position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
    problem, hint = _mistake(message, position, text) or (f"not YAML: {message}", _SYNTAX_HINT)
    return YamlProblem("yaml-syntax", (), position, problem, hint)


def _mistake(message: str, position: Position, text: str) -> tuple[str, str] | None:
    """Return the problem and its solution, in plain words, for the parser's commonest messages."""
    lines = lines_of(text)[: position.line]
    above = [number for number, line in enumerate(lines[:-1], 1) if line.strip() and not line.lstrip().startswith("#")]
    if "mapping values are not allowed" not in message:
        return next((explanation for words, explanation in _MISTAKES.items() if words in message), None)
    if ": " in lines[-1][: position.column - 1]:
        return "a second `: ` in one value", "quote the value, or begin a new line"
    if above and ": " not in lines[above[-1] - 1]:
        return f"line {above[-1]}, above this one, has no `: `", _KEY_HINT
    return "this line is indented deeper than the key above it, which has a value", "indent both keys alike"


def _character_problem(error: yaml.reader.ReaderError, text: str) -> YamlProblem:
    position = position_of(text, error.position, error.position + 1)
    message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
    return YamlProblem("yaml-syntax", (), position, message, "delete it; it may be invisible in your editor")


def _too_deep(position: Position) -> _RefusalError:
    return _RefusalError("yaml-depth", position, f"nested more than {MAX_DEPTH} levels deep", "write less deep")


def _position(node: yaml.Node) -> Position:
    """Return a node's start; a scalar on one line has its width, anything else is marked by its first character."""
    start, end = node.start_mark, node.end_mark
    is_one_line = isinstance(node, yaml.ScalarNode) and start.line == end.line
    return Position(start.line + 1, start.column + 1, max(1, end.column - start.column) if is_one_line else 1)


def _start(event: yaml.Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
