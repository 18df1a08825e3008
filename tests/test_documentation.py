"""Documentation names files and commands that exist, in plain words."""

import re
import runpy
import subprocess
import sys

import pytest

from podwright.checkout import ROOT
from podwright.operations.account.failures import KNOWN

GENERATED = {"docs/constructs.md"}
PAGES = sorted({str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))} - GENERATED)
RUNTIME = {  # files of users, of programs and of examples
    *(
        "cdk.tf.json",
        "podwright_parameters.json",
        "provisioning_parameters.json",
        "node.json",
        "users.json",
        "architecture.svg",
        "rows.csv",
        "predictions.csv",
    ),
    *(
        "run.yaml",
        "job.yaml",
        "job.json",
        "slurm.conf",
        "config.json",
        "submission.json",
        "cluster.move.json",
        "timezone.py",
        "node_modules/",
        "src/",
        "site/",
        "dist/",
        "run.schema.json",
        "lifecycle/",
        "bundle/",
        "logs/",
    ),
}
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:\.(?:py|md|yaml|csv|sh|toml|json|svg|conf)|/)")
WIDTH = 100


def tracked() -> list[str]:
    """Return the paths of all files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    """Every file or folder that a page names is in the repository; links lead to files, as the site needs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    missing = [target for target in linked if not (ROOT / page).parent.joinpath(target).is_file()]
    files = [f"/{path}" for path in tracked()]
    quoted = [word for words in re.findall(r"`([^`\n]+)`", text) for word in words.split()]
    for word in (word for word in quoted if FILE.fullmatch(word)):
        if re.search(r"\b[A-Z]{3,}\b", word) or word in RUNTIME or word.startswith((".", "runs/", "texts/")):
            continue
        if not any(path.endswith(f"/{word}") or f"/{word.rstrip('/')}/" in path for path in files):
            missing.append(word)
    assert missing == []


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as sites make them."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings(page):
    """Each link to a part of a page names a heading there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    broken = []
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
        linked = (ROOT / page).parent / target if target else ROOT / page
        if anchor not in anchors(str(linked.resolve().relative_to(ROOT))):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_the_site_has_every_page():
    """The navigation of the documentation site has every page of docs/ and every page in it exists."""
    named = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page for page in PAGES if page.startswith("docs/")} | GENERATED
    assert {name for name in named if not name.startswith("reference/")} >= pages
    assert all((ROOT / name).exists() for name in named if not name.startswith("reference/"))


def test_the_recording_is_the_tutorials():
    """The recording shows what the tutorial's commands print now."""
    drawn = subprocess.run([sys.executable, ROOT / "tools" / "draw_recording.py", "--check"], check=False)
    assert drawn.returncode == 0, "python tools/draw_recording.py"


def test_troubleshooting_has_each_known_failure():
    """Each failure of a cluster whose cause podwright knows has an entry on the page."""
    entries = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split("\n- **")[1:]
    heads = [" ".join(entry.partition("→")[0].split()) for entry in entries]
    absent = [known.pattern for known in KNOWN if not any(re.search(known.pattern, it, re.IGNORECASE) for it in heads)]
    assert absent == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    """Every ``make TARGET`` that a page names is in the Makefile."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8")))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_narrow(page):
    """No line of a page is longer than 100 characters."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []


def test_the_python_api_has_docstrings():
    """Each name of the site's Python API exists, and its docstring is on the page."""
    site = runpy.run_path(str(ROOT / "tools" / "build_docs.py"))
    page = "\n".join(site["_python_api"]())
    for module, names in site["API"].items():
        assert f"## {module}\n" in page
        assert all(f"```python\n{name}(" in page for name in names)
    assert "```\n\n\n" not in page, "a name without a docstring"
