"""The contract of job.yaml: any program that trains, started, resumed and reported as ours is. Imports no torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from podwright_common.regular_file import read_text
from podwright_training.config.option import option
from podwright_training.errors import ConfigError
from podwright_training.hardware import NEURON_PEAK_FLOPS, PEAK_FLOPS
from podwright_training.jobs.patterns import NEEDED, ORDERS, READY, VALUES, Patterns
from podwright_training.jobs.yaml_file import (
    LONGEST_SHOWN,
    Problems,
    Value,
    data_of,
    keys_of,
    mapping,
    read,
    shown,
    text_of,
    unknown,
)
from podwright_training.json_values import loads, misfit
from podwright_training.run_folder import RunFolder

LIMIT_BYTES = 16 << 20  # The job that launch wrote may contain whole scripts.
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun")
SIGNALS = ("TERM", "USR1", "USR2", "INT")
PLACES = {  # Meaning of each place in command, files, env and resume.argument.
    "run_dir": "the run's folder",
    "nodes": "nodes of the job",
    "ranks_per_node": "ranks of each node",
    "ranks": "ranks of the job",
    "checkpoint": "the newest checkpoint; only in resume.argument",
}
FLOPS_PER_PARAMETER = 6  # and token, forward and backward: https://arxiv.org/abs/2001.08361, section 2.1
_RUN = RunFolder(Path())
OURS = tuple(map(str, (_RUN.job, _RUN.start, _RUN.sbatch, _RUN.log, _RUN.metrics)))  # files of the run's folder
MOST_NODES = 10_000
LONGEST_NAME = 200  # bytes of a file's name; file systems have 255, and it is written under a longer one
_PLACE = re.compile(r"\{([a-z_]+)\}")
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})  # Bash ends at an assignment
_MOUNT = re.compile(r"[^:,]+:[^:,]+(:[^:,]+)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _by_name(text: str) -> Any:
    """Return a field for values by name, empty by default."""
    return field(default_factory=dict, metadata={"text": text, "choices": (), "at_least": None, "at_most": None})


@dataclass(frozen=True)
class Resume:
    """The way in which the program resumes from its newest checkpoint, unless it looks for one itself."""

    folder: str = option("checkpoints", "Folder of checkpoints, in the run's folder if it is relative.")
    newest: str = option("*", "Shell pattern of a checkpoint's name; the highest number is the newest.")
    complete: str = option("", "File that a checkpoint contains once it is complete.")
    argument: tuple[str, ...] = option((), "Words added to the command when there is a checkpoint.")


@dataclass(frozen=True)
class Log:
    """The meaning of the output of the program."""

    parser: str = option("", "Trainer whose log lines podwright can parse.", choices=tuple(READY))
    patterns: Mapping[str, str] = _by_name("Regular expressions by value, each with one group.")
    step_line: str = option("", "Line with the step, relative to the line with the loss.", choices=ORDERS)

    @property
    def all_patterns(self) -> Patterns:
        """Return the ready expressions, replaced and completed by the job's own."""
        ready = READY.get(self.parser, Patterns({}))
        return Patterns({**ready.by_name, **self.patterns}, self.step_line or ready.step_line, ready.first_step)


@dataclass(frozen=True)
class Model:
    """The model that is trained, for FLOP/s, MFU and cost per token."""

    parameters: float = option(
        0.0, "Parameters; for a mixture of experts, the active ones per token.", at_least=0, at_most=1e15
    )
    flops_per_token: float = option(0.0, "FLOPs per token. Default: 6 per parameter.", at_least=0, at_most=1e18)
    tokens_per_step: float = option(0.0, "Tokens per optimizer step, across all ranks.", at_least=0, at_most=1e12)
    steps: int = option(0, "Steps of the whole run, for the time left.", at_least=0, at_most=10**12)
    accelerator: str = option(
        "",
        "Accelerator whose peak is the basis of MFU. Default: the nodes' own.",
        choices=(*PEAK_FLOPS, *NEURON_PEAK_FLOPS),
    )

    @property
    def flops(self) -> float | None:
        """Return the FLOPs of a token, forward and backward, or ``None`` if unknown."""
        return self.flops_per_token or FLOPS_PER_PARAMETER * self.parameters or None


