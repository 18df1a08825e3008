"""Names and comments of the product, by ``tools/lint_names.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from podwright.checkout import ROOT

TOOL = [sys.executable, str(ROOT / "tools" / "lint_names.py")]


def lint(source, tmp_path):
    """Return what the tool prints for a file, without its path, and its exit status."""
    path = tmp_path / "module.py"
    path.write_text(source)
    done = subprocess.run([*TOOL, str(path)], capture_output=True, text=True, check=False)
    return [
        line.removeprefix(f"{path}:") for line in done.stdout.splitlines() if line.startswith(str(path))
    ], done.returncode


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("found = 1\n", "1: found: "),
        ("def f(wanted): pass\n", "1: wanted: "),
        ("class C:\n    rest: int\n", "2: rest: "),
        ("def f(self):\n    self.given = 1\n", "2: given: "),
        ("def kept(): pass\n", "1: kept: "),
        ("size = 1  # of the last one\n", "1: # of the last one: "),
        ("for first in a:\n    print(1)\n    print(2)\n    print(first)\n", "1: first: "),
    ],
)
def test_a_name_that_says_nothing_is_found(source, line, tmp_path):
    """Variables, parameters, fields, attributes and functions count, and comments that continue the code."""
    findings, status = lint(source, tmp_path)
    assert status == 1
    assert [finding.startswith(line) for finding in findings] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "existing_job_ids = wanted_by = 1  # Slurm numbers jobs from 1.\n",
        "for first, last in pairs:\n    print(first, last)\n",
        "sizes = [other.size for other in nodes]\n",
        "print(found, nodes.rest)\n",
    ],
)
def test_nouns_sentences_and_short_loops_pass(source, tmp_path):
    """A name in use is its definition's matter; a pair's halves may be first and last while both are in view."""
    assert lint(source, tmp_path) == ([], 0)


def test_the_product_has_none():
    """Every name of the product is a noun, and every comment a sentence."""
    done = subprocess.run(TOOL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
