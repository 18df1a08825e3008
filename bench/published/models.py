"""Published models that podwright's planner does not have, because podwright-train does not train their kind."""

from __future__ import annotations

from functools import lru_cache

from podwright.planning.model import Model, UnknownModelError, model_key, read_models
from published.constants import DATA


def published_model(name: str) -> Model:
    """Return the published model of that name.

    Raises:
        UnknownModelError: Neither the planner's catalog nor this one has it.
    """
    try:
        return Model.of(name)
    except UnknownModelError:
        if model := _catalog().get(model_key(name)):
            return model
        raise


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Model]:
    return read_models((DATA / "models.csv").read_text(encoding="utf-8"))
