"""Allow logins on a compute node to users with a job there, root and administrators.

https://slurm.schedmd.com/pam_slurm_adopt.html
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE
from podwright_bootstrap.host import files, process, sshd
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import packages, slurm_source
from podwright_bootstrap.steps import Step

PAM_SSHD = Path("/etc/pam.d/sshd")
MODULE = "pam_slurm_adopt.so"
PACKAGE = "libpam-slurm-adopt"  # the package on Debian and Ubuntu
# Where PAM's modules are on Ubuntu and Debian, and where Slurm's own build puts it.
MODULE_FOLDERS = ("lib/security", "usr/lib/security", "usr/lib/*/security", "opt/slurm/lib*/security")
SOURCES = ("pam_slurm_adopt.c", "helper.c")  # files in contribs/pam_slurm_adopt
LIBRARY = "lib*/libslurm.so"  # the library of the image's Slurm
COMPILER, PAM_HEADER = "gcc", Path("/usr/include/security/pam_modules.h")
BUILD_PACKAGES = ("gcc", "libc6-dev", "libpam0g-dev")
# The image's library knows how to authenticate, and no Makefile is used.
CONFIGURE = ("--quiet", "--without-munge", "--disable-dependency-tracking")
CONFIGURE_LIMIT_S, COMPILE_LIMIT_S = 600, 300
LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
# Who joins no job stays outside; the module's default lets them in.
OPTIONS = "action_adopt_failure=deny action_generic_failure=deny"
OURS = "# podwright: pam_slurm_adopt"  # on each line of ours
INSTEAD = f"{OURS} instead of: "  # before a line that ours replace
# It would take a login out of the job's control group again.
TAKES_AWAY = re.compile(r"^-?session\s.*\bpam_systemd\.so\b", re.MULTILINE)
INCLUDES = re.compile(r"^(?:@include|session\s+(?:include|substack))\s+(?P<name>[\w-]+)\s*$")


class PamSlurmAdoptStep(Step):
    """On compute nodes sshd admits users with a job there, root and administrators; a session belongs to the job."""

    name = "pam_slurm_adopt"
    audience = "compute nodes of clusters that ask for it"
    hint = f"look at {PAM_SSHD} and /var/log/auth.log"
    time_limit_s = 1800
    degraded_feature = "a rule for logins: users without a job may log in to this node"

    def applies(self, node: Node) -> bool:
        """Run on compute nodes: login nodes run no jobs."""
        return node.role == COMPUTE and node.parameters.nodes.pam_slurm_adopt is not None

    def apply(self, node: Node) -> Iterator[str]:
        """Let sshd ask Slurm; step slurm_conf lets jobs contain sessions."""
        if not _module():
            yield from _install(node)
        yield from _restrict(node)

    def remove(self, node: Node) -> Iterator[str]:
        """Take our lines out of sshd's rules first: without the list no user would be an administrator."""
        if OURS in _rules():
            files.write_file(PAM_SSHD, _text(_others()))
            yield f"took our lines out of {PAM_SSHD}"
        yield from files.remove_files(contract.LOGIN_ADMINS)

    def verify(self, node: Node) -> None:
        """Check that sshd uses PAM."""
        if "usepam yes" not in sshd.settings():
            raise BootstrapError("sshd does not ask PAM", hint="write `UsePAM yes` in /etc/ssh/sshd_config")


def _install(node: Node) -> Iterator[str]:
    """Install the distribution's module if Slurm is the distribution's too, in the same version; else build it."""
    slurmd = (contract.SLURM_ROOT / "sbin" / "slurmd").resolve()
    owner = process.run("dpkg-query", "--search", slurmd, timeout_s=60, check=False, quiet=True)
    if owner.exit_code:
        yield from _build(node)
        return
    package = owner.output.split(":")[0]
    version = process.run("dpkg-query", "--show", "--showformat=${Version}", package, timeout_s=60, quiet=True).output
    packages.install(f"{PACKAGE}={version.strip()}", node=node)
    if not _module():
        raise BootstrapError(f"{PACKAGE} {version.strip()} has no {MODULE}", hint="look at `dpkg --listfiles` of it")
    yield f"installed {PACKAGE} {version.strip()}"


