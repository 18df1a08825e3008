"""Read the settings file: its data, the position of every value, and what is wrong with its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podwright.check.findings import Finding, KeyPath, Level
from podwright.check.input_errors import UnreadableFileError
from podwright.check.secrets import MEANING, find, masked, stars
from podwright.errors import ArgumentError
from podwright_common.yaml_document import (
    MAX_DEPTH,
    Position,
    Scalar,
    YamlDocument,
    YamlFileError,
    lines_of,
    position_of,
)
from podwright_constructs.problems import dotted

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on.

# What each code means; `podwright explain CODE` prints it.
CODES = {
    "yaml-syntax": "The file is not YAML. The parser stopped at this position; the mistake is there or just before.",
    "yaml-feature": "A settings file has no tags or further documents: settings know types, a file is one cluster.",
    "yaml-key": "A key is a list or a mapping, or empty: write a word.",
    "yaml-text": "A text has a character that neither files nor programs accept, written with an escape such as \\0.",
    "yaml-depth": f"Nested more than {MAX_DEPTH} levels deep, or more values than a settings file needs.",
    "secret": MEANING,
    "duplicate-key": "The same key twice in one mapping: YAML readers keep only one of them, and not all the same one.",
}
_PASSWORD_LINE = re.compile(r"(?i)((?:password|secret_arn)[^:\n]*:\s)(.*)")

_ANCHOR = re.compile(r"&[\w-]+(?:\s|#.*)*")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*([ \t]+#[^\n\r\x85\u2028\u2029]*)?")


class Document(YamlDocument):
    """One settings file. Keys such as ``x-gpu`` hold what anchors name, as in files of Docker Compose."""

    allows_tags = False
    extension_prefix = "x-"

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read and parse the file.

        Raises:
            UnreadableFileError: there is no such file, it may not be read, it is too large, or it is not UTF-8.
        """
        try:
            return super().read(file)
        except YamlFileError as error:
            hint = "`podwright init` writes a first one" if error.is_missing else error.hint
            raise UnreadableFileError(str(error), hint) from error

    @classmethod
    def parse(cls, text: str, *, file: Path = Path("cluster.yaml")) -> Self:
        """Parse the text of a file; its errors are in ``findings``."""
        return super().parse(text, file=file)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The mistakes of the text."""
        return tuple(
            _finding(problem.code, problem.path, problem.position, problem.message, problem.hint)
            for problem in self.problems
        )

    def require_unshared(self, path: KeyPath) -> None:
        """Refuse to edit a value that others have too.

        Raises:
            ArgumentError: an alias or a merge key gives the value to other paths too, which the edit would change.
        """
        if self.is_shared(path):
            key = dotted(path)
            place = self.place(path)
            raise ArgumentError(f"{place}: {key} shares this value with others, by an alias", f"write {key} by itself")

    def text_with(self, path: KeyPath, scalar: str) -> str:
        """Return the text with another scalar as the value at a path; every other character stays.

        Raises:
            ArgumentError: as ``require_unshared`` and ``verified``.
        """
        self.require_unshared(path)
        start, end = self.offsets(path)
        written = self.text[start:end].rstrip()  # The lines after a block scalar belong to it.
        anchor = match[0] if (match := _ANCHOR.match(written)) else ""
        comment = (match[1] or "") if (match := _BLOCK_HEADER.match(written, len(anchor))) else ""
        before = self.text[:start] + anchor
        space = "" if before.endswith((" ", "\t", *"[{\n\r\x85\u2028\u2029")) else " "
        text = f"{before}{space}{scalar}{comment}{self.text[start + len(written) :]}"
        return self.verified(text, path, scalar)

    def value(self, path: KeyPath) -> Any:
        """Return the value at a path of the file."""
        value = self.data
        for key in path:
            value = value[key]
        return value

    def verified(self, text: str, path: KeyPath, scalar: str) -> str:
        """Return the text after an edit, if the value at the path is the scalar, and every other one as before.

        Raises:
            ArgumentError: other values would change, or the file would be wrong.
        """
        edited = self.parse(text, file=self.file)
        is_sound = edited.parsed and not edited.problems and edited.has(path)
        is_new = is_sound and edited.value(path) == self.parse(scalar).data
        if not is_new or _without(edited.data, path) != _without(self.data, path):
            place = self.place(path)
            raise ArgumentError(f"{place}: podwright cannot edit {dotted(path)} as it is written", "edit it by hand")
        return text

    def secrets(self) -> Iterator[Finding]:
        """Report each secret of the file, in values, keys and comments."""
        hint = "delete it here and revoke it, because others may have read it"
        message = "this is {}, and a settings file must hold no secrets"
        for secret in find(self.text):
            path = next((item.path for item in self.scalars() if item.start <= secret.start < item.end), ())
            position = position_of(self.text, secret.start, secret.end)
            yield _finding("secret", path, position, message.format(secret.kind), hint)
        for scalar, _, kind in self._escaped_secrets:
            position = position_of(self.text, scalar.start, scalar.end)
            yield _finding("secret", scalar.path, position, message.format(kind), hint)

    def without_secrets(self, text: str) -> str:
        """Return a text about the file with its secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, stars(secret))
        for value in {scalar.text for scalar in self._perhaps_secrets}:
            text = text.replace(f"got {value}", f"got {'*' * len(value)}").replace(repr(value), repr("*" * len(value)))
        return masked(text)

    @cached_property
    def shown(self) -> str:
        """The file's text as messages quote it: without its secrets, however they are written."""
        text = self.text
        for scalar in (*(scalar for scalar, _, _ in self._escaped_secrets), *self._perhaps_secrets):
            text = text[: scalar.start] + _starred(text[scalar.start : scalar.end]) + text[scalar.end :]
        if not self._root:  # Where values begin and end is not certain, so all that follows is a password.
            text = _PASSWORD_LINE.sub(lambda match: match[1] + _starred(match[2]), text)
        return masked(text)

    @cached_property
    def _perhaps_secrets(self) -> tuple[Scalar, ...]:
        """Values of passwords, which is no key, and of keys that need a secret's ARN and have something else."""
        keyed = ((scalar, str(scalar.path[-1]).lower()) for scalar in self.scalars() if scalar.path)
        return tuple(
            scalar
            for scalar, key in keyed
            if "password" in key or (key.endswith("secret_arn") and not scalar.text.startswith("arn:"))
        )

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        plain = (self.text[secret.start : secret.end] for secret in find(self.text))
        return (*plain, *(secret for _, secret, _ in self._escaped_secrets))

    @cached_property
    def _escaped_secrets(self) -> tuple[tuple[Scalar, str, str], ...]:
        """Return scalar, secret and kind of secrets that the text writes with YAML escapes or over several lines.

        A secret may be a value or a key.
        """
        written = "".join(self.text.split())
        return tuple(
            (scalar, scalar.text[secret.start : secret.end], secret.kind)
            for scalar in {scalar[2:]: scalar for scalar in (*self.scalars(), *self.keys())}.values()
            for secret in find(scalar.text)
            if "".join(scalar.text[secret.start : secret.end].split()) not in written
        )


def _without(data: Any, path: KeyPath) -> Any:
    """Return data with nothing at a path."""
    if not path:
        return None
    key, *below = path
    if isinstance(data, list):
        return [_without(item, tuple(below)) if index == key else item for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    inner = {key: _without(data[key], tuple(below))} if below and key in data else {}
    return {name: item for name, item in data.items() if name != key} | inner


def _starred(text: str) -> str:
    """Return stars for a text; its lines and columns stay."""
    lines = zip(lines_of(text), lines_of(text, keepends=True), strict=True)
    return "".join("*" * len(line) + ended_line[len(line) :] for line, ended_line in lines)


def _finding(code: str, path: KeyPath, position: Position, message: str, hint: str) -> Finding:
    return Finding(
        Level.ERROR, code, path, message, hint, line=position.line, column=position.column, width=position.width
    )
