"""The AWS provider as one process for many Terraforms.

Each Terraform else hashes the provider's 700 MB and starts it up to three times: half of a command's CPU time.
https://developer.hashicorp.com/terraform/plugin/debugging#running-terraform-with-a-provider-in-debug-mode
"""

from __future__ import annotations

import ctypes
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TF_REATTACH_PROVIDERS"
PR_SET_PDEATHSIG = 1  # prctl(2)
# Reconfiguring ends with an error if it is set; the account is at an http URL.
NOT_FOR_PROVIDER = "AWS_CA_BUNDLE"
QUIET = {"TF_LOG": "OFF"}  # else it logs every attribute that it reads

_PRINTED = re.compile(f"{VARIABLE}='(.*)'")


@contextmanager
def running_provider(stack: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run the provider until the end of the block; yield the variable by which Terraform finds it.

    It is configured by each Terraform anew, so those that share it run one after another. It outlives them: one that
    a test kills needs a provider of its own.

    Args:
        stack: its folder, after ``terraform init``. Other stacks can share the provider if they upload no file:
            paths of files are relative to this folder.
        environment: of all Terraforms, with the account's address.
    """
    (program,) = (stack / ".terraform" / "providers").glob("*/hashicorp/aws/*/*/terraform-provider-aws*")
    own = {name: value for name, value in environment.items() if name != NOT_FOR_PROVIDER}
    with subprocess.Popen(
        [program.resolve(), "-debug"],
        cwd=stack,
        env={**own, **QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 -- prctl takes no lock
    ) as process:
        try:
            printed = (_PRINTED.search(line) for line in process.stdout or ())
            yield {VARIABLE: next(found[1] for found in printed if found)}
        finally:
            process.send_signal(signal.SIGINT)  # it removes its socket


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
