"""For tests of podwright's commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from podwright.operations import output
from podwright_testing.documents import as_described


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


@pytest.fixture(scope="session", autouse=True)
def documents_have_their_schema() -> Iterator[None]:
    """Compare each document that a test's command prints with its published schema."""
    to_json = output.to_json

    def compared(document: Mapping[str, Any]) -> str:
        text = to_json(document)
        as_described(json.loads(text))
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "to_json", compared)
        yield
