"""Write the bill of materials of this checkout, in CycloneDX: every pinned package with its hashes.

python tools/sbom.py [FILE]      default: sbom.json
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON_LOCKS = (
    "requirements.lock",
    "training/requirements.lock",
    "tools/uv.lock",
    "tools/node.lock",
    "tools/checkov.lock",
    "tools/docs.lock",
    "tools/sbom.lock",
)
NPM_LOCKS = ("package-lock.json", "tools/cdktn/package-lock.json")
DOWNLOADS = "lifecycle_scripts/podwright_bootstrap/software/downloads.json"
UPLOT = "training/podwright_training/report/uplot/uPlot.iife.min.js"
_PINNED = re.compile(r"^(?P<name>[\w.-]+)(\[[^]]*\])?==(?P<version>[^\s;\\]+)(?P<rest>(.*\\\n)*.*)", re.MULTILINE)


def bill_of_materials() -> dict[str, Any]:
    """Return the document, sorted; a package that several locks pin alike is in it once."""
    components = [*_python(), *_npm(), *_downloads(), _uplot()]
    by_reference: dict[str, dict[str, Any]] = {}
    for component in components:
        known = by_reference.setdefault(component["bom-ref"], component)
        seen = {item["content"]: item for item in [*known.get("hashes", ()), *component.get("hashes", ())]}
        known["hashes"] = [seen[content] for content in sorted(seen)]
    project = {"type": "application", "name": "podwright", "licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": project},
        "components": [by_reference[reference] for reference in sorted(by_reference)],
    }


def _python() -> Iterator[dict[str, Any]]:
    for lock in PYTHON_LOCKS:
        for found in _PINNED.finditer((ROOT / lock).read_text(encoding="utf-8")):
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", found["rest"])
            yield _component(
                f"pkg:pypi/{found['name'].lower()}@{found['version']}", found["name"], found["version"], hashes
            )


def _npm() -> Iterator[dict[str, Any]]:
    for lock in NPM_LOCKS:
        packages = json.loads((ROOT / lock).read_text(encoding="utf-8"))["packages"]
        for path, item in packages.items():
            if not path or "version" not in item:
                continue
            name = path.rpartition("node_modules/")[2]
            url = f"pkg:npm/{name.replace('@', '%40', 1)}@{item['version']}"
            algorithm, _, digest = item.get("integrity", "").partition("-")
            component = _component(url, name, item["version"], [], licence=item.get("license", ""))
            if algorithm == "sha512":
                component["hashes"] = [{"alg": "SHA-512", "content": base64.b64decode(digest).hex()}]
            yield component


def _downloads() -> Iterator[dict[str, Any]]:
    for name, item in json.loads((ROOT / DOWNLOADS).read_text(encoding="utf-8")).items():
        hashes = [file["sha256"] for file in item["files"].values()]
        url = f"pkg:generic/{name}@{item['version']}"
        yield _component(url, name, item["version"], hashes, licence=item["licence"])


def _uplot() -> dict[str, Any]:
    (version,) = re.findall(r"uPlot \(v([\d.]+)\)", (ROOT / UPLOT).read_text(encoding="utf-8"))
    return _component(f"pkg:npm/uplot@{version}", "uplot", version, [], licence="MIT")


def _component(url: str, name: str, version: str, sha256: list[str], *, licence: str = "") -> dict[str, Any]:
    component: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    component["hashes"] = [{"alg": "SHA-256", "content": content} for content in sha256]
    if licence:
        component["licenses"] = [{"expression": licence}]
    return component


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "sbom.json")
    target.write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(bill_of_materials()['components'])} packages")
