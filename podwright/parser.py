"""The parser of commands: it takes no abbreviations, suggests the closest name, and its help fits the terminal."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any


class Parser(argparse.ArgumentParser):
    """Parses one command line; its commands' parsers are of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **options})

    def parse_whole(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values; end with the flags that were meant if there are unknown ones."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            meant = _meant(unknown[0], flags(self, arguments))
            _named(self, arguments).error(f"unknown argument {unknown[0]}{meant}")
        return options

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or an error; argparse itself hides that it cannot be written."""
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not a choice, and suggest the closest one."""
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in (action.choices or ()):
            close = get_close_matches(str(value), choices, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise argparse.ArgumentError(action, f"got {value}, need {', '.join(choices)}{meant}")


class Help(argparse.HelpFormatter):
    """Wraps paragraphs and keeps lines; a long command of the examples continues after a backslash."""

    def add_argument(self, action: argparse.Action) -> None:
        """Leave room for the longest command too, whose indentation argparse forgets."""
        super().add_argument(action)
        lengths = (
            len(self._format_action_invocation(subaction)) for subaction in self._iter_indented_subactions(action)
        )
        longest = max(lengths, default=0) + self._current_indent + self._indent_increment
        self._action_max_length = max(self._action_max_length, longest)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (_wrapped(f"{indent}{line}", width) for line in text.splitlines())
        return "\n".join(lines)


def positive_count(text: str) -> int:
    """Return the number that an argument is, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, need a whole number from 1")
    return int(text)


def flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the flags of a parser, and of the commands in it that the arguments name."""
    for action in parser._actions:  # noqa: SLF001 — argparse has no public list
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 — as above
            for name in set(arguments) & set(action.choices):
                yield from flags(action.choices[name], arguments)


def _named(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that the arguments name, whose usage an error shows."""
    for action in parser._actions:  # noqa: SLF001 — as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 — as above
            for name in arguments:
                if name in action.choices:
                    return _named(action.choices[name], arguments)
    return parser


def _meant(word: str, flag_names: Iterator[str]) -> str:
    close = get_close_matches(word.partition("=")[0], list(flag_names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _wrapped(line: str, width: int) -> str:
    is_command = line.startswith("  ")
    lines = textwrap.wrap(
        line,
        width - 2 * is_command,
        subsequent_indent="      " * is_command,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return (" \\\n" if is_command else "\n").join(lines)


def add_examples(parser: argparse.ArgumentParser, *examples: str) -> None:
    """End a command's help with examples, one per line."""
    parser.formatter_class = Help
    parser.epilog = "\n".join(
        ["examples:" if len(examples) > 1 else "example:", *(f"  {line}" for line in examples), ""]
    )
