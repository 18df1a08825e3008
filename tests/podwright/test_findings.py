"""Findings: the place of everything in a file, how they are shown, and that no file brings the checker down."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwright.check.checked_settings import check_document, codes
from podwright.check.document import MAX_DEPTH, Document
from podwright.check.findings import Finding, Level, has_errors, json_document, render, summary, write
from podwright.operations.output import to_json
from podwright_constructs.problems import dotted

GOOD = (Path(__file__).parents[2] / "cluster.yaml").read_text(encoding="utf-8")
FILE = Path("cluster.yaml")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def finding(**changes: Any) -> Finding:
    """An error in line 2."""
    values = {"level": Level.ERROR, "code": "code", "path": ("a", 1, "b"), "message": "it is wrong", "hint": "fix it"}
    return Finding(**{**values, "line": 2, "column": 4, "width": 3, **changes})


def test_shows_place_line_caret_and_hint():
    """A finding is shown with file, line, column, the line itself, what is meant in it, and what to do."""
    shown = render([finding()], file=FILE, text="first\nb: bad\n")
    assert shown == ("cluster.yaml:2:4: error: it is wrong [code]\n    2 | b: bad\n           ^^^\n  hint: fix it\n")


def test_shows_settings_without_a_file_by_key():
    """A finding about settings that no file gave is shown with its key."""
    shown = render([finding(line=None, column=None)], file=FILE, text="")
    assert shown == "cluster.yaml: a[1].b: error: it is wrong [code]\n  hint: fix it\n"


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    """A terminal gets the same words with colours, anything else plain text."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        write([finding()], file=FILE, text="first\nb: bad\n", stream=stream)
    assert "\x1b[1;31merror\x1b[0m" in terminal.getvalue()
    assert "\x1b" not in plain.getvalue()
    assert plain.getvalue() == render([finding()], file=FILE, text="first\nb: bad\n") + "\n"


def test_nothing_moves_the_cursor():
    """Control characters of a file reach the terminal as spaces."""
    shown = render([finding(message="\x1b[2J", hint="\r\n")], file=FILE, text="\nb:\tbad\n")
    assert shown.isascii()
    assert {character for character in shown if not character.isprintable()} == {"\n"}
    assert "    2 | b: bad\n" in shown


def test_summary_counts_levels():
    """The summary counts each level that there is."""
    found = [finding(), finding(), finding(level=Level.WARNING), finding(level=Level.INFO)]
    assert summary(found) == "2 errors, 1 warning, 1 info"
    assert summary([]) == ""


def test_json_has_the_agreed_keys():
    """The JSON form has the eight keys, with the path as a person writes it."""
    assert json.loads(to_json(json_document([finding()]))) == {
        "findings": [
            {
                "level": "error",
                "code": "code",
                "problem": None,
                "path": "a[1].b",
                "line": 2,
                "column": 4,
                "message": "it is wrong",
                "hint": "fix it",
            }
        ]
    }


# ---- places ------------------------------------------------------------------------------------


def test_place_of_values_keys_and_what_is_not_there():
    """A value's place is its own, a block's is its key's, and a missing key's is the nearest thing around it."""
    document = Document.parse("a: 1\nb:\n  - c: longer value\n  - d: 2\n")
    places = {
        (("a",), False): (1, 4, 1),
        (("a",), True): (1, 1, 1),
        (("b",), False): (2, 1, 1),
        (("b", 0, "c"), False): (3, 8, 12),
        (("b", 1), False): (4, 5, 1),
        (("b", 1, "missing"), False): (4, 5, 1),
        (("missing",), False): (1, 1, 1),
    }
    for (path, key), (line, column, width) in places.items():
        place = document.position(path, key=key)
        assert (place.line, place.column, place.width) == (line, column, width), (path, key)


def test_default_is_named_as_such():
    """A finding about a value that the file does not give says that it is the default, and what kind of mistake."""
    text = GOOD.replace("usw2-az1", "usw2-az1\n  cidr: 172.16.0.0/16")
    findings = check_document(Document.parse(text)).findings
    assert [item.document().problem for item in findings] == ["range", "range"]
    assert [item.message for item in findings] == [
        "public_subnet_cidr: got 10.0.0.0/24 (the default), need a block within cidr, 172.16.0.0/16",
        "private_subnet_cidr: got 10.0.16.0/20 (the default), need a block within cidr, 172.16.0.0/16",
    ]


def test_aliases_and_merge_keys_stand_for_what_they_name():
    """A finding about a merged value points at the anchor's text; keys that begin with x- are no settings."""
    document = Document.parse(
        "x-gpu: &gpu {instance_type: ml.p5.48xlarge, count: 2}\n"
        "region: &region us-west-2\n"
        "groups:\n"
        "- {<<: *gpu, name: a}\n"
        "- {name: b, count: 4, <<: *gpu, zone: *region}\n"
    )
    merged = {"instance_type": "ml.p5.48xlarge"}
    assert document.findings == ()
    assert document.data == {
        "region": "us-west-2",
        "groups": [
            merged | {"count": "2", "name": "a"},
            merged | {"count": "4", "name": "b", "zone": "us-west-2"},
        ],
    }
    assert document.place(("groups", 0, "count")) == "cluster.yaml:1:52"
    assert document.place(("groups", 1, "count")) == "cluster.yaml:5:20"
    assert [document.is_shared(("groups", group, "count")) for group in (0, 1)] == [True, False]


