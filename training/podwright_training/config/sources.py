"""Load the options of a run from a preset, then ``--config run.yaml``, then flags; the later wins. Imports no torch."""

from __future__ import annotations

import argparse
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from podwright_common.regular_file import read_text
from podwright_training.config.train_config import PRESETS, SECTIONS, TrainConfig, conflicts, option_names
from podwright_training.errors import ConfigError
from podwright_training.run_folder import RunFolder
from podwright_training.spelling import flag

LIMIT_BYTES = 16 << 20  # Texts that people write are far smaller.


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


def problems_of_words(unknown: Sequence[str], *, config: str = "--config") -> Iterator[str]:
    """Yield a problem for each word that a parser did not know, except the value of an unknown flag.

    Args:
        unknown: The words.
        config: What to write before the name of a file.
    """
    flags = [flag(name) for name in _types()]
    for before, word in pairwise(["", *unknown]):
        if word == "--":
            yield "unknown argument --"
            return  # The words after it are options by themselves.
        if word.startswith("-"):
            yield _unknown(flag(word.split("=")[0]), "flag", flags)
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


class _Given(NamedTuple):
    value: Any
    source: str


def _resolve(file: str | None, flags: Mapping[str, Any], problems: list[str]) -> TrainConfig:
    values_by_name = _read(Path(file), problems) if file else {}
    values_by_name |= {name: _Given(value, "flag") for name, value in flags.items()}
    values_by_name = _preset(values_by_name, problems) | values_by_name
    values, invalid = _convert_all(values_by_name, problems)
    config = TrainConfig(**values)
    problems += [message for names, message in conflicts(config) if not invalid.intersection(names)]
    if problems:
        raise ConfigError(problems)
    return config


def _read(path: Path, problems: list[str]) -> dict[str, _Given]:
    import yaml  # a run without a file does not need it

    try:
        content = yaml.safe_load(read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True))
    except FileNotFoundError:
        problems.append(f"cannot read {path}: no such file")
        return {}
    except OSError as error:
        problems.append(f"cannot read {path}: {error.strerror}")
        return {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.append(f"cannot read {path}: {' '.join(str(error).split())}")
        return {}
    if not isinstance(content or {}, dict):
        problems.append(f"{path}: got a {type(content).__name__}, need `option: value` lines")
        return {}
    content, option_types = canonical(content or {}), _types()
    problems += [f"{path}: {_unknown(str(key), 'option', option_types)}" for key in content if key not in option_types]
    return {key: _Given(value, str(path)) for key, value in content.items() if key in option_types}


def _preset(values_by_name: Mapping[str, _Given], problems: list[str]) -> dict[str, _Given]:
    name = values_by_name["preset"].value if "preset" in values_by_name else None
    if name is None:
        return {}
    if name not in preset_names():
        problems.append(
            f"preset: got {name} ({values_by_name['preset'].source}), need one of {', '.join(preset_names())}"
        )
        return {}
    return {
        key: _Given(values_by_name.value, f"preset {name}")
        for key, values_by_name in _read(PRESETS / f"{name}.yaml", problems).items()
    }


def _convert_all(values_by_name: Mapping[str, _Given], problems: list[str]) -> tuple[dict[str, Any], set[str]]:
    values: dict[str, Any] = {}
    invalid = set()
    limits = {item.name: item.metadata for item in fields(TrainConfig)}
    for name in option_names():
        if name not in values_by_name:
            continue
        value, source = values_by_name[name]
        if value in limits[name]["words"]:
            values[name] = value
            continue
        try:
            values[name] = _within_limits(_convert(value, _types()[name]), limits[name])
        except ValueError as error:
            invalid.add(name)
            needed = " or ".join([str(error), *limits[name]["words"]])
            problems.append(f"{name}: got {value} ({source}), need {needed}")
    return values, invalid


class _Type(NamedTuple):
    kind: type
    optional: bool


@cache
def _types() -> dict[str, _Type]:
    hints = get_type_hints(TrainConfig)
    return {item.name: _type(hints[item.name]) for item in fields(TrainConfig)}


def _type(hint: Any) -> _Type:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not types.NoneType]
    return _Type(kinds[0], optional=len(get_args(hint)) > 1)


def _convert(value: Any, to: _Type) -> Any:
    """Convert a flag's text or a YAML value to the option's type; raise ``ValueError`` with the requirement."""
    if value is None or (to.optional and str(value).lower() in ("none", "null")):
        if to.optional:
            return None
        raise ValueError("a value")
    text = str(value)
    if to.kind is bool:
        if text.lower() not in ("0", "1", "true", "false"):
            raise ValueError("true or false")
        return text.lower() in ("1", "true")
    try:
        return to.kind(text)  # via text: YAML reads 1e-4 as text, and 0.5 is no int
    except ValueError:
        raise ValueError("a whole number" if to.kind is int else "a number") from None


def _within_limits(value: Any, limits: Mapping[str, Any]) -> Any:
    if value is None:
        return value
    if limits["choices"] and value not in limits["choices"]:
        raise ValueError(f"one of {', '.join(limits['choices'])}")
    if limits["at_least"] is not None and not value >= limits["at_least"]:
        raise ValueError(f"at least {limits['at_least']}")
    if limits["above"] is not None and not value > limits["above"]:
        raise ValueError(f"more than {limits['above']}")
    if limits["at_most"] is not None and not value <= limits["at_most"]:
        raise ValueError(f"at most {limits['at_most']}")
    if limits["below"] is not None and not value < limits["below"]:
        raise ValueError(f"less than {limits['below']}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    return value


@cache
def _aliases() -> dict[str, str]:
    """Return the name of each option that has an alias, by alias."""
    return {item.metadata["alias"]: item.name for item in fields(TrainConfig) if item.metadata["alias"]}


def _add_flag(group: argparse._ArgumentGroup, item: Field[Any]) -> None:
    kind, alias = _types()[item.name].kind, item.metadata["alias"]
    allowed = item.metadata["choices"] or (preset_names() if item.name == "preset" else ())
    group.add_argument(
        *(flag(name) for name in (item.name, alias) if name),
        dest=item.name,
        default=argparse.SUPPRESS,
        help=item.metadata["text"] + _choices(allowed) + _default(item.default),
        **({"action": argparse.BooleanOptionalAction} if kind is bool else {"metavar": _metavar(kind, allowed)}),
    )


def _metavar(kind: type, allowed: Sequence[str]) -> str:
    return "NAME" if allowed else {int: "N", float: "X", str: "TEXT"}[kind]


def _choices(allowed: Sequence[str]) -> str:
    return f" One of {', '.join(allowed)}." if allowed else ""


def _unknown(name: str, kind: str, allowed: Iterable[str]) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    close = get_close_matches(name, list(allowed), n=1, cutoff=0.7)
    return f"unknown {kind} {name}" + (f"; did you mean {close[0]}?" if close else "")


def _default(default: Any) -> str:
    if default is None:
        return ""
    return f" Default: {('off', 'on')[default] if isinstance(default, bool) else default}."
