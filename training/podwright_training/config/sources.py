"""Load the options of a run from a preset, then ``--config run.yaml``, then flags; the later wins. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from podwright_common.similar_names import did_you_mean
from podwright_common.yaml_document import YamlDocument, YamlFileError
from podwright_training.config.conversion import (
    Setting,
    converted,
    field_types,
    in_words,
    unknown,
    values_in,
)
from podwright_training.config.train_config import PRESETS, SECTIONS, TrainConfig, conflicts, option_names
from podwright_training.errors import ConfigError
from podwright_training.private_folder import who_may_change
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and one flag per option, grouped by section; ``load`` reads their values."""
    parser.usage = "%(prog)s [options]"  # a hundred, in groups below
    parser.add_argument("--config", metavar="run.yaml", help="YAML file of options; flags override it")
    for title, section in SECTIONS.items():
        group = parser.add_argument_group(title)
        for item in fields(section):
            _add_flag(group, item)
    parser.set_defaults(unknown_words=[])


def add_options(group: argparse._ArgumentGroup, names: Sequence[str]) -> None:
    """Add the flags of a few options; ``load`` reads their values."""
    by_name = {item.name: item for item in fields(TrainConfig)}
    for name in names:
        _add_flag(group, by_name[name])


def load(args: argparse.Namespace, names: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that preset, file and flags add up to.

    Args:
        args: Result of a parser that ``add_arguments`` extended; ``unknown_words`` lists what it did not know.
        names: Options that are flags, as ``add_options`` added them. Default: all.

    Raises:
        ConfigError: With every problem of all sources.
    """
    flags = {name: getattr(args, name) for name in names or option_names() if hasattr(args, name)}
    return _resolve(args.config, flags, list(problems_of_words(args.unknown_words)))


def load_with_variables(args: argparse.Namespace) -> TrainConfig:
    """Return the configuration of a command that sets its variables in this process or in a job.

    Raises:
        ConfigError: With every problem of all sources, or because others may change the file's variables.
    """
    config = load(args)
    if problem := _problem_of_owner(args.config, config, vars(args)):
        raise ConfigError([problem])
    return config


def _problem_of_owner(file: str | None, config: TrainConfig, flags: Container[str]) -> str:
    """Return why variables of a file are refused; empty if it has none, or only this user and root may change it.

    Variables may send this user's secrets elsewhere (``HF_ENDPOINT``), or name programs (``AWS_CONFIG_FILE``).
    """
    names = [name for name in ("env", "secrets") if getattr(config, name) and name not in flags]
    reason = who_may_change(Path(file)) if file and names else ""
    if not reason:
        return ""
    return (
        f"{file} sets {' and '.join(names)}, but {reason}: read it, and use a copy in a folder of your own, or give "
        f"{' and '.join(flag(name) for name in names)}"
    )


def problems_of_words(unknown_words: Sequence[str], *, config: str = "--config") -> Iterator[str]:
    """Yield a problem for each word that a parser did not know, except the value of an unknown flag.

    Args:
        unknown_words: The words.
        config: What to write before the name of a file.
    """
    flags = [flag(name) for name in field_types(TrainConfig)]
    for before, word in pairwise(["", *unknown_words]):
        if word == "--":
            yield "unknown argument --"
            return  # The words after it are options by themselves.
        if word.startswith("-"):
            yield unknown(flag(word.split("=")[0]), "flag", flags)
        elif not before.startswith("-") or "=" in before:
            is_file = word.endswith((".yaml", ".yml"))
            yield f"unknown argument {word}" + (f"; did you mean {config} {word}?" if is_file else "")


def load_file(path: Path) -> TrainConfig:
    """Return the configuration in one file; raise ``ConfigError``."""
    return _resolve(str(path), {}, [])


def load_run(folder: RunFolder) -> TrainConfig:
    """Return the configuration of a run that has started; the run may have been moved to ``folder`` since.

    Raises:
        ConfigError: Training has not started there, or the file is damaged.
    """
    if not folder.config.exists():
        raise ConfigError([f"run_dir {folder.root} has no {folder.config.name}: training has not started there"])
    return replace(load_file(folder.config), run_dir=str(folder.root))


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the names of ``TrainConfig`` instead of their aliases."""
    names = _aliases()
    return {names.get(key, key): value for key, value in values.items()}


def _resolve(file: str | None, flags: Mapping[str, Any], problems: list[str]) -> TrainConfig:
    setting_by_name = _read(Path(file), problems) if file else {}
    setting_by_name |= {name: Setting(value) for name, value in flags.items()}
    setting_by_name = _preset(setting_by_name, problems) | setting_by_name
    ordered = {name: setting_by_name[name] for name in option_names() if name in setting_by_name}
    values = converted(TrainConfig, ordered, problems)
    config = TrainConfig(**values)
    invalid_names = ordered.keys() - values.keys()
    for names, message in conflicts(config):
        if not invalid_names.intersection(names):
            problems.append(_with_place(message, [ordered[name] for name in names if name in ordered]))
    if problems:
        raise ConfigError(problems)
    return config


def _with_place(message: str, conflicting_values: Sequence[Setting]) -> str:
    """Return a conflict, after the place of the first option that the user's file sets."""
    for setting in conflicting_values:
        if setting.document and setting.document.file.parent != PRESETS:
            return setting.problem(message)
    return message


def _read(path: Path, problems: list[str]) -> dict[str, Setting]:
    try:
        document = YamlDocument.read(path)
    except YamlFileError as error:
        problems.append(str(error))
        return {}
    problems += document.messages
    if not isinstance(document.data or {}, dict):
        problems.append(f"{path}: got {in_words(document.data)}, need `option: value` lines")
        return {}
    names, types = _aliases(), field_types(TrainConfig)
    setting_by_name: dict[str, Setting] = {}
    for key, setting in values_in(document).items():
        name = names.get(key, key)
        if name not in types:
            problems.append(setting.problem(unknown(key, "option", types), at_key=True))
        elif name in setting_by_name:
            before = setting_by_name[name]
            message = f"{key} is the same option as {before.path[-1]} in line {document.position(before.path).line}"
            problems.append(setting.problem(f"{message}; keep one of them", at_key=True))
        else:
            setting_by_name[name] = setting
    return setting_by_name


def _preset(setting_by_name: Mapping[str, Setting], problems: list[str]) -> dict[str, Setting]:
    setting = setting_by_name.get("preset", Setting(None))
    if setting.value is None:
        return {}
    if setting.value not in preset_names():
        names = preset_names()
        need = f"one of {', '.join(names)}{did_you_mean(str(setting.value), names, prefix='; ')}"
        problems.append(setting.problem(f"preset: {setting.refusal(need)}"))
        return {}
    return _read(PRESETS / f"{setting.value}.yaml", problems)


@cache
def _aliases() -> dict[str, str]:
    """Return the name of each option that has an alias, by alias."""
    return {item.metadata["alias"]: item.name for item in fields(TrainConfig) if item.metadata["alias"]}


def _add_flag(group: argparse._ArgumentGroup, item: Field[Any]) -> None:
    kind, alias = field_types(TrainConfig)[item.name].kind, item.metadata["alias"]
    allowed = item.metadata["choices"] or (preset_names() if item.name == "preset" else ())
    group.add_argument(
        *(flag(name) for name in (item.name, alias) if name),
        dest=item.name,
        default=argparse.SUPPRESS,
        help=item.metadata["text"] + _choices(allowed) + _default(None if item.default is MISSING else item.default),
        **({"action": argparse.BooleanOptionalAction} if kind is bool else {"metavar": _metavar(kind, allowed)}),
    )


def _metavar(kind: type, allowed: Sequence[str]) -> str:
    return "NAME" if allowed else {int: "N", float: "X", str: "TEXT", dict: "'NAME=TEXT …'"}[kind]


def _choices(allowed: Sequence[str]) -> str:
    return f" One of {', '.join(allowed)}." if allowed else ""


def _default(default: Any) -> str:
    if default is None:
        return ""
    return f" Default: {('off', 'on')[default] if isinstance(default, bool) else default}."
