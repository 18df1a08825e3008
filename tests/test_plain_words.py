"""Sources use plain words: the field's terms, and docstrings that start with a verb or a noun."""

import ast
import re

import pytest

from podwright.checkout import ROOT

SOURCES = ("constructs", "lifecycle_scripts", "podwright", "rehearsal", "stacks", "training")
MISLEADING = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|dear(?:er|est)?|told|tells|tell(?!\()|brought|strays?|keepers?)\b"
    r"|[;:#(] none (?:is|takes|means)\b",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"(?:Who|Whose|What|Where|When|Why|How|Whether)\b")
ALLOWED: tuple[str, ...] = ()  # lines, as they are in the file


def _docstrings(tree: ast.Module) -> list[str]:
    """Return the docstrings of a module, its classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize("source", SOURCES)
def test_words_that_mislead_stay_away(source):
    """No line has a word that misled, and no docstring opens with a question word."""
    found = []
    for path in sorted((ROOT / source).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        lines = [line.strip() for line in text.splitlines()]
        found += [f"{name}: {line}" for line in lines if MISLEADING.search(line) and line not in ALLOWED]
        found += [f"{name}: {words.splitlines()[0]}" for words in _docstrings(ast.parse(text)) if RIDDLE.match(words)]
    assert found == []
