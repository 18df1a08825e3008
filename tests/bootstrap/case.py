"""Load the cases of a boot: cases/<step>/<name>.yaml, one behaviour each.

The folder is the step under test: a step's name; ``identity``, before the first step; ``report``, after the last; or
``boot``, all of them. `Case` lists a file's keys and refuses others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError

from podwright_bootstrap.boot import STEPS

CASES = Path(__file__).resolve().parent / "cases"
WHOLE_BOOT = ("identity", "report", "boot")  # folders whose cases run every step by default

# What can happen to a step: the columns of the matrix that test_cases.py prints.
Fault = Literal[
    "absent", "late", "slow", "hangs", "fails once", "fails always",
    "wrong content", "taken", "disk full", "read-only", "killed",
]  # fmt: skip
FAULTS = get_args(Fault)


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Expect(_Keys):
    """The outcome. Paths without a leading slash are below the host's disk; "shared" is the file system's root."""

    failure: str = ""
    """Pattern of the one line that says why the boot failed. Default: the boot succeeds."""
    warning: str = ""
    """Pattern of the one line that says what the node goes without. Default: it goes without nothing."""
    said: str = ""
    """Pattern found in the boot's output."""
    silent: list[str] = []
    """Texts that the output lacks."""
    summary: str = ""
    """Start of the last line of the last boot's table: "N steps, M changes"."""
    skipped: list[str] | None = None
    """Steps that the boot skips, in order."""
    calls: dict[str, int] = {}
    """Start of a program's command line → how many times the shims recorded it."""
    accounts: dict[str, str] = {}
    """User → output of `id USER`."""
    record: dict[str, Any] = {}
    """Keys of node.json and their values."""
    files: dict[str, str] = {}
    """Path → whole text."""
    contains: dict[str, list[str]] = {}
    """Path → texts that the file contains."""
    lines: dict[str, int] = {}
    """Path → number of lines."""
    names: dict[str, list[str]] = {}
    """Folder → sorted names of its entries."""
    json_files: dict[str, Any] = {}
    """Path → JSON content."""
    absent: list[str] = []
    """Glob patterns that match nothing."""
    shared: dict[str, str] = {}
    """Path on the shared file system → whole text."""
    shared_names: dict[str, list[str]] = {}
    """Folder on the shared file system → sorted names of its entries."""
    matches: dict[str, str] = {}
    """Path on the shared file system → pattern found in the text."""
    owned: dict[str, tuple[int, str]] = {}
    """Path on the shared file system → uid (also the gid) and octal mode."""
    homes: dict[str, str] = {}
    """Path on FSx for OpenZFS → whole text."""
    home_owner: int | None = None
    """The uid of everything below ubuntu/ on FSx for OpenZFS, which holds nothing else."""
    environment: Literal["complete", "incomplete"] | None = None
    """State of the training environment."""
    packages: list[str] | None = None
    """NAME==VERSION of the packages in it, in order."""


class Case(_Keys):
    """One host, what is wrong with it, and how its boot ends."""

    name: str
    """The file's name."""
    step: str
    """The file's folder: the step under test."""
    behaviour: str
    """One sentence."""
    expect: Expect
    """The outcome."""
    fault: Fault | None = None
    """The fault that the step meets: a cell of the matrix. Default: the case is no cell."""
    role: Literal["compute", "controller", "login"] = "compute"
    """The host's role."""
    address: str | None = None
    """The host's address. Default: the role's first."""
    instance_type: str | None = None
    """The workers' instance type. Default: ml.g5.12xlarge."""
    contract: dict[str, Any] = {}
    """Changes to provisioning_parameters.json; null removes a key."""
    lock: str | None = None
    """Text of the locked requirements. Default: those that the package index serves."""
    added_package: str = ""
    """Package that the cluster adds to the training environment, version 1.0."""
    shims: dict[str, str] = {}
    """Program → bash script that replaces it."""
    controller: Literal["listens", "silent"] = "listens"
    """Slurmctld's port answers, or not."""
    mounted: bool = False
    """Mount the shared file system first."""
    prepare: str = ""
    """Bash commands before the first boot."""
    steps: str | None = None
    """The step to run, or "all". Default: the folder's step; all for identity, report and boot."""
    boots: PositiveInt = 1
    """Number of boots."""
    killed_in: str = ""
    """Cut the power of a boot before `boots` in this program, or in this function of Python's library."""
    then: str = ""
    """Bash commands after the last boot."""
    patience: PositiveFloat = 0.02
    """Factor of all waiting times."""
    step_patience: PositiveFloat = 1
    """Factor of the steps' time limits: less than 1 where a step is to use up its time."""

    @property
    def only(self) -> str:
        """The step to run; "" for all."""
        chosen = self.steps or ("all" if self.step in WHOLE_BOOT else self.step)
        return "" if chosen == "all" else chosen

    @property
    def host_options(self) -> dict[str, Any]:
        """The host's arguments; those that the case leaves out keep their defaults."""
        options = {"address": self.address, "instance_type": self.instance_type}
        given = {key: value for key, value in options.items() if value is not None}
        return {"role": self.role, "patience": self.patience, "step_patience": self.step_patience, **given}


def load(path: Path) -> Case:
    """Read one case; ``ValueError`` names the file and each key that is missing, unknown or wrong."""
    given = yaml.safe_load(path.read_text())
    try:
        case = Case(**given, name=path.stem, step=path.parent.name)
    except (TypeError, ValidationError) as error:
        raise ValueError(f"{path.relative_to(CASES)}: {error}") from error
    if case.step not in {*WHOLE_BOOT, *(step.name for step in STEPS)}:
        raise ValueError(f"{path.relative_to(CASES)}: no step is called {case.step}")
    return case


def paths() -> list[Path]:
    """Return all cases, by step and name."""
    return sorted(CASES.glob("*/*.yaml"))
