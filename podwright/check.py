"""Everything that is wrong with a settings file, in one pass: YAML, keys and types, rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from inspect import getdoc
from typing import Any, TypeVar, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from podwright import document, rules
from podwright.document import Document
from podwright.findings import Finding, KeyPath, Level, dotted
from podwright.settings import UNKNOWN, Section, Settings, sections, source_of

# What each code means; `podwright explain CODE` prints it.
CODES = {
    "unknown-key": "The settings have no such key at this place. A key that is ignored would be a surprise later.",
    "missing-key": "A key without a default is not given.",
    "not-allowed": "The key knows a few values only, and this is none of them.",
    "wrong-type": "The value is a mapping, a list, text or a number where the key wants another of these.",
    "terraform-template": "Values are used as they are written; Terraform would evaluate ${…} and %{…} on deployment.",
}

_TEMPLATE_STARTS = ("${", "%{", "TfToken[")


@dataclass(frozen=True)
class Report:
    """What a file says and what is wrong with it; ``settings`` is None when keys or types are wrong."""

    document: Document
    settings: Settings | None
    findings: tuple[Finding, ...]


def check(file: Path) -> Report:
    """Judge a settings file.

    Raises:
        UnreadableFileError: there is no such file, or it is not text.
    """
    return judge(Document.read(file))


def judge(source: Document) -> Report:
    """Judge a parsed file; findings are in the order of the file."""
    findings = list(source.findings)
    settings = None
    if source.parsed:
        findings += _templates(source.data, ())
        data = {} if source.data is None else source.data
        try:
            settings = Settings.model_validate(data)
            findings += rules.broken(settings)
        except ValidationError as error:
            findings += [_shape_finding(mistake) for mistake in error.errors(include_url=False)]
            if isinstance(data, dict):
                findings += rules.broken(_partial(Settings, data, ()))
    placed = [_placed(finding, source) for finding in findings]
    return Report(source, settings, tuple(sorted(placed, key=lambda finding: (finding.line or 0, finding.column or 0))))


def _placed(finding: Finding, source: Document) -> Finding:
    """The finding with its place in the file; of a value that the file does not give it is said that it is the default."""
    if finding.line is not None:
        return finding
    at_key = finding.code in {"unknown-key", "missing-key"}
    place = source.place(finding.path, key=at_key)
    message = finding.message if at_key or source.has(finding.path) else f"{finding.message} (the default)"
    return replace(finding, message=message, line=place.line, column=place.column, width=place.width)


def codes() -> dict[str, str]:
    """Every code a finding can have, and what it means."""
    of_rules = {rules.code(rule): (getdoc(rule) or "") for rule in rules.RULES}
    return {**document.CODES, **CODES, **of_rules}


# ---- keys and types ----------------------------------------------------------------------------


def _templates(data: Any, path: KeyPath) -> Iterator[Finding]:
    if isinstance(data, str) and any(start in data for start in _TEMPLATE_STARTS):
        yield _error("terraform-template", path, f"Terraform would evaluate {data!r}", "write the value itself")
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _templates(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _templates(value, (*path, index))


def _shape_finding(mistake: Mapping[str, Any]) -> Finding:
    """One of pydantic's errors in the words of the file: https://docs.pydantic.dev/latest/errors/validation_errors/."""
    target = _Target.of(mistake["loc"])
    kind, value, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(target)
    if kind == "missing":
        description = target.section.model_fields[str(target.key)].description or ""
        return _error("missing-key", target.path, f"{dotted(target.path)} is missing", description)
    if kind == "union_tag_not_found":
        choices = context["expected_tags"].replace("'", "").replace(", ", " or ")
        message = f"{dotted(target.path)}.source is missing"
        return _error("missing-key", (*target.path, "source"), message, f"allowed: {choices}")
    if kind == "union_tag_invalid":
        return _not_allowed((*target.path, "source"), context["tag"], context["expected_tags"])
    if kind == "literal_error":
        return _not_allowed(target.path, value, context["expected"])
    wanted, hint = next((words for start, words in _TYPES.items() if kind.startswith(start)), (mistake["msg"], ""))
    if value is None:
        hint = "give it a value, or delete the line"
    return _error("wrong-type", target.path, f"{target.key}: expected {wanted}, found {_in_words(value)}", hint)


