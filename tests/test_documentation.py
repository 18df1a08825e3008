"""Documentation names files and commands that exist, in plain words."""

import re
import subprocess

import pytest

from podwright.checkout import ROOT

GENERATED = {"docs/constructs.md"}
PAGES = sorted({str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))} - GENERATED)
RUNTIME = {  # files of users, of programs and of examples
    *("cdk.tf.json", "provisioning_parameters.json", "node.json", "architecture.svg", "rows.csv", "predictions.csv"),
    *(
        "run.yaml",
        "slurm.conf",
        "config.json",
        "submission.json",
        "cluster.move.json",
        "timezone.py",
        "node_modules/",
        "src/",
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
    """Every file or folder that a page names is in the repository, by its path or the end of it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    missing = [target for target in linked if not (ROOT / page).parent.joinpath(target).exists()]
    files = [f"/{path}" for path in tracked()]
    quoted = [word for words in re.findall(r"`([^`\n]+)`", text) for word in words.split()]
    for word in (word for word in quoted if FILE.fullmatch(word)):
        if re.search(r"\b[A-Z]{3,}\b", word) or word in RUNTIME or word.startswith((".", "runs/", "texts/")):
            continue
        if not any(path.endswith(f"/{word}") or f"/{word.rstrip('/')}/" in path for path in files):
            missing.append(word)
    assert missing == []


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
