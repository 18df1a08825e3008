"""Run the kit's commands, ``cdktf deploy`` and its like, with the right programs on PATH and Ctrl-C passed on.

CDK Terrain has the same commands as cdktf, and reads the same ``cdktf.json``.

``podwright deploy`` and ``destroy`` use them, so that a deployment is the same with and without podwright.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from podwright import checkout
from podwright.config_file import CONFIG_VARIABLE
from podwright.operations.deployment import state_lock
from podwright.operations.deployment.deployed_stacks import STACKS
from podwright.operations.deployment.folder_lock import FolderLock
from podwright.operations.deployment.supervised_process import announcing, supervised
from podwright.operations.deployment.terraform import find_terraform
from podwright.operations.errors import ArgumentError, OperationError
from podwright_constructs import kit_choice

PROJECT_FILE, OUTPUT = "cdktf.json", "cdktf.out"
CONTEXT_VARIABLE = "CDKTF_CONTEXT_JSON"  # how a kit's command gives its app what is not in cdktf.json
SHOWN_LINES = 12
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # cdktf asks Terraform for them even where there is no terminal
_ERROR = re.compile(r"\bError: |[│╷╵]")  # how Terraform frames its errors


@dataclass
class Kit:
    """The kit in the folder of ``cdktf.json``.

    Args:
        config: the settings file.
        folder: where ``cdktf.json`` is, and the output of the synthesis.
    """

    config: Path
    folder: Path
    _lock: FolderLock = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._lock = FolderLock(self.folder / OUTPUT / "podwright.lock")

    @contextmanager
    def locked(self, command: str) -> Iterator[None]:
        """Hold the folder's lock during a block: another synthesis there would change what is being deployed.

        Args:
            command: that holds it, for others to see.

        Raises:
            FolderBusyError: another command has it.
            KeyboardInterrupt: a signal stopped the block, in order.
        """
        with self._lock.of(command), announcing(command):
            yield

    def run(self, verb: str, *arguments: str, on_line: Callable[[str], None] = lambda _: None) -> None:
        """Run one command to its end and pass its lines on.

        Raises:
            ArgumentError: the folder has no ``cdktf.json``.
            FolderBusyError: another process runs the kit there.
            OperationError: the kit is not installed, or the command failed; the message ends with its error.
            StateLockedError: another Terraform has a stack's state.
            KeyboardInterrupt: the user stopped it; Terraform has finished what it had begun and written its state.
            OSError: the lines could not be passed on; the command has come to its end all the same.
        """
        self._project()
        self._run(verb, [find_program(), verb, *arguments], name=f"{kit_name()} {verb}", on_line=on_line)

    def synthesize(self) -> None:
        """Run the app that ``cdktf.json`` names: what ``cdktf synth`` does, without the seconds that it takes to start.

        Raises:
            ArgumentError: the folder has no ``cdktf.json``, or it names no app.
            FolderBusyError: another process runs the kit there.
            OperationError: the app failed; the message ends with its error.
            KeyboardInterrupt: the user stopped it.
        """
        project = self._project()
        app = project.get("app")
        if not isinstance(app, str):
            hint = 'add the command that synthesizes, such as "app": "python3 main.py"'
            raise ArgumentError(f"{self.folder / PROJECT_FILE} names no app", hint)
        local = [module for module in project.get("terraformModules", []) if _source(module).startswith(("./", "../"))]
        context = json.loads(os.environ.get(CONTEXT_VARIABLE, "{}")) | {"cdktfRelativeModules": local}
        variables = {CONTEXT_VARIABLE: json.dumps(context), "CDKTF_OUTDIR": OUTPUT}
        self._run("synth", ["/bin/sh", "-c", app], name=app, variables=variables)
        self._remove_former_stacks()

    def _project(self) -> dict[str, Any]:
        file = self.folder / PROJECT_FILE
        if not file.is_file():
            raise ArgumentError(f"no {PROJECT_FILE} in {self.folder}", "go to the folder of `podwright init`")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArgumentError(f"{file} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise ArgumentError(f"{file}: got a {type(content).__name__}, need a JSON object")
        return content

    def _remove_former_stacks(self) -> None:
        """Remove the output of stacks that the app no longer has, as ``cdktf synth`` does."""
        output = self.folder / OUTPUT
        try:
            present = json.loads((output / "manifest.json").read_text(encoding="utf-8"))["stacks"]
        except FileNotFoundError as error:
            raise OperationError(f"the app of {self.folder / PROJECT_FILE} wrote no {OUTPUT}/manifest.json") from error
        for folder in (output / "stacks").iterdir():
            if folder.is_dir() and folder.name not in present:
                shutil.rmtree(folder)

    def _run(
        self,
        verb: str,
        command: list[str],
        *,
        name: str,
        variables: Mapping[str, str] = MappingProxyType({}),
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        log = self.log(verb)
        log.parent.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        output_error: OSError | None = None
        with (
            self._lock.of(verb),
            log.open("w", encoding="utf-8") as file,
            supervised(
                command,
                folder=self.folder,
                environment={**self._environment(), **variables},
                keep_open=self._lock.descriptors,
            ) as process,
        ):
            for line in process.stdout or ():
                plain = _COLOURS.sub("", line).rstrip()
                lines.append(plain)
                try:
                    file.write(f"{plain}\n")
                    file.flush()
                    on_line(plain)
                except OSError as error:  # a full disk, or a reader that went: Terraform's lines are read to the end,
                    output_error = error  # because it dies where nobody takes them, and leaves what no state lists
            status = process.wait()
        if output_error:
            raise output_error
        if status:
            stacks, terraform = self.folder / STACKS, str(find_terraform())
            if locked := state_lock.explain("\n".join(lines), stacks=stacks, terraform=terraform):
                raise locked
            errors = [line for line in lines if _ERROR.search(line)] or lines
            raise OperationError("\n".join([f"`{name}` failed; its log is {log}:", *errors[-SHOWN_LINES:]]))

    def log(self, verb: str) -> Path:
        """Return the log of the last command of this name."""
        return self.folder / OUTPUT / f"podwright-{verb}.log"

    def _environment(self) -> dict[str, str]:
        return {
            "CHECKPOINT_DISABLE": "1",
            "DISABLE_VERSION_CHECK": "1",
            **os.environ,
            "CI": "1",  # lines instead of a screen that is drawn again and again
            CONFIG_VARIABLE: str(self.config.resolve()),
            "PATH": search_path(),
            "TERRAFORM_BINARY_NAME": str(find_terraform()),
        }


def _source(module: str | dict[str, str]) -> str:
    """Return where a module of ``cdktf.json`` comes from."""
    return module if isinstance(module, str) else module["source"]


def search_path() -> str:
    """Return PATH with our own programs first: of this Python's environment, and of ``podwright setup``."""
    programs = [Path(sys.executable).parent, *checkout.KIT_PROGRAMS, checkout.BIN]
    return os.pathsep.join([*map(str, programs), os.environ.get("PATH", "")])


def kit_name() -> str:
    """Return the name of the kit's command.

    Raises:
        ArgumentError: the environment names a kit that there is not.
    """
    try:
        return kit_choice.chosen().name
    except kit_choice.UnknownKitError as error:
        raise ArgumentError(error) from error


def find_program() -> str:
    """Return the path of the kit's command.

    Raises:
        OperationError: it is not installed.
    """
    name = kit_name()
    program = shutil.which(name, path=search_path())
    if program is None:
        package = kit_choice.KITS[name].command_package
        raise OperationError(f"no {name} on PATH", f"run `{install_command()}`, or `npm install -g {package}`")
    return program


def install_command() -> str:
    """Return the command that installs the kit's command."""
    setup = "podwright setup"
    return setup if kit_name() == kit_choice.CDKTF.name else f"{kit_choice.VARIABLE}={kit_name()} {setup}"
