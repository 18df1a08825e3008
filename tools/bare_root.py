"""Try the wheels where nothing of a checkout is: in a bare Debian root, or with --here in an empty folder.

python tools/bare_root.py [--here] [--rehearse] [--with-terraform]      as root, unless --here; `make bare` runs both

Builds the wheels into a folder with all that they need, and then, with Debian's Python alone, installs from that folder
by pip and goes from `podwright init` to synthesis; with --rehearse through a whole rehearsal to its report. Hosts are
flat in the root, as in a container: it has no `ip`. Programs of `podwright setup` are downloaded, unless
--with-terraform lends this machine's Terraform and mirror of the AWS provider.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from application import gather
from metadata import DISTRIBUTIONS
from try_wheels import TORCH, kept_variables

from podwright import checkout
from podwright.operations.deployment.terraform import find_mirror, find_terraform
from podwright_rehearsal.hosts import permission
from podwright_rehearsal.hosts.debian_root import ROOT as ROOT_FOLDER
from podwright_rehearsal.hosts.debian_root import DebianRelease, build_root
from podwright_stacks.wheel import build_wheel

ROOT = checkout.ROOT
BARE = DebianRelease(
    "bare", codename="bookworm", slurm="22.05", packages=("python3", "python3-venv", "ca-certificates")
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLACE = "opt/try"  # in the root: the index, and the script that tries it
SETTINGS = ("/etc/pip.conf", "~/.config/pip/pip.conf", "/etc/npmrc", "~/.npmrc", "/etc/ssl/certs/ca-certificates.crt")
MIRROR = "usr/local/share/terraform/plugins"  # where Terraform looks by itself
APT_SETTINGS = "etc/apt/apt.conf.d/99machine"  # its proxies, without which the root's apt reaches no mirror
# In namespaces of its own: FOLDER has upper, work and merged; LOWER is the root, relative to it. bash stays process 1:
# it reaps what a rehearsal's programs leave, which Python in its place would not.
ENTER = """set -euo pipefail
cd "$1"
mount -t overlay overlay -o "lowerdir=$2,upperdir=upper,workdir=work" merged
mount -t proc proc merged/proc
mount -t sysfs -o ro sysfs merged/sys
mount --rbind /dev merged/dev
for scratch in tmp run; do mount -t tmpfs tmpfs "merged/$scratch"; done
mount --bind "$3" merged/opt/try/index
if [[ -n $4 ]]; then mount --bind "$4" merged/usr/local/share/terraform/plugins; fi
cp -L --remove-destination /etc/resolv.conf /etc/hosts merged/etc/
status=0
chroot merged /usr/bin/env -i "${@:5}" || status=$?
exit "$status"
"""


def main() -> int:
    """Make the index, then try it in the root or here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="in an empty folder of this machine")
    parser.add_argument("--rehearse", action="store_true", help="also rehearse, minutes long")
    parser.add_argument("--with-terraform", action="store_true", help="lend this machine's Terraform and its mirror")
    options = parser.parse_args()
    why_not = None if options.here else permission.why_not()
    if why_not:
        print(f"no root: {why_not}; or try --here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="bare-", dir=None if options.here else _folder()) as temporary:
        folder = Path(temporary)
        index = make_index(folder / "index", folder / "build", rehearse=options.rehearse)
        print(f"index: {len(list(index.iterdir()))} wheels", flush=True)
        rehearse = ["--rehearse"] if options.rehearse else []
        if options.here:
            return try_here(index, folder, rehearse)
        return try_in_root(index, folder, rehearse, lends_terraform=options.with_terraform)


def make_index(index: Path, build: Path, *, rehearse: bool) -> Path:
    """Build our wheels into a folder, and download what they need beside them.

    Raises:
        CalledProcessError: a package is out of reach.
    """
    index.mkdir()
    for sources in (gather(build), *(ROOT / name for name in DISTRIBUTIONS)):
        wheel = build_wheel(sources, cache=build / "wheels" / sources.name)
        shutil.copyfile(wheel, index / wheel.name)
    wanted = ["podwright[node,rehearsal]", TORCH] if rehearse else ["podwright[node]"]
    options = ["-q", "--disable-pip-version-check", "--dest", str(index), "--find-links", str(index)]
    command = [sys.executable, "-m", "pip", "download", *options, "-c", str(_versions(build)), *wanted]
    subprocess.run(command, check=True)
    return index


def try_here(index: Path, folder: Path, rehearse: list[str]) -> int:
    """Run the newcomer's script with the system's Python, from a copy outside of the checkout."""
    script = _script(folder / "try")
    command = ["/usr/bin/python3", "-I", str(script), str(index), str(folder / "newcomer"), "--pip", *rehearse]
    environment = {**kept_variables(), "PATH": PATH, "PIP_FIND_LINKS": str(index)}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def try_in_root(index: Path, folder: Path, rehearse: list[str], *, lends_terraform: bool) -> int:
    """Run the newcomer's script in a layer over a bare root; the layer is thrown away."""
    kept = checkout.SUPPLIES / f"{BARE.name}-root"
    build_root(kept, BARE)
    layer = folder / "upper"
    for name in ("work", "merged"):
        (folder / name).mkdir()
    (layer / PLACE / "index").mkdir(parents=True)
    _script(layer / PLACE)
    mirror = find_mirror() if lends_terraform else None
    if lends_terraform:
        _copy(find_terraform(), layer / "usr" / "local" / "bin" / "terraform")
    if mirror:
        (layer / MIRROR).mkdir(parents=True)
    variables = {**kept_variables(), "PATH": PATH, "HOME": "/root", "PIP_FIND_LINKS": f"/{PLACE}/index"}
    variables.pop("TMPDIR", None)  # a folder of this machine
    for source in _settings(variables):
        _copy(source, layer / _in_root(source).lstrip("/"))
    (layer / APT_SETTINGS).parent.mkdir(parents=True)
    (layer / APT_SETTINGS).write_text(_proxies_of_apt(), encoding="utf-8")
    lower = os.path.relpath(kept / ROOT_FOLDER, folder)
    script = [f"/{PLACE}/tools/try_wheels.py", f"/{PLACE}/index", "/root/newcomer", "--pip", *rehearse]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private", "--"]
    command += ["bash", "-c", ENTER, "bash", str(folder), lower, str(index), str(mirror or "")]
    command += [*(f"{name}={value}" for name, value in variables.items()), "/usr/bin/python3", *script]
    return subprocess.run(command, cwd="/", check=False).returncode


def _folder() -> Path:
    checkout.SUPPLIES.mkdir(parents=True, exist_ok=True)
    return checkout.SUPPLIES


def _script(folder: Path) -> Path:
    """Copy the script that a bare Python can run."""
    (folder / "tools").mkdir(parents=True)
    return Path(shutil.copyfile(ROOT / "tools" / "try_wheels.py", folder / "tools" / "try_wheels.py"))


def _versions(folder: Path) -> Path:
    """Write the locked versions without their hashes, which pip would demand of our own wheels too."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line.rstrip(" \\") for line in lines if line[:1].isalnum()]
    path = folder / "versions.txt"
    path.write_text("\n".join(pinned) + "\n", encoding="utf-8")
    return path


def _settings(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield this machine's settings of registries, and the certificates that variables name."""
    named = [Path(value) for value in variables.values() if value.startswith("/") and Path(value).is_file()]
    for path in dict.fromkeys([*(Path(name).expanduser() for name in SETTINGS), *named]):
        if path.is_file():
            yield path


def _proxies_of_apt() -> str:
    """Return the lines of this machine's apt settings that say how mirrors are reached."""
    shown = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return "".join(f"{line}\n" for line in shown.splitlines() if re.match(r"Acquire::https?::", line))


def _in_root(path: Path) -> str:
    """Return where a file is in the root, whose user is root."""
    home = Path.home()
    return f"/root/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _copy(source: Path | str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


if __name__ == "__main__":
    sys.exit(main())
