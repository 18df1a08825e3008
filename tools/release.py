"""Build a release: five wheels, twice and alike, tried away from the checkout, with checksums and a bill of materials.

python tools/release.py [FOLDER]      default: dist/. It tags and uploads nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from podwright.checkout import ROOT
from podwright_stacks.wheel import build_wheel

PROJECTS = (".", "constructs", "lifecycle_scripts", "training", "rehearsal")


def main() -> int:
    """Build into the folder, or say what is wrong."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
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
        _try(target, Path(temporary))
    bill = runpy.run_path(str(ROOT / "tools" / "sbom.py"))["bill_of_materials"]()
    (target / "sbom.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    files = sorted(path for path in target.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (target / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
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


def _try(wheels: Path, folder: Path) -> None:
    """Install the application's wheels and the pinned dependencies into a new environment; run init and check there."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    installer = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python)]
    names = ("podwright-", "podwright_constructs-", "podwright_bootstrap-")
    ours = [str(wheel) for wheel in wheels.glob("*.whl") if wheel.name.startswith(names)]
    subprocess.run([*installer, "-c", str(ROOT / "requirements.lock"), *ours], check=True)
    (folder / "empty").mkdir()
    for words in (["--version"], ["init", "--yes"], ["check", "--strict"], ["schema", "-o", "schema.json"]):
        subprocess.run([str(python), "-I", "-m", "podwright", *words], cwd=folder / "empty", check=True)


if __name__ == "__main__":
    sys.exit(main())
