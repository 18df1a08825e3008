"""Benchmarks say how to run them. ``make bench-smoke`` runs the smallest case of each."""

import ast
import re
import runpy

import pytest

from podwright.checkout import ROOT

COMMANDS = sorted(
    path for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text(encoding="utf-8").splitlines()[-2]
)


def described(text: str) -> str:
    """Return the docstring of a module."""
    return ast.get_docstring(ast.parse(text)) or ""


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_benchmark_names_its_command(path):
    """Its docstring has the command, and its smallest case; the program knows each flag that they have."""
    text = path.read_text(encoding="utf-8")
    commands = re.findall(rf"^(?: {{4}}|Smallest: )python bench/{path.name}.*$", described(text), re.MULTILINE)
    assert commands
    assert path.stem == "smoke" or commands[-1].startswith("Smallest: ")
    flags = {flag for command in commands for flag in re.findall(r"--[\w-]+", command)}
    assert flags <= set(re.findall(r'"(--[\w-]+)"', text))


@pytest.mark.parametrize(
    "request_ids", ["RequestID: 4442587f, ", "RequestID: 4442587f, HostID: Uuag1LuB/9aIb=, ", "RequestID: , HostID: , "]
)
@pytest.mark.parametrize("text", ["api error AccessDenied: no", "AccessDenied: no"])
def test_interrupted_applies_name_aws_error_codes(request_ids, text):
    """The table has the error's code, with the host that only S3's messages name and without it."""
    pattern = runpy.run_path(str(ROOT / "bench" / "interrupted_apply.py"))["ERROR_CODE"]
    message = f"operation error S3: CreateBucket, https response error StatusCode: 403, {request_ids}{text}"
    assert re.findall(pattern, message) == ["AccessDenied"]
