"""Try built wheels as a user has them: a new environment, an empty folder, an empty cache, and no checkout in sight.

python tools/try_wheels.py WHEELS FOLDER [--rehearse] [--pip]      with --rehearse also a whole rehearsal, minutes long

With --pip it needs Python's standard library alone, and WHEELS has all packages. tools/bare_root.py runs a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"  # by its exact version: where a folder of wheels has a CPU build, no CUDA packages are fetched
KEPT = {"HOME", "LANG", "TERM", "TMPDIR", "TZ"}
KEPT_PREFIXES = ("NODE_EXTRA_CA_CERTS", "NPM_CONFIG_", "PIP_", "REQUESTS_CA_BUNDLE", "SSL_CERT_")
KEPT_SUFFIXES = ("_PROXY", "_CA_BUNDLE")


class Install(Protocol):
    """A way to install wheels."""

    def __call__(self, wheels: Path, folder: Path, *, rehearse: bool) -> Path:
        """Install wheels into an environment below the folder, and return its Python."""


def main() -> int:
    """Install the wheels and go the way from init to the report, or as far as synthesis."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--pip", action="store_true", help="install by pip, from the wheels alone")
    options = parser.parse_args()
    install = _install_by_pip if options.pip else _install
    report = try_wheels(options.wheels.resolve(), options.folder.resolve(), rehearse=options.rehearse, install=install)
    if report:
        print(report)
    return 0


def try_wheels(wheels: Path, folder: Path, *, rehearse: bool, install: Install | None = None) -> Path | None:
    """Run the commands of a first hour; return the rehearsed run's report.

    Raises:
        CalledProcessError: a command failed.
    """
    python = (install or _install)(wheels, folder, rehearse=rehearse)
    empty, environment = folder / "empty", _environment(folder)
    empty.mkdir()

    def podwright(*words: str) -> str:
        return _run([str(python), "-I", "-m", "podwright", *words], empty, environment)

    _run([str(python), "-I", "-c", _NOTHING_OF_THE_CHECKOUT, str(ROOT)], empty, environment)
    podwright("--version")
    programs = json.loads(podwright("setup", "--json"))
    podwright("init", "--yes", "--model", "llama3_2_1b", "--tokens", "1B")
    podwright("check", "--strict", "--run", "run.yaml")
    podwright("plan", "cluster.yaml", "--run", "run.yaml")
    podwright("schema", "-o", "schema.json")
    lines = {"CI": "1", "CHECKPOINT_DISABLE": "1"}  # instead of a screen that is drawn again and again
    with_ours = environment | lines | {"PATH": f"{python.parent}:{environment['PATH']}"}
    _run([programs["cdktf"], "synth"], empty, with_ours)
    own = folder / "own"
    own.mkdir()
    _run([str(python), "-I", "-m", "podwright", "init", "--yes", "--own-app"], own, environment)
    _run([programs["cdktf"], "synth"], own, with_ours)
    if not rehearse:
        return None
    podwright("rehearse", "--compute-nodes", "2")
    (report,) = (folder / "cache").glob("podwright/rehearsals/rehearsal*/fsx/runs/*/report/index.html")
    return report


# In isolated mode the folder, PYTHONPATH and the user's own packages are left out too.
_NOTHING_OF_THE_CHECKOUT = """
import sys, podwright, podwright_bootstrap, podwright_common, podwright_constructs, podwright_stacks
ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("podwright")]
wrong = [path for path in [*sys.path, *ours] if path.startswith(sys.argv[1] + "/") and not path.startswith(sys.prefix)]
sys.exit(f"from the checkout: {wrong}" if wrong else 0)
"""


def _install(wheels: Path, folder: Path, *, rehearse: bool) -> Path:
    """Make an environment of the wheels and the pinned versions of what they declare; return its Python."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    installer = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python)]
    versions = ["-c", str(ROOT / "requirements.lock"), "--find-links", str(wheels)]
    environment = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    wanted = ["podwright[rehearsal]", TORCH] if rehearse else ["podwright"]
    subprocess.run([*installer, *versions, *wanted], env=environment, check=True)
    return python


def _install_by_pip(wheels: Path, folder: Path, *, rehearse: bool) -> Path:
    """Make an environment as docs/install.md does, from the folder of wheels alone; return its Python."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    wanted = ["podwright[node,rehearsal]", TORCH] if rehearse else ["podwright[node]"]
    options = ["-q", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels)]
    _run([str(python), "-m", "pip", "install", *options, *wanted], folder, _environment(folder))
    return python


def kept_variables() -> dict[str, str]:
    """Return the variables of this machine that a user has: home, language, and settings of registries."""
    return {name: value for name, value in os.environ.items() if _is_kept(name)}


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of a user with the system's programs, settings of registries, and an empty cache."""
    return kept_variables() | {"PATH": _system_path(), "XDG_CACHE_HOME": str(folder / "cache")}


def _is_kept(name: str) -> bool:
    upper = name.upper()
    return upper in KEPT or upper.startswith(KEPT_PREFIXES) or upper.endswith(KEPT_SUFFIXES)


def _system_path() -> str:
    """Return PATH without what the checkout put there."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not Path(folder).is_relative_to(ROOT))


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Show a command, what it prints and how long it took; return what it printed to stdout."""
    print(f"$ {shlex.join(command)}", flush=True)
    began = time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    print(f"# {time.monotonic() - began:.1f} s", flush=True)
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
