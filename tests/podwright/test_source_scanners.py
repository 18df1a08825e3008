"""Public scanners find nothing in our own code but what is accepted for a reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
PYTHON = ("common", "constructs", "lifecycle_scripts", "podwright", "rehearsal", "stacks", "training")
GENERATED = "constructs/podwright_constructs/aws"
ACCEPTED = Path(__file__).parent / "accepted_code_findings.yaml"
SHEBANG = re.compile(rb"#!\S*(/env )?\S*\bsh\b|#!\S*(/env )?\S*\bbash\b")


def shell_scripts() -> list[Path]:
    """Every file of the repository that says in its first line that a shell runs it, but templates of one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    files = [REPOSITORY / name.decode() for name in listed.split(b"\0") if name]
    return [file for file in files if file.is_file() and file.suffix not in (".sbatch", ".jinja") and _is_shell(file)]


def _is_shell(file: Path) -> bool:
    with file.open("rb") as stream:
        return bool(SHEBANG.match(stream.readline(100)))


SCRIPTS = shell_scripts()


@pytest.mark.slow
def test_bandit_finds_only_what_is_accepted():
    """Of what bandit rates medium or high, each finding is accepted in its file, for a reason."""
    options = ["-q", "-ll", "-f", "json", "-x", GENERATED]
    done = subprocess.run(
        [sys.executable, "-m", "bandit", "-r", *PYTHON, *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["metrics"]["_totals"]["loc"] > 10_000
    found = Counter((item["test_id"], item["filename"].removeprefix("./")) for item in report["results"])
    accepted = yaml.safe_load(ACCEPTED.read_text(encoding="utf-8"))
    assert all(item["reason"] for item in accepted)
    assert found == Counter({(item["check"], item["file"]): item["count"] for item in accepted})


@pytest.mark.parametrize("script", SCRIPTS, ids=[str(path.relative_to(REPOSITORY)) for path in SCRIPTS])
def test_shell_scripts_parse_and_are_formatted(script: Path):
    """A shell reads each script without running it, and shfmt would not change a line."""
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).stderr == b""
    shfmt = Path(sys.executable).with_name("shfmt")
    difference = subprocess.run([shfmt, "-d", script], capture_output=True, text=True, check=False).stdout
    assert difference == ""
