"""A wrong value is one finding: rules that need the value report nothing, and all others what they reported before.

Each file of ``whole_files/`` is valid but for one violation; together they have every key.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_rules import BROKEN, content

from podwright.check import rules, schema_errors
from podwright.check.checked_settings import check_document
from podwright.check.document import Document
from podwright.check.findings import KeyPath
from podwright.check.incomplete import incomplete
from podwright.check.key_descriptions import keys
from podwright.check.rules.rule import NETWORK_BLOCKS, OWN_BUCKET, OWN_SCRIPTS
from podwright_constructs.problems import dotted

FOLDER = Path(__file__).parent / "whole_files"
FILES = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.yaml"))}
VIOLATION = ("tag-limits", "tags.podwright:planted")


def findings(data: Any) -> list[tuple[str, str]]:
    """Code and path of everything that ``check`` reports."""
    report = check_document(Document.parse(json.dumps(data), file=FOLDER / "cluster.yaml"))
    return [(finding.code, dotted(finding.path)) for finding in report.findings]


def paths(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Each key and item of a file, except the violation."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if key not in {"tags", "podwright:planted"}:
            yield (*path, key)
        if (*path, key) != ("state", "arguments"):  # a backend's, of any type
            yield from paths(value, (*path, key))


def with_wrong_value(data: Any, path: KeyPath) -> Any:
    """A copy of a file in which the value at a path has the wrong type."""
    data = parent = copy.deepcopy(data)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = "text" if isinstance(parent[path[-1]], dict | list) else ["text"]
    return data


def test_the_files_have_every_key():
    """Every key of every variant of a section is in one of the files."""
    tested = {(source, name) for data in FILES.values() for source, name in _described(data)}
    assert {(key.source, key.name) for key in keys()} - tested == set()


def _described(data: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key as ``explain`` names it, with the source of its section."""
    if isinstance(data, list):
        for item in data:
            yield from _described(item, f"{name}[]")
    elif isinstance(data, dict):
        source = data.get("source", "")
        for key, value in data.items():
            path = f"{name}.{key}".lstrip(".")
            yield source, path
            yield "", path
            yield from _described(value, path)


def test_rules_read_keys_that_exist():
    """A misspelt key would never be wrong, so its rule would judge values that the file does not give."""
    existing_keys = {key.name.replace("[]", "") for key in keys()} | {"nodes"}
    named_keys = {
        argument.value
        for file in Path(rules.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and {"reads", "are_valid"} & set(ast.unparse(call.func).split("."))
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    assert len(named_keys) > 40
    assert named_keys | {*NETWORK_BLOCKS, *OWN_BUCKET, *OWN_SCRIPTS} <= existing_keys


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_valid_but_for_one_violation(name: str):
    """With right values, ``check`` reports the violation alone."""
    assert findings(FILES[name]) == [VIOLATION]


@pytest.mark.parametrize(("name", "section"), [(name, section) for name, data in FILES.items() for section in data])
def test_a_wrong_value_is_the_only_problem(name: str, section: str):
    """Of each key of each file, ``check`` reports the wrong value and the violation elsewhere, and nothing else."""
    data = FILES[name]
    for path in (path for path in paths(data) if path[0] == section):
        reported = findings(with_wrong_value(data, path))
        assert VIOLATION in reported, path
        reported.remove(VIOLATION)
        ((code, wrong_path),) = reported
        assert code in schema_errors.CODES
        assert wrong_path == dotted(path)


@pytest.mark.parametrize(("code", "changes", "path"), BROKEN)
def test_a_wrong_value_adds_no_finding(code: str, changes: dict[str, Any], path: str):
    """A file that violates a rule has, with one value wrong, no finding of a rule that it had not before."""
    data = json.loads(json.dumps(content(**changes)))
    for wrong_path in paths(json.loads(json.dumps(changes))):
        settings = incomplete(with_wrong_value(data, wrong_path))
        violations = [(finding.code, dotted(finding.path)) for finding in rules.apply(settings)]
        assert violations in ([], [(code, path)]), wrong_path
