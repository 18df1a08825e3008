"""Edit the text of a settings file: values change or are added, comments and everything else stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podwright.check.document import Document
from podwright.check.findings import KeyPath
from podwright.errors import ArgumentError
from podwright_constructs.problems import dotted

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:")


def edited(text: str, values: Mapping[KeyPath, str], *, file: Path) -> str:
    """Return the text with other values.

    Args:
        text: the text of a settings file.
        values: new values by path; a key that the file lacks is added to its mapping.
        file: the file's path, for messages.

    Raises:
        ArgumentError: a path leads to no mapping of the file, to a section, or to a value that an alias repeats.
    """
    for path, value in values.items():
        text = _with_value(Document.parse(text, file=file), path, value)
    return text


def key_path(text: str) -> KeyPath:
    """Return the path that words such as ``network.vpc_id`` or ``cluster.instance_groups[1].count`` name."""
    words = text.replace("[", ".").replace("]", "").split(".")
    return tuple(int(word) if word.isdigit() else word for word in words)


def _with_value(source: Document, path: KeyPath, value: str) -> str:
    if source.has(path):
        if isinstance(_at(source, path), dict | list):
            raise ArgumentError(f"{dotted(path)} in {source.file} is a section", "name one value in it")
        return source.text_with(path, _yaml_scalar(value))
    parent = path[:-1]
    section = _at(source, parent) if source.has(parent) else None
    if not isinstance(section, dict) or not section or isinstance(path[-1], int):
        section_name = dotted(parent) or "the file"
        raise ArgumentError(
            f"{source.file} has no section {section_name} for {path[-1]}", "compare `podwright explain`"
        )
    for key in section:
        source.editable_position((*parent, key))
    lines = source.text.splitlines(keepends=True)
    first_key = source.position((*parent, next(iter(section))), key=True)
    line, start = lines[first_key.line - 1], first_key.column - 1
    added = f"{path[-1]}: {_yaml_scalar(value)}"
    if _is_flow(line[:start]):
        lines[first_key.line - 1] = f"{line[:start]}{added}, {line[start:]}"
    else:
        # A new key goes before the first one, whose value may span lines.
        lines[first_key.line - 1] = f"{line[:start]}{added}\n{' ' * start}{line[start:]}"
    return "".join(lines)


def _is_flow(before: str) -> bool:
    """Return whether a key stands within braces; ``before`` is its line up to it."""
    return before.count("{") > before.count("}")


def _at(source: Document, path: KeyPath) -> Any:
    value = source.data
    for key in path:
        value = value[key]
    return value


def _yaml_scalar(value: str) -> str:
    """Return a value as a YAML scalar: plain if that is safe, else in quotes."""
    if value and set(value) <= PLAIN and not value.endswith(":") and value[0] not in "-:":
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
