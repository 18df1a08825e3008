"""Parts that JSON documents of several commands have."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """An object of a document: it has these keys, and later versions may add some."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Finding(Document):
    """A problem, its place in the file, and a remedy."""

    level: Literal["error", "warning", "info"]
    code: str
    """`podwright explain CODE` says what it means."""
    problem: str | None
    """The kind of mistake in one argument, such as `range` or `choice`; null for a finding about more than one."""
    path: str
    """Of the key, such as `cluster.instance_groups[1].count`; empty for the whole file."""
    line: int | None
    """From 1; null where no file gave the value."""
    column: int | None
    message: str
    hint: str
