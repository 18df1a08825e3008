"""Report wrong keys and types: convert pydantic's errors to findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from podwright.check.findings import Finding, KeyPath, Level
from podwright.settings.renamed import RENAMED
from podwright.settings.root import Settings
from podwright.settings.section import Section, sections, source_of
from podwright_common.similar_names import did_you_mean, question
from podwright_constructs.checks import with_policy_variables
from podwright_constructs.checks.words import one_of
from podwright_constructs.problems import dotted

# What each code means; `podwright explain CODE` prints it.
CODES = {
    "unknown-key": "The section has no such key. A key that were ignored would be a surprise later.",
    "missing-key": "A required key is missing.",
    "not-allowed": "The value is not one of the allowed ones.",
    "wrong-type": "The value has the wrong type: a mapping, list, text or number where the key needs another.",
    "terraform-template": "Terraform would evaluate ${…} and %{…} on deployment; podwright uses text as it is written.",
}

_TEMPLATE_STARTS = ("${", "%{", "TfToken[")
STATEMENTS: KeyPath = ("role", "statements")


def findings(error: ValidationError) -> list[Finding]:
    """Convert pydantic's errors; report a key that is missing because it is misspelt only once."""
    findings = [_finding(mistake) for mistake in error.errors(include_url=False)]
    meant = {(finding.path[:-1], finding.hint) for finding in findings if finding.code == "unknown-key"}
    return [
        finding
        for finding in findings
        if finding.code != "missing-key" or (finding.path[:-1], question([str(finding.path[-1])])) not in meant
    ]


def terraform_templates(data: Any, path: KeyPath = ()) -> Iterator[Finding]:
    """Report keys and values that Terraform would evaluate."""
    if isinstance(data, str) and any(start in _in_terraform(data, path) for start in _TEMPLATE_STARTS):
        yield _error("terraform-template", path, f"Terraform would evaluate {data!r}", _template_hint(path))
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from terraform_templates(key, (*path, key))
            yield from terraform_templates(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from terraform_templates(value, (*path, index))


def _in_terraform(text: str, path: KeyPath) -> str:
    """Return a text as Terraform gets it: a statement's policy variables are IAM's."""
    return with_policy_variables(text) if path[:2] == STATEMENTS else text


def _template_hint(path: KeyPath) -> str:
    if path[:2] == STATEMENTS:
        return "write the text itself; IAM's policy variables have a colon, as in ${aws:PrincipalTag/team}"
    return "write the text itself"


def _finding(mistake: Mapping[str, Any]) -> Finding:
    """Convert one of pydantic's errors: https://docs.pydantic.dev/latest/errors/validation_errors/."""
    target = _Target.of(mistake["loc"])
    kind, value, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(target)
    if kind == "missing":
        return _missing(target.path, target.section.model_fields[target.key].description or "")
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        choices = [source_of(variant) for variant in sections(target.section.model_fields[target.key].annotation)]
        path = (*target.path, "source")
        if "tag" in context:
            return _not_allowed(path, context["tag"], choices)
        return _missing(path, f"allowed: {one_of(choices)}")
    if kind == "literal_error":
        return _not_allowed(target.path, value, context["expected"].replace("'", "").replace(" or ", ", ").split(", "))
    expected, hint = next((words for start, words in _TYPES.items() if kind.startswith(start)), (mistake["msg"], ""))
    if value is None:
        hint = "give it a value, or delete the line"
    elif kind.startswith("tuple"):
        hint += _keys_of_items(target)
    return _error("wrong-type", target.path, f"{target.key}: expected {expected}, found {_in_words(value)}", hint)


def _keys_of_items(target: _Target) -> str:
    """Return the end of the hint for a list of sections: the keys that each item must have."""
    field = target.section.model_fields.get(target.key)
    items = sections(field.annotation) if field else ()
    required = [key for item in items[:1] for key, value in item.model_fields.items() if value.is_required()]
    return f", with the keys {', '.join(required)}" if required else ""


# By the beginning of pydantic's error type: what is wanted, and how to write it.
_TYPES = {
    "bool": ("true or false", "write true or false"),
    "int": ("a whole number", "write digits only, such as 1200"),
    "string": ("one value", "write it behind the colon, in quotes if it holds `: ` or ` #`"),
    "dict": ("a mapping", "write `key: value` lines below it, indented"),
    "model": ("a mapping", "write `key: value` lines below it, indented"),
    "tuple": ("a list", "write each item in a line of its own, beginning with `- `"),
}


@dataclass(frozen=True)
class _Target:
    """The path and section of one of pydantic's locations.

    ``section`` is the class that has (or lacks) the last key; ``source`` chose it from ``variants``.
    """

    path: KeyPath
    section: type[Section]
    variants: tuple[type[Section], ...]

    @classmethod
    def of(cls, location: Iterable[str | int]) -> _Target:
        path: KeyPath = ()
        section: type[Section] = Settings
        variants: tuple[type[Section], ...] = (section,)
        group = options = variants
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
        """Return the last word of the path, for messages."""
        return next((str(key) for key in reversed(self.path) if isinstance(key, str)), "the file")


def _unknown_key(target: _Target) -> Finding:
    keys = list(target.section.model_fields)
    name = RENAMED.get(target.path, target.key)
    owners = [variant for variant in target.variants if name in variant.model_fields]
    hint = f"keys here: {', '.join(keys)}"
    if name in keys:
        hint = f"renamed to {name}"
    elif owners:
        hint = f"{name} belongs to source: {source_of(owners[0])}; {hint}"
    elif "password" in target.key.lower() and (arns := [key for key in keys if key.endswith("secret_arn")]):
        hint = f"store the password in Secrets Manager, and write the secret's ARN as {arns[0]}"
    elif suggestion := did_you_mean(target.key, keys):
        hint = suggestion
    section = dotted(target.path[:-1]) or "the file"
    return _error("unknown-key", target.path, f"{target.key} is not a key of {section}", hint)


def _missing(path: KeyPath, hint: str) -> Finding:
    return _error("missing-key", path, f"{dotted(path)} is missing", hint)


def _not_allowed(path: KeyPath, value: Any, choices: Sequence[str]) -> Finding:
    hint = did_you_mean(str(value), choices)
    start = max(index for index, key in enumerate(path) if isinstance(key, str))
    return _error("not-allowed", path, f"{dotted(path[start:])}: got {_in_words(value)}, need {one_of(choices)}", hint)


def _in_words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return str(value) or "an empty text"


def _error(code: str, path: KeyPath, message: str, hint: str) -> Finding:
    return Finding(Level.ERROR, code, path, message, hint)
