"""Sources use plain words: the field's terms, and docstrings that start with a verb or a noun."""

import ast
import re

import pytest

from podwright.checkout import ROOT

SOURCES = ("constructs", "lifecycle_scripts", "podwright", "rehearsal", "stacks", "training")
WORKSHOP = ("bench", "examples", "tests", "tools")
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


@pytest.mark.parametrize("folder", WORKSHOP)
def test_tests_and_tools_are_described_plainly(folder):
    """No docstring misleads or opens with a question word; nor does the behaviour of a boot's case."""
    described = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        described += [(path, words) for words in _docstrings(ast.parse(path.read_text(encoding="utf-8")))]
    for path in sorted((ROOT / folder).glob("bootstrap/cases/*/*.yaml")):
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        described.append((path, first_line.removeprefix("behaviour: ")))
    assert [(path, words) for path, words in described if RIDDLE.match(words) or MISLEADING.search(words)] == []
