"""The uploaded scripts run on a bare node, in an old Python, and agree with each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import podwright_common
from podwright_bootstrap import boot as program
from podwright_bootstrap import contract

SCRIPTS = Path(contract.__file__).resolve().parents[1]
PACKAGES = (SCRIPTS / "podwright_bootstrap", Path(podwright_common.__file__).parent)
SOURCES = sorted(file for package in PACKAGES for file in package.rglob("*.py"))
ON_CREATE = SCRIPTS / "on_create.sh"
# Steps without a folder of cases, and what tests them.
TESTED_ELSEWHERE = {"hold": "rehearsal/test_slurm_by_api.py", "metadata_access": "test_metadata_access.py"}


@pytest.mark.parametrize("source", SOURCES, ids=[source.stem for source in SOURCES])
def test_sources_are_python_3_8(source):
    """No newer syntax: the image's Python may be old."""
    tree = ast.parse(source.read_text(), feature_version=(3, 8))
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))


def test_the_standard_library_is_enough():
    """The program starts in an isolated Python without site-packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "podwright_bootstrap", "--help"], cwd=SCRIPTS, env={}, check=False
    )
    assert done.returncode == 0


def test_the_log_is_where_the_contract_says():
    """The script and the contract name the same log."""
    assert f"log={contract.PROVISIONING_LOG}\n" in ON_CREATE.read_text()


def test_the_script_is_ready_to_run():
    """It is executable, has no carriage returns, and bash and shellcheck find nothing."""
    assert ON_CREATE.stat().st_mode & 0o111
    assert b"\r" not in ON_CREATE.read_bytes()
    subprocess.run(["bash", "-n", ON_CREATE], check=True)
    shims = sorted(Path(__file__).resolve().parent.glob("shims/*"))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    subprocess.run([shellcheck, ON_CREATE, Path(__file__).resolve().parent / "enter_host.sh", *shims], check=True)


def test_every_step_is_in_the_table_of_contents():
    """A module below steps/ is a step of the boot, named once."""
    modules = {source.stem for source in SOURCES if source.parent.name == "steps"} - {"__init__"}
    assert {type(step).__module__.rsplit(".", 1)[1] for step in program.STEPS} == modules
    names = [step.name for step in program.STEPS]
    assert len(set(names)) == len(names)


def test_every_step_says_what_it_proves_and_what_to_do():
    """Each has a purpose, a time limit and advice, and none waits for ever."""
    for step in program.STEPS:
        assert step.__doc__
        assert step.hint
        assert 0 < step.time_limit_s <= 2 * 3600


def test_nothing_trusts_unknown_hosts_or_starts_a_shell():
    """The scripts avoid the known faults of AWS's reference scripts."""
    text = "".join(source.read_text() for source in SOURCES)
    assert not re.search(r"StrictHostKeyChecking|shell=True|NOPASSWD|0o777\b|curl", text)


def test_every_step_is_tested():
    """Each step of the boot has a folder of cases, or is tested elsewhere."""
    tested = {path.name for path in (Path(__file__).parent / "cases").iterdir()} | set(TESTED_ELSEWHERE)
    assert {step.name for step in program.STEPS} - tested == set(), "each needs tests/bootstrap/cases/STEP/"
