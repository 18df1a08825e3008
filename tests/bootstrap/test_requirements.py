"""The locked requirements, as nodes read them."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

from podwright_bootstrap.software.requirements import Requirements

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
