"""A rule about values copied from documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from podwright.check.findings import Finding, error
from podwright.settings.root import Settings
from podwright.settings.section import texts

# Values that stand in AWS's pages and RFC 2606 for the reader's own.
PLACEHOLDER = re.compile(r"<[^<>]*>|\bexample\.(com|net|org)\b|111122223333")


def placeholders(settings: Settings) -> Iterator[Finding]:
    """A value is a placeholder copied from documentation."""
    for path, text in texts(settings):
        if match := PLACEHOLDER.search(text):
            yield error(path, f"{path[-1]}: {match[0]!r} is a placeholder", "replace it with your own value")
