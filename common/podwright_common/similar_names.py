"""Suggest the names that a misspelt word probably means; difflib is imported only then."""

from __future__ import annotations

from typing import Iterable, List


def similar_names(word: str, names: Iterable[str], *, limit: int = 1, cutoff: float = 0.6) -> List[str]:
    """Return up to ``limit`` of the names, the most similar first; ``cutoff`` is the least similarity, from 0 to 1."""
    from difflib import get_close_matches

    return get_close_matches(word, list(dict.fromkeys(names)), n=limit, cutoff=cutoff)


def did_you_mean(word: str, names: Iterable[str], *, limit: int = 1, cutoff: float = 0.6, prefix: str = "") -> str:
    """Return a question that names the most similar names, after a prefix; empty if none is similar."""
    return question(similar_names(word, names, limit=limit, cutoff=cutoff), prefix=prefix)


def question(names: Iterable[str], *, prefix: str = "") -> str:
    """Return "did you mean A or B?" after a prefix; empty without names."""
    alternatives = " or ".join(names)
    return f"{prefix}did you mean {alternatives}?" if alternatives else ""