# ---- YAML that is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: b: c", "yaml-syntax", 1, 5),
        ("a: [1,\nb: 2\n", "yaml-syntax", 1, 4),
        ("ok: 1\nname: \x07", "yaml-syntax", 2, 7),
        ('name: "\\UFFFFFFFF"', "yaml-syntax", 1, 1),
        ("a: *x", "yaml-syntax", 1, 4),
        ("a: &x [*x]", "yaml-depth", 1, 4),
        ("a: {<<: 1}", "yaml-key", 1, 9),
        ("a: !!python/object/apply:os.system [id]", "yaml-feature", 1, 4),
        ("a: 1\n---\nb: 1", "yaml-feature", 2, 1),
        ("? [a]\n: b", "yaml-key", 1, 3),
        ('ok: 1\nname: "a\\0"', "yaml-text", 2, 7),
        ('ok: 1\n"": b', "yaml-key", 2, 1),
        ("a: 1\nb: 1\na: 2", "duplicate-key", 3, 1),
        ("[" * 100_000, "yaml-depth", 1, MAX_DEPTH + 1),
    ],
)
def test_refused_yaml(text: str, code: str, line: int, column: int):
    """Text that is no YAML, and YAML that a settings file does not need, is reported with its line."""
    first = Document.parse(text).findings[0]
    assert (first.code, first.line, first.column) == (code, line, column)


# ---- no file brings it down --------------------------------------------------------------------


PASSWORD = "hunter2hunter2"  # noqa: S105 -- of nobody
HOLDERS = {
    "plain": f"accounting: {{source: existing, endpoint: h, password: {PASSWORD}}}",
    "anchor": f"x-db: {{password: &p {PASSWORD}, source: existing}}\naccounting: {{password: *p}}",
    "alias": f"x-db: &p {PASSWORD}\naccounting: {{password: *p, source: existing, unknown: 1}}",
    "merged": f"accounting: {{<<: {{password: {PASSWORD}, source: 1}}, password: a, source: existing}}",
    "twice": f"accounting: {{source: existing, password: a, password: {PASSWORD}}}",
    "tag": f"accounting: {{source: existing, password: !!str {PASSWORD}}}",
    "no YAML": f"accounting:\n  password: {PASSWORD}: a",
    "block": f"accounting:\n  source: existing\n  password: |\n    {PASSWORD}\n",
}


@pytest.mark.parametrize(
    "character", ["\n# ", "\r# ", "\r\n# ", "\x85# ", "\u2028# ", "\u2029# ", "\x0b", "\x1c", "\ufeff"]
)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_password_is_never_shown(holder: str, character: str):
    """Wherever it stands, and whatever YAML, Python and editors count as the end of a line above it."""
    text = f"# a{character}note\n{HOLDERS[holder]}"
    source = Document.parse(text, file=FILE)
    report = check_document(source)
    assert report.findings
    assert PASSWORD not in render(report.findings, file=FILE, text=source.shown)
    if "\x0b" not in text and "\x1c" not in text:  # YAML refuses these.
        assert PASSWORD not in source.shown
    assert len(source.shown) == len(text)


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"])
def test_lines_are_those_of_yaml(line_break: str):
    """A finding shows its own line, of a value and of a secret."""
    text = f"# a{line_break}# \x7b{line_break}regoin: x # ghp_{'a' * 36}"
    first, second = check_document(Document.parse(text, file=FILE)).findings[-2:]
    assert (first.line, second.line, second.column) == (3, 3, 13)
    assert "\n    3 | regoin: x # ghp" in render([first, second], file=FILE, text=text)


def test_a_secret_below_a_key_of_anchors_is_found():
    """Also one that the text writes with escapes, or that nothing uses."""
    source = Document.parse(f'x-a: ["\\x67hp_{"a" * 36}"]\nx-b: {{token: ghp_{"b" * 36}}}\n', file=FILE)
    assert [(dotted(found.path), found.line) for found in source.secrets()] == [("x-b.token", 2), ("x-a[0]", 1)]
    assert "aaaa" not in source.shown


def check_holds(text: str) -> None:
    """Judge the text: places lie in it, it can be shown, and settings come out if there is no error."""
    report = check_document(Document.parse(text))
    for item in report.findings:
        assert item.line is not None
        assert item.column is not None
        assert 1 <= item.line <= len(re.findall("[\n\r\x85\u2028\u2029]", text)) + 2  # what ends a line in YAML
        assert item.column >= 1
        assert item.message
        assert codes()[item.code]
        assert dotted(item.path) == item.document().path
    assert len(json.loads(to_json(json_document(report.findings)))["findings"]) == len(report.findings)
    assert len(render(report.findings, file=FILE, text=text)) >= len(report.findings)
    assert report.settings is not None or has_errors(report.findings)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["create", "existing"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.text())
def test_any_text(text: str):
    """Any text at all is judged."""
    check_holds(text)


@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@#?\n\t \\~<=0."))
def test_any_punctuation(text: str):
    """Any mixture of YAML's own characters is judged."""
    check_holds(text)


@given(VALUES)
def test_any_yaml(value: Any):
    """Any data that a YAML writer writes is judged."""
    check_holds(yaml.safe_dump(value, allow_unicode=True))


@given(st.data())
@pytest.mark.slow
def test_any_value_at_any_key(data: st.DataObject):
    """The good file with any one value replaced by anything is judged."""
    content = yaml.safe_load(GOOD)
    inner: Any = content
    while True:
        key = data.draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
        if not isinstance(inner[key], dict | list) or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = data.draw(VALUES)
    check_holds(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))


@given(st.integers(0, len(GOOD)), st.integers(0, 40), st.text(max_size=5))
def test_any_typing_error(start: int, length: int, replacement: str):
    """The good file with any few characters replaced by others is judged."""
    check_holds(GOOD[:start] + replacement + GOOD[start + length :])
