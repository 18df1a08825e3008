"""Find names that do not say what a value is, and comments that are no sentences, in the product's Python.

    python tools/lint_names.py [FILE …]

A reader who meets ``found.rest`` or ``wanted`` has to open another file to learn what the thing is. A name is a noun
of the field: ``existing_job_ids``, ``requested_nodes``. A comment that continues the code's line (``# of the last
one``) cannot be read alone. ``first``, ``last`` and ``other`` may name the variable of a loop or comprehension that
ends within two lines: there the whole life of the name is in view, and the field has no better word for a pair's
halves.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("podwright", "stacks", "common", "constructs", "lifecycle_scripts", "training", "rehearsal", "main.py")
GENERATED = ROOT / "constructs" / "podwright_constructs" / "aws"
VAGUE_NAMES = {
    *("wanted", "given", "found", "known", "own", "ours", "kept", "held", "said", "seen", "asked", "left", "gone"),
    *("there", "here", "least", "most", "first", "last", "one", "other", "others", "each", "whole", "what", "where"),
    *("drawn", "taken", "made", "left_out", "rest", "beside"),
}
LOOP_NAMES = frozenset({"first", "last", "other"})
LOOP_LINES = 2
FRAGMENT = re.compile(
    r"#\s*(of|as|else|not|by|so|what|which|where|until|unless|whose|with|without|but|for|from|at|beside|below|behind)\b"
)


def main(arguments: Sequence[str]) -> int:
    """Print each finding as FILE:LINE; return 1 if there is one."""
    paths = [Path(argument).resolve() for argument in arguments] or list(product_files())
    findings = [f"{_shown(path)}:{line}: {text}" for path in paths for line, text in sorted(lint(path.read_text()))]
    print("\n".join(findings) or f"{len(paths)} files: each name is a noun, each comment a sentence")
    return 1 if findings else 0


def product_files() -> Iterator[Path]:
    """Yield the product's Python files, without generated ones."""
    for source in SOURCES:
        path = ROOT / source
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        yield from (file for file in files if GENERATED not in file.parents and "bundled" not in file.parts)


def lint(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each vague name and each fragment of a comment."""
    tree = ast.parse(source)
    loop_targets = _short_loop_targets(tree)
    for node in ast.walk(tree):
        name = _defined_name(node)
        if name in VAGUE_NAMES and not (name in LOOP_NAMES and id(node) in loop_targets):
            yield node.lineno, f"{name}: name what the value is, with a noun of the field"  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and FRAGMENT.match(token.string):
            yield token.start[0], f"{token.string[:60]}: write a sentence that says why, or delete the comment"


def _defined_name(node: ast.AST) -> str | None:
    """Return the name that a node gives to a value: a variable, an attribute, a parameter, a function or a class."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else None


def _short_loop_targets(tree: ast.AST) -> set[int]:
    """Return the ids of the nodes that loops and comprehensions of at most ``LOOP_LINES`` lines assign to."""
    targets: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            assigned = [node.target]
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            assigned = [generator.target for generator in node.generators]
        else:
            continue
        if (node.end_lineno or node.lineno) - node.lineno < LOOP_LINES:
            targets |= {id(name) for target in assigned for name in ast.walk(target)}
    return targets


def _shown(path: Path) -> str:
    """Return the path as a reader types it: below this checkout where it is."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
