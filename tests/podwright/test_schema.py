"""The schemas for editors agree with `podwright check` and `podwright-train`."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from golden import CASES, Case, cases
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema import ValidationError as JsonError
from pydantic import TypeAdapter, ValidationError

from podwright import cli
from podwright.check.checked_settings import check_document
from podwright.check.document import Document
from podwright.check.json_schema import _Generator
from podwright.check.schema_errors import CODES
from podwright.checkout import ROOT
from podwright.cli import main
from podwright.operations.settings_file.schema import DOCUMENTS, cluster_text, run_text
from podwright_testing.documents import as_described
from podwright_training.config.sources import load_file, preset_names
from podwright_training.config.train_config import PRESETS
from podwright_training.errors import ConfigError
from podwright_training.jobs.job_schema import job_schema
from podwright_training.jobs.spec import load

CLUSTER = Draft7Validator(json.loads(cluster_text()))
RUN = Draft7Validator(json.loads(run_text()))
JOB = Draft7Validator(job_schema())
GOOD = [ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("*/cluster.yaml")), *sorted(CASES.glob("*.yaml"))]
JOBS = sorted((ROOT / "examples" / "jobs").glob("*/job.yaml"))
OF_SHAPE = set(CODES) - {"terraform-template"}  # which is about what a text holds


class Editor(yaml.SafeLoader):
    """Reads YAML as editors do, by the core schema of YAML 1.2: no dates, no octal numbers, and `yes` is a text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for name, pattern, first in (
    ("merge", r"^<<$", "<"),
    ("null", r"^(~|null|Null|NULL|)$", "~nN\0"),
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    Editor.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(pattern), [*first.replace("\0", ""), ""])


def parsed(text: str) -> Any:
    """Return the data of a file as an editor has it."""
    return yaml.load(text, Loader=Editor)  # noqa: S506 — a safe loader with fewer types


def problems(text: str, validator: Draft7Validator = CLUSTER) -> list[str]:
    """Return what an editor marks in a file."""
    return [error.message for error in validator.iter_errors(parsed(text))]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.parent.name + file.stem)
