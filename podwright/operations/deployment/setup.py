"""``podwright setup``: find the programs that deploying needs, and download missing ones."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from podwright import checkout
from podwright.errors import OperationError
from podwright.json_document import JsonObject
from podwright.operations.deployment import terraform_release
from podwright.operations.deployment.kit import find_program, kit_name, search_path
from podwright.operations.deployment.terraform import find_terraform
from podwright.operations.output import print_document
from podwright.operations.target import add_examples
from podwright_common.command_line import add_json
from podwright_common.exit_status import OK
from podwright_constructs import kit_choice

PACKAGES = ("package.json", "package-lock.json")
LOCK_KEY = "podwright.lock"  # The file in node_modules with the hash of the lock that it was installed from.
NODE_MAJORS = {"cdktf": (20, 22, 24), "cdktn": (22, 24)}
LIMIT_S = 900
NPM_OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


@dataclass(frozen=True, kw_only=True)
class Setup(JsonObject):
    """The document of `podwright setup --json`: the path of each program."""

    schema: Literal["podwright.setup/1"] = "podwright.setup/1"
    path_by_program: dict[str, str] = field(metadata={"spread": True})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    add_json(parser)
    add_examples(parser, "podwright setup", "podwright setup --json")


def run(options: argparse.Namespace) -> int:
    """Print the path of each program, and once, here, that the kit nobody chose is archived."""
    path_by_program = programs()
    if kit_name() == kit_choice.CDKTF.name and not os.environ.get(kit_choice.VARIABLE):
        print(kit_choice.ARCHIVED, file=sys.stderr)
    if options.json:
        print_document(Setup(path_by_program=path_by_program))
        return OK
    width = max(map(len, path_by_program))
    print("\n".join(f"{name:{width}}  {path}" for name, path in path_by_program.items()))
    if line := path_line(path_by_program.values(), os.environ.get("PATH", "")):
        print(f"\nPodwright finds them there. To run them yourself, paste this line:\n{line}")
    return OK


def path_line(programs: Iterable[str], path: str) -> str:
    """Return the shell line that puts the programs' folders on PATH; empty if PATH has them all."""
    folders = dict.fromkeys(str(Path(program).absolute().parent) for program in programs)
    missing = [folder for folder in folders if folder not in path.split(os.pathsep)]
    return f"export PATH={shlex.quote(os.pathsep.join(missing))}:$PATH" if missing else ""


def programs() -> dict[str, str]:
    """Return the path of each program; download Terraform and the kit's command if they are missing.

    Raises:
        OperationError: Node is missing, or npm could not install the kit's command.
        TerraformError: Terraform is missing and could not be downloaded.
    """
    node = _node()
    if not _has_kit():
        install_kit()
    if not shutil.which("terraform", path=search_path()):
        _say(f"Terraform {terraform_release.VERSION}")
        terraform_release.download(checkout.BIN)
    return {"terraform": str(find_terraform()), kit_name(): find_program(), "node": node}


def _node() -> str:
    """Return the path of a Node that runs the kit.

    Raises:
        OperationError: there is none, or no npm beside it.
    """
    path = search_path()
    majors = NODE_MAJORS[kit_name()]
    requirement = f"Node.js {', '.join(map(str, majors[:-1]))} or {majors[-1]} with npm"
    hint = "install your system's packages nodejs and npm, or `pip install 'podwright[node]'`"
    node = shutil.which("node", path=path)
    if node is None or shutil.which("npm", path=path) is None:
        raise OperationError(f"{'no npm' if node else 'no Node.js'} on PATH, need {requirement}", hint)
    version = _run([node, "--version"], cwd=Path.cwd()).strip()
    version_match = re.match(r"v(\d+)\.", version)
    if not version_match or int(version_match[1]) not in majors:
        raise OperationError(f"{node} is {version}, need {requirement}", hint)
    return node


def _has_kit() -> bool:
    """Return whether the kit's command is installed: the user's, or ours from this version's lock."""
    key = _installed() / LOCK_KEY
    if key.is_file() and key.read_text(encoding="utf-8") != _lock_key():
        return False
    return shutil.which(kit_name(), path=search_path()) is not None


def install_kit() -> None:
    """Install the lock's packages, whose hashes npm checks, into a temporary folder, and rename it."""
    _say(f"{kit_name()}, from npm")
    target = _installed()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=target.parent) as temporary:
        work = Path(temporary)
        for name in PACKAGES:
            shutil.copyfile(_packages() / name, work / name)
        npm = shutil.which("npm", path=search_path()) or "npm"
        # Without a registry npm would try each package for minutes.
        offline_options = () if _registry_answers(npm, cwd=work) else ("--offline",)
        _run(
            [npm, "ci", *NPM_OPTIONS, *offline_options],
            cwd=work,
            hint="is npm's registry reachable? `npm ping` tries it",
        )
        (work / "node_modules" / LOCK_KEY).write_text(_lock_key(), encoding="utf-8")
        if target.exists():
            target.rename(work / "old")
        (work / "node_modules").rename(target)


def _registry_answers(npm: str, *, cwd: Path) -> bool:
    try:
        _run([npm, "view", "--fetch-retries=0", f"{kit_name()}-cli", "version"], cwd=cwd)
    except OperationError:
        return False
    return True


def _packages() -> Path:
    """Return the folder with npm's files of the kit."""
    return checkout.ROOT / checkout.KIT_PACKAGES[kit_name()]


def _installed() -> Path:
    """Return the folder that npm's packages of the kit are installed as."""
    return checkout.KIT_FOLDERS[kit_name()] / "node_modules"


def _lock_key() -> str:
    return hashlib.sha256((_packages() / PACKAGES[1]).read_bytes()).hexdigest()


def _run(command: list[str], *, cwd: Path, hint: str = "") -> str:
    """Return the output of a program.

    Raises:
        OperationError: it failed or did not end in time; the message ends with what it said.
    """
    name = f"{Path(command[0]).name} {command[1]}"
    environment = {**os.environ, "PATH": search_path()}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise OperationError(f"`{name}` did not end within {LIMIT_S} s", "is npm's registry reachable?") from error
    if done.returncode:
        output_tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise OperationError(f"`{name}` ended with exit code {done.returncode}:\n{output_tail}", hint)
    return done.stdout


def _say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)
