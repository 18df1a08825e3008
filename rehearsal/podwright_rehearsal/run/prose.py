"""Real English prose for the rehearsal's training: the manual of PostgreSQL, as Debian and Ubuntu ship it.

2 MB to download, more than 4 MB of text by one hand, under a permissive licence, in every release.
"""

from __future__ import annotations

import tempfile
from html.parser import HTMLParser
from pathlib import Path

from podwright.errors import PodwrightError
from podwright_rehearsal.hosts import debian
from podwright_rehearsal.hosts.debian import DebianError

PACKAGE = "postgresql-doc"  # PostgreSQL's version follows, another one in each release.
LEFT_OUT = ("release", "biblio", "bookindex", "acknowledgements", "legalnotice")  # lists of names and numbers


class ProseError(PodwrightError):
    """The prose is not available; the message has the missing package and how to get it."""


def fetch_prose(directory: Path) -> Path:
    """Return a folder below ``directory`` with text files of prose. No package is installed on the machine.

    apt downloads the package and checks its signature chain. The folder appears complete, and is used again.

    Raises:
        ProseError: No apt, no network, no such package; with apt's own words.
    """
    target = directory / PACKAGE
    if target.is_dir():
        return target
    if missing := debian.missing_programs():
        raise ProseError(
            f"{', '.join(missing)} not found: the rehearsal's text comes from Debian's package {PACKAGE}; "
            f"on another system, put text files into {target}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".{PACKAGE}.") as temporary:
        work = Path(temporary)
        try:
            debian.unpack([_newest_package()], work / "unpacked")
        except DebianError as error:
            raise ProseError(str(error)) from error
        _extract(work / "unpacked", work / "text").rename(target)
    return target


def _newest_package() -> str:
    """Return the name of the newest version's package."""
    packages = debian.search(f"^{PACKAGE}-[0-9]+$")
    if not packages:
        raise ProseError(f"apt knows no package {PACKAGE}-<version>: run `apt-get update` as root")
    return max(packages, key=lambda name: int(name.rsplit("-", 1)[1]))


def _extract(unpacked: Path, folder: Path) -> Path:
    """Turn the manual's pages into text files."""
    folder.mkdir()
    pages = [page for page in unpacked.rglob("html/*.html") if not page.stem.startswith(LEFT_OUT)]
    if not pages:
        raise ProseError(f"the package {PACKAGE} of this release holds no HTML pages")
    for page in pages:
        (folder / f"{page.stem}.txt").write_text(page_to_text(page.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def page_to_text(html: str) -> str:
    """Return headings and paragraphs of a page of the manual, separated by blank lines; no code, tables, navigation."""
    page = _ManualPage()
    page.feed(html)
    page.close()
    return page.text()


class _ManualPage(HTMLParser):
    """Collect headings and paragraphs."""

    PROSE = frozenset(("p", "li", "dd", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6"))
    SKIPPED = frozenset(("head", "script", "style", "pre", "table", "nav", "header", "footer"))

    def __init__(self) -> None:
        super().__init__()
        self._paragraphs: list[str] = []
        self._current: list[str] = []
        self._skipping: list[str] = []

    def text(self) -> str:
        """Return all paragraphs so far."""
        return "\n\n".join(self._paragraphs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in self.SKIPPED:
            self._skipping.append(tag)
        if tag in self.PROSE:
            self._finish_paragraph()

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipping:
            del self._skipping[self._skipping.index(tag) :]  # Elements left open inside it end with it.
        if tag in self.PROSE:
            self._finish_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._current.append(data)

    def close(self) -> None:
        super().close()
        self._finish_paragraph()

    def _finish_paragraph(self) -> None:
        paragraph = " ".join("".join(self._current).split())
        self._current = []
        if paragraph:
            self._paragraphs.append(paragraph)
