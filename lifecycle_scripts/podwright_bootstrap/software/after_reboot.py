"""Steps that a reboot undoes: HyperPod runs lifecycle scripts on a new instance, and not after a reboot.

An instance that was stopped comes back with empty NVMe disks:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-lifetime.html

So systemd units run the steps ``scratch`` and ``enroot`` again before slurmd starts. After that another one checks the
node and lets jobs onto it, because Slurm puts a node down that rebooted without its order, as by the API's
BatchRebootClusterNodes, and HyperPod's ReturnToService=1 leaves it down.
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
RETURN = "podwright-return"
OPTION = "--after-reboot"
# systemd does not wait for it, and starts it again while the controller is away or a check fails.
RETURN_UNIT = f"""[Unit]
Description=Let jobs onto this node, if Slurm has put it down and it passes its checks
Wants=network-online.target
After=network-online.target slurmd.service

[Service]
Type=exec
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStart={sys.executable} -m podwright_bootstrap {OPTION}
Restart=on-failure
RestartSec=30

[Install]
WantedBy=multi-user.target
"""
# After a second silence Slurm 24.11 without accounting leaves a node down, too. Nodes of a cluster ask at other times.
RETURN_TIMER = """[Unit]
Description=Look every ten minutes whether Slurm has put this node down
[Timer]
OnBootSec=10min
OnUnitInactiveSec=10min
RandomizedDelaySec=5min
[Install]
WantedBy=timers.target
"""


def repeat(step: str) -> Iterator[str]:
    """Run a step after every reboot, before the node takes jobs; this boot runs it by itself."""
    text = UNIT.format(step=step, package=installed_copy.FOLDER, python=sys.executable)
    yield from _enable(f"podwright-{step}.service", text)


def let_jobs_in() -> Iterator[str]:
    """Let jobs onto this node after reboots and silences for which Slurm puts it down; this boot does it by itself."""
    yield from _enable(f"{RETURN}.service", RETURN_UNIT)
    yield from units.run_by_timer(RETURN, service=RETURN_UNIT, timer=RETURN_TIMER)


def _enable(name: str, text: str) -> Iterator[str]:
    yield from installed_copy.install()
    if files.write_file(units.FOLDER / name, text):
        yield f"wrote {units.FOLDER / name}"
    if units.answer("is-enabled", name) != "enabled":
        process.run("systemctl", "enable", name, timeout_s=60)
        yield f"enabled {name}"


def forget(step: str) -> Iterator[str]:
    """Stop running the step after reboots."""
    yield from units.remove(f"podwright-{step}.service")
