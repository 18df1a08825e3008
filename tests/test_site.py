"""The documentation site builds strictly, and every link of its pages leads to a file and to an anchor in it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from podwright.checkout import ROOT

BUILD = ROOT / "tools" / "build_docs.py"
LINK = re.compile(r'<(?:a|link|img|script)\b[^>]*?\b(?:href|src)="([^"]*)"')
ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    if not runpy.run_path(str(BUILD))["GENERATOR"].exists():
        pytest.skip("tools/setup.sh docs installs the generator")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, BUILD, folder], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no broken link" in done.stdout
    return folder


@pytest.mark.slow
def test_lists_are_lists(site: Path):
    """Each item of a list in a page is one in the site: its generator takes other lists than GitHub does."""
    wrong = {}
    for page in ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        prose = re.sub(
            r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        written = len(re.findall(r"^ *(?:-|\d+\.) ", prose, re.MULTILINE))
        name = "index.html" if page == "README.md" else page.replace(".md", ".html")
        shown = (site / name).read_text(encoding="utf-8").count("<li>")
        wrong |= {page: (written, shown)} if written != shown else {}
    assert wrong == {}


def test_pages_of_github_become_pages_of_the_generator():
    """An empty line comes before a list, what is within an item has four spaces, and tests' comments go."""
    page = ("Text:", "- one", "  more", "- two", "", "End.", "1. first", "   <!-- not run: a", "   reason -->")
    page += ("   ```console", "   $ x", "   ```", "   more", "2. next")
    wanted = ("Text:", "", "- one", "    more", "- two", "", "End.", "", "1. first", "")
    wanted += ("    ```console", "    $ x", "    ```", "", "    more", "", "2. next")
    assert runpy.run_path(str(BUILD))["for_generator"]("\n".join(page)).splitlines() == list(wanted)


@pytest.mark.slow
def test_no_link_is_broken(site: Path):
    """Each link within the site names a file that is there, and an anchor that the file has."""
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    anchors = {page: set(ANCHOR.findall(text)) for page, text in texts.items()}
    broken, count = [], 0
    for page, text in texts.items():
        if page.name == "404.html":  # its links are those of a server
            continue
        for link in LINK.findall(text):
            path, _, anchor = unquote(link.replace("&amp;", "&")).partition("#")
            if re.match(r"[a-z]+:|//", path):
                continue
            count += 1
            target = (page.parent / path).resolve() if path else page
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{page.relative_to(site)}: {link}")
    print(f"{count} links in {len(texts)} pages, {len(broken)} broken")
    assert count > len(texts)
    assert broken == []
