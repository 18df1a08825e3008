"""Find Terraform on this machine, and let it find the AWS provider without the network."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from podwright import checkout
from podwright.errors import PodwrightError

PROVIDER = "hashicorp/aws"
DEFAULT_REGISTRY = "registry.terraform.io"
OLDEST = "1.5"
VERSION_TIMEOUT_S = 30

# Where Terraform itself looks …
# https://developer.hashicorp.com/terraform/cli/config/config-file#implied-local-mirrors
IMPLIED_MIRRORS = (
    "~/.terraform.d/plugins",
    "~/.local/share/terraform/plugins",
    "~/Library/Application Support/io.terraform/plugins",
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)
# … and below which people unpack one: the mirror itself or a folder at most two levels down.
PARENTS = ("~", "/opt", "/srv", "/usr/share", "/usr/local/share", "/usr/local/lib", "/var/lib")
DEPTH = 2


# What Terraform prints when it cannot begin, and what helps.
HINTS = {
    r"S3 bucket .* does not exist|NoSuchBucket": "`podwright state` creates the bucket that the settings name",
    r"Failed to query available provider packages|Failed to install provider|registry service is unreachable": (
        f"let this machine reach {DEFAULT_REGISTRY}, or unpack a mirror of {PROVIDER} in {IMPLIED_MIRRORS[0]}; "
        "then repeat the command"
    ),
    r"AccessDenied|StatusCode: 403": "`podwright policy deployer` prints all that deploying needs",
}


class TerraformError(PodwrightError):
    """Terraform is missing or too old, or it failed; the message has the solution."""


def hint(printed: str) -> str:
    """Return what helps against an error that Terraform has printed; empty if its own words have to do."""
    plain = " ".join(printed.split())
    return next((help_ for pattern, help_ in HINTS.items() if re.search(pattern, plain)), "")


def find_terraform() -> Path:
    """Return the Terraform (or OpenTofu) binary: of ``TERRAFORM_BINARY_NAME``, PATH, or ``podwright setup``.

    Raises:
        TerraformError: there is none, or it is too old.
    """
    name = os.environ.get("TERRAFORM_BINARY_NAME", "terraform")
    binary = shutil.which(name) or shutil.which(name, path=str(checkout.BIN))
    if binary is None:
        raise TerraformError(
            f"no {name} on PATH or in {checkout.BIN}: run `podwright setup`, which downloads one, "
            f"install Terraform {OLDEST} or newer, or name a binary in TERRAFORM_BINARY_NAME"
        )
    version = _version(binary, Path(binary).stat().st_mtime_ns)
    if version < tuple(map(int, OLDEST.split("."))):
        raise TerraformError(f"{binary} is version {'.'.join(map(str, version))}, need {OLDEST} or newer")
    return Path(binary)


def terraform_environment(directory: Path) -> dict[str, str]:
    """Return variables that make Terraform quiet and, where this machine has a mirror of the AWS provider, offline.

    Writes Terraform's CLI configuration into ``directory`` (made if missing). Without a mirror the provider is
    downloaded once into a cache.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mirror = find_mirror()
    configuration = directory / "terraform.tfrc"
    configuration.write_text(_cli_configuration(mirror), encoding="utf-8")
    environment = {
        "TF_CLI_CONFIG_FILE": str(configuration.resolve()),
        "TF_IN_AUTOMATION": "1",
        "TF_INPUT": "0",
        "CHECKPOINT_DISABLE": "1",
        "GOGC": "400",  # Go collects garbage less often: an eighth less CPU time for a tenth more memory.
        "DISABLE_VERSION_CHECK": "1",  # cdktf's own
        "CDKTF_DISABLE_PLUGIN_CACHE_ENV": "1",  # cdktf's cache in the user's home would become a mirror of itself
        "TERRAFORM_BINARY_NAME": str(find_terraform()),
    }
    if mirror:
        # `terraform providers lock`, which cdktf runs, ignores the CLI configuration.
        environment["TF_CLI_ARGS_providers_lock"] = f"-fs-mirror={mirror}"
    return environment


def find_mirror() -> Path | None:
    """Find a folder in Terraform's filesystem-mirror layout with the AWS provider for this platform."""
    return next((mirror for mirror in _candidates() if _provider_binaries(mirror)), None)


@functools.cache
def _version(binary: str, _modified_ns: int) -> tuple[int, ...]:
    """Return a program's version; it is asked again only after its file has changed."""
    answer = subprocess.run(
        [binary, "version", "-json"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
    )
    try:
        text = str(json.loads(answer.stdout)["terraform_version"])
    except (ValueError, KeyError) as error:
        raise TerraformError(f"{binary} does not answer like Terraform: {answer.stdout}{answer.stderr}") from error
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _candidates() -> Iterator[Path]:
    """Yield folders that could be a mirror, the likeliest first; each costs one directory listing."""
    yield from (Path(path).expanduser() for path in IMPLIED_MIRRORS)
    data_home = os.environ.get("XDG_DATA_HOME")
    if data_home:
        yield Path(data_home) / "terraform" / "plugins"
    for parent in PARENTS:
        yield from _folders(Path(parent).expanduser(), DEPTH)


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth == 0:
        return
    try:
        children = sorted(child for child in root.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:  # A folder that is missing or unreadable holds no mirror.
        return
    for child in children:
        yield from _folders(child, depth - 1)


def _provider_binaries(mirror: Path) -> list[Path]:
    return sorted((mirror / DEFAULT_REGISTRY / PROVIDER).glob(f"*/{machine_name()}/terraform-provider-aws*"))


def machine_name() -> str:
    """Terraform's name of this machine, for example ``linux_amd64``."""
    machines = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
    return f"{sys.platform}_{machines.get(platform.machine(), platform.machine())}"


def _cli_configuration(mirror: Path | None) -> str:
    """https://developer.hashicorp.com/terraform/cli/config/config-file."""
    if mirror is None:
        cache = Path(os.environ.get("TF_PLUGIN_CACHE_DIR", checkout.CACHE / "terraform-plugins"))
        cache.mkdir(parents=True, exist_ok=True)
        return f"plugin_cache_dir = {json.dumps(str(cache))}\n"
    provider = json.dumps([f"{DEFAULT_REGISTRY}/{PROVIDER}"])
    return (
        "provider_installation {\n"
        f"  filesystem_mirror {{\n    path    = {json.dumps(str(mirror))}\n    include = {provider}\n  }}\n"
        f"  direct {{\n    exclude = {provider}\n  }}\n"
        "}\n"
    )
