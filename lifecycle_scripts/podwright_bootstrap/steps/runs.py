"""The folder of the training runs."""

from __future__ import annotations

import os
import stat
from typing import Iterator

from podwright_bootstrap import contract
from podwright_bootstrap.host import identity
from podwright_bootstrap.host.errors import BootstrapError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import own_folder

OF_EVERYBODY = 0o1777  # Like in /tmp, users remove only their own files.


class RunsStep(Step):
    """The job user has a folder for runs on the shared file system; other people may use it too, where there are."""

    name = "runs"
    audience = "clusters with a shared file system"
    hint = "is the shared file system writable, and has it space left (lfs df -h)?"
    time_limit_s = 300

    def applies(self, node: Node) -> bool:
        """Run in clusters with a shared file system."""
        return node.has_shared

    def apply(self, node: Node) -> Iterator[str]:
        """Make the folder; any host may be first."""
        folder, user = node.shared(contract.RUNS_DIRECTORY), identity.find_user(contract.JOB_USER)
        people = node.parameters.nodes.users or node.parameters.nodes.ldap
        if not os.path.lexists(folder):
            folder.mkdir(exist_ok=True)
            yield f"made {folder}"
        descriptor = own_folder.open_folder(folder)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != user.pw_uid:
                os.fchown(descriptor, user.pw_uid, user.pw_gid)
                yield f"gave {folder} to {contract.JOB_USER}"
            if people and stat.S_IMODE(status.st_mode) != OF_EVERYBODY:
                os.fchmod(descriptor, OF_EVERYBODY)
                yield f"opened {folder} to all users"
        finally:
            os.close(descriptor)

    def verify(self, node: Node) -> None:
        """Check that the folder belongs to the job user."""
        folder = node.shared(contract.RUNS_DIRECTORY)
        if folder.owner() != contract.JOB_USER:
            raise BootstrapError(f"{folder} belongs to {folder.owner()}, not to {contract.JOB_USER}")
