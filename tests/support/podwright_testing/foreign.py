"""A Python environment as somebody else has it: wheels of ours, what they declare, and nothing of the checkout."""

from __future__ import annotations

import runpy
import sysconfig
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from podwright.checkout import ROOT
from podwright_stacks.wheel import build_wheel


def environment(folder: Path, *projects: str) -> Path:
    """Make a virtual environment with the wheels of these projects and their declared dependencies; return its Python.

    The dependencies are links to those of this environment, so that nothing is downloaded. A package that a wheel
    uses and does not declare is missing in it, as it would be for a user.
    """
    venv.create(folder / "venv", with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    declared: set[str] = set()
    for project in projects:
        with zipfile.ZipFile(build_wheel(_sources(project, folder), cache=folder / "wheels")) as wheel:
            wheel.extractall(packages)
            (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            declared |= set(_needed(Parser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist", [])))
    for package in _with_their_own(name for name in declared if not name.startswith("podwright-")):
        for entry in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(Path(str(package.locate_file(entry))))
    return folder / "venv" / "bin" / "python"


def _sources(project: str, folder: Path) -> Path:
    """Return the folder that the wheel of a project is built from; the root's lies among other things."""
    if project != "podwright":
        return ROOT / project
    sources: Path = runpy.run_path(str(ROOT / "tools" / "application.py"))["gather"](folder)
    return sources


def _needed(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the names of requirements that hold here without any extra."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _with_their_own(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield the installed packages of these names, and what they need in turn."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        package = distribution(waiting.pop())
        if package.name not in seen:
            seen.add(package.name)
            waiting += _needed(package.requires or ())
            yield package
