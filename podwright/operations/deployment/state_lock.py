"""Explain Terraform's error about a locked state: who holds the lock, since when, and how to give it back."""

from __future__ import annotations

import re
from pathlib import Path

from podwright.errors import PodwrightError
from podwright.settings import names

REFUSAL = "Error acquiring the state lock"
FRAMES = str.maketrans("│╷╵", "   ")  # Terraform draws frames around errors.
_FIELD = re.compile(r"\b(ID|Path|Operation|Who|Created):[ \t]+(\S[^\n]*?)[ \t]*$", re.MULTILINE)
_HELD = re.compile(r"already locked: ID=([\w-]+)")
_FRACTION = re.compile(r"\.\d+ \+0000")


class StateLockedError(PodwrightError):
    """Another Terraform has the lock of a stack's state; the message says whose, the hint what to do."""


def explain(printed: str, *, stacks: Path, terraform: str) -> StateLockedError | None:
    """Return the error for a locked state from Terraform's output; None if the output has another error.

    Args:
        printed: The output of Terraform, or of the CDK command that ran it.
        stacks: The folder with the stacks' folders.
        terraform: The path of Terraform.
    """
    plain = printed.translate(FRAMES)
    if REFUSAL not in plain:
        return None
    lock = dict(_FIELD.findall(plain))
    if "ID" not in lock:  # the bucket refused the lock itself
        return None
    lock_id = _HELD.search(plain)
    if lock_id and lock_id[1] != lock["ID"]:  # Terraform's http backend prints its own lock, which it did not get.
        lock = {"ID": lock_id[1]}
    stack = _stack(lock.get("Path", ""), stacks)
    operation = lock.get("Operation", "").removeprefix("OperationType").lower() or "a command"
    since = _FRACTION.sub("", lock.get("Created", "an unknown time"))
    owner = f"{lock['Who']} since {since}, for {operation}" if "Who" in lock else f"another Terraform, as {lock['ID']}"
    return StateLockedError(
        f"the state of {stack or 'a stack'} is locked by {owner}",
        "wait for its end. Only if that Terraform crashed and runs nowhere any more, give its lock back: "
        f"`{terraform} -chdir={stacks / (stack or 'STACK')} force-unlock {lock['ID']}`",
    )


def _stack(path: str, stacks: Path) -> str:
    """Return the name of the stack whose state a backend calls so; empty if the path does not say."""
    stack = names.stack_of_state(path)
    present = {folder.name for folder in stacks.iterdir()} if stacks.is_dir() else set()
    return (
        stack
        if stack in present
        else next((name for name in sorted(present) if name in path), "" if present else stack)
    )
