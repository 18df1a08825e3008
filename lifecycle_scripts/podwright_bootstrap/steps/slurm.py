"""Slurm's daemon for the node's role.

It starts in the last step of a boot, so a node that runs jobs has everything else.

https://slurm.schedmd.com/configless_slurm.html
"""

from __future__ import annotations

import sys
import time
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.contract import COMPUTE, CONTROLLER, LOGIN
from podwright_bootstrap.host import files, log, network, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import gres, nodes, primary, sackd, slurm_conf, slurmctld
from podwright_bootstrap.software import after_reboot, installed_copy
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import controller_failure

CONTROLLER_PORT = 6817  # slurm.conf(5), SlurmctldPort
# slurmd drains a node whose spool is full: in memory of its own, no user's files fill it. Steps that run have sockets
# in the old one.
SPOOL = "/var/spool/slurmd"
OWN_SPOOL = (
    f"-/bin/sh -c 'cd {SPOOL} && ! mountpoint -q . && ! ls *_[0-9]* >/dev/null 2>&1 && "
    f"exec mount -t tmpfs -o size=256m,mode=755 tmpfs {SPOOL} || true'"
)
# Images ship them without a restart.
DAEMONS = {
    CONTROLLER: ("munge", "slurmctld", "slurmdbd"),
    COMPUTE: ("munge", "slurmd"),
    LOGIN: ("munge", "slurmd", "sackd"),
}
SLURMD_ENVIRONMENT = contract.STATE_DIRECTORY / "slurmd.env"

# HyperPod names a node in slurm.conf minutes after its scripts have run: the checks that need Slurm run then.
CONTINUATION = "podwright-slurm-node"
CONTINUATION_SERVICE = f"""[Unit]
Description=Check this node in Slurm once slurm.conf names it
[Service]
Type=oneshot
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStart={sys.executable} -m podwright_bootstrap --only slurm
"""
CONTINUATION_TIMER = """[Unit]
Description=Look each minute whether slurm.conf names this node
[Timer]
OnBootSec=60
OnUnitInactiveSec=60
RandomizedDelaySec=30
[Install]
WantedBy=timers.target
"""

# How long another host's part may take: a controller boots like we do.
CONTROLLER_LIMIT_S = 900
FORGOTTEN_WITHIN_S = 180
CLOCKS_DIFFER_S = 60
BOOT_BEGAN = time.time()
DAEMON_LIMIT_S = 120


class SlurmStep(Step):
    """The daemon of the node's role runs now and after a reboot, the other one never, and the controller answers."""

    name = "slurm"
    required_because = "a node without Slurm takes no jobs"
    hint = "systemctl status slurmctld slurmd, /var/log/slurm/ and journalctl -u slurmd say more"
    time_limit_s = 1800
    attempts = 3  # a daemon that did not start may start when munge does

    def apply(self, node: Node) -> Iterator[str]:
        """Start one daemon, keep the other one off; daemons that HyperPod has started already are its own.

        All of them come back when they crash: a slurmd gives up when the controller is away for seconds.
        """
        yield from units.restart_on_failure(*DAEMONS[node.role])
        if node.parameters.slurm_by_api:
            yield from _by_api(node)
        else:
            yield from _controller(node) if node.role == CONTROLLER else _client(node)

    def verify(self, node: Node) -> None:
        """The daemon is active, the controller answers and knows this node, once slurm.conf names it."""
        daemon = _daemon(node)
        is_named = daemon != "slurmd" or _is_named(node)
        if daemon and is_named:
            process.run("systemctl", "is-active", daemon, timeout_s=30)
        waits.wait_until(
            lambda: slurmctld.answers(() if is_named else node.controllers),
            event="slurmctld to answer scontrol ping",
            limit_s=_daemon_limit_s(node),
            every_s=node.poll_s,
        )
        if daemon == "slurmd" and is_named:
            hear_from(node)
            gres.check_count(node)
            list(units.remove(f"{CONTINUATION}.timer"))  # Last: a run that fails is repeated.


def _controller(node: Node) -> Iterator[str]:
    """Never start slurmd here: configless slurmd would replace the controller's own slurm.conf."""
    yield from units.keep_off("slurmd")
    slurm_conf.wait()
    gres.check_tasks(node)
    active = slurmctld.is_active()
    if active and slurmctld.is_outdated():
        yield from slurmctld.restart()
        return
    if not active:  # a backup listens and serves nobody until it has given the primary up
        primary.let_begin(node, "slurmctld", CONTROLLER_PORT)
    yield from slurmctld.start()


def _by_api(node: Node) -> Iterator[str]:
    """Restart slurmctld for settings that only a start applies, and let jobs onto a node that is now set up."""
    if node.role == CONTROLLER:
        slurm_conf.wait()
        gres.check_tasks(node)
        if units.answer("is-active", slurmctld.UNIT) in {
            "failed",
            "inactive",
        }:  # It ended before its files were complete.
            yield from slurmctld.start()
        elif slurmctld.is_outdated():
            yield from slurmctld.restart()
    elif node.role == COMPUTE and not _is_named(node):
        yield from _continue_later()
    elif node.role == COMPUTE:
        yield from _let_jobs_in(node)


