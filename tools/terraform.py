"""Find Terraform 1.5 or later on PATH, or download the pinned release, checked by its sha256, into a folder."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path

OLDEST = (1, 5)
VERSION = "1.11.4"
# https://releases.hashicorp.com/terraform/1.11.4/terraform_1.11.4_SHA256SUMS
SHA256 = {
    "linux_amd64": "1ce994251c00281d6845f0f268637ba50c0005657eb3cf096b92f753b42ef4dc",
    "linux_arm64": "a43d1d0da9b9bab214a8305a39db0e40869572594ccf50c416a7756499143633",
}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def main() -> None:
    """Do nothing when Terraform is there; else fetch it."""
    folder = Path(sys.argv[1])
    found = shutil.which("terraform") or shutil.which("terraform", path=str(folder))
    if found and version_of(found) >= OLDEST:
        return
    download(folder)


def version_of(binary: str) -> tuple[int, int]:
    """Major and minor version a Terraform binary reports."""
    answer = subprocess.run([binary, "version", "-json"], capture_output=True, text=True, check=True)
    major, minor, *_ = json.loads(answer.stdout)["terraform_version"].split(".")
    return int(major), int(minor)


def download(folder: Path) -> None:
    """Fetch the pinned release, refuse any other content, and put the binary in place in one step."""
    system = f"{platform.system().lower()}_{MACHINES.get(platform.machine(), platform.machine())}"
    if system not in SHA256:
        sys.exit(f"setup: no pinned Terraform for {system}; put Terraform {OLDEST[0]}.{OLDEST[1]} or later on PATH")
    url = f"https://releases.hashicorp.com/terraform/{VERSION}/terraform_{VERSION}_{system}.zip"
    print(f"setup: Terraform {VERSION}")
    try:
        with urllib.request.urlopen(url, timeout=120) as response:
            archive = response.read()
    except OSError as error:
        sys.exit(
            f"setup: cannot download {url}: {error}\nsetup: put Terraform {OLDEST[0]}.{OLDEST[1]} or later on PATH"
        )
    digest = hashlib.sha256(archive).hexdigest()
    if digest != SHA256[system]:
        sys.exit(f"setup: {url} has sha256 {digest}, expected {SHA256[system]}: not installed")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "terraform.part"
    temporary.write_bytes(zipfile.ZipFile(BytesIO(archive)).read("terraform"))
    temporary.chmod(0o755)
    temporary.replace(folder / "terraform")


if __name__ == "__main__":
    main()
