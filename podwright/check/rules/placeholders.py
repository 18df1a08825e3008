"""A rule about values copied from documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from podwright.check.findings import Finding, KeyPath, error
from podwright.settings.root import Settings
from podwright.settings.section import Section, UnknownValueError

# Values that stand in AWS's pages and RFC 2606 for the reader's own.
PLACEHOLDER = re.compile(r"<[^<>]*>|\bexample\.(com|net|org)\b|111122223333")


def placeholders(settings: Settings) -> Iterator[Finding]:
    """A value is a placeholder copied from documentation."""
    for path, text in _texts(settings):
        if found := PLACEHOLDER.search(text):
            yield error(path, f"{path[-1]}: {found[0]!r} is a placeholder", "replace it with your own value")


def _texts(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text of the file with its path; skip wrong values."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Section):
        for name in type(value).model_fields:
            with suppress(UnknownValueError):
                yield from _texts(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
