"""Kernel, Lustre client and drivers stay as the image has them: they fit each other, and an update breaks the fit.

The image's unattended-upgrades update other packages at night, and needrestart restarts what uses them. Slurm, munge
and NVIDIA's daemons are left out: without KillMode=process a restarted slurmd ends the node's jobs.

https://github.com/awslabs/awsome-distributed-ai/pull/1165
https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

from podwright_bootstrap.host import files, process
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import packages
from podwright_bootstrap.steps import Step

PATTERNS = (
    *("linux-image-*", "linux-headers-*", "linux-modules-*", "linux-aws*"),
    "lustre-client-*",
    *("cuda-drivers*", "nvidia-driver-*", "nvidia-dkms-*", "nvidia-kernel-*", "nvidia-utils-*", "libnvidia-compute-*"),
    *("nvidia-fabricmanager*", "nvidia-imex*"),
    *("aws-neuronx-dkms", "efa", "efa-*"),
)
NEEDRESTART = Path("/etc/needrestart/conf.d/podwright.conf")
NEVER_RESTARTED = """\
# Written by podwright: a restart of these ends or disturbs jobs. A reboot, or `systemctl restart`, takes the update.
$nrconf{override_rc}{qr(^(slurm|munge|nvidia-|sackd))} = 0;
"""
INSTALLED = "ii"  # wanted and installed; of a package that is held, the first letter is another


class HeldPackagesStep(Step):
    """Kernel, Lustre client and drivers are not updated under running jobs, and Slurm is not restarted."""

    name = "held_packages"
    hint = "`apt-mark hold PACKAGE` on the node says more"
    time_limit_s = 1200
    degraded_feature = "holds: apt may update the kernel or drivers while jobs run"

    def apply(self, node: Node) -> Iterator[str]:
        """Hold the installed packages, and keep needrestart from daemons that jobs need."""
        if files.write_file(NEEDRESTART, NEVER_RESTARTED):
            yield f"wrote {NEEDRESTART}"
        names = _not_held()
        if names:
            packages.hold(*names)
            yield f"held {', '.join(names)}"

    def verify(self, node: Node) -> None:
        """Check that all of them are held."""
        names = _not_held()
        if names:
            raise BootstrapError(f"not held: {', '.join(names)}")


def _not_held() -> List[str]:
    command = ("dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package}\\n", *PATTERNS)
    # The program exits with 1 for a pattern without a match.
    shown = process.run(*command, timeout_s=60, check=False, quiet=True).output
    rows = (line.split() for line in shown.splitlines())
    return sorted({row[1] for row in rows if len(row) == 2 and row[0] == INSTALLED})  # noqa: PLR2004 (state, name)
