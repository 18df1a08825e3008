"""``podwright explain FILE -o architecture.svg``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from podwright.picture.parts import Picture, picture
from podwright.picture.svg import html, svg
from podwright.picture.text import in_lines, markdown
from podwright.settings import load

FORMS: Mapping[str, Callable[[Picture], str]] = {".svg": svg, ".html": html, ".md": markdown}


class DrawingError(Exception):
    """The picture cannot be made or written."""


def draw(file: Path, output: Path | None) -> str:
    """Draw what a settings file describes; gives what to print: the picture, or where it is.

    Raises:
        ConfigError: the file has errors.
        UnreadableFileError: the file cannot be read.
        DrawingError: the output has another end than .svg, .html or .md, or cannot be written.
    """
    if output and output.suffix not in FORMS:
        raise DrawingError(f"{output}: allowed are names that end with {', '.join(FORMS)}")
    drawn = picture(load(file))
    if output is None:
        return in_lines(drawn)
    temporary = output.with_name(f".{output.name}.new")
    try:
        temporary.write_text(FORMS[output.suffix](drawn), encoding="utf-8")
        temporary.replace(output)
    except OSError as error:
        raise DrawingError(f"cannot write {output}: {error.strerror}") from error
    return str(output)
