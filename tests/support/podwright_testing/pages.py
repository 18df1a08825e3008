"""The pages' blocks of code, and what the comment before a block of commands says of them.

``<!-- run: alone -->`` in a folder with a cluster's and a run's settings; ``<!-- run: apart -->`` each line in an empty
folder; ``<!-- run: cluster -->`` on the tutorial's rehearsed cluster; ``<!-- run by: TEST -->`` in that file, line by
line; ``<!-- not run: REASON -->``. A run may end with ``, exits with N``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from podwright.checkout import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
COMMANDS = ("console", "sh", "bash")  # languages of blocks that somebody types
_BLOCK = re.compile(
    r"(?:<!-- (?P<way>run|run by|not run): (?P<rest>[^>]*?)\s+-->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with what the comment before it says: the way, and how or why not."""

    page: str
    language: str
    text: str
    way: str
    rest: str

    @property
    def where(self) -> str:
        """The place where a test runs it: alone, apart or cluster."""
        return self.rest.partition(",")[0] if self.way == "run" else ""

    @property
    def status(self) -> int:
        """The exit status of its last line."""
        found = re.search(r", exits with (\d+)$", self.rest)
        return int(found[1]) if found else 0

    def commands(self) -> list[str]:
        """Return the command lines that are typed, continued lines joined."""
        if self.language == "console":
            joined = re.sub(r"\\\n\s*", " ", self.text)
            return [line.strip()[2:] for line in joined.splitlines() if line.strip().startswith("$ ")]
        return self.text.splitlines() if self.language == "sh" else []


def blocks() -> Iterator[Block]:
    """Yield the fenced blocks of all pages."""
    for page in PAGES:
        for match in _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
            text = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
            yield Block(page, match["language"], text, match["way"] or "", " ".join((match["rest"] or "").split()))


def to_run(where: str) -> list[Block]:
    """Return the blocks that a test runs there."""
    return [block for block in blocks() if block.where == where]


def without_comment(line: str) -> str:
    """Return a command line without the comment at its end."""
    return re.sub(r"\s+#.*$", "", line)
