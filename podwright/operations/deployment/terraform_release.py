"""Download the pinned release of Terraform, checked by its SHA-256."""

from __future__ import annotations

import hashlib
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path

from podwright.operations.deployment.terraform import OLDEST, TerraformError, machine_name

VERSION = "1.11.4"
# https://releases.hashicorp.com/terraform/1.11.4/terraform_1.11.4_SHA256SUMS
SHA256 = {
    "linux_amd64": "1ce994251c00281d6845f0f268637ba50c0005657eb3cf096b92f753b42ef4dc",
    "linux_arm64": "a43d1d0da9b9bab214a8305a39db0e40869572594ccf50c416a7756499143633",
}
LIMIT_S = 120
INSTALL = f"put Terraform {OLDEST} or newer on PATH"


def download(folder: Path) -> Path:
    """Put the pinned release into a folder in one step, and return the program.

    Raises:
        TerraformError: no release is pinned for this machine, it is out of reach, or it has another hash.
    """
    name = machine_name()
    if name not in SHA256:
        raise TerraformError(f"no pinned Terraform for {name}", INSTALL)
    url = f"https://releases.hashicorp.com/terraform/{VERSION}/terraform_{VERSION}_{name}.zip"
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as response:
            archive = response.read()
    except OSError as error:
        raise TerraformError(f"cannot download {url}: {error}", INSTALL) from error
    return install(archive, folder, source=url, sha256=SHA256[name])


def install(archive: bytes, folder: Path, *, source: str, sha256: str) -> Path:
    """Unpack a release that has this hash.

    Raises:
        TerraformError: it has another.
    """
    digest = hashlib.sha256(archive).hexdigest()
    if digest != sha256:
        raise TerraformError(f"{source} has SHA-256 {digest}, expected {sha256}: not installed")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "terraform.part"
    temporary.write_bytes(zipfile.ZipFile(BytesIO(archive)).read("terraform"))
    temporary.chmod(0o755)
    return temporary.replace(folder / "terraform")
