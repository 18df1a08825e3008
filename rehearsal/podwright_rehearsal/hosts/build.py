"""Run a script that builds an image or a root, in separate mount and pid namespaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from podwright.errors import PodwrightError

SOURCES = Path(__file__).parent
_TIMEOUT_S = 900


class ImageError(PodwrightError):
    """A node image or root could not be built; the message ends with the output of the failing command."""


def run_script(name: str, *arguments: str | Path) -> None:
    """Run ``name FUNCTION …`` with the caller's proxies.

    Raises:
        ImageError: it failed, or did not end in time.
    """
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private", "--"]
    command += ["bash", str(SOURCES / name), *map(str, arguments)]
    try:
        subprocess.run(
            command,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise ImageError(
            f"the node image could not be built (exit {error.returncode}); apt said:\n{error.stderr.strip()}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"the node image was not built within {_TIMEOUT_S} s: is the package index reachable?"
        ) from error


def environment(machine: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that apt needs: proxies and their authorities."""
    prefixes, suffixes = ("SSL_CERT_",), ("_PROXY", "_CA_BUNDLE")
    passed = {
        name: value
        for name, value in machine.items()
        if name == "HOME" or name.startswith(prefixes) or name.upper().endswith(suffixes)
    }
    passed["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return passed
