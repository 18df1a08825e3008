"""Photograph what a newcomer sees: README's pictures, the site, drawings, the roofline, terminals, a run's report.

python tools/screens.py FOLDER [--report RUN/report/index.html]

Each page is a PNG in light and in dark, 1280 and 400 pixels wide. `make docs` installs the generator of the site, and
`tools/setup.sh rehearsal browser` the browser. Look at every picture after a change of what it shows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from podwright import cli

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-prefers-reduced-motion")
LOOKS = {  # the end of a picture's name: the browser's flags; 0 is dark
    f"{scheme}-{width}": [f"--blink-settings=preferredColorScheme={number}", f"--window-size={width},{height}"]
    for number, scheme in enumerate(("dark", "light"))
    for width, height in ((1280, 1600), (400, 2400))
}
SITE_PAGES = ("index.html", "docs/tutorial.html", "docs/first_rehearsal.html", "docs/deploy.html", "docs/glossary.html")
PICTURES = ("docs/architecture.svg", "docs/recording.svg")
PLAN = ("plan", "--model", "llama3_1_8b", "--instance", "ml.p5.48xlarge", "--nodes", "4", "--tokens", "100B")
DOES_NOT_FIT = ("plan", "--model", "llama3_1_405b", "--instance", "ml.g5.12xlarge", "--nodes", "1")
PICTURE = """<!doctype html><meta name="color-scheme" content="light dark"><img src="{address}" style="max-width:100%">
"""
TERMINAL = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<pre style="font:14px monospace;width:80ch;border-right:1px dotted">{text}</pre>
"""


def main() -> int:
    """Write the pages that are no files yet, and photograph all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the pictures")
    parser.add_argument("--report", type=Path, help="also this report of a run")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"no browser on PATH: {', '.join(BROWSERS)}; `make setup-test` installs one", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, page in pages(Path(temporary), options.report):
            for end, look in LOOKS.items():
                picture = options.folder / f"{name}-{end}.png"
                profile = f"--user-data-dir={temporary}/browser-{end}"  # the site remembers light or dark
                command = [browser, *FLAGS, profile, *look, f"--screenshot={picture}", page.as_uri()]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
                print(picture, flush=True)
    return 0


def pages(folder: Path, report: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the pages with their names."""
    for path in (ROOT / name for name in PICTURES):
        page = folder / f"readme-{path.stem}.html"
        page.write_text(PICTURE.format(address=path.as_uri()), encoding="utf-8")
        yield page.stem, page
    for settings in (ROOT / "cluster.yaml", *sorted((ROOT / "examples").glob("*/cluster.yaml"))):
        name = f"drawing-{settings.parent.name}" if settings.parent != ROOT else "drawing"
        drawing = folder / f"{name}.html"
        _podwright("explain", str(settings), "-o", str(drawing))
        yield name, drawing
    _podwright(*PLAN, "--svg", str(folder / "roofline.svg"))
    yield "roofline", folder / "roofline.svg"
    helps = [("--help",), *((command.name, "--help") for command in cli.all_commands())]
    shown: dict[str, Sequence[Sequence[str]]] = {"plan": (PLAN, DOES_NOT_FIT), "help": helps}
    for name, commands in shown.items():
        text = "\n".join(f"$ podwright {' '.join(words)}\n{_podwright(*words)}" for words in commands)
        terminal = folder / f"terminal-{name}.html"
        terminal.write_text(TERMINAL.format(text=escape(text)), encoding="utf-8")
        yield terminal.stem, terminal
    subprocess.run([sys.executable, ROOT / "tools" / "build_docs.py", folder / "site"], check=True)
    yield from ((f"site-{path.stem}", path) for path in (folder / "site" / name for name in SITE_PAGES))
    if report:
        yield "report", report.resolve()


def _podwright(*words: str) -> str:
    """Return what a command prints on 80 columns; a plan that does not fit has another status."""
    environment = {**os.environ, "COLUMNS": "80"}
    command = [sys.executable, "-m", "podwright", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    sys.exit(main())
