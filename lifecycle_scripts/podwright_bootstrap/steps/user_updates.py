"""Users, groups and Slurm's policy as the last deployment says, without a new image: a timer reads the bucket.

The last deployment writes them into the object ``users.json``, whose key never changes. The timer runs the steps that
use them, and then stores them in the node's ``provisioning_parameters.json``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.aws import s3
from podwright_bootstrap.contract import ProvisioningParameters
from podwright_bootstrap.host import units
from podwright_bootstrap.node import Node
from podwright_bootstrap.software import installed_copy
from podwright_bootstrap.steps import Step

UNIT = "podwright-users"
# What goes by the features that are followed; ldap lets go of the users' names and ids.
STEPS = ("ldap", "users", "homes", "accounting", "slurm_conf")
SERVICE = f"""[Unit]
Description=Users, groups and Slurm's policy as the last deployment says
Wants=network-online.target
After=network-online.target
[Service]
Type=oneshot
Environment=PYTHONPATH={installed_copy.FOLDER}
ExecStart={sys.executable} -m podwright_bootstrap --follow-users
"""
# Spread, so that no number of nodes asks at once.
TIMER = """[Unit]
Description=Look every ten minutes whether users were added or removed
[Timer]
OnBootSec=10min
OnUnitActiveSec=10min
RandomizedDelaySec=2min
[Install]
WantedBy=timers.target
"""


class UserUpdatesStep(Step):
    """Changes of users in cluster.yaml reach this node some minutes after a deployment."""

    name = "user_updates"
    audience = "clusters whose bucket has their users"
    hint = f"systemctl status {UNIT}.timer, and journalctl -u {UNIT}, say more"
    time_limit_s = 300
    degraded_feature = "users that are added or removed later: they need podwright update-software"

    def applies(self, node: Node) -> bool:
        """Not with a contract of an earlier version."""
        return bool(node.parameters.users_s3_uri)

    def apply(self, node: Node) -> Iterator[str]:
        """Install the timer."""
        yield from installed_copy.install()
        yield from units.run_by_timer(UNIT, service=SERVICE, timer=TIMER)

    def remove(self, node: Node) -> Iterator[str]:
        """Remove the timer."""
        yield from units.remove_timer(UNIT)

    def verify(self, node: Node) -> None:
        """Check that the timer is on."""
        units.require_active(f"{UNIT}.timer")


def fetch(text: str) -> str:
    """Return the text of provisioning_parameters.json with the users that the bucket has now.

    Raises:
        BootstrapError: the bucket does not answer, or the file names no bucket.
        ContractError: a file does not fit this version.
    """
    parameters = ProvisioningParameters.from_json(text)
    with tempfile.TemporaryDirectory() as folder:
        users = Path(folder) / contract.USERS_NAME
        s3.copy(parameters.users_s3_uri, users, region=parameters.region)
        return contract.with_users(text, users.read_text())
