"""Terraform's lock of the AWS provider, beside each stack's JSON.

Without it the first ``terraform init`` takes the newest provider that the bindings allow, which no test has run.
https://developer.hashicorp.com/terraform/language/files/dependency-lock
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from podwright_common.atomic_file import write_file

NAME = ".terraform.lock.hcl"


def write_provider_lock(output: Path) -> None:
    """Lock the provider in the folder of every stack that has no lock yet.

    A lock that is there stays: ``terraform init -upgrade`` in the folder wrote it, or an earlier version's first init.

    Args:
        output: The kit's output folder, with a folder ``stacks``.
    """
    text = files(__package__).joinpath("provider.lock.hcl").read_text(encoding="utf-8")
    for stack in (output / "stacks").glob("*/cdk.tf.json"):
        lock = stack.with_name(NAME)
        if not lock.exists():
            write_file(lock, text)
