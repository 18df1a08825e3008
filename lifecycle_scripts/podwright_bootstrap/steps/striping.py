"""Spread large files over the disks of the shared file system.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html#striping-data
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator, List, Tuple

from podwright_bootstrap import contract
from podwright_bootstrap.host import identity, process
from podwright_bootstrap.host.errors import CommandError
from podwright_bootstrap.node import Node
from podwright_bootstrap.steps import Step
from podwright_bootstrap.storage import own_folder

MIB, GIB = 1 << 20, 1 << 30
# (end of the part of a file in bytes, over how many targets it is spread; fewer where there are fewer): what FSx gives
# to file systems made since 25 August 2023; older ones have 1 or 5 targets for any file. Checkpoints are large files.
PROGRESSIVE: List[Tuple[str, int]] = [(str(100 * MIB), 1), (str(10 * GIB), 8), (str(100 * GIB), 16), ("EOF", 32)]
DIRECTORIES = (contract.RUNS_DIRECTORY, contract.DATA_DIRECTORY)


class StripingStep(Step):
    """New files of runs and data are spread over the more disks of the file system the larger they are."""

    name = "striping"
    audience = "clusters with a shared file system and nodes.lustre_client"
    hint = "lfs getstripe -d DIRECTORY shows the layout; is lfs, Lustre's own tool, on the image?"
    time_limit_s = 300
    degraded_feature = "striping: large files are spread as the file system does by itself"
    attempts = 3

    def applies(self, node: Node) -> bool:
        """Run with nodes.lustre_client."""
        client = node.parameters.nodes.lustre_client
        return node.has_shared and client is not None and client.striping == "progressive"

    def apply(self, node: Node) -> Iterator[str]:
        """Set the layout where it differs; existing files keep theirs."""
        for directory in map(node.shared, DIRECTORIES):
            if not directory.is_dir():
                user = identity.find_user(contract.JOB_USER)
                directory.mkdir(exist_ok=True)  # another host may be first
                descriptor = own_folder.open_folder(directory)
                try:
                    os.fchown(descriptor, user.pw_uid, user.pw_gid)
                finally:
                    os.close(descriptor)
                yield f"made {directory}"
            if _layout(directory) != PROGRESSIVE:
                process.run("lfs", "setstripe", *_options(), directory, timeout_s=60)
                yield f"striped new files of {directory}"

    def verify(self, node: Node) -> None:
        """Check the layout that the file system reports."""
        for directory in map(node.shared, DIRECTORIES):
            if _layout(directory) != PROGRESSIVE:
                raise CommandError(f"new files of {directory} are striped as {_layout(directory)}, not {PROGRESSIVE}")


def _options() -> List[str]:
    return [word for end, count in PROGRESSIVE for word in ("-E", "-1" if end == "EOF" else end, "-c", str(count))]


def _layout(directory: Path) -> List[Tuple[str, int]]:
    """The layout of new files, whether it is the directory's own or comes from above; no component for a plain one."""
    shown = process.run("lfs", "getstripe", "-d", directory, timeout_s=60, quiet=True).output
    components = re.findall(r"lcme_extent\.e_end: *(\S+).*?stripe_count: *(-?\d+)", shown, flags=re.DOTALL)
    return [(end, int(count)) for end, count in components]