@dataclass(frozen=True)
class JobSpec:
    """One job.yaml."""

    command: tuple[str, ...] = option((), "Program and arguments, as torchrun or another launcher takes them.")
    name: str = option("", "Name of the run. Default: the file's.")
    launcher: str = option("torchrun", "Program that starts the ranks of a node.", choices=LAUNCHERS)
    nodes: int = option(1, "Nodes.", at_least=1, at_most=MOST_NODES)
    ranks_per_node: int = option(0, "Ranks per node. Default: the node's accelerators.", at_least=0, at_most=1024)
    environment: str = option("", "Virtual environment of the program. Default: podwright-train's.")
    container: str = option("", "Image for enroot and pyxis: a .sqsh file, or registry#image:tag.")
    mounts: tuple[str, ...] = option((), "Folders that the container sees besides the run's, as SOURCE:TARGET.")
    env: Mapping[str, str] = _by_name("Environment variables.")
    files: Mapping[str, Any] = _by_name("Files written into the run's folder: a text, or a mapping that becomes JSON.")
    stop_signal: str = option("TERM", "Signal before the time limit; then the job queues again.", choices=SIGNALS)
    resume: Resume | None = field(default=None, metadata={"text": "How to resume from a checkpoint."})
    log: Log = field(default_factory=Log, metadata={"text": "How to read the program's output."})
    model: Model = field(default_factory=Model, metadata={"text": "Model that is trained."})

    def to_json(self) -> str:
        """Return all values; ``from_json`` reads them back."""
        return json.dumps(_plain(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Return the job that ``to_json`` wrote."""
        data = loads(text)
        if reason := misfit(data, cls, "job"):
            raise ValueError(reason)
        for name in ("command", "mounts"):
            data[name] = tuple(data[name])
        resume = data.pop("resume")
        parts: dict[str, Any] = {"log": Log(**data.pop("log")), "model": Model(**data.pop("model"))}
        if resume:
            parts["resume"] = Resume(**{**resume, "argument": tuple(resume["argument"])})
        spec = cls(**data, **parts)
        if wrong := [text for text in spec.log.patterns.values() if not _is_expression(text)]:
            raise ValueError(f"job.log.patterns: got {wrong[0]!r}, need a regular expression with one group")
        return spec


def _is_expression(text: str) -> bool:
    try:
        return re.compile(text).groups >= 1
    except (re.error, OverflowError, RecursionError):
        return False


def read_written(path: Path) -> JobSpec:
    """Return the job that launch wrote into a run's folder.

    Raises:
        ConfigError: It is missing or damaged; the message has the place, and the command that writes it again.
    """
    again = f"start the run again, which writes it: podwright-train launch --run-dir {path.parent} …"
    try:
        return JobSpec.from_json(read_text(path, limit_bytes=LIMIT_BYTES, follow_links=True))
    except OSError as error:
        reason = error.strerror or str(error)
    except json.JSONDecodeError as error:
        reason = f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
    except KeyError as error:
        reason = f"the key {error.args[0]} is missing"
    except (AttributeError, TypeError, ValueError) as error:
        reason = f"not the shape that launch writes ({error})"
    raise ConfigError([f"{path}: {reason}; {again}"])


SECTIONS: dict[str, type] = {"resume": Resume, "log": Log, "model": Model}
KINDS = {
    **dict.fromkeys(("command", "mounts", "argument"), "words"),
    **dict.fromkeys(("env", "patterns"), "texts"),
    "files": "files",
    **dict.fromkeys(("nodes", "ranks_per_node", "steps"), "int"),
    **dict.fromkeys(("parameters", "flops_per_token", "tokens_per_step"), "float"),
}
KEYS = tuple(item.name for item in fields(JobSpec))


def load(file: Path) -> JobSpec:
    """Return the job in a file.

    Raises:
        ConfigError: With every problem, each as ``FILE:LINE:COLUMN: …``.
    """
    value_by_key, problems = read(file)
    spec: JobSpec = _section(JobSpec, value_by_key, problems)
    _check(spec, value_by_key, problems)
    problems.refuse()
    return spec


def is_job(file: Path) -> bool:
    """Return whether a YAML file is a job.yaml rather than a run.yaml, by its keys; a broken file is not."""
    from podwright_training.config.train_config import option_names

    keys = keys_of(file)
    return "command" in keys or len(keys & set(KEYS)) > len(keys & set(option_names()))


def fill(text: str, values: Mapping[str, object]) -> str:
    """Return the text with its ``{places}`` filled in."""
    return _PLACE.sub(lambda match: str(values.get(match[1], match[0])), text)


def _plain(value: Any) -> Any:
    """Return a value with dictionaries in place of dataclasses and read-only mappings."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return dict(value) if isinstance(value, Mapping) else value


# ---- reading -----------------------------------------------------------------------------------


def _section(cls: type, value_by_key: Mapping[str, Value], problems: Problems) -> Any:
    """Return a section with the file's values; report unknown keys and wrong values."""
    items = {item.name: item for item in fields(cls)}
    values: dict[str, Any] = {}
    for name, value in value_by_key.items():
        if name not in items:
            problems.add(value.key, unknown(name, "key", items))
        elif name in SECTIONS and cls is JobSpec:
            values[name] = _section(SECTIONS[name], mapping(value.node, problems, subject=name), problems)
        elif not value.is_null:
            try:
                values[name] = _limited(_convert(name, value.node, problems), items[name].metadata, name)
            except ValueError as error:
                if error.args:  # Without arguments, the error was reported before.
                    problems.add(value.node, str(error))
    return cls(**values)


def _convert(name: str, node: yaml.Node, problems: Problems) -> Any:
    """Return a value; texts are as they are written, as YAML would read 1.10 as 1.1, 12:30 as 750 and on as true."""
    kind, text = KINDS.get(name, "text"), text_of(node)
    if kind == "words":
        return _words(name, node)
    if kind in ("texts", "files"):
        if not isinstance(node, yaml.MappingNode):
            raise ValueError(f"{name}: got {shown(text or '')}, need `NAME: value` lines")
        value_by_key = mapping(node, problems, subject=name)
        if kind == "files":
            return {key: _content(data_of(value.node, problems)) for key, value in value_by_key.items()}
        return {key: _text(name, value.node) for key, value in value_by_key.items()}
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{name}: got {text}, need one value")  # noqa: TRY004 - a wrong value like all others
    data = text if kind == "text" else data_of(node, problems)
    if data is None:
        raise ValueError
    if isinstance(data, bool):
        raise ValueError(f"{name}: got {text}, need one value")  # noqa: TRY004 - a wrong value like all others
    if kind == "int" and isinstance(data, int):
        return data
    try:
        return {"int": int, "float": float, "text": str}[kind](str(data))
    except ValueError:
        need = "whole number" if kind == "int" else "number"
        raise ValueError(f"{name}: got {_shown(data) or 'nothing'}, need a {need}") from None


def _words(name: str, node: yaml.Node) -> tuple[str, ...]:
    """Return the words of a command line, or of a list."""
    if isinstance(node, yaml.ScalarNode):
        try:
            return tuple(shlex.split(node.value, comments=True))
        except ValueError as error:
            raise ValueError(f"{name}: {error}; quotes of a shell go in pairs") from error
    if isinstance(node, yaml.SequenceNode):
        texts = [text_of(item) for item in node.value if isinstance(item, yaml.ScalarNode)]
        if len(texts) == len(node.value) and None not in texts:
            return tuple(text for text in texts if text is not None)
        raise ValueError(f"{name}: each word of the list is one value; put an empty one in quotes")
    raise ValueError(f"{name}: got a mapping, need a text or a list of words")


def _limited(value: Any, limits: Mapping[str, Any], name: str) -> Any:
    if limits["choices"] and value not in limits["choices"]:
        raise ValueError(f"{name}: {unknown(str(value), 'value', limits['choices'])}")
    if limits["at_least"] is not None and not limits["at_least"] <= value <= limits["at_most"]:
        raise ValueError(f"{name}: got {_shown(value)}, need {limits['at_least']:g} to {limits['at_most']:g}")
    return value


def _content(value: Any) -> Any:
    """Return a file's content as values that JSON can write: a date becomes its text."""
    try:
        return json.loads(json.dumps(value, default=_date, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"files: {error}: need texts, numbers, lists and mappings") from error


def _date(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"got {_shown(value)}")


def _text(name: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{name}: got {text_of(node)}, need one value for each name")  # noqa: TRY004 - a wrong value like all others
    return text_of(node) or ""


def _shown(data: Any) -> str:
    """Return a value, shortened to one line for a message."""
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, int) and data.bit_length() > 4 * LONGEST_SHOWN:  # Python may refuse to write it
        return f"a number of {data.bit_length()} bits"
    kinds: dict[type, str] = {dict: "a mapping", list: "a list"}
    return kinds.get(type(data)) or shown(str(data))


# ---- checks ------------------------------------------------------------------------------------


def _check(spec: JobSpec, value_by_key: Mapping[str, Value], problems: Problems) -> None:
    """Report conflicts among the values."""
    if not spec.command and "command" not in value_by_key:
        problems.add(None, "command is missing: the program that trains, with its arguments")
    elif not spec.command:
        problems.add(value_by_key["command"].node, "command: got nothing, need a program")
    if spec.container and spec.environment:
        problems.add(value_by_key["environment"].node, "environment: a container has its own; leave one of the two out")
    if spec.mounts and not spec.container:
        problems.add(value_by_key["mounts"].node, "mounts: only a container has them; name its image with `container`")
    if spec.resume is not None and isinstance(value_by_key["resume"].node, yaml.MappingNode):
        given_words = {key.value: text_of(value) for key, value in value_by_key["resume"].node.value}
        for text in _problems_of_resume(spec.resume, has_argument=bool(given_words.get("argument"))):
            problems.add(value_by_key["resume"].node, text)
    _check_run(spec, value_by_key, problems)
    _check_names(spec, value_by_key, problems)
    if "log" in value_by_key:
        for text in _problems_of_patterns(spec.log):
            problems.add(value_by_key["log"].node, f"log: {text}")


def _problems_of_resume(resume: Resume, *, has_argument: bool) -> Iterator[str]:
    if not has_argument:
        yield "resume.argument is missing; leave `resume` out if the program finds its checkpoints"
    for name, pattern in (("newest", resume.newest), ("complete", resume.complete)):
        if "/" in pattern:
            yield f"resume.{name}: got {shown(pattern)}, need a name without /: subfolders are not searched"
    if "{checkpoint}" in resume.folder:
        yield "resume.folder: {checkpoint} is looked for in it; only resume.argument has it"


def _check_run(spec: JobSpec, value_by_key: Mapping[str, Value], problems: Problems) -> None:
    """Report a name that cannot be a folder's, and malformed mounts."""
    if spec.name and not _NAME.fullmatch(spec.name):
        need = "need up to 100 letters, digits and ._+=@-, a letter or digit first: it is a folder's name"
        problems.add(value_by_key["name"].node, f"name: got {shown(spec.name)}, {need}")
    for mount in (mount for mount in spec.mounts if not _MOUNT.fullmatch(mount)):
        problems.add(value_by_key["mounts"].node, f"mounts: got {shown(mount)}, need SOURCE:TARGET, without commas")


def _check_names(spec: JobSpec, value_by_key: Mapping[str, Value], problems: Problems) -> None:
    """Report invalid names of variables, files and places."""
    for name in sorted(_READ_ONLY & set(spec.env)):
        problems.add(value_by_key["env"].node, f"env: {name} is Bash's own, which cannot be set")
    for name in (name for name in spec.env if not _VARIABLE.fullmatch(name)):
        problems.add(value_by_key["env"].node, f"env: {shown(name)} is not a variable name")
    for name in spec.files:
        if Path(name).is_absolute() or ".." in Path(name).parts or not Path(name).name or not name.isprintable():
            problems.add(value_by_key["files"].node, f"files: '{shown(name)}' is not a file of the run's folder")
        elif Path(name).parts[0] in OURS:
            problems.add(
                value_by_key["files"].node, f"files: {name} is podwright-train's own, as {', '.join(OURS)} are"
            )
        elif max(map(len, map(os.fsencode, Path(name).parts))) > LONGEST_NAME:
            problems.add(value_by_key["files"].node, f"files: {name[:20]}… has over {LONGEST_NAME} bytes")
        elif any(Path(name) in Path(other).parents for other in spec.files):
            problems.add(value_by_key["files"].node, f"files: {name} is a file, and the folder of another")
    for key, text in _filled_texts(spec):
        allowed_places = PLACES if key == "resume" else [place for place in PLACES if place != "checkpoint"]
        for place in (place for place in _PLACE.findall(text) if place not in allowed_places):
            problems.add(
                value_by_key[key].node,
                f"{key}: {unknown('{' + place + '}', 'place', [f'{{{k}}}' for k in allowed_places])}",
            )


def _filled_texts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield from (("command", word) for word in spec.command)
    yield from (("env", text) for text in spec.env.values())
    if spec.resume:
        yield from (("resume", word) for word in (*spec.resume.argument, spec.resume.folder))


def _problems_of_patterns(log: Log) -> Iterator[str]:
    for name, text in log.patterns.items():
        if name not in VALUES:
            yield unknown(name, "value", VALUES)
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns of expressions that it may read otherwise one day.
                groups = re.compile(text).groups
        except (re.error, OverflowError, RecursionError) as error:
            yield f"{name}: {shown(text)} is not a regular expression: {error}"
            continue
        if groups != 1:
            yield f"{name}: {shown(text)} has {groups} groups, need one: the number; write others as (?:…)"
    lacking = [name for name in NEEDED if name not in log.all_patterns.by_name]
    if lacking and (log.parser or log.patterns):
        yield f"no expression for {' and '.join(lacking)}: name a parser, or add to patterns"
