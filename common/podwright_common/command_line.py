"""Command lines: no abbreviations, the closest name in errors, and a help that fits the terminal.

textwrap is imported by what needs it: a help.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable, Iterable, Iterator, NoReturn, Sequence

from podwright_common.similar_names import did_you_mean


class Parser(argparse.ArgumentParser):
    """Parses one command line; its commands' parsers are of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **options})

    def parse_whole(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values; end with the flag that was meant if there are unknown ones."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            self.refuse(unknown[0], arguments)
        return options

    def refuse(self, word: str, arguments: Sequence[str]) -> NoReturn:
        """End with the usage of the command that the arguments name, and the flag that an unknown word may mean."""
        meant = did_you_mean(word.partition("=")[0], flags(self, arguments), prefix="; ")
        _named(self, arguments).error(f"unknown argument {word}{meant}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit after flushing the output, such as the help; raise the error if the output cannot be written."""
        if sys.stdout is not None:
            sys.stdout.flush()
        super().exit(status, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help or an error; argparse itself hides that it cannot be written."""
        stream = file or sys.stderr
        if stream is not None:  # The shell may have closed it.
            stream.write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not a choice, and suggest the closest one."""
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in (action.choices or ()):
            meant = did_you_mean(str(value), choices, prefix="; ")
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
        return "\n".join(_wrapped(f"{indent}{line}", width) for line in text.splitlines())


class _VersionAction(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, const: Callable[[], str]) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {self.const()}")
        parser.exit()


def positive_count(text: str) -> int:
    """Return the number that an argument is, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, need a whole number from 1")
    return int(text)


def add_version(parser: argparse.ArgumentParser, version: Callable[[], str]) -> None:
    """Add ``--version``, which looks the version up only when it is asked for."""
    parser.add_argument("--version", action=_VersionAction, const=version)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_yes(parser: argparse._ActionsContainer) -> None:
    """Add ``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def add_examples(parser: argparse.ArgumentParser, *examples: str) -> None:
    """End a command's help with examples, one per line."""
    parser.formatter_class = Help
    parser.epilog = "\n".join(
        ["examples:" if len(examples) > 1 else "example:", *(f"  {line}" for line in examples), ""]
    )


def unknown_command(name: str, commands: Iterable[str]) -> str:
    """Return the message that refuses a command, with the closest one, or all."""
    names = list(commands)
    hint = did_you_mean(name, names) or f"use one of {', '.join(names)}"
    return f"unknown command {name}; {hint}"


def flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the flags of a parser, and of the commands in it that the arguments name."""
    for action in parser._actions:  # noqa: SLF001 (argparse has no public list)
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 (as above)
            for name in set(arguments) & set(action.choices):
                yield from flags(action.choices[name], arguments)


def _named(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that the arguments name, whose usage an error shows."""
    for action in parser._actions:  # noqa: SLF001 (as above)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 (as above)
            for name in arguments:
                if name in action.choices:
                    return _named(action.choices[name], arguments)
    return parser


def _wrapped(line: str, width: int) -> str:
    from textwrap import wrap

    is_command = line.startswith("  ")
    indent = "      " * is_command
    lines = wrap(line, width - 2 * is_command, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return (" \\\n" if is_command else "\n").join(lines)
