"""Extract the prose of files: text as it is, HTML, PDF and reStructuredText by the libraries of the field."""

from __future__ import annotations

import codecs
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

from podwright_training.errors import UserError

EXTRA = "pip install 'podwright-training[documents]'"
ROLE = re.compile(r":([\w+.-]+(?::[\w+.-]+)*):`")
TARGET = re.compile(r"\s*<[^<>]*>$")  # The target of a role's link follows its text.

LINE_END = re.compile(r"\r\n?|\f")
BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)*\n")
NARROWEST_TEXT, WIDEST_TEXT = 50, 100  # characters of the lines into which editors cut paragraphs
LONGEST_WORD = 40  # characters; Chinese has no spaces, and its lines are no words.
MARKED_LINE = re.compile(r"^(?:\s|[-*+•|>#—] ?|\d+[.)]\s|```)", re.MULTILINE)  # indented, of a list, table or quotation


class UnreadableError(ValueError):
    """A file has no text that can be read; the message says why."""


class Reader(NamedTuple):
    """A function that makes prose of a file, paragraphs divided by blank lines, and the library it needs."""

    read: Callable[[bytes], str]
    package: str = ""  # name on PyPI
    module: str = ""
    is_extracted: bool = False  # Lines of a paragraph follow from the layout, and page numbers may be paragraphs.


def text_to_prose(content: bytes) -> str:
    """Return a text as it is, without the mark that some editors begin it with (BOM): UTF-8, or what the mark says."""
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableError(
            "not UTF-8" if encoding == "utf-8-sig" else "not UTF-16, as its first bytes say"
        ) from error
    if "\0" in text:
        raise UnreadableError("has NUL bytes, as binary files and UTF-16 without a mark do")
    return text


def html_to_prose(content: bytes) -> str:
    """Return the main text of a page: no navigation, code, tables or comments; "" if there is none."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # an empty page is no error
    text = trafilatura.extract(content, include_comments=False, include_tables=False, favor_recall=True)
    return "\n\n".join((text or "").splitlines())


def pdf_to_prose(content: bytes) -> str:
    """Return the paragraphs that the layout of the pages shows."""
    from pdfminer.high_level import extract_text

    logging.getLogger("pdfminer").setLevel(logging.CRITICAL)
    try:
        return extract_text(io.BytesIO(content)).replace("\f", "\n\n")
    except Exception as error:  # a damaged file raises any exception
        raise UnreadableError(f"no readable PDF ({type(error).__name__})") from error


def rst_to_prose(content: bytes) -> str:
    """Return headings and paragraphs: no code, tables, comments, or directives that docutils does not know."""
    from docutils import nodes
    from docutils.core import publish_doctree
    from docutils.parsers.rst import roles

    text = text_to_prose(content)
    for name in set(ROLE.findall(text)):
        if name not in roles._role_registry:  # noqa: SLF001 -- there is no other way to ask
            roles.register_local_role(name, _role)  # docutils does not know Sphinx's roles.
    settings = {
        "_disable_config": True, "file_insertion_enabled": False, "raw_enabled": False,
        "report_level": 5, "halt_level": 5,
    }  # fmt: skip
    document = publish_doctree(text, settings_overrides=settings)
    excluded_nodes = (
        nodes.literal_block,
        nodes.comment,
        nodes.table,
        nodes.system_message,
        nodes.substitution_definition,
    )
    for node in list(document.findall(lambda node: isinstance(node, excluded_nodes))):
        if node.parent is not None:
            node.parent.remove(node)
    prose_nodes = document.findall(lambda node: isinstance(node, (nodes.title, nodes.subtitle, nodes.paragraph)))
    return "\n\n".join(node.astext() for node in prose_nodes)


def _role(_name: str, rawtext: str, text: str, *_: object, **__: object) -> tuple[list[object], list[object]]:
    from docutils import nodes

    return [nodes.inline(rawtext, TARGET.sub("", text))], []


READERS = {
    ".txt": Reader(text_to_prose),
    ".md": Reader(text_to_prose),
    ".html": Reader(html_to_prose, "trafilatura", "trafilatura", is_extracted=True),
    ".htm": Reader(html_to_prose, "trafilatura", "trafilatura", is_extracted=True),
    ".pdf": Reader(pdf_to_prose, "pdfminer.six", "pdfminer", is_extracted=True),
    ".rst": Reader(rst_to_prose, "docutils", "docutils", is_extracted=True),
}


def paragraphs_of(prose: str, *, is_extracted: bool) -> Iterator[str]:
    """Yield the paragraphs of a text; their lines stay where they mean something, as in stanzas, code and lists.

    Args:
        prose: paragraphs divided by blank lines.
        is_extracted: whether a layout divided all lines.
    """
    for paragraph in BLANK_LINES.split(LINE_END.sub("\n", prose)):
        lines = [line.rstrip() for line in paragraph.split("\n") if line.strip()]
        if lines and (is_extracted or _is_wrapped(lines)):
            yield " ".join(" ".join(lines).split())
        elif lines:
            yield "\n".join(lines)


def _is_wrapped(lines: list[str]) -> bool:
    """Return whether an editor cut a paragraph into lines: none of them had room for the next line's first word."""
    width = max(map(len, lines))
    if len(lines) == 1 or not NARROWEST_TEXT <= width <= WIDEST_TEXT or MARKED_LINE.search("\n".join(lines[1:])):
        return False
    first_words = [line.split(maxsplit=1)[0] for line in lines[1:]]
    return max(map(len, first_words)) <= LONGEST_WORD and all(
        len(line) + 1 + len(word) > width for line, word in zip(lines, first_words, strict=False)
    )


def check_packages(suffixes: Iterable[str]) -> None:
    """Check that files of these suffixes can be read here.

    Raises:
        UserError: With one line for each package that is missing.
    """
    if missing := sorted(set(_missing(suffixes))):
        raise UserError("\n".join(missing))


def _missing(suffixes: Iterable[str]) -> Iterator[str]:
    for suffix in suffixes:
        reader = READERS[suffix]
        if reader.module and find_spec(reader.module) is None:
            yield f"{suffix} files need {reader.package}, which is not installed: {EXTRA}, or leave them out"