def test_a_good_file_has_no_mark(file):
    """The schema accepts every example."""
    assert problems(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_wrong_file_is_marked_if_its_shape_is_wrong(case: Case):
    """An unknown or missing key, a value that is not allowed and a wrong type are marked; no other file is."""
    document = Document.parse(case.render())
    if not document.parsed or any(finding.code == "duplicate-key" for finding in document.findings):
        return  # no data that the schema could be applied to
    of_shape = [finding for finding in check_document(document).findings if finding.code in OF_SHAPE]
    assert CLUSTER.is_valid(parsed(case.render())) == (of_shape == [])


@pytest.mark.parametrize(("kind", "letters", "length"), [(int, "01_+-. e\n", 4), (bool, "01tTrRuUeEoOnN\n", 4)])
def test_scalars_are_read_as_the_check_reads_them(kind: type, letters: str, length: int):
    """The schema accepts the short texts that the check takes for a number or a boolean, and no others."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    validator = Draft7Validator(adapter.json_schema(schema_generator=_Generator))
    for text in map("".join, itertools.chain(*(itertools.product(letters, repeat=size) for size in range(length + 1)))):
        if re.search(r"0_*[_+-]", text):
            continue  # what pydantic reads of 0-1 and 0__1 is its own
        try:
            adapter.validate_python(text)
        except ValidationError:
            assert not validator.is_valid(text), repr(text)
        else:
            assert validator.is_valid(text), repr(text)


def test_each_key_is_explained():
    """Every key of the schemas has a description, and every default passes its own schema."""
    for validator in (CLUSTER, RUN, JOB):
        nested = [key for key in validator.schema["properties"].values() if "properties" in key]
        sections = [validator.schema, *validator.schema.get("$defs", {}).values(), *nested]
        for section in sections:
            for key, described in section.get("properties", {}).items():
                assert described.get("description") or "$ref" in str(described), key
                if "default" in described:
                    own = {"$defs": validator.schema.get("$defs", {}), **described}
                    assert Draft7Validator(own).is_valid(described["default"]), key
    capacity = CLUSTER.schema["$defs"]["CreatedLustre"]["properties"]["capacity_gib"]
    assert 24000 in capacity["examples"]  # of the example production


def test_the_schemas_of_the_repository_are_these(tmp_path, capsys):
    """Files under schemas/ are what the commands write; each example's first line leads to them."""
    assert main(["schema", "-o", str(tmp_path / "cluster.json")]) == 0
    capsys.readouterr()
    fresh = {"cluster.json": (tmp_path / "cluster.json").read_text(), "run.json": run_text()}
    fresh["job.json"] = json.dumps(job_schema(), indent=1) + "\n"
    for file, text in fresh.items():
        assert (ROOT / "schemas" / file).read_text(encoding="utf-8") == text, "`make generate` writes them again"
    for example in [*(file for file in GOOD if file.name == "cluster.yaml"), *JOBS]:
        line = example.read_text(encoding="utf-8").splitlines()[0]
        (target,) = re.findall(r"^# yaml-language-server: \$schema=(.*)$", line)
        assert (example.parent / target).resolve() == ROOT / "schemas" / f"{example.stem}.json"


RESULTS = {  # of commands that need no AWS; those of doctor and scale are compared where they run
    "check": [["check", str(CASES / "several" / "absent.yaml")], ["check", str(ROOT / "cluster.yaml")]],
    "explain": [["explain", "lustre"], ["explain", "max_steps"], ["explain", "--codes"]],
    "plan": [
        ["plan", "--model", "tinyllama", "--instance", "ml.g5.xlarge", *more] for more in ([], ["--tokens", "5B"])
    ],
}


@pytest.mark.parametrize("command", RESULTS)
def test_a_commands_document_is_as_its_schema_says(command, capsys):
    """Documents have the keys and types of their schema, and no others; the schema is one."""
    for words in RESULTS[command]:
        main([*words, "--json"])
        document = json.loads(capsys.readouterr().out)
        as_described(document, command)
        assert main(["schema", command]) == 0
        schema = json.loads(capsys.readouterr().out)
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate({**document, "later": 1})
    assert not Draft202012Validator(schema).is_valid({**document, next(iter(schema["properties"])): None})


def test_every_command_with_json_has_a_schema(capsys):
    """All commands that have --json are described, and no others; each schema is one."""
    with_json = {
        command.name
        for command in cli.all_commands()
        for parser in parsers_of(command.name)
        if "--json" in parser._option_string_actions
    }
    assert set(DOCUMENTS) == with_json
    for command in DOCUMENTS:
        assert main(["schema", command]) == 0
        Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def parsers_of(command: str) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of a command and of its verbs."""
    (commands,) = (item for item in cli._parser([command])._actions if item.choices)
    yield commands.choices[command]
    for action in commands.choices[command]._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def test_a_result_of_another_shape_is_refused():
    """The check of every test's documents finds a key that the schema has not, and one with another type."""
    good = {"schema": "podwright.align/1", "changed": True}
    as_described(good)
    for wrong in ({**good, "more": 1}, {**good, "changed": "maybe"}, {"schema": "podwright.align/1"}):
        with pytest.raises((ValidationError, JsonError)):
            as_described(wrong)


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_is_a_run(preset):
    """The schema of runs accepts every preset's file."""
    assert problems((PRESETS / f"{preset}.yaml").read_text(encoding="utf-8"), RUN) == []


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("max_steps: 10", True),
        ("max_steps: many", False),
        ("max_steps:", False),
        ("max_steps: -1", False),
        ("lr: 1e-4", True),
        ("lr: '1e-4'", True),
        ("lr: fast", False),
        ("guard_z_score: none", True),
        ("guard_z_score: 0", False),
        ("guard_policy: rollback", True),
        ("guard_policy: rolback", False),
        ("bf16: yes", True),
        ("bf16: 2", False),
        ("preset: tiny", True),
        ("preset: tinny", False),
        ("presett: tiny", False),
        ("", True),
    ],
)
def test_a_run_is_marked_as_the_trainer_refuses_it(line: str, accepted: bool, tmp_path: Path):  # noqa: FBT001
    """The trainer and the schema agree about a line of run.yaml."""
    file = tmp_path / "run.yaml"
    file.write_text(line + "\n")
    with nullcontext() if accepted else pytest.raises(ConfigError):
        load_file(file)
    assert (problems(line, RUN) == []) == accepted


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.parent.name)
def test_a_ready_job_has_no_mark(file):
    """The schema accepts every job of the examples."""
    assert problems(file.read_text(encoding="utf-8"), JOB) == []


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("launcher: srun", True),
        ("launcher: mpirun", False),
        ("nodes: 1_000", True),
        ("nodes: 0", False),
        ("nodes: many", False),
        ("nodes:", True),
        ("env: {A: 1, B: true}", True),
        ("env: A", False),
        ("log: {parser: litgpt}", True),
        ("log: {parser: litgptt}", False),
        ("log: {patterns: {step: '(a)', loss: '(b)'}}", True),
        ("log: {patterns: {steps: '(a)'}}", False),
        ("model: {accelerator: Trainium2, steps: 1.5}", False),
        ("model: {accelerator: Trainium2, parameters: 8.03e9}", True),
        ("resume: {argument: --resume}", True),
        ("kommand: a", False),
    ],
)
def test_a_job_is_marked_as_launch_refuses_it(line: str, accepted: bool, tmp_path: Path):  # noqa: FBT001
    """The loader and the schema agree about a line of job.yaml."""
    file = tmp_path / "job.yaml"
    file.write_text(f"command: train.py\n{line}\n")
    with nullcontext() if accepted else pytest.raises(ConfigError):
        load(file)
    assert (problems(file.read_text(), JOB) == []) == accepted
    assert problems("nodes: 1", JOB) == ["'command' is a required property"]
