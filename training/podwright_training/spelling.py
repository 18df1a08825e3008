"""The spelling of flags: dashes, and ``--x`` or ``--no-x``. Underscores and ``--x=0`` are taken for ever."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

SECRET_FLAGS = {"--secrets": "'HF_TOKEN=FILE …'", "--env": "'NAME=VALUE …'"}  # Examples of their values.
SWITCHED = {"1": True, "true": True, "0": False, "false": False}


def flag(name: str) -> str:
    """Return the flag of an option's name, or of a flag with underscores."""
    return f"--{name.lstrip('-').replace('_', '-')}"


def as_flag(name: str, value: Any) -> str:
    """Return the flag that gives an option its value."""
    if isinstance(value, bool):
        return flag(name) if value else flag(f"no_{name}")
    return f"{flag(name)}={value}"


def command_line(command: str, **options: Any) -> str:
    """Return a command with its options, to paste into a shell."""
    words: list[str] = []
    for name, value in options.items():
        words += [as_flag(name, value)] if isinstance(value, bool) else [flag(name), str(value)]
    return shlex.join(["podwright-train", *shlex.split(command), *words])


def as_item(word: str) -> tuple[str, str]:
    """Return the key and value of ``run.yaml`` that mean the same as a flag."""
    name, equals, value = word.removeprefix("--").partition("=")
    if equals:
        return name.replace("-", "_"), value
    return name.removeprefix("no-").replace("-", "_"), "false" if name.startswith("no-") else "true"


def as_shown(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments with the flags before ``--`` spelt as the help shows them."""
    flags = flags_by_name(parser)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words: list[str] = []
    for word in arguments[:end]:
        if words and word.lower() in SWITCHED and _is_switch(flags.get(words[-1])):
            words[-1] = _switched(words[-1], word, parser)
            continue
        name, equals, value = word.partition("=")
        if not name.startswith("--") or flag(name) not in flags:
            words.append(word)
        elif equals and _is_switch(flags[flag(name)]):
            words.append(_switched(flag(name), value, parser))
        else:
            words.append(f"{flag(name)}{equals}{value}")
    return [*words, *arguments[end:]]


def parse_known(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the values of flags in any spelling, and the unknown words; one that may be a secret is replaced.

    ``--secrets HF_TOKEN hf_…`` is a common mistake, and a message that repeats the word would print the secret.
    """
    values, unknown_words = parser.parse_known_args(as_shown(arguments, parser))
    notes = {
        word: f"after {name}, not shown because it may be a secret: quote the whole value, {name} {SECRET_FLAGS[name]}"
        for word, name in _words_after_secret_flags(arguments)
    }
    return values, [notes.get(word, word) for word in unknown_words]


def _words_after_secret_flags(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word between ``--secrets`` or ``--env`` and the next flag, with that flag."""
    name = ""
    for word in arguments:
        if word.startswith("-"):
            name = flag(word.partition("=")[0])
        elif name in SECRET_FLAGS:
            yield word, name


def flags_by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the flags of a parser, and of the commands in it that have any."""
    flags = dict(parser._option_string_actions)  # noqa: SLF001 -- argparse has no public list
    for action in parser._actions:  # noqa: SLF001 -- as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 -- as above
            for below in action.choices.values():
                flags |= flags_by_name(below)
    return flags


def _is_switch(action: argparse.Action | None) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def _switched(name: str, value: str, parser: argparse.ArgumentParser) -> str:
    """Return the switch that an older ``--x=0`` means."""
    plain = name.removeprefix("--no-").removeprefix("--")
    if value.lower() not in SWITCHED:
        parser.error(f"{name}: got {value}, need no value: write --{plain} or --no-{plain}")
    return as_flag(plain, SWITCHED[value.lower()] != name.startswith("--no-"))