def _client(node: Node) -> Iterator[str]:
    """Compute and login nodes get their configuration from the controllers."""
    yield from units.keep_off("slurmctld")
    _await_controller(node)
    configured = list(_configure(node))
    yield from configured
    if node.role == LOGIN:
        yield from _login(node, restart=bool(configured))
    elif _is_named(node):
        yield from units.keep_on("slurmd", restart=bool(configured))
        yield from _let_jobs_in(node)
    else:
        yield from _continue_later()


def _await_controller(node: Node) -> None:
    """Return when a slurmctld listens.

    Raises:
        BootstrapError: none did in time, or each controller's boot has failed; the message says why.
    """
    waiting_since = time.monotonic()

    def failure() -> str:
        # A failure from before this boot may be repaired: that controller removes it when it boots.
        is_patient = time.monotonic() - waiting_since < FORGOTTEN_WITHIN_S * waits.PATIENCE
        return controller_failure.of_all(node, since=BOOT_BEGAN - CLOCKS_DIFFER_S if is_patient else 0)

    def listens() -> bool:
        return any(network.listens(address, CONTROLLER_PORT) for address in node.controllers)

    waits.wait_until(
        lambda: listens() or bool(failure()),
        event=f"slurmctld on {', '.join(node.controllers) or 'no controller'}, port {CONTROLLER_PORT}",
        limit_s=CONTROLLER_LIMIT_S,
        every_s=node.poll_s,
        hint="look at the controller's provisioning log; does the security group admit all traffic within itself?",
    )
    if not listens() and (why := failure()):
        raise BootstrapError(f"the controller {why}", hint="repair the controller first, then boot this node again")


def _is_named(node: Node) -> bool:
    return nodes.is_named(node.hostname, node.controllers)


def _continue_later() -> Iterator[str]:
    """Boot this step again each minute until slurm.conf names the node: HyperPod writes its line after the boot.

    https://github.com/aws-samples/sample-physical-ai-scaffolding-kit/blob/main/physai/docs/en/INFRA.md
    """
    yield from installed_copy.install()
    yield from units.run_by_timer(CONTINUATION, service=CONTINUATION_SERVICE, timer=CONTINUATION_TIMER)
    yield "slurmctld does not know this node yet: a timer starts slurmd when HyperPod has named it in slurm.conf"


def _login(node: Node, *, restart: bool) -> Iterator[str]:
    """Run slurmd if the service made the login node a node of Slurm, else only the services that commands need."""
    if not sackd.is_used():
        try:
            yield from units.keep_on("slurmd", restart=restart)
            yield from _drain(node)
        except BootstrapError as error:
            log.say(f"{error}: taking {node.hostname} for a login node that Slurm does not know")
        else:
            return
    yield from sackd.keep_on(node.controllers)


def _configure(node: Node) -> Iterator[str]:
    """Options go through the unit's own $SLURMD_OPTIONS: the last EnvironmentFile= wins, the unit stays as shipped."""
    options = f"SLURMD_OPTIONS=--conf-server {','.join(node.controllers)}\n"
    drop_in = units.FOLDER / "slurmd.service.d" / "podwright.conf"
    settings = f"[Service]\nEnvironmentFile={SLURMD_ENVIRONMENT}\nExecStartPre={OWN_SPOOL}\n"
    for path, text in ((SLURMD_ENVIRONMENT, options), (drop_in, settings)):
        if files.write_file(path, text):
            yield f"wrote {path}"


def _drain(node: Node) -> Iterator[str]:
    """HyperPod puts every node into partition dev; a login node must not get jobs."""
    hear_from(node)
    hostname = node.hostname
    if "DRAIN" not in nodes.state(hostname):
        nodes.drain(hostname, contract.LOGIN_NODE_REASON)
        yield f"drained {hostname}: login nodes take no jobs"


def _let_jobs_in(node: Node) -> Iterator[str]:
    """Let jobs onto a compute node that has what they need, now and after a reboot."""
    hear_from(node)
    gres.check_count(node)
    if nodes.release(node.hostname) or nodes.return_after_reboot(node.hostname):
        yield f"let jobs onto {node.hostname}"
    yield from after_reboot.let_jobs_in()


def hear_from(node: Node) -> None:
    """Wait until slurmctld knows the node; all nodes ask the same slurmctld."""
    event, limit_s = f"slurmctld to hear from {node.hostname}", _daemon_limit_s(node)
    waits.wait_until(
        lambda: nodes.responds(node.hostname), event=event, limit_s=limit_s, every_s=node.poll_s, hint=SlurmStep.hint
    )


def _daemon_limit_s(node: Node) -> float:
    """All nodes of a new cluster register at the same time."""
    return DAEMON_LIMIT_S + 2 * node.turn_s


def _daemon(node: Node) -> str:
    if node.role == CONTROLLER:
        return "slurmctld"
    if node.role == LOGIN and node.parameters.slurm_by_api:
        return ""  # HyperPod chooses what gives a login node its configuration
    return sackd.UNIT if node.role == LOGIN and sackd.is_used() else "slurmd"