def _build(node: Node) -> Iterator[str]:
    """Build the module from the source of the image's own Slurm, with the image's own library."""
    library = next(contract.SLURM_ROOT.glob(LIBRARY), None)
    if library is None:
        raise BootstrapError(
            f"this image has no {MODULE}, and no {contract.SLURM_ROOT / LIBRARY} to build it with",
            hint="build it into an image, from the contribs of the image's Slurm, or leave nodes.pam_slurm_adopt out",
        )
    settings = node.parameters.nodes.pam_slurm_adopt
    archive = slurm_source.fetch(node, sha256=settings.slurm_source_sha256 if settings else None)
    if not (shutil.which(COMPILER) and PAM_HEADER.exists()):
        packages.install(*BUILD_PACKAGES, node=node)
        yield f"installed {', '.join(BUILD_PACKAGES)}"
    module = library.parent / "security" / MODULE
    files.write_file(module, _compiled(archive, library))
    yield f"built {module}"


def _compiled(archive: Path, library: Path) -> bytes:
    """Return the module, which finds each of its symbols in the library."""
    with tempfile.TemporaryDirectory() as folder:
        process.run("tar", "-xf", archive, "-C", folder, "--strip-components=1", timeout_s=60)
        in_folder = ("env", f"--chdir={folder}")
        prefix = f"--prefix={contract.SLURM_ROOT}"
        process.run(
            *in_folder, "./configure", prefix, *CONFIGURE, timeout_s=CONFIGURE_LIMIT_S, quiet=True
        )  # This makes config.h.
        sources = [f"contribs/pam_slurm_adopt/{name}" for name in SOURCES]
        options = ("-shared", "-fPIC", "-O2", "-DHAVE_CONFIG_H", "-I.", f"-Wl,-rpath,{library.parent}")
        process.run(*in_folder, COMPILER, *options, *sources, "-o", MODULE, library, "-lpam", timeout_s=COMPILE_LIMIT_S)
        built = Path(folder) / MODULE
        process.run(sys.executable, "-I", "-c", LOADS, built, timeout_s=60)
        return built.read_bytes()


def _restrict(node: Node) -> Iterator[str]:
    module = _module()
    settings = node.parameters.nodes.pam_slurm_adopt
    admins = settings.admins if settings else ()
    if files.write_file(contract.LOGIN_ADMINS, "".join(f"{name}\n" for name in admins), mode=0o600):
        yield f"wrote {contract.LOGIN_ADMINS}"
    our_lines = [
        f"account sufficient pam_listfile.so item=user sense=allow onerr=fail file={contract.LOGIN_ADMINS} {OURS}",
        f"account required {module} {OPTIONS} {OURS}",  # the last: it may only be asked about who may log in otherwise
    ]
    lines = [image_line for line in _others() for image_line in _without_systemd(line)]
    if files.write_file(PAM_SSHD, _text([*lines, *our_lines])):
        yield f"wrote {PAM_SSHD}"


def _rules() -> str:
    return PAM_SSHD.read_text() if PAM_SSHD.exists() else ""


def _others() -> List[str]:
    """Return the image's lines, also those that ours replaced."""
    lines = [line.split(INSTEAD)[-1] for line in _rules().splitlines()]
    return [line for line in lines if OURS not in line]


def _without_systemd(line: str) -> Iterator[str]:
    """Return a line, or its equivalent without pam_systemd."""
    included = INCLUDES.match(line)
    file = PAM_SSHD.with_name(included["name"]) if included else None
    text = file.read_text() if file and file.exists() else line
    if not TAKES_AWAY.search(text):
        yield line
        return
    yield f"{INSTEAD}{line}"
    for included_line in text.splitlines():
        if re.match(r"-?session\s", included_line) and not TAKES_AWAY.match(included_line):
            yield f"{included_line.split('#')[0].rstrip()} {OURS}"


def _text(lines: List[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _module() -> Path | None:
    """Return the module, which fits one version of Slurm alone."""
    paths = (path for folder in MODULE_FOLDERS for path in Path("/").glob(f"{folder}/{MODULE}"))
    return next(paths, None)
