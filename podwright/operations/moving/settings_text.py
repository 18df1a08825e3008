"""Edit the text of a settings file: values change or are added, comments and everything else stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

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
        ArgumentError: a path leads to no mapping of the file, to a section, to a value that an alias repeats, or to
            one that cannot be edited without others.
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
        if isinstance(source.value(path), dict | list):
            raise ArgumentError(f"{dotted(path)} in {source.file} is a section", "name one value in it")
        return source.text_with(path, _yaml_scalar(value))
    parent = path[:-1]
    section = source.value(parent) if source.has(parent) else None
    if not isinstance(section, dict) or not section or isinstance(path[-1], int):
        section_name = dotted(parent) or "the file"
        raise ArgumentError(
            f"{source.file} has no section {section_name} for {path[-1]}", "compare `podwright explain`"
        )
    for key in section:
        source.require_unshared((*parent, key))
    first_key = (*parent, next(iter(section)))
    text, (start, _) = source.text, source.offsets(first_key, key=True)
    indent = source.position(first_key, key=True).column - 1
    if (before := text[:start].rstrip(" \t")).endswith("?"):  # The long form of a key.
        indent -= start - len(before) + 1
        start = len(before) - 1
    line_break = "\r\n" if "\r\n" in text else "\n"
    # A new key goes before the first one, whose value may span lines.
    separator = ", " if source.is_flow(parent) else line_break + " " * indent
    scalar = _yaml_scalar(value)
    return source.verified(f"{text[:start]}{path[-1]}: {scalar}{separator}{text[start:]}", path, scalar)


def _yaml_scalar(value: str) -> str:
    """Return a value as a YAML scalar: plain if that is safe, else in quotes."""
    if value and set(value) <= PLAIN and not value.endswith(":") and value[0] not in "-:" and value.lower() != "null":
        return value
    # JSON's escapes are YAML's, but not its surrogates for characters beyond U+FFFF.
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(text if text.isprintable() else f"\\u{ord(text):04x}" for text in quoted)
