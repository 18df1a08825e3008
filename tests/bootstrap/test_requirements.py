"""The locked requirements, as nodes read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from podwright_bootstrap.software.requirements import Requirements, problems_of_added, with_added

LOCK = Path(__file__).resolve().parents[2] / "training" / "requirements.lock"


def test_the_training_lock_is_understood():
    """Every entry of the project's own lock becomes a constraint that packaging parses, and has hashes."""
    requirements = Requirements.parse(LOCK.read_text())
    parsed = [Requirement(line) for line in requirements.constraints.splitlines()]
    assert len(parsed) == sum("==" in line and not line.startswith(" ") for line in LOCK.read_text().splitlines())
    assert all(len(requirement.specifier) == 1 for requirement in parsed)
    assert sum(map(len, requirements.sha256.values())) == LOCK.read_text().count("--hash=sha256:")
    assert all(requirements.sha256.values())


def test_hashes_of_all_versions_of_a_package_count():
    """A package locked twice for different Pythons is known by the hashes of both."""
    text = f"a.b==1 ; python_version < '3.11' --hash=sha256:{'0' * 64}\nA_B==2 \\\n  --hash=sha256:{'1' * 64}\n# c==3\n"
    requirements = Requirements.parse(text)
    assert requirements.constraints == "a.b==1 ; python_version < '3.11'\nA_B==2\n"
    assert requirements.sha256 == {"a-b": frozenset({"0" * 64, "1" * 64})}


def test_resolved_packages_get_the_hashes_of_their_own_name():
    """A resolved package keeps its version and gets the lock's hashes of its name; one without hashes is returned."""
    locked = Requirements.parse(f"Typing_Extensions==4.0 --hash=sha256:{'0' * 64}\n")
    text, unknown = locked.with_hashes("# comment\ntyping-extensions==4.0\nother==1.0 ; python_version > '3'\n")
    assert text == f"typing-extensions==4.0 --hash=sha256:{'0' * 64}\nother==1.0\n"
    assert unknown == ["other==1.0"]


HASHES = [f"--hash=sha256:{digit * 64}" for digit in "0123"]
OURS = f"a==1 \\\n    {HASHES[0]}\n"


def test_packages_that_a_cluster_adds_are_installed_with_their_hashes():
    """The lock names them, also one that it has already, whose hashes stay those of the first."""
    text = with_added(
        OURS, f"# by uv\nB.c==2 ; os_name == 'posix' \\\n    {HASHES[1]} \\\n    {HASHES[2]}\nA==1 {HASHES[3]}\n"
    )
    locked = Requirements.parse(text)
    assert locked.added == "B.c==2 ; os_name == 'posix'\nA==1\n"
    assert locked.constraints == f"a==1\n{locked.added}"
    assert locked.sha256 == {"a": frozenset({"0" * 64}), "b-c": frozenset({"1" * 64, "2" * 64})}
    assert Requirements.parse(OURS).added == ""
    assert f"\\\n    {HASHES[1]} \\\n    {HASHES[2]}\n" in text


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("", "got no package, need lines NAME==VERSION with --hash=sha256:…"),
        ("# none\n", "got no package"),
        ("b==2\n", "got b==2, need NAME==VERSION with --hash=sha256:…"),
        (f"b>=2 {HASHES[1]}", "got b>=2 --hash=sha256:"),
        (f"b @ https://example.com/b.whl {HASHES[1]}", "got b @ https://example.com/b.whl"),
        (f"--index-url https://example.com\nb==2 {HASHES[1]}", "got --index-url https://example.com, need"),
        (f"A==2 {HASHES[1]}", "got A 2, but the training program is tested with 1"),
    ],
)
def test_a_lock_of_added_packages_is_checked(added, message):
    """Each package has one version and hashes, and no other version than the training program is tested with."""
    (problem,) = problems_of_added(OURS, added)
    assert problem.startswith(message)


@pytest.mark.parametrize(
    "added",
    [
        f"b==2.0.post1+cu12 {HASHES[1]}\n",
        f"b[extra]==2 ; python_version < '3.13' and os_name == 'posix' \\\n    {HASHES[1]}\n    # via c\n",
        f"a==1 {HASHES[0]}",
    ],
)
def test_a_sound_lock_of_added_packages_has_no_problems(added):
    """As uv and pip-compile write it."""
    assert list(problems_of_added(OURS, added)) == []


def test_the_training_lock_could_be_added_to_itself():
    """A package may be locked in several versions, each for some versions of Python."""
    assert list(problems_of_added(LOCK.read_text(), LOCK.read_text())) == []