# By the beginning of pydantic's error type: what is wanted, and how to write it.
_TYPES = {
    "int": ("a whole number", "write digits only, such as 1200"),
    "string": ("one value", "write it behind the colon, in quotes if it holds `: ` or ` #`"),
    "dict": ("a mapping", "write `key: value` lines below it, indented"),
    "model": ("a mapping", "write `key: value` lines below it, indented"),
    "tuple": ("a list", "write each item in a line of its own, beginning with `- `"),
}


@dataclass(frozen=True)
class _Target:
    """What one of pydantic's locations means in the file.

    ``section`` is the class that has (or lacks) the last key; ``variants`` are the classes it was chosen from by ``source``.
    """

    path: KeyPath
    section: type[Section]
    variants: tuple[type[Section], ...]

    @classmethod
    def of(cls, location: Iterable[str | int]) -> _Target:
        path: KeyPath = ()
        section: type[Section] = Settings
        variants = group = options = (section,)
        for part in location:
            if len(options) > 1:  # pydantic names the variant it chose; the file does not
                options = tuple(option for option in options if source_of(option) == part)
                continue
            path = (*path, part)
            if isinstance(part, str) and options:
                section, variants = options[0], group
                field = section.model_fields.get(part)
                group = options = sections(field.annotation) if field else ()
        return cls(path, section, variants)

    @property
    def key(self) -> str:
        """The last word of the path, for messages."""
        return next((str(key) for key in reversed(self.path) if isinstance(key, str)), "the file")


def _unknown_key(target: _Target) -> Finding:
    keys = list(target.section.model_fields)
    owners = [variant for variant in target.variants if target.key in variant.model_fields]
    similar = get_close_matches(target.key, keys, n=1)
    hint = f"keys here: {', '.join(keys)}"
    if owners:
        hint = f"{target.key} goes with source: {source_of(owners[0])}; {hint}"
    elif similar:
        hint = f"did you mean {similar[0]}?"
    section = dotted(target.path[:-1]) or "the file"
    return _error("unknown-key", target.path, f"{target.key} is not a key of {section}", hint)


def _not_allowed(path: KeyPath, value: Any, allowed: str) -> Finding:
    choices = allowed.replace("'", "")
    similar = get_close_matches(str(value), choices.replace(" or ", ", ").split(", "), n=1)
    hint = f"did you mean {similar[0]}? Allowed: {choices}" if similar else f"allowed: {choices}"
    return _error("not-allowed", path, f"{path[-1]} cannot be {_in_words(value)}", hint)


def _in_words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else repr(value)


def _error(code: str, path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(Level.ERROR, code, path, message, hint)


# ---- what can still be judged ------------------------------------------------------------------


S = TypeVar("S", bound=Section)


def _partial(section: type[S], data: Mapping[str, Any], path: KeyPath) -> S:
    """A section of which some values are wrong or missing, for rules that need only the others."""
    values = {}
    for name, field in section.model_fields.items():
        if name in data:
            values[name] = _value(field, data[name], (*path, name))
        elif field.is_required():
            values[name] = _stand_in(field, (*path, name))
    return section.model_construct(**values)


def _value(field: FieldInfo, value: Any, path: KeyPath) -> Any:
    """The value if it is right, else what stands for it."""
    options = sections(field.annotation)
    if len(options) > 1 and isinstance(value, dict):
        options = tuple(option for option in options if source_of(option) == value.get("source"))
    listed = get_origin(field.annotation) is tuple
    if options and not listed and isinstance(value, dict):
        return _partial(options[0], value, path)
    if options and listed and isinstance(value, list):
        items = (item if isinstance(item, dict) else {} for item in value)
        return tuple(_partial(options[0], item, (*path, index)) for index, item in enumerate(items))
    try:
        return TypeAdapter[Any](field.annotation).validate_python(value)
    except ValidationError:
        return _stand_in(field, path)


def _stand_in(field: FieldInfo, path: KeyPath) -> Any:
    """For text a Terraform reference, which every check lets pass; for a number one that AWS allows; else UNKNOWN."""
    if field.annotation is str:
        return f"${{{dotted(path)}}}"
    if field.annotation is int:
        return 1 if field.is_required() else field.default
    return UNKNOWN
