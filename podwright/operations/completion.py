"""``podwright completion``: complete command lines with Tab, by argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from argcomplete import autocomplete
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from podwright.config_file import config_path
from podwright.operations.target import add_examples
from podwright_common.yaml_document import YamlDocument, YamlFileError

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ["podwright", "podwright-train"]
FILES = ("FILE", "PATH", "DIR")  # in a metavar; other values are no files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add SHELL."""
    parser.add_argument(
        "shell", metavar="SHELL", choices=SHELLS, help=f"shell to print the completion script for: {', '.join(SHELLS)}"
    )
    add_examples(
        parser,
        "source <(podwright completion bash)    # in ~/.bashrc; zsh: in ~/.zshrc",
        "podwright completion fish | source     # in ~/.config/fish/config.fish",
    )


def run(options: argparse.Namespace) -> int:
    """Print the script that makes a shell complete podwright's commands."""
    print(shellcode(PROGRAMS, shell=options.shell))
    return 0


def answer(make_parser: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Print completions of the shell's command line, and end the program."""
    parser = make_parser(os.environ["COMP_LINE"].split())
    _complete_names(parser)
    autocomplete(parser, default_completer=_Files())


def _complete_names(parser: argparse.ArgumentParser) -> None:
    """Complete arguments for groups and nodes with names from the settings file."""
    for action in parser._actions:  # noqa: SLF001 — argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 — as above
            for subparser in action.choices.values():
                _complete_names(subparser)
        elif "GROUP" in (action.metavar, action.dest.upper()):
            _offer(action, lambda **_: [name for name, _ in groups()])
        elif action.metavar == "NODE":
            _offer(action, lambda **_: ["controller", *nodes()])


def _offer(action: argparse.Action, completer: Callable[..., list[str]]) -> None:
    action.completer = completer  # type: ignore[attr-defined]


class _Files(BaseCompleter):
    """Offers files where a value can name one."""

    def __call__(self, *, prefix: str, action: argparse.Action, **arguments: Any) -> list[str]:
        metavar = str(action.metavar or "")
        takes_files = action.type is Path or "." in metavar or any(word in metavar for word in FILES)
        return list(FilesCompleter()(prefix, action=action, **arguments)) if takes_files else []


def groups() -> Iterator[tuple[str, int]]:
    """Yield name and count of the settings file's instance groups, as far as it can be read."""
    try:
        content = YamlDocument.read(config_path()).data
        for group in content["cluster"]["instance_groups"]:
            yield str(group["name"]), int(group.get("count", 0))
    except (YamlFileError, KeyError, TypeError, ValueError, AttributeError):
        return  # `podwright check` says what is wrong


def nodes() -> Iterator[str]:
    """Yield the nodes of the settings file's groups, as ``--help`` of a command for nodes names them."""
    for name, count in groups():
        yield from (f"{name}/{number}" for number in range(1, count + 1))
