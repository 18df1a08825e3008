"""The contract of job.yaml: any program that trains, started, resumed and reported as ours is. Imports no torch."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from podwright_common.regular_file import read_text
from podwright_common.similar_names import did_you_mean
from podwright_common.yaml_document import KeyPath, YamlDocument, YamlFileError, shown
from podwright_training.config.conversion import converted, in_words, unknown, values_in
from podwright_training.config.option import mapping_option, option
from podwright_training.errors import ConfigError
from podwright_training.hardware import NEURON_PEAK_FLOPS, PEAK_FLOPS
from podwright_training.jobs.patterns import NEEDED, ORDERS, READY, VALUES, Patterns
from podwright_training.json_values import loads, misfit
from podwright_training.run_folder import RunFolder
from podwright_training.run_variables import READ_ONLY, SECRETS_TEXT, problems_of_secrets, problems_of_values

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
_MOUNT = re.compile(r"[^:,]+:[^:,]+(:[^:,]+)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=@-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    patterns: Mapping[str, str] = mapping_option("Regular expressions by value, each with one group.")
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
    env: Mapping[str, str] = mapping_option("Environment variables; never secrets.", may_be_secret=True)
    secrets: Mapping[str, str] = mapping_option(SECRETS_TEXT, may_be_secret=True)
    files: Mapping[str, Any] = mapping_option(
        "Files written into the run's folder: a text, or a mapping that becomes JSON."
    )
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


KEYS = tuple(item.name for item in fields(JobSpec))


def load(file: Path) -> JobSpec:
    """Return the job in a file.

    Raises:
        ConfigError: With every problem, each as ``FILE:LINE:COLUMN: …``.
    """
    try:
        document = YamlDocument.read(file)
    except YamlFileError as error:
        raise ConfigError([str(error)]) from error
    problems = list(document.messages)
    if not document.parsed:
        raise ConfigError(problems)
    if not isinstance(document.data, dict):
        raise ConfigError([*problems, f"{file}: got {in_words(document.data)}, need `key: value` lines of a job"])
    values = converted(JobSpec, values_in(document), problems, null_is_default=True)
    if document.data or not problems:
        problems += [_with_place(document, path, text) for path, text in _conflicts(JobSpec(**values), document)]
    if problems:
        raise ConfigError(problems)
    return JobSpec(**values)


def is_job(file: Path) -> bool:
    """Return whether a YAML file is a job.yaml rather than a run.yaml, by its keys; a broken file is not."""
    from podwright_training.config.train_config import option_names

    try:
        data = YamlDocument.read(file).data
    except YamlFileError:
        return False
    keys = set(data) if isinstance(data, dict) else set()
    return "command" in keys or len(keys & set(KEYS)) > len(keys & set(option_names()))


def fill(text: str, values: Mapping[str, object]) -> str:
    """Return the text with its ``{places}`` filled in."""
    return _PLACE.sub(lambda match: str(values.get(match[1], match[0])), text)


def _plain(value: Any) -> Any:
    """Return a value with dictionaries in place of dataclasses and read-only mappings."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return dict(value) if isinstance(value, Mapping) else value


# ---- checks ------------------------------------------------------------------------------------

Conflicts = Iterator[tuple[KeyPath, str]]  # The key that has the problem, and the problem.


def _with_place(document: YamlDocument, path: KeyPath, message: str) -> str:
    return f"{document.place(path) if path else document.file}: {message}"


def _conflicts(spec: JobSpec, document: YamlDocument) -> Conflicts:
    """Yield conflicts among the values."""
    if not spec.command and not document.has(("command",)):
        yield (), "command is missing: the program that trains, with its arguments"
    elif not spec.command:
        yield ("command",), "command: got nothing, need a program"
    if spec.container and spec.environment:
        yield ("environment",), "environment: a container has its own; leave one of the two out"
    if spec.mounts and not spec.container:
        yield ("mounts",), "mounts: only a container has them; name its image with `container`"
    if spec.resume is not None and isinstance(document.data.get("resume"), dict):
        for text in _problems_of_resume(spec.resume, has_argument=bool(document.data["resume"].get("argument"))):
            yield ("resume",), text
    yield from _conflicts_of_run(spec)
    yield from _conflicts_of_names(spec)
    if document.has(("log",)):
        yield from ((("log",), f"log: {text}") for text in _problems_of_patterns(spec.log))


def _problems_of_resume(resume: Resume, *, has_argument: bool) -> Iterator[str]:
    if not has_argument:
        yield "resume.argument is missing; leave `resume` out if the program finds its checkpoints"
    for name, pattern in (("newest", resume.newest), ("complete", resume.complete)):
        if "/" in pattern:
            yield f"resume.{name}: got {shown(pattern)}, need a name without /: subfolders are not searched"
    if "{checkpoint}" in resume.folder:
        yield "resume.folder: {checkpoint} is looked for in it; only resume.argument has it"


def _conflicts_of_run(spec: JobSpec) -> Conflicts:
    """Yield a name that cannot be a folder's, and malformed mounts."""
    if spec.name and not _NAME.fullmatch(spec.name):
        need = "need up to 100 letters, digits and ._+=@-, a letter or digit first: it is a folder's name"
        yield ("name",), f"name: got {shown(spec.name)}, {need}"
    for mount in (mount for mount in spec.mounts if not _MOUNT.fullmatch(mount)):
        yield ("mounts",), f"mounts: got {shown(mount)}, need SOURCE:TARGET, without commas"


def _conflicts_of_names(spec: JobSpec) -> Conflicts:
    """Yield invalid names of variables, files and places."""
    for name in sorted(READ_ONLY & set(spec.env)):
        yield ("env",), f"env: {name} is Bash's own, which cannot be set"
    for name in (name for name in spec.env if not _VARIABLE.fullmatch(name)):
        yield ("env",), f"env: {shown(name)} is not a variable name"
    if "PATH" in spec.env:
        yield ("env",), "env: PATH would hide the job's own programs: name the virtual environment in `environment`"
    texts = {name: text for name, text in spec.env.items() if name != "PATH"}
    yield from ((("env",), problem) for problem in problems_of_values(texts))
    yield from ((("secrets",), problem) for problem in problems_of_secrets(spec.secrets, spec.env))
    for name in spec.files:
        if problem := _problem_of_file(Path(name), spec.files):
            yield ("files",), f"files: {problem}"
    for key, text in _filled_texts(spec):
        allowed_places = PLACES if key == "resume" else [place for place in PLACES if place != "checkpoint"]
        for place in (place for place in _PLACE.findall(text) if place not in allowed_places):
            names = [f"{{{name}}}" for name in allowed_places]
            hint = did_you_mean(f"{{{place}}}", names) or f"need one of {', '.join(names)}"
            yield (key,), f"{key}: unknown place {{{place}}}; {hint}"


def _problem_of_file(path: Path, names: Iterable[str]) -> str:
    """Return the problem of a file's name; empty if it can be written into the run's folder."""
    if path.is_absolute() or ".." in path.parts or not path.name or not str(path).isprintable():
        return f"'{shown(str(path))}' is not a file of the run's folder"
    if path.parts[0] in OURS:
        return f"{path} is podwright-train's own, as {', '.join(OURS)} are"
    if max(map(len, map(os.fsencode, path.parts))) > LONGEST_NAME:
        return f"{str(path)[:20]}… has over {LONGEST_NAME} bytes"
    return f"{path} is a file, and the folder of another" if any(path in Path(name).parents for name in names) else ""


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
