"""Sources use plain words: the field's terms, and docstrings that start with a verb or a noun."""

import ast
import re

import pytest

from podwright.checkout import ROOT

SOURCES = ("common", "constructs", "lifecycle_scripts", "podwright", "rehearsal", "stacks", "training")
WORKSHOP = ("bench", "examples", "tests", "tools")
MISLEADING = re.compile(
    r"\b(?:mend(?:s|ed|ing)?|dear(?:er|est)?|told|tells|tell(?!\()|brought|strays?|keepers?)\b"
    r"|[;:#(] none (?:is|takes|means)\b|\b(?-i:none):",
    re.IGNORECASE,
)
RIDDLE = re.compile(r"(?:Who|Whose|What|Which|Where|When|Why|How|Whether)\b")
# Words that add nothing, abbreviations that some readers guess, and praise. `e.g.` and `i.e.` are words too.
IDLE = re.compile(
    r"\be\.g\.|\bi\.e\.|\betc\.|\band/or\b|\b(?:simply|just|eas(?:y|ily)|obviously|of course|please|very|quite|"
    r"basically|actually|in order to|note that|via|utili[sz]e[sd]?|leverag(?:e[sd]?|ing)|facilitates?|seamless(?:ly)?|"
    r"powerful|robust|blazing(?:ly)?|cutting-edge|state-of-the-art|world-class|whitelists?|blacklists?)\b",
    re.IGNORECASE,
)
NAMES = {  # that headings write with a capital letter, beside words of capitals
    *(
        "HyperPod",
        "Slurm",
        "Terraform",
        "Terrain",
        "Trainium",
        "Python",
        "Debian",
        "Hugging",
        "Face",
        "Grafana",
        "Megatron",
    ),
}
PROSE = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("*/README.md"),
                                                         *ROOT.glob("docs/**/*.md")))  # fmt: skip
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


def _prose(page: str) -> list[str]:
    """Return the lines of a page, empty where a block of code is, and without what stands in backticks."""
    lines, fence = [], False
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        is_fence = line.lstrip().startswith("```")
        fence ^= is_fence
        lines.append("" if fence or is_fence else re.sub(r"`[^`]*`", "", line))
    return lines


@pytest.mark.parametrize("page", PROSE)
def test_pages_have_no_idle_words(page):
    """A page has no word that adds nothing, and no Latin abbreviation."""
    found = [(number, match[0]) for number, line in enumerate(_prose(page), 1) for match in IDLE.finditer(line)]
    assert found == [], "leave it out, or write `for example`, `that is`, `by`"


@pytest.mark.parametrize("page", PROSE)
def test_headings_are_in_sentence_case(page):
    """After its first word, a heading has capitals in names alone."""
    headings = [line.lstrip("# ") for line in _prose(page) if re.match(r"#+ ", line)]
    words = [word.strip("(),:").removesuffix("'s") for heading in headings for word in heading.split()[1:]]
    assert [word for word in words if word[:1].isupper() and not word.isupper() and word not in NAMES] == []
