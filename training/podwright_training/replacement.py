"""Replace an attribute of a module or class for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` to ``value`` until the block ends.

    An attribute that ``owner`` inherits is inherited again afterwards.

    Raises:
        AttributeError: The owner has no such attribute, so that a renamed one is noticed.
    """
    original = getattr(owner, name)
    is_inherited = name not in vars(owner)
    if not is_inherited:
        original = vars(owner)[name]  # A class's method may be wrapped, which getattr unwraps.
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
