"""The node's own disk: instance store where the type has some, else the volume HyperPod adds. Never the root volume."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from podwright_bootstrap.host import units, waits
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.storage import mounts

INSTANCE_STORE = Path("/opt/dlami/nvme")
ADDITIONAL_VOLUME = Path("/opt/sagemaker")
LIMIT_S = 300


def instance_store() -> Optional[Path]:
    """Return the folder of the instance's own disks on AWS's deep learning images; None without it.

    https://docs.aws.amazon.com/dlami/latest/devguide/dlami-release-notes.html: dlami-nvme.service makes one file system
    of the instance store, while lifecycle scripts may already run.
    """
    waits.wait_until(
        lambda: units.answer("is-active", "dlami-nvme") != "activating",
        event="dlami-nvme.service to mount the instance store",
        limit_s=LIMIT_S,
        hint="journalctl -u dlami-nvme says more",
    )
    return INSTANCE_STORE if mounts.mounted_at(INSTANCE_STORE) else None


def local_disk() -> Path:
    """Return the folder for large files that may be lost with the node; ``BootstrapError`` if it is the root volume."""
    store = instance_store()
    if store:
        return store
    if mounts.mounted_at(ADDITIONAL_VOLUME):
        return ADDITIONAL_VOLUME
    raise BootstrapError(
        f"neither {INSTANCE_STORE} nor {ADDITIONAL_VOLUME} is mounted, and images would fill the root volume",
        hint="give the instance group a volume: volume_gib in cluster.yaml",
    )
