"""Release a version: six wheels, built twice and alike, tried away from the checkout, with checksums and bills; a tag.

python tools/release.py [FOLDER] [--no-rehearsal] [--no-tag]      default: dist/. It pushes and uploads nothing.

The version is that of pyproject.toml. When all has passed, what CHANGELOG.md has below `Unreleased`, and its section
`X.Y.Z (not released yet)`, become that version's section with a date, below an empty `Unreleased`. That is committed as
"Release X.Y.Z" and tagged vX.Y.Z, both signed off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import application
import metadata
import sbom
from try_wheels import try_wheels

from podwright_stacks.wheel import build_wheel

ROOT = metadata.ROOT
REPORT, SUMS = "rehearsal.html", "SHA256SUMS"
PROJECTS = (".", *metadata.DISTRIBUTIONS)
SEMANTIC = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")  # https://semver.org
UNRELEASED, PENDING, ALSO = "## Unreleased\n", "## {version} (not released yet)\n", "### Also"


def main() -> int:
    """Build into the folder, then date and tag; or say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dist"), help="replaced. Default: dist")
    parser.add_argument("--no-rehearsal", action="store_true", help="try the wheels without a rehearsal")
    parser.add_argument("--no-tag", action="store_true", help="change no changelog, commit and tag nothing")
    options = parser.parse_args()
    target, tag = options.folder.resolve(), f"v{metadata.version()}"
    problems = list(_not_ready(tag))
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        _build(target, Path(temporary), rehearse=not options.no_rehearsal)
    print((target / SUMS).read_text(encoding="utf-8"), end="")
    if not options.no_tag:
        _tag(tag)
        print(f"next: git push --follow-tags, and upload {target}")
    if metadata.PLACEHOLDER in metadata.address():
        print(f"before that: {metadata.address()} is a placeholder; set Repository in pyproject.toml")
    return 0


def _not_ready(tag: str) -> Iterator[str]:
    """Yield what stands in the way of a release."""
    if not SEMANTIC.fullmatch(tag.removeprefix("v")):
        yield f"version {tag.removeprefix('v')}: need MAJOR.MINOR.PATCH"
    outdated = [path for path, text in metadata.copies().items() if path.read_text("utf-8") != text]
    if outdated:
        yield f"{', '.join(path.relative_to(ROOT).as_posix() for path in outdated)}: run python tools/metadata.py"
    if changed := _git("status", "--porcelain"):
        yield f"uncommitted changes: commit them first\n{changed}"
    if _git("tag", "--list", tag):
        yield f"{tag} is tagged already: give pyproject.toml the next version"
    _, entries, prepared, _ = _sections((ROOT / "CHANGELOG.md").read_text("utf-8"), tag.removeprefix("v"))
    if not entries and not prepared:
        yield f"CHANGELOG.md: has no entries below {UNRELEASED.strip()!r}"


def _sections(changelog: str, version: str) -> tuple[str, str, str, str]:
    """Return the head of a changelog, what is unreleased, what is prepared for this version, and older versions."""
    head, _, rest = changelog.partition(UNRELEASED)
    entries, mark, older = rest.partition("\n## ")
    older = mark.lstrip() + older
    pending = PENDING.format(version=version)
    if not older.startswith(pending):
        return head, entries.strip(), "", older
    prepared, mark, older = older.removeprefix(pending).partition("\n## ")
    return head, entries.strip(), prepared.strip(), mark.lstrip() + older


def _build(target: Path, folder: Path, *, rehearse: bool) -> None:
    """Write wheels, bills of materials, the rehearsal's report and the checksums of all."""
    for wheel in [_built_twice(project, folder) for project in PROJECTS]:
        shutil.copyfile(wheel, target / wheel.name)
    report = try_wheels(target, folder, rehearse=rehearse)
    if report:
        shutil.copyfile(report, target / REPORT)
    _write(target / "sbom.json", json.dumps(sbom.bill_of_materials(), indent=1) + "\n")
    _write(target / "sbom-installed.json", _installed(folder / "venv" / "bin" / "python"))
    files = sorted(target.iterdir())
    _write(target / SUMS, "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))


def _installed(python: Path) -> str:
    """Return the bill of what the wheels installed where they were tried, by CycloneDX's own program."""
    lock = str(ROOT / "tools" / "sbom.lock")
    program = [sys.executable, "-m", "uv", "tool", "run", "-q", "--with-requirements", lock, "--from", "cyclonedx-bom"]
    command = [*program, "cyclonedx-py", "environment", "--output-reproducible", str(python)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _tag(tag: str) -> None:
    """Date the changelog's newest section, commit that, and tag the commit; both are signed off."""
    changelog = ROOT / "CHANGELOG.md"
    version = tag.removeprefix("v")
    head, entries, prepared, older = _sections(changelog.read_text("utf-8"), version)
    if prepared and entries.startswith("-"):  # else they would be items of the prepared section's last heading
        entries = f"{ALSO}\n{entries}"
    text = "\n\n".join(filter(None, [prepared, entries]))
    dated = f"## {version} ({datetime.now(timezone.utc):%Y-%m-%d})\n{text}\n"
    _write(changelog, head + "\n".join(filter(None, [UNRELEASED, dated, older])))
    _git("commit", "--quiet", "--signoff", "--message", f"Release {tag.removeprefix('v')}", "--", changelog.name)
    by = f"{_git('config', 'user.name')} <{_git('config', 'user.email')}>"
    _git("tag", "--annotate", tag, "--message", f"podwright {tag.removeprefix('v')}\n\nSigned-off-by: {by}")
    print(_git("show", "--no-patch", "--format=%h %s", tag))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _built_twice(project: str, folder: Path) -> Path:
    """Build a project's wheel in two folders; fail if a byte differs."""
    sources = ROOT / project
    if project == ".":
        sources = application.gather(folder)
    first, second = (build_wheel(sources, cache=folder / attempt / project) for attempt in ("first", "second"))
    if first.read_bytes() != second.read_bytes():
        raise SystemExit(f"{first.name} differs when it is built again")
    return first


if __name__ == "__main__":
    sys.exit(main())
