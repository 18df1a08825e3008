"""Accounting of jobs: slurmdbd and its database.

Each controller has its own slurmdbd, and all use one database: a slurmdbd configured as a backup would not notice a
primary that lost power. If the password of an existing database may change, a timer reads its secret again.

https://slurm.schedmd.com/accounting.html
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, Iterator

from podwright_bootstrap.contract import CONTROLLER
from podwright_bootstrap.host import files, network, process, units, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.slurm import database, policy, primary, sacctmgr, slurm_conf
from podwright_bootstrap.slurm.database import Database
from podwright_bootstrap.slurm.slurm_conf import ACCOUNTING_CONF, Controller
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

PORT = 6819  # slurmdbd.conf(5), DbdPort
SLURMDBD_CONF = slurm_conf.FOLDER / "slurmdbd.conf"
SLURMDBD_LOG = Path("/var/log/slurm/slurmdbd.log")
MAX_DAEMONS = 2  # slurm.conf(5): AccountingStorageHost and AccountingStorageBackupHost
ANSWER_LIMIT_S = 120
MOST_RESTARTS = 3  # After so many restarts by systemd a boot gives slurmdbd up and shows its log.

# Where a secret may be changed, as RDS does every week: this step again.
ROTATION = "podwright-accounting"
ROTATION_SERVICE = f"""[Unit]
Description=slurmdbd with the password that its database has now
[Service]
Type=oneshot
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStart={sys.executable} -m podwright_bootstrap --only accounting
"""
ROTATION_TIMER = """[Unit]
Description=Look every ten minutes whether the database's password was changed
[Timer]
OnBootSec=10min
OnUnitActiveSec=10min
[Install]
WantedBy=timers.target
"""


class AccountingStep(Step):
    """slurmdbd keeps every job in its database, which knows the cluster and its users."""

    name = "accounting"
    audience = "controllers of clusters with accounting"
    hint = f"systemctl status slurmdbd mariadb, and {SLURMDBD_LOG}, say more"
    time_limit_s = 1200

    def applies(self, node: Node) -> bool:
        """On controllers: all others ask theirs."""
        parameters = node.parameters
        return node.role == CONTROLLER and (parameters.accounting is not None or parameters.slurm_by_api)

    def apply(self, node: Node) -> Iterator[str]:
        """Set up database, slurmdbd and slurm.conf; then, on the primary, the cluster and its accounts."""
        slurm_conf.wait()
        if node.parameters.slurm_by_api:  # HyperPod has set slurmdbd up
            waits.wait_until(sacctmgr.answers, event="slurmdbd to answer sacctmgr", limit_s=ANSWER_LIMIT_S)
            yield from _accounts(node)
            return
        daemons = slurm_conf.controllers()[:MAX_DAEMONS]
        if _runs_slurmdbd(node, daemons):
            yield from _slurmdbd(node)
        if slurm_conf.write(ACCOUNTING_CONF, accounting_conf(daemons)):
            yield f"wrote {ACCOUNTING_CONF}"
        waits.wait_until(_answers(node, daemons), event="slurmdbd to answer sacctmgr", limit_s=ANSWER_LIMIT_S)
        if node.address == daemons[0].address:
            yield from _accounts(node)

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer that follows the password."""
        yield from units.remove_timer(ROTATION)

    def verify(self, node: Node) -> None:
        """Check that slurmdbd runs and answers."""
        daemons = slurm_conf.controllers()[:MAX_DAEMONS]
        if _runs_slurmdbd(node, daemons) and not node.parameters.slurm_by_api:
            process.run("systemctl", "is-active", "slurmdbd", timeout_s=30)
        if not sacctmgr.answers():
            raise BootstrapError("slurmdbd does not answer sacctmgr")


def _accounts(node: Node) -> Iterator[str]:
    """Register the cluster, its users and the declared policy in the database."""
    cluster = slurm_conf.cluster_name()
    yield from sacctmgr.register(cluster)
    yield from policy.apply(node.parameters.nodes, cluster)


def accounting_conf(daemons: list[Controller]) -> str:
    """Return the file that slurm.conf includes; with addresses, which need no DNS."""
    lines = [
        "# Written by podwright: what it says is lost at the next boot.",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=30",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={daemons[0].address}",
        *(f"AccountingStorageBackupHost={backup.address}" for backup in daemons[1:]),
        f"AccountingStoragePort={PORT}",
    ]
    if "gpu" in slurm_conf.value("GresTypes", "").split(","):
        lines.append("AccountingStorageTRES=gres/gpu")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(node: Node, storage: Database) -> str:
    """One daemon of its own on each controller, as in AWS's scripts, and none of them a DbdBackupHost.

    Such a backup waits on its connection to the primary, which says nothing when the primary loses its power: then
    slurmctld would take over without accounts, and end.
    """
    lines = [
        "# Written by podwright: what it says is lost at the next boot.",
        "AuthType=auth/munge",
        f"SlurmUser={database.USER}",
        f"DbdHost={node.hostname}",
        f"DbdAddr={node.address}",
        f"DbdPort={PORT}",
        f"LogFile={SLURMDBD_LOG}",
        "PidFile=/run/slurmdbd.pid",
    ]
    return "\n".join(lines) + "\n" + storage.slurmdbd_conf()


def _slurmdbd(node: Node) -> Iterator[str]:
    settings = node.parameters.accounting
    if settings and settings.endpoint:
        storage = database.by_name(
            settings, cluster_name=slurm_conf.cluster_name(), address=node.address, slurmdbd_conf=SLURMDBD_CONF
        )
        if not settings.makes_user:  # that one's password stays
            yield from _follow_rotation()
    else:
        storage = Database()
        yield from database.on_this_host()
    text = slurmdbd_conf(node, storage)
    changed = files.write_file(SLURMDBD_CONF, text, mode=0o600, owner=database.USER)  # it holds a password
    if changed:
        yield f"wrote {SLURMDBD_CONF}"
    if units.answer("is-active", "slurmdbd") != "active":
        if network.listens("127.0.0.1", PORT):
            hint = f"`ss -lp 'sport = :{PORT}'` shows that program"
            raise BootstrapError(f"port {PORT} is in use by another program than slurmdbd", hint=hint)
        primary.let_begin(node, "slurmdbd", PORT)  # two daemons that make the same tables at once might both end
    yield from units.keep_on("slurmdbd", restart=changed)


def _follow_rotation() -> Iterator[str]:
    """Do this again every ten minutes: where the password was changed, slurmdbd gets the new one."""
    yield from installed_copy.install()
    yield from units.run_by_timer(ROTATION, service=ROTATION_SERVICE, timer=ROTATION_TIMER)


def _runs_slurmdbd(node: Node, daemons: list[Controller]) -> bool:
    return node.address in {daemon.address for daemon in daemons} or node.hostname in {d.hostname for d in daemons}


def _answers(node: Node, daemons: list[Controller]) -> Callable[[], bool]:
    """Return whether sacctmgr gets an answer; raises with slurmdbd's own message once it has ended."""

    def answered() -> bool:
        if _runs_slurmdbd(node, daemons) and _keeps_failing():
            log_text = SLURMDBD_LOG.read_text(errors="replace") if SLURMDBD_LOG.exists() else ""
            raise BootstrapError(f"slurmdbd has ended: {process.Outcome(1, log_text).summary}")
        return sacctmgr.answers()

    return answered


def _keeps_failing() -> bool:
    return units.answer("is-active", "slurmdbd") == "failed" or units.restarts("slurmdbd") >= MOST_RESTARTS
