"""Build a release: five wheels, twice and alike, tried away from the checkout, with checksums and a bill of materials.

python tools/release.py [FOLDER] [--no-rehearsal]      default: dist/. It tags and uploads nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from podwright.checkout import ROOT
from podwright_stacks.wheel import build_wheel

REPORT = "rehearsal.html"
PROJECTS = (".", "constructs", "lifecycle_scripts", "training", "rehearsal")


def main() -> int:
    """Build into the folder, or say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dist"))
    parser.add_argument("--no-rehearsal", action="store_true", help="try the wheels without a rehearsal")
    options = parser.parse_args()
    target = options.folder.resolve()
    problems = list(_not_ready())
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        wheels = [_built_twice(project, Path(temporary)) for project in PROJECTS]
        for wheel in wheels:
            shutil.copyfile(wheel, target / wheel.name)
        report = _tried(target, Path(temporary), rehearse=not options.no_rehearsal)
        if report:
            shutil.copyfile(report, target / REPORT)
    bill = runpy.run_path(str(ROOT / "tools" / "sbom.py"))["bill_of_materials"]()
    (target / "sbom.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    files = sorted(path for path in target.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (target / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
    if report:
        print(f"report of the wheels' rehearsal: {target / REPORT}")
    print(f"next: git tag -s v{version()}, push the tag, and upload {target}")
    return 0


def version() -> str:
    """Return the version of all distributions."""
    (found,) = {_version(project) for project in PROJECTS}
    return found


def _version(project: str) -> str:
    (found,) = re.findall(r'^version = "(.*)"$', (ROOT / project / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    return str(found)


def _not_ready() -> list[str]:
    """Return what stands in the way of a release."""
    versions = {project: _version(project) for project in PROJECTS}
    found = []
    if len(set(versions.values())) > 1:
        found.append(f"versions differ: {versions}; give all pyproject.toml the same")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        found.append(f"uncommitted changes: commit them first\n{changed.stdout.rstrip()}")
    if f"## {versions['.']}" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        found.append(f"CHANGELOG.md has no section `## {versions['.']}`: rename `## Unreleased`")
    return found


def _built_twice(project: str, folder: Path) -> Path:
    """Build a project's wheel in two folders; fail if a byte differs."""
    sources = ROOT / project
    if project == ".":
        sources = runpy.run_path(str(ROOT / "tools" / "application.py"))["gather"](folder)
    first, second = (build_wheel(sources, cache=folder / attempt / project) for attempt in ("first", "second"))
    if first.read_bytes() != second.read_bytes():
        raise SystemExit(f"{first.name} differs when it is built again")
    return first


def _tried(wheels: Path, folder: Path, *, rehearse: bool) -> Path | None:
    """Go from init to synthesis, or to a rehearsal's report, with the wheels alone; return the report."""
    found: Path | None = runpy.run_path(str(ROOT / "tools" / "try_wheels.py"))["try_wheels"](
        wheels, folder, rehearse=rehearse
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
