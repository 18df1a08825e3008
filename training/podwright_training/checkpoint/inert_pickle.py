"""Read what ``torch.save`` wrote without running code from it: objects of unknown classes become empty stand-ins."""

from __future__ import annotations

from argparse import Namespace
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

NAMESPACES = {"argparse.Namespace", "types.SimpleNamespace"}  # They only hold attributes.


class StandIn:
    """Replaces an object of a class that is not read; it takes any state, and keeps none."""

    def __new__(cls, *_args: object, **_kwargs: object) -> StandIn:  # noqa: PYI034 -- no subclass exists
        """Return an empty object, whatever the arguments are."""
        return super().__new__(cls)

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Ignore the arguments."""

    def __setstate__(self, _state: object) -> None:
        """Ignore the state."""


def load_inert(content: bytes) -> Any:
    """Return numbers, texts, tensors, containers and namespaces, with stand-ins for everything else.

    PyTorch reads with ``weights_only``: no name of the file is imported.

    Raises:
        Exception: The content is damaged, or names a module that ``weights_only`` never permits.
    """
    names = get_unsafe_globals_in_checkpoint(BytesIO(content))
    permitted: list[Any] = [(StandIn, name) for name in names if name not in NAMESPACES]
    with safe_globals([Namespace, SimpleNamespace, *permitted]):
        return torch.load(BytesIO(content), weights_only=True, map_location="cpu")


def reason(error: Exception) -> str:
    """Return why bytes cannot be read, without PyTorch's advice to run the code in them."""
    if isinstance(error, OSError):
        return str(error)
    return "its bytes are damaged, or name a class or function that no checkpoint needs; no code of it was run"
