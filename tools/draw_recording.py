"""Write ``docs/recording.svg``: commands of the tutorial with what they printed, as a terminal that plays once.

``tests/rehearsal/test_tutorial.py --update`` wrote those outputs from a real run; nothing here is typed by hand.

python tools/draw_recording.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "recording.svg"
SHOWN = {  # commands by their first words, and the most lines of each
    "podwright init": 4,
    "podwright check": 1,
    "podwright deploy": 2,
    "podwright status --wait": 6,
    "podwright submit": 1,
    "podwright logs first": 3,
    "podwright nodes list": 4,
    "podwright fetch first --export": 1,
    "podwright destroy": 3,
}
COLUMNS, LINE_PX, CHARACTER_PX, MARGIN_PX, SECONDS_A_COMMAND = 80, 17, 7.8, 14, 1.6
STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;white-space:pre}
.c{fill:#7ec8ff}rect{fill:#14181f}g{opacity:.6;animation:show .2s forwards}@keyframes show{to{opacity:1}}
@media(prefers-reduced-motion:reduce){g{animation:none;opacity:1}}@media print{g{animation:none;opacity:1}}"""


def main() -> int:
    """Write the picture, or compare it with what would be written."""
    parser = argparse.ArgumentParser(description="Draw the recording of the tutorial.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the picture differs")
    picture = draw(PAGE.read_text(encoding="utf-8"))
    if parser.parse_args().check:
        return 0 if PICTURE.read_text(encoding="utf-8") == picture else 1
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


def draw(page: str) -> str:
    """Return the picture of a page's commands."""
    parts, row = [], 0
    for number, block in enumerate(_blocks(page)):
        lines = []
        for line in block:
            kind = ' class="c"' if line == block[0] else ""
            for piece in _pieces(line):
                y = MARGIN_PX + (row + 1) * LINE_PX
                lines.append(f'<text x="{MARGIN_PX}" y="{y}"{kind}>{escape(piece)}</text>')
                row += 1
        parts.append(f'<g style="animation-delay:{number * SECONDS_A_COMMAND:g}s">{"".join(lines)}</g>')
    width, height = round(2 * MARGIN_PX + COLUMNS * CHARACTER_PX), 2 * MARGIN_PX + (row + 1) * LINE_PX
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
    title = "<title>podwright in a terminal, from init to destroy</title>"
    body = "\n".join(parts)
    return f'{head}{title}<style>{STYLE}</style><rect width="100%" height="100%" rx="8"/>\n{body}\n</svg>\n'


def _blocks(page: str) -> list[list[str]]:
    """Return the chosen commands in the page's order, each with its first lines of output."""
    blocks: list[list[str]] = []
    wanted = dict(SHOWN)
    room = 0
    for line in page.splitlines():
        command = line.removeprefix("$ ")
        if line.startswith(("$ ", "```")):
            chosen = [start for start in wanted if line.startswith("$ ") and command.startswith(start)]
            room = wanted.pop(chosen[0]) if chosen else 0
            if chosen:
                blocks.append([line])
        elif room:
            blocks[-1].append(line)
            room -= 1
    return blocks


def _pieces(line: str) -> list[str]:
    return wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
