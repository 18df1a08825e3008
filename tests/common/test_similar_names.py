"""A misspelt word gets the names that it probably means."""

from __future__ import annotations

import pytest

from podwright_common.similar_names import did_you_mean, question, similar_names


@pytest.mark.parametrize(
    ("word", "names", "hint"),
    [
        ("wrkrs", ["login", "workers"], "did you mean workers?"),
        ("workers", ["workers-1", "workers-2"], "did you mean workers-2 or workers-1?"),
        ("xyz", ["login", "workers"], ""),
        ("workers", [], ""),
    ],
)
def test_a_hint_names_similar_names_alone(word: str, names: list[str], hint: str) -> None:
    """Without a similar name there is no hint, and the caller says something else."""
    assert did_you_mean(word, names, limit=2) == hint
    assert did_you_mean(word, names, limit=2, prefix="; ") == (f"; {hint}" if hint else "")


def test_names_are_as_many_and_as_similar_as_asked() -> None:
    """The most similar name comes first; a name that is listed twice is suggested once."""
    names = ["lustre", "lustre", "cluster", "openzfs"]
    assert similar_names("lustr", names) == ["lustre"]
    assert similar_names("lustr", names, limit=3) == ["lustre", "cluster"]
    assert similar_names("lustr", names, limit=3, cutoff=0.9) == ["lustre"]
    assert question([]) == ""
