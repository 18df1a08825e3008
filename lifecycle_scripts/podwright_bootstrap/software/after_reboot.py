"""Steps that a reboot undoes: HyperPod runs lifecycle scripts on a new instance, and not after a reboot.

An instance that was stopped comes back with empty NVMe disks:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html

So systemd units run the steps ``scratch`` and ``enroot`` again before slurmd starts.
"""

from __future__ import annotations

import sys
from typing import Iterator

from podwright_bootstrap.host import files, process, units
from podwright_bootstrap.software import installed_copy

UNIT = """[Unit]
Description=Step {step} of podwright's bootstrap, after a reboot
Wants=network-online.target
After=network-online.target local-fs.target dlami-nvme.service
Before=slurmd.service

[Service]
Type=oneshot
Environment=PYTHONPATH={package}
ExecStart={python} -m podwright_bootstrap --only {step}

[Install]
WantedBy=multi-user.target
"""


def repeat(step: str) -> Iterator[str]:
    """Run a step after every reboot, before the node takes jobs; this boot runs it by itself."""
    yield from installed_copy.install()
    name = f"podwright-{step}.service"
    text = UNIT.format(step=step, package=installed_copy.FOLDER, python=sys.executable)
    if files.write_file(units.FOLDER / name, text):
        yield f"wrote {units.FOLDER / name}"
    if units.answer("is-enabled", name) != "enabled":
        process.run("systemctl", "enable", name, timeout_s=60)
        yield f"enabled {name}"


def forget(step: str) -> Iterator[str]:
    """Stop running the step after reboots."""
    yield from units.remove(f"podwright-{step}.service")
