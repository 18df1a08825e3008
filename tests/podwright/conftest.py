"""For tests of podwright's commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader


@pytest.fixture(scope="session", autouse=True)
def service_models_once() -> Iterator[None]:
    """Parse each file of botocore's service models once: each command has a session of its own, which parses them."""
    load = JSONFileLoader.load_file

    @cache
    def load_once(path: str) -> Any:
        return load(JSONFileLoader(), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: load_once(path))
        yield
