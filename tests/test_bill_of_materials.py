"""The bill of materials and the notices name everything that comes from others."""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = (".csv", ".pem", ".min.js", ".min.css")


def test_every_pinned_package_is_in_the_bill() -> None:
    """Packages of all locks and downloads are in it once, with hashes; licences as far as the locks have them."""
    module = runpy.run_path(str(ROOT / "tools" / "sbom.py"))
    components = module["bill_of_materials"]()["components"]
    urls = [component["purl"] for component in components]
    assert len(urls) == len(set(urls))
    hashed = {component["name"] for component in components if component["hashes"]}
    pinned = [
        line.partition("==")[0]
        for lock in module["PYTHON_LOCKS"]
        for line in (ROOT / lock).read_text(encoding="utf-8").splitlines()
        if "==" in line.partition(" ")[0]
    ]
    assert {name.partition("[")[0] for name in pinned} <= hashed
    assert {"cdktf-cli", "cdktn-cli", "enroot", "uv", "@cdktf/node-pty-prebuilt-multiarch"} <= hashed
    assert len(pinned) > 300
    licences = {component["name"]: component.get("licenses") for component in components}
    assert licences["uplot"] == [{"expression": "MIT"}]
    assert json.dumps(components)


def test_notices_name_all_bundled_data() -> None:
    """Each data file of the checkout is in NOTICE, and each file in NOTICE exists."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    notices = (ROOT / "NOTICE").read_text(encoding="utf-8").splitlines()
    named = {line for line in notices if line.endswith(DATA)}
    assert named == {path for path in listed if path.endswith(DATA) and not path.startswith("tests/")}
