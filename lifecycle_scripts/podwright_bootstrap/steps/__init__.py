"""The steps of a boot, one noun each. A step can be repeated: it changes only what is not yet as it should be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Iterator

from podwright_bootstrap.node import Node


class Step(ABC):
    """A condition that must hold on a node; the first line of a step's docstring states it."""

    name: str
    whose = "every node"  # the nodes it is for, in words: shown where it is skipped
    hint: str  # what to do when it fails
    time_limit_s: float
    attempts = 1  # of the whole step, where trying again may help
    needed = ""  # why no boot does without; a step that says nothing here may be in nodes.skip
    without = ""  # what a node that works goes without if the step fails: a warning then, else the boot fails

    def applies(self, node: Node) -> bool:
        """Return whether the step is for this node."""
        return True

    @abstractmethod
    def apply(self, node: Node) -> Iterator[str]:
        """Make the condition hold; yields a phrase for each change, after it was made."""

    def remove(self, node: Node) -> Iterator[str]:
        """Remove leftovers of earlier boots from a node that the step does not apply to; yields a phrase for each."""
        yield from ()

    @abstractmethod
    def verify(self, node: Node) -> None:
        """Check that the condition holds; raises ``BootstrapError`` that names the problem."""
